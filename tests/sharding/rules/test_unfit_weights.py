"""Weights, scales and experts of lengths that do not fit together are not cut."""

from __future__ import annotations

from typing import Any

import pytest

from sharding.rules.einsum import equation_terms
from sharding.slices.placement import Split
from tests.sharding.rules.views import MICROSOFT, UNKNOWN, Shape, cut_axes, options


def test_weights_of_few_bits() -> None:
    def cut(**more: Any) -> set[int]:
        shapes = [[4, 64], [32, 4, 8], [32, 4], None, None, None]
        settings = {"K": 64, "N": 32, "block_size": 16, "bits": 4} | more
        found = options("MatMulNBits", *shapes, domain=MICROSOFT, kinds={1: "uint8"}, **settings)
        return {item.axis for one in found if isinstance(item := one[1], Split)}

    assert cut() == {0, 1}
    assert cut(block_size=0) == cut(block_size=48) == set()
    assert cut(block_size=64) == {0}

    def four(**more: Any) -> set[int]:
        settings = {"K": 64, "N": 32, "block_size": 16} | more
        found = options("MatMulBnb4", [4, 64], [1024], [128], domain=MICROSOFT, **settings)
        return {item.blocks for one in found if isinstance(item := one[1], Split)}

    assert four() == {1, 32}
    assert four(block_size=0) == four(block_size=48) == set()
    assert four(block_size=64) == {1}


def test_a_product_of_bytes_scaled() -> None:
    def cut(*changed: tuple[int, Shape]) -> set[Any]:
        shapes: list[Shape] = [[4, 8], [8, 6], [1], [6], None, None, [6]]
        for place, shape in changed:
            shapes[place] = shape
        found = options("MatMulIntegerToFloat", *shapes, domain=MICROSOFT, output=[4, 6])
        return {
            (place, item.axis) for one in found for place in (0, 1) if isinstance(item := one[place], Split)
        }

    assert cut() == {(0, 0), (0, 1), (1, 0), (1, 1)}
    assert cut((3, [1])) == cut()
    assert cut((2, [4])) == cut((4, [4])) == cut((1, [2, 8, 6])) == cut((0, UNKNOWN)) == set()
    for place in (3, 6):
        assert (1, 1) not in cut((place, [1, 6]))


@pytest.mark.parametrize(
    ("changes", "inner"),
    [
        ({}, True), ({2: [4, 7, 8]}, False), ({4: [4, 8, 7]}, False), ({4: [4, 8, UNKNOWN]}, False),
        ({6: [4, 12, 8]}, True), ({6: [4, 6, 8]}, False), ({3: [4, 12]}, True), ({3: [4, 10]}, False),
    ],
)  # fmt: skip
def test_experts_of_other_lengths(changes: dict[int, Any], inner: bool) -> None:
    shapes: list[Any] = [[6, 8], [6, 4], [4, 12, 8], None, [4, 8, 12], None, None, None]
    for place, shape in changes.items():
        shapes[place] = shape
    found = options("MoE", *shapes, domain=MICROSOFT, k=2)
    assert any(one[2] == Split(1) for one in found) is inner


def test_whole_experts() -> None:
    shapes: list[Any] = [[6, 8], [6, 4], [4, 12, 8], None, [4, 8, 12], None, None, None]

    def whole(**more: Any) -> bool:
        return any(one[2] == Split(0) for one in options("MoE", *shapes, domain=MICROSOFT, k=2, **more))

    assert whole()
    assert not whole(kinds={0: "float16", 1: "float16"})
    assert not whole(kinds={1: "float16"})
    assert not whole(use_sparse_mixer=1)
    shapes[4] = [3, 8, 12]
    assert not whole()


