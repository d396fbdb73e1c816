"""What is wanted of logits that ranks have in parts: put together, it is as good as all of them."""

from __future__ import annotations

import json
from typing import Any, cast

import numpy as np
import pytest

from ranks.collectives.single import SingleCommunicator
from ranks.run.steps.likeliest import telling
from ranks.run.steps.shown import Asking, Rows
from ranks.tokens import sampling, wanted
from ranks.tokens.chooser import Chooser
from ranks.tokens.draws import Draw
from ranks.tokens.options import SamplingOptions
from ranks.tokens.scores import Norm, Scores
from ranks.tokens.wanted import Ask, Want
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.turns import in_turns

VOCABULARY = 1200
PROMPT = np.array([5, 6, 7, 5, 6, 900])
OPTIONS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 4, "top_k": 1},
    {"temperature": 1.7, "seed": 4, "top_k": 40},
    {"temperature": 1.3, "seed": 3, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
    {"repetition_penalty": 1.7, "presence_penalty": 0.4, "frequency_penalty": 0.3},
    {"repetition_penalty": 0.6, "temperature": 1.0, "top_k": 3, "seed": 5},
    {"temperature": 2.0, "seed": 9, "top_k": 30, "repetition_penalty": 1.2, "no_repeat_ngram": 2},
    {"no_repeat_ngram": 2, "min_new_tokens": 6},
    {"logit_bias": {7: 3.1415926, 599: -2.5, 600: 4.0, 1199: 4.0}, "suppressed": (1, 2, 601, 1198)},
    {"forced_last": (777,), "max_new_tokens": 9, "suppressed_first": (3, 800)},
    {"temperature": 1.1, "seed": 6},
    {"temperature": 0.8, "top_p": 0.9, "seed": 6, "repetition_penalty": 1.4, "no_repeat_ngram": 2},
    {"temperature": 1.5, "min_p": 0.02, "seed": 6, "frequency_penalty": 0.5, "suppressed": (5, 602)},
    {"temperature": 1.0, "seed": 6, "forced_last": (777, 3), "max_new_tokens": 9, "min_new_tokens": 6},
    {"temperature": 1.0, "seed": 6, "logit_bias": {7: 3.1415926, 599: -2.5, 600: 4.0, 1199: 4.0}},
]
Array = np.ndarray[Any, Any]


def parted(rows: Array, wants: list[Want], ranks: int, *, every: bool = False) -> list[Scores] | None:
    """What ranks show of rows (rows, vocabulary), as it is read at the end of its way."""
    report, tensors = Ask("logits", VOCABULARY, wants, every).told()
    report = json.loads(json.dumps(report))
    part = VOCABULARY // ranks

    def work(rank: FakeCommunicator) -> tuple[list[Scores] | None, int]:
        ask = Ask.of(report, dict(tensors))
        asked = Rows(ask)
        shown = asked.find(rows[:, None, rank.rank * part :][..., :part], rank)
        sent = max((int(np.prod(shape)) for _, shape in rank.calls), default=0)
        return (ask.read({wanted.SHOWN: asked.found}) if shown and asked.found is not None else None), sent

    found = on_ranks(ranks, work)
    assert len({scores is None for scores, _ in found}) == 1
    most = max(part, 400) * len(rows)  # the first digits at the border of top-p are as many
    assert found[0][0] is None or all(sent < most for _, sent in found)
    return found[0][0]


def noisy(random: np.random.Generator, ties: bool) -> Array:
    row = random.standard_normal(VOCABULARY).astype(np.float32)
    row[[3, 5, 6, 7, 602, 900, 1100]] += 3
    return np.round(row * 4) / 4 if ties else row


def chosen(chooser: Chooser, scores: Scores) -> int:
    """The next token: that which the ranks have drawn, or one of those that they show."""
    if scores.drawn is None:
        return chooser.choose(scores.values, scores.ids)
    token = scores.drawn[chooser.number_now]
    assert scores.ids is not None and token in scores.ids
    return token


