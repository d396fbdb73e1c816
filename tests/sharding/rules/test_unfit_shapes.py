"""Nothing is cut of which the shapes say too little, or do not fit together: what would be offered else would
be no part of an answer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharding.rules.base import RULES
from sharding.slices.placement import Split
from tests.sharding.rules.views import MICROSOFT, UNKNOWN, Shape, cut_axes, options

UNASKED = {"FusedMatMul", "FusedMatMulActivation", "MatMul", "MatMulBnb4", "MatMulNBits"}
"""They have their operands' shapes, or their attributes, wherever their rule is asked."""


@pytest.mark.parametrize("version", [1, 6, 9, 18, 23])
def test_of_unknown_shapes_nothing_iscut_axes(version: int) -> None:
    for domain, op_type in RULES:
        if op_type not in UNASKED:
            for inputs in options(op_type, *[UNKNOWN] * 16, domain=domain, version=version):
                assert not any(isinstance(item, Split) for item in inputs), (domain, op_type)


@pytest.mark.parametrize(
    ("mask", "heads", "rows", "queries"),
    [
        ([2, 4, 6, 8], True, True, True),
        ([2, 1, 6, 8], True, True, True),
        ([1, 4, 6, 8], True, True, True),
        ([2, 4, 1, 8], True, True, True),
        ([4, 6, 8], True, True, True),
        ([6, 8], True, True, True),
        ([2, 3, 6, 8], False, True, True),
        ([3, 6, 8], False, True, True),
        ([4, 4, 6, 8], True, False, True),
        ([2, 4, 5, 8], True, True, False),
        (UNKNOWN, False, False, False),
        (None, True, True, True),
    ],
)
def test_a_mask_that_does_not_fit(mask: Shape, heads: bool, rows: bool, queries: bool) -> None:
    shapes = [2, 4, 6, 16], [2, 4, 8, 16], [2, 4, 8, 16]
    assert cut_axes("Attention", *shapes, mask, None, None, None) == {
        axis for axis, offered in ((1, heads), (0, rows), (2, queries)) if offered
    }


def test_a_mask_is_cut_along_its_own_axis() -> None:
    shapes = [2, 4, 6, 16], [2, 4, 8, 16], [2, 4, 8, 16]
    for mask, wanted in (
        ([2, 4, 6, 8], {(0, 0), (1, 1), (2, 2)}),
        ([4, 6, 8], {(0, None), (1, 0), (2, 1)}),
        ([6, 8], {(0, None), (1, None), (2, 0)}),
        ([1, 1, 1, 8], {(0, None), (1, None), (2, None)}),
    ):
        found = options("Attention", *shapes, mask, None, None, None)
        assert {tuple(getattr(item, "axis", None) for item in (one[0], one[3])) for one in found} == wanted


def test_attention_of_operands_with_other_axes() -> None:
    one, three = [2, 6, 64], [2, 8, 64]
    heads = {"q_num_heads": 4, "kv_num_heads": 4}
    assert cut_axes("Attention", one, three, three, None, None, None, None, **heads) == {0, 1, 2}
    for query, key in ((one, [2, 4, 8, 16]), ([6, 64], [8, 64]), (one, UNKNOWN), (UNKNOWN, three)):
        assert not options("Attention", query, key, key, None, None, None, None, **heads)


def test_attention_of_whole_rows_only() -> None:
    """A mask that is one number per row is cut with them, one of ends and starts in two blocks."""
    for mask, wanted in (
        (None, True), ([4], True), ([8], True), ([4, 6], True), ([3], False), ([8, 6], False),
        (UNKNOWN, False),
    ):  # fmt: skip
        for op_type, shapes in (
            ("Attention", ([4, 6, 5], [5, 30], [30], mask, None, None)),
            ("MultiHeadAttention", ([4, 6, 10], [4, 6, 10], [4, 6, 10], None, mask)),
        ):
            place = 3 if op_type == "Attention" else 4
            found = options(op_type, *shapes, domain=MICROSOFT, num_heads=5, unidirectional=1)
            rows = [one for one in found if one[0] == Split(0)]
            assert bool(rows) is wanted, (op_type, mask)
            for one in rows if mask else []:
                assert one[place] == Split(0, 2 if mask == [8] else 1)


def test_fused_attention_of_other_shapes() -> None:
    for shape, weights, wanted in (
        ([4, 6, 8], [8, 24], True), ([6, 8], [8, 24], False), ([4, 6, 8], [24], False),
        (UNKNOWN, [8, 24], False), ([4, 6, 8], UNKNOWN, False),
    ):  # fmt: skip
        found = options("Attention", shape, weights, [24], None, None, None, domain=MICROSOFT, num_heads=4)
        assert bool(found) is wanted
    sizes = {"num_heads": 4, "qkv_hidden_sizes": [8, 8, 16]}
    found = options("Attention", [3, 6, 8], [8, 32], [32], None, None, None, domain=MICROSOFT, **sizes)
    assert not found