@pytest.mark.parametrize(
    ("equation", "ranks", "wanted"),
    [
        ("ij,jk->ik", [2, 2], ["ij", "jk", "ik"]),
        (b" i j , j k -> i k ", [2, 2], ["ij", "jk", "ik"]),
        ("ij,jk", [2, 2], ["ij", "jk", "ik"]),
        ("ki,ij", [2, 2], ["ki", "ij", "jk"]),
        ("ii", [2], ["ii", ""]),
        ("ij->", [2], ["ij", ""]),
        ("...i,...i->...", [3, 2], ["abi", "bi", "ab"]),
        ("...i,...j", [2, 3], ["bi", "abj", "abij"]),
        ("a...->...a", [3], ["abc", "bca"]),
        ("ij,jk->ik", [2], None),
        ("ij,jk->ik", [2, None], None),
        ("ij,jk->ik", [2, 3], None),
        ("ij,jk->ik", [2, 1], None),
        ("......i->i", [3], None),
        ("...i->......i", [3], None),
        ("...i->i", [2], None),
        ("...i->i", [1], ["i", "i"]),
        ("i1->i", [2], None),
        ("...ab", [60], None),
    ],
)
def test_letters_of_an_equation(equation: str | bytes, ranks: list[int | None], wanted: Any) -> None:
    assert equation_terms(equation, ranks) == wanted


def test_letters_of_unequal_lengths() -> None:
    assert cut_axes("Einsum", [4, 6], [6, 8], equation="ij,jk->ik") == {0, 1}
    assert cut_axes("Einsum", [4, 6], [5, 8], equation="ij,jk->ik") == {0}
    assert cut_axes("Einsum", [4, 6], [1, 8], equation="ij,jk->ik") == {0, 1}
    assert cut_axes("Einsum", [1, 1], [1, 8], equation="ij,jk->ik") == set()
    assert not options("Einsum", [4, 6], [6, 8], equation="ij,jk,kl->il")
    assert cut_axes("Einsum", [4, 4], equation="ii->i") == set()


def test_scales_of_another_number_of_axes() -> None:
    def cut(scale: Shape, point: Shape = None, **more: Any) -> set[Any]:
        shapes = [[4, 64], scale, point]
        found = options("DequantizeLinear", *shapes, kinds={0: "int8"}, version=21, **more)
        return {tuple(getattr(item, "axis", None) for item in one) for one in found}

    assert cut([]) == cut([1]) == {(0, None, None), (1, None, None)}
    assert cut([64], [64]) == {(0, None, None), (1, 0, 0)}
    assert cut([4], [4], axis=0) == {(0, 0, 0), (1, None, None)}
    assert cut([4, 64]) == cut(UNKNOWN) == cut([64], axis=2) == cut([64], axis=-3) == set()
    assert cut([4, 4], [4, 4], block_size=16) == {(0, 0, 0), (1, 1, 1)}
    assert cut([4, 3], [4, 3], block_size=16) == cut([4, 1], [4, 1], block_size=64) == {(0, 0, 0)}
    assert cut([1, 64], [1, 64], block_size=4, axis=0) == {(1, 1, 1)}
    assert cut([4], block_size=16) == cut([4, 4], block_size=16, axis=2) == set()


def test_parameters_of_quantized_products() -> None:
    def cut(a_point: Shape, b_point: Shape) -> set[Any]:
        kinds = dict.fromkeys(range(4), "uint8")
        found = options("MatMulInteger", [4, 8], [8, 6], a_point, b_point, kinds=kinds, output=[4, 6])
        return {tuple(getattr(item, "axis", None) for item in one) for one in found}

    rows, columns, inner = (0, None, None, None), (None, 1, None, None), (1, 0, None, None)
    assert cut(None, None) == cut([], [1]) == cut([1, 1], []) == {rows, columns, inner}
    assert cut([4], [6]) == {(0, None, 0, None), (None, 1, None, 0), inner}
    assert cut([4, 1], [1, 6]) == {(0, None, 0, None), (None, 1, None, 1), inner}
    assert cut(UNKNOWN, [6]) == {(None, 1, None, 0)}
    assert cut([4], UNKNOWN) == {(0, None, 0, None)}
    assert cut([4], [1, 1, 6]) == {(0, None, 0, None)}