@pytest.mark.parametrize(
    ("given", "ranks", "logprobs", "ties"),
    [
        (*turn, number // 3 % 2 == 1)
        for number, turn in enumerate(in_turns(OPTIONS, [1, 2, 3, 4], [None, 0, 5]))
    ],
    ids=str,
)
def test_the_same_tokens_and_log_probabilities(
    given: dict[str, Any], ranks: int, ties: bool, logprobs: int | None
) -> None:
    """With each of the others, ties come and do not come."""
    random = np.random.default_rng(2)
    chooser = Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, [0, 11, 700])
    among = 0
    for _ in range(9):
        row, want = noisy(random, ties), chooser.want(logprobs)
        assert want is not None
        token = chooser.choose(row)
        found = parted(row[None], [want], ranks)
        if found is not None:
            among += 1
            [scores] = found
            assert chosen(chooser, scores) == token
            drawn = "temperature" in given and "top_k" not in given and "forced_last" not in given
            assert (scores.drawn is not None) == drawn or "forced_last" in given
            if logprobs is not None:
                logs, part = Norm.of(row).logs(row), scores.logs()
                assert part[scores.place(token)] == logs[token]
                best = sampling.top(part, logprobs)
                assert [scores.token(place) for place in best.tolist()] == sampling.top(
                    logs, logprobs
                ).tolist()
        chooser.read(token)
    assert among == 9 or ties


def test_rows_of_different_texts_in_one_step() -> None:
    random = np.random.default_rng(3)
    choosers = [
        Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, [0], number)
        for number, given in enumerate(OPTIONS)
    ]
    for _ in range(5):
        rows = np.stack([noisy(random, False) for _ in choosers])
        wants = [chooser.want() for chooser in choosers]
        found = parted(rows, [want for want in wants if want is not None], 2)
        assert found is not None
        for chooser, row, scores in zip(choosers, rows, found, strict=True):
            token = chosen(chooser, scores)
            assert token == chooser.choose(row)
            chooser.read(token)


@pytest.mark.parametrize(
    "more", [{}, {"no_repeat_ngram": 2}, {"temperature": 1.2, "seed": 3, "no_repeat_ngram": 2}], ids=str
)
def test_positions_after_guesses(more: dict[str, Any]) -> None:
    """Penalties and rows of tokens that are only guessed yet, and the random number of each position."""
    random = np.random.default_rng(4)
    options = SamplingOptions(repetition_penalty=3.0, frequency_penalty=1.0, min_new_tokens=2, **more)
    chooser = Chooser(options, VOCABULARY, PROMPT, [11])
    guesses = [1100, 3]
    wants = [want for want in chooser.wants_after(guesses) if want is not None]
    assert [set(want.also.tolist()) for want in wants] == [
        {11, 5, 6, 7, 900}, {11, 1100, 5, 6, 7, 900}, {1100, 3, 5, 6, 7, 900}
    ]  # fmt: skip
    rows = np.stack([noisy(random, False) for _ in range(3)])
    found = parted(rows, wants, 2, every=True)
    assert found is not None and not chooser.ids
    for row, scores, guess in zip(rows, found, [*guesses, 0], strict=True):
        assert chosen(chooser, scores) == chooser.choose(row)
        chooser.read(guess)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("logprobs", [None, 2])
@pytest.mark.parametrize(
    "given",
    [{}, {"temperature": 1.0, "top_k": 5, "seed": 1}, {"temperature": 1.0, "top_p": 0.9, "seed": 1}],
    ids=str,
)
def test_logits_that_are_not_finite(given: dict[str, Any], value: float, logprobs: int | None) -> None:
    chooser = Chooser(SamplingOptions(**given), VOCABULARY, PROMPT, [])
    row = np.arange(VOCABULARY, dtype=np.float32)
    row[900] = value
    want = chooser.want(logprobs)
    assert want is not None
    found = parted(row[None], [want], 2)
    with pytest.raises(Exception, match="not finite"):
        chooser.choose(*((found[0].values, found[0].ids) if found is not None else (row, None)))


