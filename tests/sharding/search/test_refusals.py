"""Indices that a node may refuse on some ranks alone: which axes are parts of which."""

from __future__ import annotations

from typing import Any

import pytest

from sharding.search.refusals import _lies_in


@pytest.mark.parametrize(
    ("shape", "axis", "before", "inner", "lies"),
    [
        ([2, 3, 4], 0, [6, 4], 0, True),
        ([2, 3, 4], 1, [6, 4], 0, True),
        ([2, 3, 4], 2, [6, 4], 0, False),
        ([2, 3, 4], 2, [6, 4], 1, True),
        ([4, 6], 0, [6, 4], 0, False),
        ([6, 1, 4], 1, [6, 4], 0, True),
        (["n", 4], 0, ["n", 2, 2], 0, True),
        (["n", 4], 1, ["n", 2, 2], 1, False),
        (["n", 2, 2], 2, ["n", 4], 1, True),
        ([None, 4], 0, [None, 4], 0, False),  # nothing is known of them: they may be other lengths
        ([None, 4], 1, [None, 4], 1, False),
        ([2, 3, None], 1, [6, None], 0, True),
    ],
)
def test_an_axis_that_is_part_of_one_before(
    shape: list[Any], axis: int, before: list[Any], inner: int, lies: bool
) -> None:
    assert _lies_in(shape, axis, before, inner) is lies
