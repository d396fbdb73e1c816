"""Lengths of what is cut from an axis."""

from __future__ import annotations

import pytest

from sharding.graph.shape_values import LEAST, at_most
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
