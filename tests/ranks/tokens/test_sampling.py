"""Probabilities in whole units, and which tokens they leave: as counting them one by one gives it."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from ranks.errors import ShardrunError
from ranks.tokens import sampling
from ranks.tokens.options import SamplingOptions

SIZES = [1, 2, 5, 127, 128, 129, 300, 512, 513, 2000, 5000]
KINDS = ["spread", "ties", "equal", "steep"]


def scores(size: int, kind: str, seed: int = 0) -> Any:
    random = np.random.default_rng([size, seed])
    row = random.standard_normal(size).astype(np.float32)
    if kind == "ties":
        return np.round(row)
    if kind == "equal":
        return np.zeros(size, np.float32)
    return row * 8 if kind == "steep" else row


def weights(row: Any) -> Any:
    return sampling.weigh(row, float(row.max()), 1.0)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_the_highest_values(size: int, kind: str) -> None:
    row = scores(size, kind)
    falling = np.sort(row)[::-1]
    order = sorted(range(size), key=lambda place: (-row[place], place))
    for count in {1, 2, 3, size // 600 + 1, size // 512, size // 3, size - 1, size} - {0}:
        if count <= size:
            assert sampling.highest(row, count) == falling[count - 1]
            assert sampling.top(row, count).tolist() == order[:count]
    assert sampling.top(row, size + 7).tolist() == order and sampling.top(row, 0).tolist() == []
    assert sampling.likeliest(row) == order[0]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [1e-9, 0.1, 0.5, 0.9, 0.999999])
def test_the_fewest_tokens_that_together_have_a_share(size: int, kind: str, share: float) -> None:
    """Of equal ones those of the lowest ids."""
    row = scores(size, kind)
    whole = weights(row)
    need = sampling.enough(int(sum(map(int, whole))), share)
    kept, found = 0, []
    for place in sorted(range(size), key=lambda place: (-whole[place], place)):
        if kept >= need:
            break
        kept, found = kept + int(whole[place]), [*found, place]
    chosen = sampling.candidates(row, SamplingOptions(temperature=1.0, top_p=share))
    assert chosen.ids is not None and chosen.ids.tolist() == sorted(found)
    assert chosen.weights.tolist() == whole[sorted(found)].tolist()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", KINDS)
def test_which_token_has_a_unit(size: int, kind: str) -> None:
    whole = weights(scores(size, kind))
    ends = np.cumsum(whole.astype(np.int64))
    assert sampling.total(whole) == ends[-1]
    borders = [int(end) for end in ends[:: size // 60 + 1]]
    some = {0, 1, int(ends[-1]) - 1, *borders, *(border - 1 for border in borders)}
    units = sorted(unit for unit in some if 0 <= unit < ends[-1])
    assert sampling.find(whole, units) == [int(np.searchsorted(ends, unit, side="right")) for unit in units]


@pytest.mark.parametrize("total", [1, 2, 3, 1000, 2**40, 2**62])
def test_a_number_picks_a_unit_in_proportion(total: int) -> None:
    for number in (0.0, 2**-53, 0.25, 0.5, (2**53 // 3) / 2**53, 1 - 2**-53):  # as they are drawn
        assert sampling.aim(number, total) == int(Fraction(number) * total)


@pytest.mark.parametrize(
    ("total", "share", "units"),
    [(10, 0.5, 5), (10, 0.51, 6), (10, 0.0, 1), (10, 1.0, 10), (10, 2.0, 10), (3, 1 / 3, 1), (1, 0.1, 1)],
)
def test_how_many_units_a_share_is(total: int, share: float, units: int) -> None:
    assert sampling.enough(total, share) == units


def test_units_by_temperature() -> None:
    row = np.array([0.0, np.log(2), np.log(4), -np.inf], np.float32)
    unit = 2**40
    assert weights(row).tolist() == pytest.approx([unit / 4, unit / 2, unit, 0], rel=1e-6)
    half = sampling.weigh(row, float(row.max()), 0.5)
    assert half.tolist() == pytest.approx([unit / 16, unit / 4, unit, 0], rel=1e-6)
    assert sampling.weigh(row, float(row.max()), 0.0).tolist() == [0, 0, unit, 0]
    assert sampling.weigh(row, float(row.max()), 1e-30).tolist() == [0, 0, unit, 0]
    assert row.tolist()[1] == pytest.approx(0.693147)  # it stays as it is


ROW = np.log(np.array([1, 8, 2, 8, 4, 0.5], np.float32))


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, None),
        ({"top_k": 0}, None),
        ({"top_k": 1}, [1, 3]),  # two are as likely
        ({"top_k": 3}, [1, 3, 4]),
        ({"top_k": 5}, [0, 1, 2, 3, 4]),
        ({"top_k": 6}, None),
        ({"top_k": 7}, None),
        ({"top_p": 1.0}, None),
        ({"top_p": 0.3}, [1]),
        ({"top_p": 0.6}, [1, 3]),
        ({"top_p": 0.7}, [1, 3, 4]),
        ({"min_p": 0.0}, None),
        ({"min_p": 0.2}, [1, 2, 3, 4]),
        ({"min_p": 0.3}, [1, 3, 4]),
        ({"top_p": 0.6, "min_p": 0.2}, [1, 3]),
        ({"top_p": 0.99, "min_p": 0.3}, [1, 3, 4]),
        ({"top_k": 4, "top_p": 0.95}, [1, 2, 3, 4]),
        ({"top_k": 3, "top_p": 0.5}, [1, 3]),
        ({"top_k": 3, "min_p": 0.9}, [1, 3]),
    ],
)
def test_what_is_left_to_choose_from(given: dict[str, Any], ids: list[int] | None) -> None:
    """By top-k, then top-p of what is left, then min-p."""
    found = sampling.candidates(ROW, SamplingOptions(temperature=1.0, **given))
    assert (None if found.ids is None else found.ids.tolist()) == ids
    left = range(6) if ids is None else ids
    spread = found.spread(6)
    parts = np.array([[1, 8, 2, 8, 4, 0.5][place] if place in left else 0 for place in range(6)])
    assert spread.tolist() == pytest.approx((parts / parts.sum()).tolist(), rel=1e-5)
    assert found.pick(0.0) == min(left) and found.pick(1 - 2**-53) == max(left)
    others = np.array([3, 5, 8, 9, 20, 21])
    renamed = found.among(others)
    assert renamed.ids is not None and renamed.ids.tolist() == [int(others[place]) for place in left]
    assert found.among(None) is found


@pytest.mark.parametrize("best", [np.nan, np.inf, -np.inf])
def test_logits_that_are_none(best: float) -> None:
    row = np.full(4, best, np.float32)
    for choose in (
        sampling.likeliest,
        lambda row: sampling.candidates(row, SamplingOptions(temperature=1.0)),
    ):
        with pytest.raises(ShardrunError, match=f"not finite .the largest is {best}"):
            choose(row)


def test_random_numbers_depend_on_what_they_are_for() -> None:
    keys = [(1, 0, 0, 0), (2, 0, 0, 0), (1, 1, 0, 0), (1, 0, 1, 0), (1, 0, 0, 1), (1, 0, 0, 2)]
    numbers = [sampling.uniform(*key) for key in keys]
    assert len(set(numbers)) == len(keys) and all(0 <= number < 1 for number in numbers)
    assert sampling.uniform(1, 0, 0) == numbers[0]
