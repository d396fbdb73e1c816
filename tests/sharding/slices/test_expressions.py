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
        ("s / p", 1),
        ("-s // p", -2),
        ("s % p", 1),
        ("s % 0", None),
        ("p - s", -1),
        ("-(p - s)", 1),
        ("-unknown", None),
        ("min(s, unknown)", None),
        ("min(s)", 3),
        ("floor(s / p)", 1),
        ("floor(s, p)", None),
        ("floor()", None),
        ("abs(s)", None),
        ("min(s, p, key=s)", None),
        ("s ** p", None),
        ("1.5 + s", None),
        ("True + s", None),
        ("'s'", None),
        ("2147483647 + s", 2147483650),
        ("2147483648 + s", None),
        ("2147483647 * 2147483647 + s", None),
        ("s + 2147483647 * 2", None),
        ("s, p", None),
        ("", None),
        ("(" * 150, None),
        ("1000 + " + " + ".join(["s"] * 60), None),
    ],
)
def test_what_can_be_told(text: str, number: int | None) -> None:
    """The last would be another sum where only its beginning were read."""
    assert number_of(text, NUMBERS) == number
