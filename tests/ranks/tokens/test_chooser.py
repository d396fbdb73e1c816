"""A text that is told to another process goes on there as it would have gone on here."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from ranks.errors import ShardrunError
from ranks.tokens import best
from ranks.tokens.chooser import Chooser
from ranks.tokens.options import SamplingOptions

VOCABULARY = 1500
PROMPT = np.array([5, 6, 7, 5, 6, 900])

OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7, "seed": 2**64 - 1},
    {"temperature": 1.3, "seed": 3, "top_k": 40, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"no_repeat_ngram": 2, "min_new_tokens": 6},
    {"temperature": 1.0, "seed": 5, "logit_bias": {7: 3.1415926, 9: -2.5}, "suppressed": (1, 2)},
    {"forced_last": (77,), "max_new_tokens": 9, "suppressed_first": (3,), "forced_first": (4,)},
]


@pytest.mark.parametrize("given", OPTIONS, ids=str)
@pytest.mark.parametrize("here", [1, 4, 8])
def test_it_goes_on_elsewhere(given: dict[str, Any], here: int) -> None:
    random = np.random.default_rng(1)
    # Few tokens are likely, so that penalties and n-grams matter.
    table = random.standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)
    table[:, :20] += 4
    whole = Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, [0, 11], 2)
    part: Chooser = whole.copy(2)
    for step in range(9):
        if step == here:
            part = Chooser.of(json.loads(json.dumps(part.told())), VOCABULARY)
        row = table[whole.ids[-1] if whole.ids else 0]
        tokens = [chooser.choose(row) for chooser in (whole, part)]
        assert tokens[0] == tokens[1]
        whole.read(tokens[0])
        part.read(tokens[0])
    assert whole.ids == part.ids
    if "forced_last" in given:
        assert whole.ids[-1] == 77
    if "no_repeat_ngram" in given:
        read = [*PROMPT.tolist(), *whole.ids]
        pairs = list(itertools.pairwise(read[5:]))
        assert len(set(pairs)) == len(pairs) and not {0, 11} & set(whole.ids[:6])


def test_a_prompt_travels_only_where_it_counts() -> None:
    for given in OPTIONS:
        told = Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, []).told()
        assert bool(told["prompt"]) == bool({"repetition_penalty", "no_repeat_ngram"} & set(given))


def test_options_travel_without_what_was_not_given() -> None:
    for given in OPTIONS:
        options = SamplingOptions(**given)
        told = json.loads(json.dumps(options.to_json()))
        assert all(getattr(SamplingOptions(), name) != getattr(options, name) for name in told)
        assert SamplingOptions.from_json(told) == options
    assert SamplingOptions(suppressed=(), logit_bias={}, temperature=0.0).to_json() == {"temperature": 0.0}


@pytest.mark.parametrize("count", [best.MOST, best.MOST + 1])
def test_of_how_many_tokens_the_logits_are_asked_for(count: int) -> None:
    chooser = Chooser(SamplingOptions(logit_bias=dict.fromkeys(range(count), 1.0)), 3 * count, PROMPT, [])
    assert (chooser.want() is None) == (count > best.MOST)


def test_logits_that_are_not_finite() -> None:
    chooser = Chooser(SamplingOptions(), VOCABULARY, PROMPT, [])
    with pytest.raises(ShardrunError, match="not finite"):
        chooser.choose(np.full(VOCABULARY, np.nan, np.float32))


def first_and_second(prompt: Sequence[int], **given: Any) -> list[int]:
    chooser = Chooser(SamplingOptions(**given), 10, np.array(prompt), [])
    row = np.arange(10, dtype=np.float32)
    for _ in range(2):
        chooser.read(chooser.choose(row))
    return chooser.ids


def test_what_holds_for_the_first_token_alone() -> None:
    """A token is forced as the second of a text: not where a prompt has more than the one that begins it."""
    assert first_and_second([5], forced_first=(4,)) == [4, 9]
    assert first_and_second([5, 6], forced_first=(4,)) == [9, 9]
    assert first_and_second([5, 6], suppressed_first=(9,)) == [8, 9]
    assert first_and_second([5], suppressed=(9,)) == [8, 8]


def test_what_one_copy_reads_is_nothing_to_another() -> None:
    """Beams and samples have begun alike: no tokens but its own count against a text."""
    options = SamplingOptions(no_repeat_ngram=2, repetition_penalty=1.5, frequency_penalty=1.0)
    whole = Chooser(options, 10, np.array([1, 8, 5]), [])
    row = np.arange(10, dtype=np.float32)
    whole.read(1)
    twin = whole.copy(2)
    for token in (9, 1):
        twin.read(token)
    assert (whole.ids, twin.ids) == ([1], [1, 9, 1])
    assert (whole.choose(row), twin.choose(row)) == (9, 7)
