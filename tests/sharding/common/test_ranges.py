"""Lists of numbers in short, of processors and of tasks."""

from __future__ import annotations

import pytest

from sharding.common.ranges import expand_counts, in_ranges, parse_ranges


@pytest.mark.parametrize(("most", "found"), [(3, None), (4, [2, 2, 2, 1]), (5, [2, 2, 2, 1])])
def test_counts_of_at_most_so_many_nodes(most: int, found: list[int] | None) -> None:
    assert expand_counts("2(x3),1", most) == found


def test_a_range_has_at_most_so_many_numbers() -> None:
    assert parse_ranges("1-65536") == list(range(1, 65537))
    assert parse_ranges("1-65537") is None
    assert parse_ranges("3-3") == [3] and parse_ranges("3-2") is None


def test_neighbours_are_one_range() -> None:
    assert in_ranges([4, 1, 2, 0, 2, 6, 7]) == "0-2,4,6-7"
    assert parse_ranges("0-2,4,6-7") == [0, 1, 2, 4, 6, 7]
