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