def test_scales_of_quantized_attention() -> None:
    def cut(scale: Shape, point: Shape) -> set[Any]:
        shapes = [[3, 6, 8], [8, 24], [24], [1], scale, None, [1], point, None]
        found = options("QAttention", *shapes, domain=MICROSOFT, num_heads=4)
        return {(one[4], one[7]) for one in found}

    columns = Split(0, 3)
    assert cut([24], [24]) == {(columns, columns)}
    assert {one[1] for one in cut([24], [1])} != {columns}
    assert cut([2, 24], [24]) == cut([24], [2, 24]) == cut(UNKNOWN, [24]) == set()
    assert len(cut([], [])) == len(cut([1], None)) == 1


@pytest.mark.parametrize(
    ("shapes", "cut"),
    [
        ([[6, 8], [6, 8], [6, 8], [24]], True),
        ([[6, 8], [6, 8], [6, 16], [32]], False),
        ([[6, 8], [6, 8], [6, 16], None], True),
        ([[6, 4, 3, 2], None, None, None], True),
        ([[6, 8], [6, 8], [6, 8], [24], None, None, [1, 4, 6, 6]], True),
        ([[6, 8], [6, 8], [6, 8], [24], None, None, [1, 3, 6, 6]], False),
    ],
)
def test_packed_attention(shapes: list[Shape], cut: bool) -> None:
    more = [None] * (7 - len(shapes))
    assert bool(options("PackedMultiHeadAttention", *shapes, *more, domain=MICROSOFT, num_heads=4)) is cut
    assert not options("PackedMultiHeadAttention", *shapes, *more, domain=MICROSOFT, num_heads=3)


def test_rotary_embedding_of_other_shapes() -> None:
    x, positions, cache = [2, 6, 64], [2, 6], [9, 8]
    assert cut_axes("RotaryEmbedding", x, positions, cache, cache, domain=MICROSOFT, num_heads=4) == {0, 1, 2}
    for changed in ((UNKNOWN, positions, cache), ([6, 64], positions, cache), (x, positions, UNKNOWN)):
        assert not options("RotaryEmbedding", *changed, cache, domain=MICROSOFT, num_heads=4)
    packed = {"num_heads": 4, "is_packed_batching": 1}
    assert not options("RotaryEmbedding", x, positions, cache, cache, domain=MICROSOFT, **packed)
    op_type, three = "MRotaryEmbedding", [3, 2, 6]
    assert cut_axes(op_type, x, three, cache, cache, domain=MICROSOFT, num_heads=4) == {0, 1, 2}
    for positions_ in ([2, 6], UNKNOWN):
        assert not options(op_type, x, positions_, cache, cache, domain=MICROSOFT, num_heads=4)
    assert not options(op_type, x, three, UNKNOWN, cache, domain=MICROSOFT, num_heads=4)
    assert not options(op_type, x, three, cache, cache, domain=MICROSOFT, **packed)


@pytest.mark.parametrize(
    ("op_type", "shapes", "axis", "cut"),
    [
        ("Gather", [[4, 6], [2]], 0, {0, 1}),
        ("Gather", [[4, 6], [2]], 2, set()),
        ("Gather", [[4, 6], [2]], -3, set()),
        ("GatherElements", [[4, 6], [4, 6]], 1, {0}),
        ("GatherElements", [[4, 6], [3, 6]], 1, set()),
        ("GatherElements", [[4, 6], [4]], 1, set()),
        ("GatherElements", [[4, 6], UNKNOWN], 1, set()),
        ("ScatterElements", [[4, 6], [4, 6], [4, 6]], 1, {0}),
        ("ScatterElements", [[4, 6], [2, 6], [2, 6]], 1, set()),
        ("ScatterElements", [[4, 6], [4], [4]], 1, set()),
        ("TensorScatter", [[4, 6, 8, 2], [4, 6, 2, 2], [4]], -2, {0, 1, 3}),
        ("TensorScatter", [[4, 6, 8, 2], [4, 6, 2, 2], [4]], 4, set()),
        ("TensorScatter", [[4, 6, 8, 2], [4, 6, 2, 2], [4]], -5, set()),
    ],
)
def test_an_axis_that_is_indexed(op_type: str, shapes: list[Shape], axis: int, cut: set[int]) -> None:
    assert cut_axes(op_type, *shapes, axis=axis) == cut


