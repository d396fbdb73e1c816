"""Lengths of what is cut from an axis."""

from __future__ import annotations

import numpy as np
import pytest

from sharding.graph.shape_values import LEAST, MAX_ELEMENTS, at_most, evaluate, known
from sharding.slices.expressions import MARK


@pytest.mark.parametrize(
    ("length", "bound", "found"),
    [
        (7, "n", f"{LEAST}7_n"),
        (1, "n", f"{LEAST}1_n"),
        (0, "n", None),
        (None, "n", None),
        ("m", "n", None),
        (7, 3, None),
        (7, f"2{MARK}n", None),
    ],
)
def test_the_less_of_a_length_and_a_symbol(
    length: int | str | None, bound: object, found: str | None
) -> None:
    assert at_most(length, bound) == found


@pytest.mark.parametrize(
    ("place", "axis", "found"),
    [([0], 0, ["n"]), ([-1, 1], 0, [3, 2]), (1, -1, 2), ([0], 1, None), ([3], 0, None)],
)
def test_places_of_a_shape(place: int | list[int], axis: int, found: object) -> None:
    picked = evaluate("Gather", {"axis": axis}, [known(["n", 2, 3]), known(np.asarray(place))])
    assert (None if picked is None else picked.tolist()) == found


def test_a_table_is_no_shape() -> None:
    """Nor are the places in one known, nor places that are not known themselves."""
    table = np.arange(6).reshape(2, 3).astype(object)
    assert evaluate("Gather", {}, [table, known([0])]) is None
    assert evaluate("Gather", {}, [known([1, 2]), None]) is None
    assert evaluate("Gather", {}, [known([1, 2]), known(["n"])]) is None


@pytest.mark.parametrize(("more", "is_known"), [(0, True), (1, False)])
def test_longer_vectors_are_not_followed(more: int, is_known: bool) -> None:
    both = [known([1] * (MAX_ELEMENTS - 3)), known(["n"] * (3 + more))]
    assert (evaluate("Concat", {"axis": 0}, both) is not None) is is_known


@pytest.mark.parametrize(
    ("op_type", "elements", "found"),
    [
        ("ReduceProd", ["n", 4], f"4{MARK}n"),
        ("ReduceProd", [2, 3, 4], 24),
        ("ReduceProd", ["n", 1], "n"),
        ("ReduceProd", ["n", None], None),
        ("ReduceProd", ["n", -1], None),
        ("ReduceSum", [2, 3], 5),
        ("ReduceSum", [0, "n"], "n"),
        ("ReduceMax", [2, 3], 3),
        ("ReduceMin", [2, 3], 2),
        ("ReduceMax", ["n", "n"], "n"),
        ("ReduceMax", ["n", "m"], None),
        ("ReduceMin", ["n", 0], None),
        ("ReduceMin", [4, (1 << 63) - 1], None),  # for which ONNX Runtime takes the greatest number
    ],
)
def test_elements_of_a_shape_in_one(op_type: str, elements: list[object], found: object) -> None:
    shape = known(elements)  # type: ignore[arg-type]
    for axes in ({}, {"axes": [0]}, {"axes": [-1], "keepdims": 1}):
        kept = evaluate(op_type, axes, [shape])
        assert kept is not None and kept.tolist() == [found]
    for more in ([], [known([0])]):
        one = evaluate(op_type, {"keepdims": 0}, [shape, *more])
        assert one is not None and one.ndim == 0 and one.item() == found
    assert evaluate(op_type, {}, [shape, None]) is None  # along axes that nobody knows
    assert evaluate(op_type, {"axes": [1]}, [shape]) is None
    empty = evaluate(op_type, {"noop_with_empty_axes": 1}, [shape])
    assert empty is not None and empty.tolist() == elements
    assert evaluate(op_type, {}, [known([])]) is None


def test_the_greatest_and_least_of_shapes() -> None:
    shapes = [known(["n", 4, 1]), known(["n", 3, "m"]), known(["n", 5, 1])]
    for op_type, found in (("Max", ["n", 5, None]), ("Min", ["n", 3, None])):
        result = evaluate(op_type, {}, shapes)
        assert result is not None and result.tolist() == found
    alone = evaluate("Max", {}, shapes[:1])
    assert alone is not None and alone.tolist() == ["n", 4, 1]
    assert evaluate("Max", {}, [shapes[0], None]) is None


@pytest.mark.parametrize(("number", "by", "found"), [(0, 4, "n"), (3, 4, "n"), (4, 4, None), (5, 4, None)])
def test_what_is_added_before_a_division_is_less_than_the_divisor(
    number: int, by: int, found: str | None
) -> None:
    """Else (n + 4) // 4 would be taken for n // 4."""
    added = evaluate("Add", {}, [known([f"{by}{MARK}n"]), known([number])])
    divided = evaluate("Div", {}, [added, known([by])])
    assert divided is not None and divided.tolist() == [found]
