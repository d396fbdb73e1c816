"""What changes logits before a token is chosen: by hand for a vocabulary of six, then in all its forms."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import Penalties, changed

ROW = np.array([1, -1, 2, -2, 0.5, 3], np.float32)
NEVER = -np.inf
ENDS = (0, 5)
CASES: dict[str, tuple[dict[str, Any], list[int], list[int], list[float]]] = {
    # what is asked for, the prompt, the tokens since, the logits
    "nothing": ({}, [1, 2], [3], [1, -1, 2, -2, 0.5, 3]),
    "seen in the prompt": ({"repetition_penalty": 2.0}, [2, 3], [], [1, -1, 1, -4, 0.5, 3]),
    "seen since": ({"repetition_penalty": 2.0}, [2], [1, 5], [1, -2, 1, -2, 0.5, 1.5]),
    "counted since": ({"frequency_penalty": 0.5}, [2, 2], [4, 3, 3], [1, -1, 2, -3, 0, 3]),
    "there or not": ({"presence_penalty": 0.5}, [2, 2], [4, 3, 3], [1, -1, 2, -2.5, 0, 3]),
    "both": ({"presence_penalty": 1.0, "frequency_penalty": 0.5}, [2], [3, 3], [1, -1, 2, -4, 0.5, 3]),
    "bias": ({"logit_bias": {4: 1.0, 0: -2.0}}, [2], [3], [-1, -1, 2, -2, 1.5, 3]),
    "still too short": ({"min_new_tokens": 2}, [2], [3], [NEVER, -1, 2, -2, 0.5, NEVER]),
    "long enough": ({"min_new_tokens": 2}, [2], [3, 3], [1, -1, 2, -2, 0.5, 3]),
    "never": ({"suppressed": (2, 4)}, [2], [3], [1, -1, NEVER, -2, NEVER, 3]),
    "not first": ({"suppressed_first": (2, 4)}, [1, 2], [], [1, -1, NEVER, -2, NEVER, 3]),
    "second": ({"suppressed_first": (2, 4)}, [1, 2], [3], [1, -1, 2, -2, 0.5, 3]),
    "has to come first": ({"forced_first": (4,)}, [1], [], [NEVER] * 4 + [0, NEVER]),
    "came first": ({"forced_first": (4,)}, [1], [4], [1, -1, 2, -2, 0.5, 3]),
    "first of a long prompt": ({"forced_first": (4,)}, [1, 2], [], [1, -1, 2, -2, 0.5, 3]),
    "has to come last": (
        {"forced_last": (1, 2), "max_new_tokens": 2}, [1], [4], [NEVER, 0, 0, NEVER, NEVER, NEVER],
    ),
    "not the last yet": ({"forced_last": (1,), "max_new_tokens": 3}, [1], [4], [1, -1, 2, -2, 0.5, 3]),
    "forced, whatever is held back": (
        {"forced_first": (5,), "min_new_tokens": 3, "repetition_penalty": 2.0}, [5], [], [NEVER] * 5 + [0],
    ),
    "forced, but never": (
        {"forced_first": (4, 5), "suppressed": (5,)}, [1], [], [NEVER] * 4 + [0, NEVER],
    ),
    "a pair of the prompt's": ({"no_repeat_ngram": 2}, [1, 2, 3, 1], [], [1, -1, NEVER, -2, 0.5, 3]),
    "the prompt's last pair": ({"no_repeat_ngram": 2}, [1, 4, 4], [], [1, -1, 2, -2, NEVER, 3]),
    "a pair of before and since": ({"no_repeat_ngram": 2}, [1, 2], [3, 2], [1, -1, 2, NEVER, 0.5, 3]),
    "three in a row": ({"no_repeat_ngram": 3}, [1, 2, 3, 4, 1], [2], [1, -1, 2, NEVER, 0.5, 3]),
    "two of three in a row": ({"no_repeat_ngram": 3}, [1, 2, 3, 4, 5], [2], [1, -1, 2, -2, 0.5, 3]),
    "no token twice": ({"no_repeat_ngram": 1}, [1, 2], [4], [1, NEVER, NEVER, -2, NEVER, 3]),
    "too short to repeat": ({"no_repeat_ngram": 4}, [1], [1], [1, -1, 2, -2, 0.5, 3]),
}  # fmt: skip


def penalties(case: str) -> Penalties:
    given, prompt, since, _ = CASES[case]
    found = Penalties(SamplingOptions(**given), len(ROW), np.array(prompt, np.int64), ENDS)
    for token in since:
        found.read(token)
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_logits_of_all_tokens(case: str) -> None:
    row = ROW.copy()
    assert penalties(case).apply(row).tolist() == CASES[case][-1]
    assert row.tolist() == ROW.tolist()


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("cut", range(1, 6))
def test_the_logits_of_a_part(case: str, cut: int) -> None:
    found, wanted = penalties(case), CASES[case][-1]
    assert found.apply(ROW[:cut]).tolist() == wanted[:cut]
    assert found.apply(ROW[cut:], cut).tolist() == wanted[cut:]
    ids = np.array([0, cut])
    assert found.apply(ROW[ids], ids=ids).tolist() == [wanted[0], wanted[cut]]


@pytest.mark.parametrize("case", CASES)
def test_what_is_touched_and_how(case: str) -> None:
    """Whoever has the logits of some tokens alone asks for these besides, and changes them by himself."""
    found, wanted = penalties(case), np.array(CASES[case][-1], np.float32)
    touched = found.touched().tolist()
    assert touched == sorted(set(touched))
    forced = case in {"has to come first", "has to come last", "forced, whatever is held back"}
    assert found.forced == (forced or case == "forced, but never")
    if found.forced:
        assert set(np.flatnonzero(wanted == 0)) <= set(touched)
        return
    assert set(np.flatnonzero(wanted != ROW)) <= set(touched)
    for ids in (np.arange(6), found.touched(), np.array([1, 4])):
        assert changed(ROW[ids], found.changes(ids)).tolist() == wanted[ids].tolist()


@pytest.mark.parametrize(
    ("given", "prompt", "since", "nothing"),
    [
        ({}, [1], [], True),
        ({"repetition_penalty": 1.0, "presence_penalty": 0.0, "logit_bias": {}}, [1], [], True),
        ({"repetition_penalty": 1.1}, [1], [2], False),
        ({"presence_penalty": 0.1}, [1], [2], False),
        ({"frequency_penalty": -0.1}, [1], [2], False),
        ({"no_repeat_ngram": 2}, [1], [2], False),
        ({"logit_bias": {1: 0.5}}, [1], [2], False),
        ({"suppressed": (3,)}, [1], [2], False),
        ({"forced_last": (3,)}, [1], [2], False),
        ({"suppressed_first": (3,)}, [1], [], False),
        ({"suppressed_first": (3,)}, [1], [2], True),
        ({"forced_first": (3,)}, [1], [], False),
        ({"forced_first": (3,)}, [1], [2], True),
        ({"forced_first": (3,)}, [1, 2], [], True),
        ({"min_new_tokens": 2}, [1], [2], False),
        ({"min_new_tokens": 2}, [1], [2, 2], True),
    ],
)
def test_whether_anything_changes_from_here_on(
    given: dict[str, Any], prompt: list[int], since: list[int], nothing: bool
) -> None:
    found = Penalties(SamplingOptions(**given), len(ROW), np.array(prompt), ENDS)
    for token in since:
        found.read(token)
    assert found.nothing == nothing
    without = Penalties(SamplingOptions(min_new_tokens=2), len(ROW), np.array(prompt), ())
    assert without.nothing  # no token ends a text


@pytest.mark.parametrize(
    ("given", "counts"),
    [({"repetition_penalty": 1.1}, True), ({"no_repeat_ngram": 1}, True), ({"presence_penalty": 1.0}, False)],
)
def test_whether_the_prompt_matters(given: dict[str, Any], counts: bool) -> None:
    assert Penalties(SamplingOptions(**given), 6, np.array([1]), ENDS).counts_prompt == counts


def test_texts_that_have_begun_alike_go_on_apart() -> None:
    options = SamplingOptions(repetition_penalty=2.0, frequency_penalty=1.0, no_repeat_ngram=2)
    first = Penalties(options, 6, np.array([1, 2]), ENDS)
    before = first.apply(ROW).tolist()
    twin = first.copy()
    for token in (5, 1, 2):
        twin.read(token)
    assert first.apply(ROW).tolist() == before
    alone = Penalties(options, 6, np.array([1, 2]), ENDS)
    for token in (5, 1, 2):
        alone.read(token)
    assert twin.apply(ROW).tolist() == alone.apply(ROW).tolist() != before
