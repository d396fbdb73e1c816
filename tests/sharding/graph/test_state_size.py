"""Bytes of what ranks keep from step to step."""

from __future__ import annotations

from typing import Any

import pytest

from sharding.graph.state_size import StateSize, joined_shape, state_size
from sharding.slices.state import StatePair

SPLIT = StatePair("a", "b", 2, "append", placement="split:1")
COPIED = StatePair("a", "b", 2, "append", placement="split:1*2")
ONCE = StatePair("e", "f", 2, "once", placement="split:1")


@pytest.mark.parametrize(
    ("kept", "numbers"),
    [
        # bytes of a further position whole and per rank, then of what does not grow
        ([(SPLIT, 0, "float16", ["b", 4, "p", 8])], (64, 16, 0, 0)),
        ([(SPLIT, 0, "float16", ["b", 4, 100, 8])], (64, 16, 0, 0)),
        ([(COPIED, 0, "float16", ["b", 4, "p", 8])], (64, 32, 0, 0)),
        ([(SPLIT, 0, "float16", ["b", 4, "p", 8]), (SPLIT, 1, "float16", ["b", 8, "p", 8])], (192, 32, 0, 0)),
        ([(ONCE, 0, "float32", ["b", 4, "p", 8])], (0, 0, 128, 32)),
        ([(StatePair("c", "d"), 0, "float32", ["b", 4])], (0, 0, 16, 16)),
        ([(StatePair("c", "d", placement="odd"), 0, "float32", ["b", 4])], (0, 0, 16, 16)),
        ([(SPLIT, 0, "float16", None)], (0, 0, 0, 0)),
        ([(SPLIT, 0, "float16", ["b", 4])], (8, 2, 0, 0)),
    ],
)
def test_what_grows_and_what_does_not(kept: Any, numbers: tuple[int, ...]) -> None:
    found = state_size(kept, 4, {})
    assert found is not None and found.pairs == len(kept)
    assert (found.token_bytes, found.rank_token_bytes, found.fixed_bytes, found.rank_fixed_bytes) == numbers
    assert found.placements == tuple(dict.fromkeys(pair.placement for pair, *_ in kept))


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (
            StateSize(1, 2000, 1000, 0, 0, ("split:1",)),
            "1 pair, 1 kB per token and rank (2 kB whole), split:1",
        ),
        (StateSize(2, 0, 0, 8, 4, ("split:1",)), "2 pairs, 4 B per rank (8 B whole), split:1"),
        (StateSize(2, 0, 0, 0, 0, ()), "2 pairs, 0 B per rank (0 B whole)"),
        (
            StateSize(3, 8, 4, 6, 3, ("split:1", "partial")),
            "3 pairs, 4 B per token and rank (8 B whole), 3 B per rank besides (6 B whole), split:1, partial",
        ),
    ],
)
def test_it_is_one_line(size: StateSize, text: str) -> None:
    assert size.text() == text
    told = size.to_json()
    assert told.pop("placements") == list(size.placements)
    assert told == {name: getattr(size, name) for name in told} and len(told) == 5


@pytest.mark.parametrize(
    ("before", "after", "both"),
    [
        (["b", "x", 3, 4], [None, 4, "y", 5], ["b", 4, 3, 4]),
        (None, ["b"], ["b"]),
        (["b"], None, ["b"]),
        (None, None, None),
        (["b"], ["b", 2], ["b"]),
    ],
)
def test_what_two_shapes_say_of_both(before: Any, after: Any, both: Any) -> None:
    assert joined_shape(before, after) == both
