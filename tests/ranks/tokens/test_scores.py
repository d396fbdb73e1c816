"""Logits of some tokens, and what makes log-probabilities of them."""

from __future__ import annotations

import numpy as np
import pytest

from ranks.tokens.scores import Norm, Scores, total

ROW = np.array([0.5, -1, 2, -np.inf, 3, 2.5], np.float32)


def test_log_probabilities_are_those_of_softmax() -> None:
    wide = ROW.astype(np.float64)
    wanted = wide - np.log(np.exp(wide).sum())
    found = Scores(ROW).logs()
    assert found.dtype == np.float32 and found.tolist() == pytest.approx(wanted.tolist(), abs=1e-6)
    ids = np.array([1, 3, 4])
    some = Scores(ROW[ids], ids, Norm.of(ROW))
    assert some.logs().tolist() == found[ids].tolist()


@pytest.mark.parametrize("cut", range(1, 6))
def test_parts_have_one_sum_in_any_order(cut: int) -> None:
    norm = Norm.of(ROW)
    assert norm.highest == 3.0
    assert total(ROW[:cut], 3.0) + total(ROW[cut:], 3.0) == norm.total == total(ROW[::-1], 3.0)
    assert total(ROW[4:5], 3.0) == 2**40


@pytest.mark.parametrize("highest", [np.nan, np.inf, -np.inf])
def test_nothing_is_a_number_where_the_highest_is_none(highest: float) -> None:
    row = np.full(3, highest, np.float32)
    assert Norm.of(row).total == 0 and np.isnan(Scores(row).logs()).all()


def test_places_and_tokens() -> None:
    some, every = Scores(ROW[:3], np.array([4, 8, 9])), Scores(ROW)
    assert [some.token(place) for place in range(3)] == [4, 8, 9]
    assert [some.place(token) for token in (4, 8, 9)] == [0, 1, 2]
    assert every.token(4) == every.place(4) == 4
