"""Along which axis a state grows, by the shapes of its input and output alone."""

from __future__ import annotations

from typing import Any

import pytest

from sharding.errors import OptionError
from sharding.slices.state import StatePair
from sharding.slices.state_search import _growing, find

CASES: list[tuple[tuple[Any, ...], tuple[Any, ...], int | None]] = [
    (("b", 4, "past", 8), ("b", 4, "total", 8), 2),
    (("b", 4, "past", 8), ("b2", 4, "total", 8), 2),  # a batch under two names
    (("b", "past", 8), ("b", "past + n", 8), 1),
    (("past", 8), ("total", 8), 0),
    (("b", "past"), ("b", "past"), None),
    (("b", None), ("b", None), 1),
    (("b", "past", 8), ("b", 16, 8), None),
    (("b", 16, "past"), ("b", "m", "past"), None),
    (("b", "p", "q"), ("b", "p + n", "r"), 1),
    (("b", "p", "q"), ("b", "x", "y"), None),
    (("b", "h", "p", "d"), ("b", "h2", "p2", "d2"), 2),
    (("x", "b", "h", "p", "d"), ("x", "b", "h2", "p2", "d2"), 3),
    (("b", "h", 9, "d"), ("b", "h2", 9, "d2"), None),
    (("b", "h", "p + n", "d"), ("b", "h2", "p", "d + 1"), 3),
    (("p", 8), ("q", 8), 0),
    ((4, 8), (4, 8), None),
]


@pytest.mark.parametrize(("before", "after", "axis"), CASES)
def test_the_axis_that_is_longer_afterwards(before: Any, after: Any, axis: int | None) -> None:
    assert _growing(before, after) == axis


@pytest.mark.parametrize(
    ("taken", "made", "message"),
    [
        (("float32", ("b", 4)), ("float16", ("b", 4)), "'i' is of type float32, the output 'o' of float16"),
        (("float32", ("b", 4)), ("float32", ("b", 5)), "the input 'i' has the shape"),
        (("float32", ("b", 4)), ("float32", ("b",)), "the input 'i' has the shape"),
        (("string", ("b", 4)), ("string", ("b", 4)), "the input 'i' holds no numbers"),
        (("bool", ("b", 4)), ("bool", ("b", 4)), ""),
        (("float32", ("b", 4)), ("float32", ("c", 4)), ""),
        (("float32", ("b", 4)), ("float32", (3, "x")), ""),
        (("float32", None), ("float32", ("b",)), ""),
    ],
)  # fmt: skip
def test_what_a_user_may_call_a_pair(taken: Any, made: Any, message: str) -> None:
    inputs, outputs = [("i", *taken), ("j", *taken)], [("o", *made), ("p", *made)]
    if not message:
        assert find(inputs, outputs, (), [("i", "o")]) == (StatePair("i", "o"),)
        return
    with pytest.raises(OptionError, match=message):
        find(inputs, outputs, (), [("i", "o")])