def test_index_vectors() -> None:
    assert cut_axes("ScatterND", [4, 6, 8], [3, 1], [3, 6, 8]) == {1, 2}
    assert cut_axes("ScatterND", [4, 6, 8], [3, 2], [3, 8]) == {2}
    assert not options("ScatterND", [4, 6, 8], UNKNOWN, [3, 8])
    assert not options("ScatterND", [4, 6, 8], [], [3, 8])
    assert cut_axes("GatherND", [4, 6], [2, 4, 1], of=1) == {0, 1}
    assert cut_axes("GatherND", [4, 6, 3], [4, 2, 1], of=1, batch_dims=1) == {0, 1}
    assert not options("GatherND", [4, 6], [])
    assert not options("GatherND", [4, 6], UNKNOWN)


def test_tables_of_few_bits() -> None:
    def cut(*shapes: Shape, **more: Any) -> set[int]:
        return cut_axes("GatherBlockQuantized", *shapes, domain=MICROSOFT, kinds={0: "uint8"}, **more)

    table, indices, scales = [8, 32], [4], [8, 4]
    assert cut(table, indices, scales, None, block_size=16) >= {1}
    for changed in ((UNKNOWN, indices, scales), (table, UNKNOWN, scales), (table, indices, [32])):
        assert not cut(*changed, None, block_size=16)
    assert not cut(table, indices, scales, UNKNOWN, block_size=16)
    assert not cut(table, indices, scales, None, block_size=16, quantize_axis=2)
    assert not cut(table, indices, scales, None, block_size=16, gather_axis=-3)


def test_images_of_other_axes() -> None:
    sizes = {"version": 18, "constants": {2: np.float32([1, 1, 2, 2])}}
    image = [2, 4, 6, 8]
    assert cut_axes("Resize", image, None, [4], None, **sizes) == {0, 1}
    assert not cut_axes("Resize", [4, 6], None, [2], None, version=18, constants={2: np.float32([1, 1])})
    assert not options("Resize", image, None, [4], None, **sizes, axes=[0, 4])
    for op_type, good, bad in (
        ("GridSample", (image, [2, 5, 5, 2]), ([2, 4], [2, 5])),
        ("AffineGrid", ([2, 2, 3], [4]), ([2, 2, 3], UNKNOWN)),
        ("RoiAlign", (image, [6, 4], [6]), ([2, 4, 6], [6, 4], [6])),
        ("Col2Im", ([2, 16, 9], [2], [2]), ([2, 16, 9, 1], [2], [2])),
        ("DepthToSpace", (image,), ([4, 6, 8],)),
        ("DeformConv", (image, [4, 4, 3, 3], [2, 18, 4, 6]), (image, UNKNOWN, [2, 18, 4, 6])),
    ):
        attributes = {"blocksize": 2} if op_type == "DepthToSpace" else {}
        constants = {1: np.array([2, 4, 5, 5])} if op_type == "AffineGrid" else {}
        output = image if op_type == "Col2Im" else None
        assert any(isinstance(one[0], Split) for one in options(
            op_type, *good, constants=constants, output=output, **attributes
        )), op_type  # fmt: skip
        assert not any(isinstance(item, Split) for one in options(
            op_type, *bad, constants=constants, output=output, **attributes
        ) for item in one), op_type  # fmt: skip
    assert not options("DepthToSpace", image, blocksize=0)


@pytest.mark.parametrize(
    ("bias", "axes"),
    [
        ([6], {0, 1}), ([1], {0, 1}), ([4, 6], {0, 1}), ([4, 1], {0, 1}), ([1, 6], {0, 1}), ([], {0, 1}),
        ([5], {0}), ([3, 6], {1}), ([3, 5], set()), (None, {0, 1}), (UNKNOWN, None),
    ],
)  # fmt: skip
def test_what_is_added_to_a_product(bias: Shape, axes: set[int] | None) -> None:
    found = options("Gemm", [4, 8], [8, 6], bias)
    if axes is None:
        assert not found
        return
    rows = {0 for one in found if one[0] == Split(0)}
    columns = {1 for one in found if one[1] == Split(1)}
    assert rows | columns == axes
    for one in found:
        if isinstance(bias, list) and one[2:] and isinstance(one[2], Split):
            assert bias[one[2].axis] in {4, 6}


def test_a_quantized_gemm() -> None:
    def cut(a: Shape, bias: Shape, **more: Any) -> bool:
        shapes = [a, [], [], [8, 6], [], [], bias, None, None]
        found = options("QGemm", *shapes, domain=MICROSOFT, kinds={0: "int8", 3: "int8"}, **more)
        return any(one[3] == Split(1) for one in found)

    for bias, wanted in (
        ([6], True), ([1, 6], True), (None, True), ([4, 6], False), ([5], False), (UNKNOWN, False)
    ):  # fmt: skip
        assert cut([4, 8], bias) is wanted, bias
    assert not cut([4, 8, 1], [6])
    assert not cut(UNKNOWN, [6])


