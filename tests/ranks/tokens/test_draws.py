"""Random choices of which each rank has a part of the tokens: to the bit those of one rank that has all, and
those of a softmax."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ranks.run.steps.likeliest import BestTokens
from ranks.tokens.chooser import Chooser
from ranks.tokens.draws import Draw, drawing, side_by_side
from ranks.tokens.options import SamplingOptions
from ranks.tokens.sampling import candidates, uniform
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

Array = np.ndarray[Any, Any]
PROMPT = np.array([5, 6, 7, 5, 6, 900])
MANNERS: list[dict[str, Any]] = [
    {},
    {"top_p": 0.9},
    {"top_p": 0.02},
    {"top_p": 0.999999},
    {"min_p": 0.05},
    {"top_p": 0.7, "min_p": 0.3},
    {"top_p": 0.4, "min_p": 0.001},
]


def picked(row: Array, options: SamplingOptions, numbers: Sequence[float], ranks: int) -> list[int]:
    """The tokens that ranks draw by their parts, in lockstep."""
    parts = np.split(row, ranks)
    draw = Draw.of(options, len(row), 0.0)
    assert draw is not None
    draw = Draw(draw.temperature, tuple(numbers), draw.top_p, draw.min_p)
    work = [drawing(part, rank, draw) for rank, part in enumerate(parts)]
    told = [next(one) for one in work]
    while True:
        everyone, found = np.stack(told), []
        for rank, one in enumerate(work):
            try:
                told[rank] = one.send(everyone)
            except StopIteration as end:
                found.append(end.value)
        if found:
            assert len(found) == ranks
            break
    tokens = [[rank * len(parts[0]) + place for rank, place in enumerate(of_one) if place >= 0]
              for of_one in zip(*found, strict=True)]  # fmt: skip
    assert all(len(one) == 1 for one in tokens)
    return [one[0] for one in tokens]


def rows(kind: str) -> Array:
    random = np.random.default_rng(len(kind))
    row = random.standard_normal(12 * 500).astype(np.float32)
    if kind == "peaked":
        row *= 5
    if kind == "ties":
        row = np.round(row * 2) / 2
    if kind == "equal":
        row[:] = 3.25
    if kind == "ruled out":
        row[random.random(len(row)) < 0.9] = -np.inf
    if kind == "overflow":
        row *= 1e30
    return row


@pytest.mark.parametrize("given", MANNERS, ids=str)
@pytest.mark.parametrize("temperature", [5e-324, 1e-60, 1e-45, 1e-38])
def test_the_least_temperature_leaves_the_likeliest_token(given: dict[str, Any], temperature: float) -> None:
    row, options = rows("peaked"), SamplingOptions(temperature=temperature, **given)
    best = int(row.argmax())
    assert candidates(row, options).pick(0.7) == best
    assert all(picked(row, options, [0.0, 0.7], ranks) == [best, best] for ranks in (1, 3))


@pytest.mark.parametrize("given", MANNERS, ids=str)
@pytest.mark.parametrize("kind", ["flat", "peaked", "ties", "equal", "ruled out", "overflow"])
@pytest.mark.parametrize("temperature", [0.3, 1.0, 3.0])
def test_parts_give_the_tokens_of_the_whole(given: dict[str, Any], kind: str, temperature: float) -> None:
    row, options = rows(kind), SamplingOptions(temperature=temperature, **given)
    numbers = [0.0, np.nextafter(1, 0), *(uniform(3, 0, place) for place in range(40))]
    left = candidates(row, options)
    expected = [left.pick(number) for number in numbers]
    for ranks in (1, 2, 3, 4, 12):
        assert picked(row, options, numbers, ranks) == expected
    if given.get("top_p") == 0.02 and kind == "equal":
        assert max(expected) < 0.02 * len(row) + 1  # of equal ones those with the lowest ids


@pytest.mark.parametrize("given", MANNERS, ids=str)
@pytest.mark.parametrize("size", [6, 6000])
def test_tokens_come_as_often_as_a_softmax_says(given: dict[str, Any], size: int) -> None:
    """Of evenly spread numbers each token gets its share."""
    row = (np.random.default_rng(size).standard_normal(size) * 2).astype(np.float32)
    chances = np.exp((row.astype(np.float64) - row.max()) / 1.3)
    likely = chances / chances.max() >= given.get("min_p", 0)
    chances /= chances.sum()
    order = np.argsort(-chances)
    before = np.cumsum(chances[order]) - chances[order]
    kept = np.zeros(size, bool)
    kept[order[before < given.get("top_p", 1)]] = True
    chances[~(kept & likely)] = 0
    chances /= chances.sum()
    count = 8_000
    numbers = ((np.arange(count) + 0.5) / count).tolist()
    found = picked(row, SamplingOptions(temperature=1.3, **given), numbers, 3)
    shares = np.bincount(found, minlength=size) / count
    assert np.abs(shares - chances).max() < 1.5 / count
    assert set(found) <= set(np.flatnonzero(chances).tolist())


def test_random_numbers_give_the_distribution() -> None:
    """Chi-squared of the numbers that seeds give."""
    row = np.random.default_rng(1).standard_normal(24).astype(np.float32)
    chances = np.exp(row.astype(np.float64) / 1.5)
    chances /= chances.sum()
    rounds = 20_000
    numbers = [uniform(9, sample, 3) for sample in range(rounds)]
    drawn = np.bincount(picked(row, SamplingOptions(temperature=1.5), numbers, 4), minlength=24)
    statistic = float(((drawn - rounds * chances) ** 2 / (rounds * chances)).sum())
    assert abs(statistic - 23) < 5 * (2 * 23) ** 0.5


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("given", MANNERS[:2], ids=str)
def test_scores_that_are_not_finite_end_the_draw_on_all_ranks(given: dict[str, Any], value: float) -> None:
    row = np.zeros(60, np.float32)
    for place, sound in ((50, row.copy()), (3, row.copy())):
        row[:] = sound
        row[place] = value
        draw = Draw(1.0, (0.5,), given.get("top_p", 1.0))

        def work(rank: FakeCommunicator, draw: Draw = draw) -> Any:
            def gather(_: int, numbers: Array) -> Array:
                out = np.zeros((rank.size, len(numbers)))
                rank.all_gather(numbers[None], out)
                return out

            own = np.split(row, 3)[rank.rank]
            return side_by_side([drawing(part, rank.rank, draw) for part in (own, np.ones_like(own))], gather)

        for bad, _ in on_ranks(3, work):
            assert bad is None
    with np.errstate(invalid="ignore"):
        row[:] = -np.inf
        assert all(bad is None for bad, _ in on_ranks(3, work))


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 0.9},
    {"temperature": 1.4, "top_p": 0.8, "top_k": 0},
    {"temperature": 1.4, "top_k": 5000, "min_p": 0.02},
    {"temperature": 2.0, "repetition_penalty": 1.3, "no_repeat_ngram": 2, "top_p": 0.95},
    {"temperature": 1.0, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"temperature": 1.0, "frequency_penalty": 0.3, "logit_bias": {7: 3.14, 599: -2.5}},
    {"temperature": 1.0, "forced_last": (777,), "max_new_tokens": 9, "suppressed_first": (3, 800)},
]


@pytest.mark.parametrize("given", OPTIONS, ids=str)
@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_ranks_that_keep_the_text_draw_its_tokens(given: dict[str, Any], ranks: int) -> None:
    size, random = 1200, np.random.default_rng(2)
    table = random.standard_normal((9, size)).astype(np.float32)
    table[:, [3, 5, 6, 7, 602, 900, 1100]] += 3
    whole = Chooser(SamplingOptions(seed=5, **given), size, PROMPT, [0, 11], 1)
    for row in table:
        whole.read(whole.choose(row))

    def work(rank: FakeCommunicator) -> list[int]:
        chooser = Chooser(SamplingOptions(seed=5, **given), size, PROMPT, [0, 11], 1)
        asked = BestTokens("logits", size, chooser)
        for row in table:
            asked.forget()
            assert asked.find(np.split(row, ranks)[rank.rank][None, None], rank) and asked.found is not None
            chooser.read(chooser.choose_among(asked.found))
        assert asked.exchanging_seconds > 0
        assert max(int(np.prod(shape)) for _, shape in rank.calls) < 330
        return chooser.ids

    assert all(ids == whole.ids for ids in on_ranks(ranks, work))
