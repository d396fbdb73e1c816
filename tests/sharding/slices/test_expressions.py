"""Lengths that are written as expressions."""

from __future__ import annotations

import pytest

from sharding.slices.expressions import number_of

NUMBERS = {"p": 2, "s": 3, "in": 5, "None": 7, "batch__name": 11}


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("p + s", 5),
        ("Min(128, p * s)", 6),
        ("in + 1", 6),
        ("-in + None", 2),
        ("max(in, s)", 5),
        ("in__name + in", None),
        ("s if p else p", None),
        ("p in s", None),
        ("unknown + 1", None),
        ("p // 0", None),
        ("batch__name + 1", 12),
        ("1000 + " + " + ".join(["s"] * 60), None),
    ],
)
def test_what_can_be_told(text: str, number: int | None) -> None:
    """The last would be another sum where only its beginning were read."""
    assert number_of(text, NUMBERS) == number
