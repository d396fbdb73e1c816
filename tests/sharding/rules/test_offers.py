"""What rules offer where a parameter says that something cannot be cut, or that it can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharding.rules.base import RULES, NodeView
from sharding.slices.placement import REPLICATED, Split


def _view(op_type: str, domain: str, shapes: list[list[int] | None], **more: object) -> NodeView:
    fields: dict[str, object] = {
        "version": 18,
        "world": 2,
        "attributes": {},
        "dtypes": [None if shape is None else np.dtype(np.float32) for shape in shapes],
        "constants": [None] * len(shapes),
        "present": [shape is not None for shape in shapes],
        "output_shapes": [shapes[0]],
        **more,
    }
    return NodeView(op_type, domain, shapes=shapes, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("axes", "cut"), [([0], True), (1, True), ([0, 1], False), ([], False)])
@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
def test_an_axis_is_one_number(op_type: str, axes: list[int] | int, cut: bool) -> None:
    axis = np.asarray(axes, np.int64)
    options = RULES["", op_type](_view(op_type, "", [[4, 4], list(axis.shape)], constants=[None, axis]))
    assert any(isinstance(option.inputs[0], Split) for option in options) is cut


@pytest.mark.parametrize(("rows", "cut"), [(4, True), (1, False), (None, True)])
def test_positions_of_each_row_go_with_their_rows(rows: int | None, cut: bool) -> None:
    """Positions that are the same for all rows are one row, which no two ranks can part."""
    positions = None if rows is None else [rows, 1]
    cache = [4, 2, 6, 16]
    shapes = [[4, 1, 64], [4, 1, 32], [4, 1, 32], cache, cache, [4], [], [9, 8], [9, 8], positions]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    made = [[4, 1, 64], [4, 2, 7, 16], [4, 2, 7, 16]]
    view = _view("GroupQueryAttention", "com.microsoft", shapes, attributes=attributes, output_shapes=made)
    options = RULES["com.microsoft", "GroupQueryAttention"](view)
    batches = [option for option in options if option.inputs[0] == Split(0)]
    assert bool(batches) is cut
    for option in batches if rows else []:
        assert option.inputs[9] == Split(0)


@pytest.mark.parametrize(("axes", "cut"), [([0], {1}), ([0, 1], set()), ([1], {0})])
def test_a_slice_has_a_start_and_an_end_for_each_axis(axes: list[int], cut: set[int]) -> None:
    """Where it has not, nothing is known of those axes; ONNX Runtime refuses such a node when it runs."""
    numbers = [np.asarray(item, np.int64) for item in ([1], [3], axes)]
    shapes = [[4, 4], *(list(item.shape) for item in numbers)]
    options = RULES["", "Slice"](_view("Slice", "", shapes, constants=[None, *numbers]))
    found = [option.inputs[0] for option in options]
    assert {item.axis for item in found if isinstance(item, Split) and item.blocks == 1} == cut


def test_what_is_repeated_no_time_is_not_cut() -> None:
    """An axis that becomes empty; the other is cut as it would be."""
    options = RULES["", "Tile"](_view("Tile", "", [[4, 4], [2]], constants=[None, np.asarray([0, 3])]))
    found = {(option.inputs[0], option.outputs[0]) for option in options}
    assert {pair for pair in found if isinstance(pair[0], Split)} == {(Split(1), Split(1, 3))}


@pytest.mark.parametrize(
    ("shapes", "cut"), [([[4, 6], [6, 8]], True), ([None, [6, 8]], False), ([[4, 6], None], False)]
)
def test_a_product_of_unknown_factors_is_not_cut(shapes: list[list[int] | None], cut: bool) -> None:
    more: list[list[int] | None] = [[8], [8], [8]]
    view = _view(
        "DynamicQuantizeMatMul", "com.microsoft", [*shapes, *more], present=[True] * 5, output_shapes=[[4, 8]]
    )
    assert bool(RULES["com.microsoft", "DynamicQuantizeMatMul"](view)) is cut


@pytest.mark.parametrize(("width", "cut"), [(128, True), (132, False), (None, False)])
def test_packed_heads_are_equally_wide(width: int | None, cut: bool) -> None:
    """Four heads of queries, two of keys and two of values."""
    shapes: list[list[int] | None] = [[3, 1, width], None, None, None, None, [3], []]  # type: ignore[list-item]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    made = [[3, 1, 64], [3, 2, 7, 16], [3, 2, 7, 16]]
    view = _view("GroupQueryAttention", "com.microsoft", shapes, attributes=attributes, output_shapes=made)
    assert bool(RULES["com.microsoft", "GroupQueryAttention"](view)) is cut


@pytest.mark.parametrize(
    ("attributes", "cut"),
    [
        ({}, {1: True, 2: False}),
        ({"time_axis": 1, "batch_axis": 0}, {0: True, 2: False}),
        ({"time_axis": 0, "batch_axis": 1}, {1: True, 2: False}),
    ],
)
def test_lengths_of_sequences_go_with_the_batch(attributes: dict[str, int], cut: dict[int, bool]) -> None:
    """Without attributes time comes first and the batch second."""
    view = _view("ReverseSequence", "", [[4, 4, 4], [4]], attributes=attributes)
    found = RULES["", "ReverseSequence"](view)
    plain = {
        item.inputs[0].axis: item.inputs[1] == Split(0)
        for item in found
        if isinstance(item.inputs[0], Split) and item.inputs[0].blocks == 1
    }
    assert plain == cut


@pytest.mark.parametrize(
    ("values", "bias", "cut"), [(64, 192, True), (32, 160, False), (32, None, True), (64, None, True)]
)
def test_a_packed_bias_is_cut_where_its_three_parts_are_equal(
    values: int, bias: int | None, cut: bool
) -> None:
    shapes = [[5, 64], [5, 64], [5, values], None if bias is None else [bias], [1, 5], [2]]
    view = _view(
        "PackedMultiHeadAttention",
        "com.microsoft",
        shapes,
        attributes={"num_heads": 4},
        output_shapes=[[5, values]],
    )
    assert bool(RULES["com.microsoft", "PackedMultiHeadAttention"](view)) is cut


def test_heads_packed_in_one_input_have_no_width_to_compare() -> None:
    """[tokens, heads, 3, size], with a bias."""
    shapes = [[5, 4, 3, 16], None, None, [192], [1, 5], [2]]
    attributes = {"num_heads": 4}
    view = _view(
        "PackedMultiHeadAttention", "com.microsoft", shapes, attributes=attributes, output_shapes=[[5, 64]]
    )
    (option,) = RULES["com.microsoft", "PackedMultiHeadAttention"](view)
    assert (option.inputs[0], option.inputs[3], option.outputs[0]) == (Split(1), Split(0, 3), Split(1))


@pytest.mark.parametrize("query", [None, [4, 64], [4, 1, 2, 64]])
@pytest.mark.parametrize("op_type", ["GroupQueryAttention", "SparseAttention"])
def test_queries_of_an_unknown_shape_are_not_cut(op_type: str, query: list[int] | None) -> None:
    cache = [4, 2, 6, 16]
    shapes = [query, [4, 1, 32], [4, 1, 32], cache, cache, [1, 9], [1, 9], [1], [4]]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    made = [[4, 1, 64], [4, 2, 7, 16], [4, 2, 7, 16]]
    view = _view(op_type, "com.microsoft", shapes, attributes=attributes, output_shapes=made)
    assert not RULES["com.microsoft", op_type](view)


@pytest.mark.parametrize(
    ("scales", "where"),
    [
        (None, "whole"),
        ([1], "whole"),
        ([1, 1, 1], "whole"),
        ([2, 1, 16], "cut"),
        ([4, 1, 16], "none"),
        ([2], "none"),
    ],
)
def test_scales_of_a_cache_go_with_its_heads(scales: list[int] | None, where: str) -> None:
    """One number for all, or [heads, 1, size]; of other forms nothing is known."""
    cache = [3, 2, 6, 16]
    shapes = [[3, 1, 64], [3, 1, 32], [3, 1, 32], cache, cache, [3], [], *[None] * 5, scales, None]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    made = [[3, 1, 64], [3, 2, 7, 16], [3, 2, 7, 16]]
    view = _view("GroupQueryAttention", "com.microsoft", shapes, attributes=attributes, output_shapes=made)
    found = RULES["com.microsoft", "GroupQueryAttention"](view)
    assert [item.inputs[12] for item in found] == {
        "whole": [REPLICATED], "cut": [Split(0)], "none": []
    }[where]  # fmt: skip


@pytest.mark.parametrize(
    ("target", "more", "pairs"),
    [
        # 0 is the length of the input there, unless the node says that it is none.
        ([0, -1], {}, {(0, 0), (1, 1)}),
        ([0, -1], {"allowzero": 1}, set()),
        # A length of one is known as any other.
        ([1, -1], {}, {(0, 1)}),
        ([1, 1, -1], {}, {(0, 2)}),
        ([-1, 6], {}, {(0, 0), (1, 1)}),
        ([-1, -1], {}, set()),
    ],
)
def test_the_shape_that_is_asked_for(target: list[int], more: dict[str, int], pairs: set[Any]) -> None:
    """Where no shape of the result is declared."""
    numbers = np.asarray(target, np.int64)
    view = _view(
        "Reshape",
        "",
        [[4, 2, 3], [len(target)]],
        constants=[None, numbers],
        attributes=more,
        output_shapes=[None],
    )
    found = {
        (item.inputs[0].axis, item.outputs[0].axis)
        for item in RULES["", "Reshape"](view)
        if isinstance(item.inputs[0], Split) and isinstance(item.outputs[0], Split)
        if item.inputs[0].blocks == item.outputs[0].blocks == 1
    }
    assert found == pairs


@pytest.mark.parametrize(
    ("bias", "where"),
    [(None, "absent"), ([8], Split(0)), ([1, 8], Split(1)), ([4, 8], None), ([1], None), ([4, 1], None)],
)
@pytest.mark.parametrize("turned", [0, 1])
def test_a_bias_of_columns_goes_with_them(bias: list[int] | None, where: object, turned: int) -> None:
    """C of QGemm is [n] or [1, n]."""
    b = [8, 6] if turned else [6, 8]
    shapes = [[4, 6], [], [], b, [8], [8], bias, [], []]
    view = _view("QGemm", "com.microsoft", shapes, attributes={"transB": turned}, output_shapes=[[4, 8]])
    found = RULES["com.microsoft", "QGemm"](view)
    columns = [item for item in found if item.inputs[3] == Split(1 - turned)]
    if where is None:
        assert not found
        return
    assert {item.outputs[0] for item in columns} == {Split(1)}
    assert {item.inputs[4] for item in columns} == {item.inputs[5] for item in columns} == {Split(0)}
    if where != "absent":
        assert {item.inputs[6] for item in columns} == {where}
    assert any(item.inputs[0] == Split(0) and item.outputs[0] == Split(0) for item in found)


@pytest.mark.parametrize(
    ("layout", "batch", "direction"),
    [
        (0, ([1, 0, 1], [2, 1, 1]), ([0, 1, 0], [1, 0, 0])),
        (1, ([0, 0, 0], [0, 0, 0]), ([0, 1, 1], [2, 1, 1])),
    ],
)
def test_directions_and_batch_of_both_layouts(layout: int, batch: Any, direction: Any) -> None:
    """Of X, the lengths and the first state; of Y and the last states."""
    x, state, y = ([4, 5, 3], [4, 2, 6], [4, 5, 2, 6]) if layout else ([5, 4, 3], [2, 4, 6], [5, 2, 4, 6])
    shapes = [x, [2, 24, 3], [2, 24, 6], [2, 48], [4], state, state]
    view = _view(
        "LSTM",
        "",
        shapes,
        attributes={"layout": layout, "direction": "bidirectional", "hidden_size": 6},
        output_shapes=[y, state, state],
    )
    options = RULES["", "LSTM"](view)
    (by_direction,) = (item for item in options if item.inputs[1] == Split(0))
    assert by_direction.inputs[5] == by_direction.inputs[6] == Split(direction[0][2])
    assert by_direction.inputs[0] == by_direction.inputs[4] == REPLICATED
    assert list(by_direction.outputs) == [Split(axis) for axis in direction[1]]
    (by_batch,) = (item for item in options if item.inputs[0] == Split(batch[0][0]))
    assert [by_batch.inputs[i] for i in (0, 4, 5)] == [Split(axis) for axis in batch[0]]
    assert by_batch.inputs[6] == by_batch.inputs[5]
    assert by_batch.inputs[1] == REPLICATED
    assert list(by_batch.outputs) == [Split(axis) for axis in batch[1]]
