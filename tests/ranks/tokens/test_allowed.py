"""Tokens of which only some are allowed: the choice by what ranks show of their parts is that by all
logits, and that of a plain search among the allowed ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.errors import ShardrunError
from ranks.run.steps.shown import Rows
from ranks.tokens.best import MOST
from ranks.tokens.chooser import Chooser
from ranks.tokens.options import SamplingOptions
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import SHOWN, Ask, Want
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

VOCABULARY, RANKS = 40_000, 4
PART = VOCABULARY // RANKS
RANDOM = np.random.default_rng(0)
ALLOWED = {
    "one": np.array([12_345]),
    "few": np.sort(RANDOM.choice(VOCABULARY, 40, replace=False)),
    "as many as travel": np.arange(100, 100 + min(MOST, PART // 4)),
    "almost all": np.delete(np.arange(VOCABULARY), RANDOM.choice(VOCABULARY, 300, replace=False)),
    "half": np.arange(0, VOCABULARY, 2),
}
MANNERS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "top-k": {"temperature": 1.3, "top_k": 40, "seed": 3},
    "penalties": {"frequency_penalty": 3.0, "logit_bias": {7: 50.0, 100: 40.0}},
    "all": {"temperature": 1.0, "seed": 5},
}


def chooser(how: str) -> Chooser:
    made = Chooser(SamplingOptions(**MANNERS[how]), VOCABULARY, np.array([1, 2]), [0])
    for token in (5, 100, 12_345):
        made.read(token)
    return made


def by_parts(row: Any, want: Want) -> Scores | None:
    """What ranks show of their parts of a row."""

    def work(rank: FakeCommunicator) -> Scores | None:
        rows = Rows(Ask("logits", VOCABULARY, [want]))
        if not rows.find(np.split(row, RANKS)[rank.rank][None, None], rank) or rows.found is None:
            return None
        return (rows.ask.read({SHOWN: rows.found}) or [None])[0]

    return on_ranks(RANKS, work)[0]


@pytest.mark.parametrize("how", MANNERS)
@pytest.mark.parametrize("which", ALLOWED)
@pytest.mark.parametrize("logprobs", [None, 3])
def test_parts_give_the_choice_of_the_whole(how: str, which: str, logprobs: int | None) -> None:
    parted = 0
    for number in range(5):
        row = np.round(np.random.default_rng(number).normal(size=VOCABULARY) * 4, 1).astype(np.float32)
        whole, one = chooser(how), chooser(how)
        whole.allowed = one.allowed = ALLOWED[which]
        chosen = whole.choose(row)
        assert chosen in ALLOWED[which]
        if how == "greedy":
            assert chosen == ALLOWED[which][row[ALLOWED[which]].argmax()]
        want = one.want(logprobs)
        if want is None or not want.fits(PART):
            assert which == "half"
            continue
        scores = by_parts(row, want)
        if scores is not None:
            parted += 1
            if scores.drawn is not None:
                assert how == "all" and scores.drawn[one.number_now] == chosen
            else:
                assert one.choose(scores.values, scores.ids) == chosen
    if which != "half":
        assert parted


def test_nothing_that_can_come() -> None:
    row, one = np.zeros(VOCABULARY, np.float32), chooser("greedy")
    one.allowed = np.empty(0, np.int64)
    with pytest.raises(ShardrunError, match="no token can come next"):
        one.choose(row)
    row[9] = -np.inf
    one.allowed = np.array([9])
    with pytest.raises(ShardrunError, match="no token can come next"):
        one.choose(row)