def test_a_softmax_of_a_sum() -> None:
    def cut(bias: Shape, axis: int) -> set[int]:
        return cut_axes("BiasSoftmax", [2, 4, 6], bias, domain=MICROSOFT, axis=axis)

    assert cut([2, 4, 6], 2) == cut([2, 1, 6], 2) == cut([2, 4, 6], -1) == {0, 1}
    assert cut([2, 4, 6], 1) == {0}
    assert cut([2, 4, 6], 0) == cut([4, 6], 2) == cut(UNKNOWN, 2) == set()


def test_products_of_turned_operands() -> None:
    """The first axis of each lies before the last where it is turned: [m, batch, k] times [k, batch, n]."""

    def cut(a: list[int], b: list[int], **more: int) -> set[Any]:
        found = options("FusedMatMul", a, b, domain=MICROSOFT, output=[2, 4, 6], **more)
        return {tuple(getattr(item, "axis", None) for item in one) for one in found}

    both = {"transBatchA": 1, "transBatchB": 1}
    assert cut([2, 4, 8], [2, 8, 6]) == {(0, 0), (1, None), (2, 1), (None, 2)}
    assert cut([4, 2, 8], [8, 2, 6], **both) == {(1, 1), (0, None), (2, 0), (None, 2)}
    assert cut([4, 2, 8], [2, 8, 6], transBatchA=1) == {(1, 0), (0, None), (2, 1), (None, 2)}
    assert cut([4, 8], [8, 6], **both) == cut([4, 2, 8], [8, 6], **both) == set()


def test_groups_of_heads() -> None:
    """Scales of a cache: one number, or one for each key/value head."""
    cache = [3, 2, 7, 16]
    settings: dict[str, Any] = {"num_heads": 4, "kv_num_heads": 2}

    def cut(scale: Shape, query: Shape = [3, 1, 64], key: Shape = [3, 1, 32]) -> bool:  # noqa: B006 - read only
        shapes = [query, key, key, cache, cache, [3], [], None, None, None, None, None, scale, scale]
        found = options("GroupQueryAttention", *shapes, domain=MICROSOFT, **settings)
        return bool(found)

    for scale, wanted in (
        (None, True), ([1], True), ([], True), ([2, 1, 16], True), ([4, 1, 16], False), ([2], False),
        (UNKNOWN, False), ([1, 1, 1], True),
    ):  # fmt: skip
        assert cut(scale) is wanted, scale
    assert not cut(None, [3, 64])
    assert not cut(None, UNKNOWN)
    assert not cut(None, key=UNKNOWN)


def test_norms_of_gates() -> None:
    def gates(x: Shape, weight: Shape, gate: Shape) -> set[int]:
        return cut_axes("GatedRMSNorm", x, weight, gate, domain=MICROSOFT)

    assert gates([2, 4, 16], [8], [2, 4, 16]) == {0, 1, 2}
    assert gates([2, 4, 16], [16], [2, 4, 16]) == {0, 1}
    assert gates([2, 4, 16], [8], [2, 4, 8]) == gates([16], [8], [16]) == set()
    assert gates([2, 4, 16], UNKNOWN, [2, 4, 16]) == set()


def test_channels_in_groups() -> None:
    def cut(shape: Shape, **more: int) -> set[int]:
        return cut_axes("GroupNorm", shape, [8], [8], domain=MICROSOFT, **more)

    image = [2, 4, 6, 8]
    assert cut(image, groups=4) == {0, 3}
    assert cut(image, groups=1) == cut([2, 4, 6, 9], groups=4) == {0}
    assert cut(image, groups=4, channels_last=0) == cut(UNKNOWN, groups=4) == set()