def test_equal_logits_everywhere() -> None:
    row = np.zeros((1, VOCABULARY), np.float32)
    assert parted(row, [Want(5)], 2) is None and parted(row, [Want(5, logs=True)], 2) is None
    [scores] = parted(row, [Want(0)], 2) or []
    assert Chooser(SamplingOptions(), VOCABULARY, PROMPT, []).choose(scores.values, scores.ids) == 0


def test_what_becomes_equal_on_the_way_to_a_score_is_shown() -> None:
    """Logits that differ in their last bit are equal once they are log-probabilities added to others."""
    row = np.full(VOCABULARY, -9.0, np.float32)
    row[700] = np.float32(1.0)
    row[[20, 30, 800]] = np.nextafter(np.float32(1.0), np.float32(0))
    [scores] = parted(row[None], [Want(1, logs=True, slack=300.0)], 2) or []
    assert scores.ids is not None and {20, 30, 700, 800} == set(scores.ids.tolist())
    totals = scores.logs() + np.float32(-300.0)
    whole = Norm.of(row).logs(row) + np.float32(-300.0)
    assert scores.token(int(totals.argmax())) == int(whole.argmax()) == 20


@pytest.mark.parametrize(
    ("kind", "scale"), [("float16", 30), ("float64", 1 + 2.0**-40), ("float64", 1e30), ("bfloat16", 7)]
)
def test_other_types_are_read_as_the_whole_output_is(kind: str, scale: float) -> None:
    import ml_dtypes  # noqa: F401 - knows bfloat16

    random = np.random.default_rng(6)
    rows = (random.standard_normal((2, VOCABULARY)) * scale).astype(np.dtype(kind))
    want = Want(12, np.array([4, 800]), logs=scale < 1e9)
    found = parted(rows, [want] * 2, 3)
    assert found is not None
    for row, scores in zip(rows, found, strict=True):
        whole = np.asarray(row, np.float32)
        assert scores.ids is not None and (whole[scores.ids] == scores.values).all()
        assert {4, 800, *sampling.top(whole, 12).tolist()} <= set(scores.ids.tolist())
        if want.logs:
            assert (scores.logs() == Norm.of(whole).logs(whole)[scores.ids]).all()


def test_log_probabilities_are_those_of_a_softmax() -> None:
    random = np.random.default_rng(7)
    for size, scale in ((40, 1), (VOCABULARY, 10), (152_000, 3), (262_144, 0)):
        row = (random.standard_normal(size) * scale).astype(np.float32)
        wide = row.astype(np.float64) - float(row.max())
        want = wide - np.log(np.exp(wide).sum())
        assert np.abs(Scores(row).logs() - want).max() < 1e-6 * max(1, np.abs(want).max())


def test_what_is_not_worth_a_choice_of_its_own() -> None:
    row = np.random.default_rng(8).standard_normal((1, VOCABULARY)).astype(np.float32)
    for want in (Want(400), Want(0, np.arange(400))):
        assert parted(row, [want], 2) is None
    assert Rows(Ask("logits", VOCABULARY + 2, [Want(0)])).find(row[None], cast(Any, FakeOne())) is False


class FakeOne:
    """One rank, which has less than the whole vocabulary."""

    size, rank = 1, 0


def test_what_cannot_be_read_is_not_taken_for_what_was_asked_before() -> None:
    asking, tensors = Asking(), dict[str, Any]()
    good, _ = Ask("logits", VOCABULARY, [Want(3)]).told()
    rows = asking.rows({"asked": good}, tensors)
    assert rows is not None and asking.rows({"asked": dict(good)}, tensors) is rows
    for _ in range(2):
        with pytest.raises(ValueError, match="unpack"):
            asking.rows({"asked": {**good, "rows": [[3]]}}, tensors)
    assert asking.rows({"asked": good}, tensors) is not None


