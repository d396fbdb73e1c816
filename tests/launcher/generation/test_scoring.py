"""Steps of which only some logits are wanted, by decoders that can give a part and by those that cannot."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from launcher.errors import ShardrunError
from launcher.generation import scoring
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Want
from tests.launcher.generation.table import VOCABULARY, TableDecoder

IDS = np.array([3, 1, 4, 1, 5], np.int64)


class Told:
    """A sequence that may be asked for a part, and notes what it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[list[int], list[Any], bool]] = []

    def scores(self, ids: Any, wants: Any, *, every: bool = False) -> list[Scores]:
        self.asked.append((ids.tolist(), list(wants), every))
        return [Scores(np.float32([len(self.asked)]))]


@pytest.mark.parametrize(
    ("chunk", "pieces"),
    [(None, [5]), (1, [1, 1, 1, 1, 1]), (2, [2, 2, 1]), (4, [4, 1]), (5, [5]), (6, [5]), (0, [5])],
)
def test_a_prompt_in_pieces_of_which_the_last_one_s_logits_are_wanted(
    chunk: int | None, pieces: list[int]
) -> None:
    sequence, want = Told(), Want(7)
    found = scoring.read_prompt(sequence, IDS, want, chunk)  # type: ignore[arg-type]
    assert [len(ids) for ids, _, _ in sequence.asked] == pieces
    assert [token for ids, _, _ in sequence.asked for token in ids] == IDS.tolist()
    nothing = [scoring.NOTHING] * (len(pieces) - 1)
    assert [wants for _, wants, _ in sequence.asked] == [[one] for one in (*nothing, want)]
    assert found.values.tolist() == [len(pieces)] and not any(every for _, _, every in sequence.asked)


def test_sequences_that_give_all_logits() -> None:
    decoder = TableDecoder()
    plain = decoder.sequence().step(IDS, every=True)
    for every in (False, True):
        rows = scoring.scores_of(decoder.sequence(), IDS, [Want(1)], every=every)
        assert np.array_equal(scoring.whole(rows), plain if every else plain[-1:])
    sequences = [decoder.sequence(), decoder.sequence(), decoder.sequence()]
    scoring.scores_of(sequences[1], IDS[:1], [None])
    together = scoring.scores_of_each(decoder, sequences, IDS[1:4], [None] * 3)
    alone = [decoder.sequence().step(ids)[0] for ids in (IDS[1:2], IDS[[0, 2]], IDS[3:4])]
    assert np.array_equal(scoring.whole(together), np.array(alone))


def test_a_decoder_that_gives_a_part_of_many_is_asked_for_it() -> None:
    class Many(TableDecoder):
        def scores_many(self, sequences: Any, ids: Any, wants: Any) -> list[Scores]:
            return [Scores(np.float32([want.count])) for want in wants]

    found = scoring.scores_of_each(Many(), [], IDS[:2], [Want(3), Want(5)])
    assert [row.values.tolist() for row in found] == [[3], [5]]


def test_one_after_another_each_reads_its_own_token() -> None:
    sequences = [Told(), Told(), Told()]
    wants = [Want(1), None, Want(3)]
    scoring.one_by_one(sequences, IDS[:3], wants)  # type: ignore[arg-type]
    assert [one.asked for one in sequences] == [
        [([token], [want], False)] for token, want in zip([3, 1, 4], wants, strict=True)
    ]


def test_ranks_are_asked_for_a_part_where_a_part_of_each_row_is_wanted() -> None:
    ask = scoring.asked("logits", 40, [Want(1), Want(2)], every=True)
    assert ask is not None and (ask.output, ask.vocabulary, ask.every) == ("logits", 40, True)
    assert [want.count for want in ask.wants] == [1, 2]
    assert scoring.asked("logits", 40, [Want(1), None]) is None


def test_logits_of_another_vocabulary() -> None:
    logits = np.arange(2 * 3 * 4, dtype=np.float16).reshape(2, 3, 4)
    found = scoring.checked(logits, 4)
    assert found.dtype == np.float32 and found.tolist() == logits.reshape(6, 4).tolist()
    for vocabulary in (3, 5):
        with pytest.raises(ShardrunError, match=f"logits of 4 tokens, but its vocabulary has {vocabulary}"):
            scoring.checked(logits, vocabulary)


@pytest.mark.parametrize(
    ("change", "alike"),
    [(0.0, True), (0.19, True), (0.21, False), (-0.21, False), (np.nan, False), (np.inf, False)],
)
def test_how_far_rows_may_differ(change: float, alike: bool) -> None:
    """By a fiftieth of the largest logit."""
    row = np.linspace(-10, 5, VOCABULARY, dtype=np.float32)
    row[3] = -np.inf
    other = row.copy()
    other[7] += change
    assert scoring.alike([Scores(row), Scores(other)], [Scores(row), Scores(row)]) == alike
    ids = np.array([0, 9])
    assert scoring.alike([Scores(other[ids], ids)], [Scores(row)])  # where both tell the logits, they agree
    ids = np.array([0, 7])
    assert scoring.alike([Scores(other[ids], ids)], [Scores(row)]) == alike
