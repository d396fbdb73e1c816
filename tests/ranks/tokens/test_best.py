"""Each rank's best tokens, then the best of all: to the bit what all logits give, of equal ones, too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.errors import ShardrunError
from ranks.run.steps.likeliest import BestTokens
from ranks.tokens import best
from ranks.tokens.chooser import Chooser
from ranks.tokens.options import SamplingOptions
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

VOCABULARY = 1200
PROMPT = np.array([5, 6, 7, 5, 6, 900])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 4, "top_k": 1},
    {"temperature": 1.7, "seed": 4, "top_k": 40},
    {"temperature": 1.3, "seed": 3, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"temperature": 2.0, "seed": 9, "top_k": 30, "repetition_penalty": 1.2, "no_repeat_ngram": 2},
    {"no_repeat_ngram": 2, "min_new_tokens": 6},
    {"logit_bias": {7: 3.1415926, 599: -2.5, 600: 4.0, 1199: 4.0}, "suppressed": (1, 2, 601, 1198)},
    {"forced_last": (777,), "max_new_tokens": 9, "suppressed_first": (3, 800)},
]


def shown(chooser: Chooser, row: Any, ranks: int) -> Any:
    part = len(row) // ranks
    count = chooser.shows(part)
    assert count is not None
    return np.stack([chooser.show(row[r * part : (r + 1) * part], r * part, count) for r in range(ranks)])


@pytest.mark.parametrize("given", OPTIONS, ids=str)
@pytest.mark.parametrize("ranks", [2, 3, 4])
@pytest.mark.parametrize("ties", [False, True])
def test_the_same_tokens_as_by_all_logits(given: dict[str, Any], ranks: int, ties: bool) -> None:
    random = np.random.default_rng(2)
    chooser = Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, [0, 11, 700])
    among = 0
    for _ in range(9):
        row = random.standard_normal(VOCABULARY).astype(np.float32)
        row[[3, 5, 6, 7, 602, 900, 1100]] += 3
        if ties:
            row = np.round(row * 4) / 4
        token = chooser.choose(row)
        found = shown(chooser, row, ranks)
        if best.enough(found):
            among += 1
            assert chooser.choose_among(found) == token
        chooser.read(token)
    assert among == 9 or ties or "forced_last" in given


def test_of_equal_tokens_the_lowest_id() -> None:
    chooser = Chooser(SamplingOptions(), VOCABULARY, PROMPT, [])
    row = np.zeros(VOCABULARY, np.float32)
    row[[350, 650, 1100]] = 2
    assert chooser.choose_among(shown(chooser, row, 3)) == chooser.choose(row) == 350


def test_more_equal_tokens_than_have_room() -> None:
    options = SamplingOptions(temperature=1.0, top_k=5, seed=1)
    chooser = Chooser(options, VOCABULARY, PROMPT, [])
    row = np.zeros(VOCABULARY, np.float32)
    assert not best.enough(shown(chooser, row, 2))
    row[: VOCABULARY // 2] = -np.arange(VOCABULARY // 2)  # only one rank has too many
    assert not best.enough(shown(chooser, row, 2))


def test_of_equal_best_tokens_the_seed_picks_one() -> None:
    row = np.zeros(VOCABULARY, np.float32)
    row[[350, 360, 650, 1100]] = 2
    picked = set()
    for seed in range(20):
        chooser = Chooser(SamplingOptions(temperature=1.0, top_k=1, seed=seed), VOCABULARY, PROMPT, [])
        picked.add(chooser.choose(row))
        assert chooser.choose_among(shown(chooser, row, 3)) == chooser.choose(row)
    assert picked == {350, 360, 650, 1100}


@pytest.mark.parametrize(
    "given", [{"temperature": 1.0}, {"temperature": 1.0, "top_p": 0.9}, {"temperature": 1.0, "top_k": 400}]
)
def test_where_all_scores_count(given: dict[str, Any]) -> None:
    chooser = Chooser(SamplingOptions(seed=1, **given), VOCABULARY, PROMPT, [])
    assert chooser.shows(VOCABULARY // 2) is None


@pytest.mark.parametrize("given", [{}, {"temperature": 1.0, "top_k": 5, "seed": 1}], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_logits_that_are_not_finite(given: dict[str, Any], value: float) -> None:
    chooser = Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, [])
    row = np.zeros(VOCABULARY, np.float32)
    row[: VOCABULARY // 2] = -np.arange(VOCABULARY // 2)
    row[VOCABULARY // 2 :] = np.arange(VOCABULARY // 2)
    row[900] = value
    found = shown(chooser, row, 2)
    with pytest.raises(ShardrunError, match="not finite"):
        chooser.choose_among(found) if best.enough(found) else chooser.choose(row)


@pytest.mark.parametrize("apart", [1, 64])
def test_logits_without_numbers_in_every_block(apart: int) -> None:
    """As where float16 has overflowed; in a vocabulary that is so large that it is looked at in blocks."""
    row = np.zeros(10_000, np.float32)
    row[::apart] = np.nan
    chooser = Chooser(SamplingOptions(temperature=1.0, top_k=4, seed=1), len(row), PROMPT, [])
    assert not best.enough(shown(chooser, row, 2))
    with pytest.raises(ShardrunError, match="not finite"):
        chooser.choose(row)


@pytest.mark.parametrize("likely", [5, 500], ids=["few", "more than a rank shows"])
def test_a_step_gives_the_whole_output_where_some_logits_are_not_enough(likely: int) -> None:
    """All ranks say so together, and choose by the whole output then."""
    row = np.random.default_rng(3).standard_normal(VOCABULARY).astype(np.float32)
    row[-likely:] = 9.0
    options = SamplingOptions(temperature=1.0, seed=4, top_k=10)

    def work(world: FakeCommunicator) -> tuple[bool, bool]:
        asked = BestTokens("logits", VOCABULARY, Chooser(options, VOCABULARY, PROMPT, []))
        part = np.split(row, world.size)[world.rank].reshape(1, 1, -1)
        found = asked.find(part, world)
        return found, asked.found is not None

    wanted = best.enough(shown(Chooser(options, VOCABULARY, PROMPT, []), row, 2))
    assert wanted is (likely == 5)
    assert on_ranks(2, work) == [(wanted, wanted)] * 2