@pytest.mark.parametrize("each", [1, 2])
def test_rows_of_several_copies(each: int) -> None:
    """Of which one shows nothing, but gives its rows whole."""
    random = np.random.default_rng(9)
    owners, count = [1, 0, 2, 1, 0], 5
    rows = np.stack([noisy(random, False) for _ in range(each * count)])
    none = np.array([[0, 1, 0], [0, 1, 0]], np.float32)
    wants = [
        Want(
            k % 4, np.array([7 * k, 900]), logs=k % 2 == 1,
            draw=Draw(1.2, (0.1, 0.7 + k / 50), 0.9, changes=none) if k % 3 else None,
        )
        for k in range(each * count)
    ]  # fmt: skip
    ask = Ask("logits", VOCABULARY, wants, every=True)
    told, mine, whole = [], [], []
    for copy in range(3):
        own = [row for row, owner in enumerate(owners) if owner == copy]
        mine.append(own)
        places = [row * each + k for row in own for k in range(each)]
        part = Rows(ask).of(own, count)
        assert [want.count for want in part.ask.wants] == [wants[place].count for place in places]
        if copy == 1:
            whole += places
        else:
            part.find(rows[places], SingleCommunicator())
        told.append(np.array(part.told()))
    asked = Rows(ask)
    asked.hear(told, mine)
    assert asked.found is not None
    logits = rows[sorted(whole)].reshape(2, each, VOCABULARY)
    scores = ask.read({wanted.SHOWN: asked.found, "logits": logits})
    assert scores is not None
    for place, (found, row, want) in enumerate(zip(scores, rows, wants, strict=True)):
        assert (found.ids is None) == (place in whole)
        best = sampling.top(row, max(want.count, 1)).tolist()
        for token in (*best, *want.also.tolist()):
            assert found.values[found.place(token)] == row[token]
        if want.logs:
            assert found.logs()[found.place(best[0])] == Norm.of(row).logs(row)[best[0]]
        if want.draw is not None and found.drawn is not None:
            left = sampling.candidates(row, SamplingOptions(temperature=1.2, top_p=0.9))
            assert found.drawn == {number: left.pick(number) for number in want.draw.numbers}
        assert (found.drawn is None) == (want.draw is None or found.ids is None)
    asked.hear([wanted.nothing(wants)])
    assert asked.found is None


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("logs", [False, True])
def test_rows_of_a_copy_that_looks_for_them_in_all_logits(ranks: int, logs: bool) -> None:
    """Beside one whose ranks show those of their parts: each of these tokens is there once."""
    rows = np.random.default_rng(10).standard_normal((2, VOCABULARY)).astype(np.float32)
    part = VOCABULARY // ranks
    rows[1, part:] = -9.0  # too many alike in the other parts: ranks do not show them
    draw = Draw(1.0, (0.5,), changes=np.array([[0, 1, 0], [0, 1, 0]], np.float32))
    wants = [
        Want(3, np.array([7, 900]), logs=logs, draw=draw),
        Want(4, np.array([8, 1199]), logs=logs, draw=draw),
    ]
    ask = Ask("logits", VOCABULARY, wants)

    def told(row: int) -> Array:
        def work(rank: FakeCommunicator) -> Array:
            asked = Rows(ask).of([row], 2)
            found = asked.find(rows[row, rank.rank * part :][None, None, :part], rank)
            shown = telling({} if found else {"logits": rows[row][None, None]}, asked)
            return np.array(shown[wanted.SHOWN])

        return on_ranks(ranks, work)[0]

    pieces, asked = [told(0), told(1)], Rows(ask)
    assert [len(piece) for piece in pieces] == [ranks, 1]
    asked.hear(pieces, [[0], [1]])
    assert asked.found is not None
    scores = ask.read({wanted.SHOWN: asked.found})
    assert scores is not None
    for found, row, want in zip(scores, rows, wants, strict=True):
        assert found.ids is not None and len(set(found.ids.tolist())) == len(found.ids)
        assert {*sampling.top(row, want.count).tolist(), *want.also.tolist()} <= set(found.ids.tolist())
        assert (found.values == row[found.ids]).all()
        if logs:
            assert (found.logs() == Norm.of(row).logs(row)[found.ids]).all()
