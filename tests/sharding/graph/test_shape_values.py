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


def _found(op_type: str, *inputs: object, **attributes: object) -> object:
    """What is computed of vectors (lists), numbers, and what is not known (None)."""
    given = [None if item is None else known(np.asarray(item, object)) for item in inputs]
    picked = evaluate(op_type, attributes, given)
    return None if picked is None else picked.tolist()


SHAPE = ["n", 2, 3, "m"]


@pytest.mark.parametrize(
    ("bounds", "found"),
    [
        (([0], [2]), ["n", 2]), (([1], [9]), [2, 3, "m"]), (([-1], [9]), ["m"]), (([-9], [1]), ["n"]),
        (([1], [-1]), [2, 3]), (([3], [1]), []), (([0], [4], [0], [2]), ["n", 3]),
        (([3], [0], [0], [-1]), ["m", 3, 2]), (([-1], [-9], [0], [-2]), ["m", 2]),
        (([0], [4], [0], [0]), None), (([0], None), None), ((None, [2]), None), (([0], [2], None), None),
        (([0], ["n"]), None), ((["n"], [2]), None), (([0], [2], [0], ["n"]), None),
    ],
)  # fmt: skip
def test_a_part_of_a_shape(bounds: tuple[object, ...], found: object) -> None:
    assert _found("Slice", SHAPE, *bounds) == found


def test_a_part_that_attributes_name() -> None:
    assert _found("Slice", SHAPE, starts=[1], ends=[3]) == [2, 3]
    assert _found("Slice", SHAPE, starts=[-1], ends=[2**63 - 1]) == ["m"]
    assert _found("Slice", [[1, 2], [3, 4]], [0], [1]) is None
    assert _found("Slice", None, [0], [1]) is None


@pytest.mark.parametrize(
    ("op_type", "x", "y", "found"),
    [
        ("Sub", ["n", 7, 3], [0, 2, 5], ["n", 5, -2]), ("Sub", ["n", 0], ["n", "n"], [None, None]),
        ("Sub", ["n"], [1], [None]), ("Add", ["n", 0, 2], [0, "m", 3], ["n", "m", 5]),
        ("Mul", ["n", 1, 2, 0], [1, "m", 3, "n"], ["n", "m", 6, None]),
        ("Div", ["n", 7, 6], [1, 2, 3], ["n", 3, 2]), ("Div", [-7, 7, 7], [2, -2, 0], [None] * 3),
        ("Div", ["n", "n"], ["n", 2], [1, None]), ("Div", [0, 3], [5, 4], [0, 0]),
        ("Equal", [3, 3, "n", "n"], [3, 4, -1, 3], [True, False, False, None]),
        ("Equal", [-1, 0], ["n", "n"], [False, None]),
        ("Max", [3, "n", "n"], [5, "n", 1], [5, "n", None]), ("Min", [3, -1], [5, 0], [3, -1]),
    ],
)  # fmt: skip
def test_two_numbers(op_type: str, x: list[object], y: list[object], found: object) -> None:
    assert _found(op_type, x, y) == found
    assert _found(op_type, None, y) is None and _found(op_type, x, None) is None


def test_one_of_two_by_a_condition() -> None:
    assert _found("Where", [True, False, None], [1, "n", 3], ["m", 5, 6]) == [1, 5, None]
    assert _found("Where", [True, False], ["n"], [4, 5]) == ["n", 5]
    for place in range(3):
        inputs: list[object] = [[True], [1], [2]]
        inputs[place] = None
        assert _found("Where", *inputs) is None


def test_vectors_and_numbers() -> None:
    assert _found("Reshape", ["n"], [-1]) == ["n"]
    assert _found("Reshape", ["n"], []) == "n"
    assert _found("Reshape", "n", [1]) == ["n"]
    assert _found("Reshape", ["n", 2], [-1]) == ["n", 2]
    assert _found("Reshape", ["n", 2], [2, 1]) is None
    assert _found("Reshape", ["n"]) is None and _found("Reshape", None, [1]) is None
    assert _found("Unsqueeze", "n", [0]) == ["n"]
    assert _found("Unsqueeze", "n", axes=[0]) == ["n"]
    assert _found("Unsqueeze", ["n"], [0]) is None and _found("Unsqueeze", "n", [0, 1]) is None
    assert _found("Cast", ["n", True], to=7) == ["n", 1] and _found("Cast", ["n"], to=6) == ["n"]
    assert _found("Cast", ["n"], to=1) is None and _found("Cast", None, to=7) is None
