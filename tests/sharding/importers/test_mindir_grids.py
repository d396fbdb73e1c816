"""Places along a line that an affine grid has."""

from __future__ import annotations

import pytest

from sharding.importers.mindir.primitives.grids import _places


@pytest.mark.parametrize(
    ("length", "corners", "places"),
    [
        (1, True, [0]),
        (2, True, [-1, 1]),
        (3, True, [-1, 0, 1]),
        (1, False, [0]),
        (2, False, [-0.5, 0.5]),
        (4, False, [-0.75, -0.25, 0.25, 0.75]),
    ],
)
def test_places_of_a_line(length: int, corners: bool, places: list[float]) -> None:
    assert _places(length, corners).tolist() == places
