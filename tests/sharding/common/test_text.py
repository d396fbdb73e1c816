"""Text for people."""

from __future__ import annotations

import pytest

from sharding.common.text import human_bytes, parse_whole


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"), (999, "999 B"), (1000, "1 kB"), (999_499, "999 kB"), (1_000_000, "1 MB"),
        (1_234_567, "1.23 MB"), (10**9, "1 GB"), (10**12, "1000 GB"), (123 * 10**12, "123000 GB"),
    ],
)  # fmt: skip
def test_bytes_have_the_unit_that_a_person_would_choose(count: int, text: str) -> None:
    assert human_bytes(count) == text


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("3", 3), ("9", 9), ("2", None), ("10", None), ("0" * 39 + "7", 7), ("0" * 40 + "7", None),
        ("+7", None), ("-7", None), (" 7", None), ("7.0", None), ("0_7", None), ("٧", None), ("", None),
    ],
)  # fmt: skip
def test_whole_numbers_are_digits_within_bounds(text: str, number: int | None) -> None:
    assert parse_whole(text, 3, 9) == number