def test_norms_with_weights_of_other_axes() -> None:
    for scale, bias, wanted in (
        ([8], [8], {0, 1}), ([1, 8], None, set()), ([8], [6, 8], set()), ([8], UNKNOWN, set()),
        ([8], None, {0, 1}), ([], None, {0, 1}),
    ):  # fmt: skip
        assert cut_axes("LayerNormalization", [4, 6, 8], scale, bias) == wanted
    assert cut_axes("LayerNormalization", [4, 6, 8], [6, 8], None, axis=1) == {0}
    assert cut_axes("LayerNormalization", [4, 6, 8], [4, 6, 8], None, axis=1) == set()
    assert not options("LayerNormalization", [4, 6, 8], [8], None, axis=3)
    for groups, wanted in ((2, {0, 1}), (4, {0, 1}), (1, {0}), (3, {0}), (0, set()), (-2, set())):
        assert cut_axes("GroupNormalization", [2, 12, 4], [12], [12], num_groups=groups) == wanted
    assert not options("GroupNormalization", [12], [12], [12], num_groups=2)


@pytest.mark.parametrize(
    ("axis", "cut"),
    [(0, {0}), (1, {0, 1}), (2, {0, 2}), (3, {0}), (-1, {0, 2}), (-3, {0}), (4, set()), (-4, set())],
)
def test_flattened(axis: int, cut: set[int]) -> None:
    assert cut_axes("Flatten", [4, 6, 8], axis=axis) >= cut
    assert bool(cut_axes("Flatten", [4, 6, 8], axis=axis)) is bool(cut)


def test_padded_by_numbers_that_do_not_fit() -> None:
    def cut(pads: list[int], axes: list[int] | None = None, **more: Any) -> set[int]:
        shapes: list[Shape] = [[4, 6], [len(pads)], None, None if axes is None else [len(axes)]]
        constants = {1: pads} | ({} if axes is None else {3: axes})
        return cut_axes("Pad", *shapes, constants=constants, **more)

    assert cut([0, 1, 0, 0]) == cut([0, 0, 0, 1]) == {0}
    assert cut([0, 1, 0]) == cut([1, 0]) == set()
    assert cut([1, 0], [1]) == cut([0, 1], [-1]) == {0}
    assert cut([1, 0, 0, 0], [1]) == cut([1, 0], [2]) == set()
    assert cut([0, 0], [1]) == {0, 1}


def test_squeezed_and_sliced_axes() -> None:
    assert cut_axes("Squeeze", [4, 1, 6], None) == {0, 2}
    assert not options("Squeeze", [4, None, 6], None)  # type: ignore[list-item]
    assert cut_axes("Squeeze", [4, None, 6], [1], constants={1: [1]}) == {0, 2}  # type: ignore[list-item]
    starts = {1: [1, 0], 2: [3, 6]}
    assert cut_axes("Slice", [4, 6, 8], [2], [2], None, None, constants=starts) >= {2}
    assert not options("Slice", [4], [2], [2], None, None, constants=starts)
    assert cut_axes("Slice", [4, 6, 8], [1], [1], None, None) == {1, 2}
    assert not options("Slice", [4, 6, 8], UNKNOWN, UNKNOWN, None, None)
    assert not cut_axes("Concat", [4, 6], [4, 6], axis=2)
    assert cut_axes("Concat", [4, 6], [4, 6], axis=-1) == {0, 1}


def test_before_operators_broadcast_as_they_do_now() -> None:
    for op_type in ("Mul", "Div", "Add", "Sub", "Gemm", "Dropout"):
        shapes = [[4, 6], [4, 6], [4, 6]][: 1 if op_type == "Dropout" else 2]
        if op_type == "Gemm":
            shapes = [[4, 6], [6, 8], [8]]
        assert not options(op_type, *shapes, version=6), op_type
        assert options(op_type, *shapes, version=7), op_type


def test_sequences_have_three_axes() -> None:
    for op_type in ("LSTM", "GRU", "RNN"):
        weights: list[Shape] = [[1, 16, 8], [1, 16, 4], None, None, None]
        assert cut_axes(op_type, [5, 4, 8], *weights, hidden_size=4) == {1}
        assert cut_axes(op_type, [5, 4, 8], *weights, hidden_size=4, layout=1) == set()
        assert cut_axes(op_type, [4, 5, 8], *weights, hidden_size=4, layout=1) == {0}
        assert not options(op_type, [5, 8], *weights, hidden_size=4)
