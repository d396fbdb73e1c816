"""A parameter that takes turns still meets all values of the others."""

from __future__ import annotations

import itertools

import pytest

from tests.turns import in_turns


@pytest.mark.parametrize("last", ["xy", "xyz"])
@pytest.mark.parametrize("others", [("abc", "defg"), ("abc", "defgh", "ijk"), ("abc", "def", "ghij", "klm")])
def test_each_value_meets_those_of_all_but_one_of_the_others(others: tuple[str, ...], last: str) -> None:
    found = in_turns(*others, last)
    assert [combination[:-1] for combination in found] == list(itertools.product(*others))
    for left_out in range(len(others)):
        kept = [one for number, one in enumerate(others) if number != left_out]
        met = {(*(value for n, value in enumerate(row[:-1]) if n != left_out), row[-1]) for row in found}
        assert met == set(itertools.product(*kept, last))
