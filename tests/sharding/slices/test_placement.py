"""Where the data of one value lies, as plans and rank models say it."""

from __future__ import annotations

import pytest

from sharding.slices.placement import (
    PARTIAL,
    REPLICATED,
    Placement,
    Split,
    held_bytes,
    is_finer,
    parse_placement,
)

TEXTS = {
    "replicated": REPLICATED,
    "partial": PARTIAL,
    "split:0": Split(0),
    "split:12": Split(12),
    "split:1/3": Split(1, blocks=3),
    "split:1*2": Split(1, copies=2),
    "split:0/12*16": Split(0, 12, 16),
}


@pytest.mark.parametrize("text", TEXTS)
def test_it_is_read_as_it_is_written(text: str) -> None:
    assert str(TEXTS[text]) == text
    assert parse_placement(text) == TEXTS[text]


@pytest.mark.parametrize(
    "text",
    [
        *("", "split", "split:", "split:-1", "split:12345", "split:0/0", "split:0*0", "split:0*12345"),
        *("split:0*2/3", "split:0 ", "Partial", "split:0/1234567890"),
    ],
)
def test_other_texts_are_no_placement(text: str) -> None:
    assert parse_placement(text) is None


@pytest.mark.parametrize(
    ("copies", "parts", "held"),
    [(1, 6, [0, 1, 2, 3, 4, 5]), (2, 3, [0, 0, 1, 1, 2, 2]), (3, 2, [0, 0, 0, 1, 1, 1]), (6, 1, [0] * 6)],
)
def test_neighbours_hold_the_same_copy(copies: int, parts: int, held: list[int]) -> None:
    split = Split(0, copies=copies)
    assert split.parts(6) == parts
    assert [split.part(rank) for rank in range(6)] == held
    assert held_bytes(600, split, 6) == 600 // parts


@pytest.mark.parametrize("placement", [REPLICATED, PARTIAL])
def test_a_value_that_is_not_split_is_held_whole(placement: Placement) -> None:
    assert held_bytes(600, placement, 6) == 600


@pytest.mark.parametrize(
    ("part", "whole", "finer"),
    [
        (Split(0), Split(0, copies=2), True),
        (Split(0, copies=2), Split(0, copies=6), True),
        (Split(0, 3), Split(0, 3, 2), True),
        (Split(0, copies=2), Split(0, copies=3), False),
        (Split(0, copies=2), Split(0, copies=2), False),
        (Split(0, copies=2), Split(0), False),
        (Split(1), Split(0, copies=2), False),
        (Split(0, 3), Split(0, 1, 2), False),
    ],
)
def test_what_is_a_part_of_what_a_rank_holds(part: Split, whole: Split, finer: bool) -> None:
    """By the parts, too: on 12 ranks each holds a part of what it held."""
    assert is_finer(part, whole) == finer
    if finer:
        held = {(part.part(rank), whole.part(rank)) for rank in range(12)}
        assert len(held) == part.parts(12)
