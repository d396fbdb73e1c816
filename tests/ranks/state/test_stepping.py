"""Steps of a text that differ in their token alone, against plain ONNX Runtime and ordinary steps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks.errors import ModelError, ShardrunError
from ranks.run import executor
from ranks.run.rank_model import RankModel
from ranks.state import feeds as known_feeds
from tests.ranks import state_models
from tests.ranks.state_models import FORMS, VOCABULARY, Plain

PROMPT = 5
STEPS = 140
"""Over two of the lengths at which buffers double."""
DECODERS = [form for form in FORMS if form != "streaming"]


def made(form: str, folder: Path) -> tuple[RankModel, Plain]:
    """A model with a sequence, number 7, that has read a prompt, and plain ONNX Runtime as far."""
    FORMS[form](folder / "model.onnx")
    model, plain = executor.load(folder / "model.onnx", threads=1), Plain(folder / "model.onnx")
    model.sequences.open(7)
    (prompt,) = state_models.steps(form, [PROMPT])
    equal(model.step(7, {"input_ids": prompt}), plain.step(prompt))
    return model, plain


def equal(found: dict[str, Any], want: np.ndarray[Any, Any]) -> None:
    (array,) = found.values()
    np.testing.assert_allclose(array, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths at which masks were made anew."""
    lengths: list[int] = []
    fill: Callable[..., Any] = known_feeds.fill

    def noted(specs: Any, feeds: Any, past: int) -> Any:
        lengths.append(past)
        return fill(specs, feeds, past)

    monkeypatch.setattr(known_feeds, "fill", noted)
    return lengths


@pytest.mark.parametrize("form", DECODERS)
def test_steps_equal_those_of_plain_onnx_runtime(form: str, tmp_path: Path, filled: list[int]) -> None:
    model, plain = made(form, tmp_path)
    filled.clear()
    ids = np.zeros((1, 1), np.int64)
    with model.stepping(7, {"input_ids": ids}) as step:
        for number in range(STEPS):
            ids[...] = number * 7 % VOCABULARY
            equal(step(None), plain.step(ids))
    if form == "buffered":
        # Two steps teach a plan its shapes, and one more is needed where buffers have moved; it is looked
        # once after each whether the next ones are like it.
        assert len(filled) < 20
    ids[...] = 3
    equal(model.step(7, {"input_ids": ids}), plain.step(ids))


@pytest.mark.parametrize("form", DECODERS)
def test_a_step_that_fails_changes_nothing(form: str, tmp_path: Path) -> None:
    model, plain = made(form, tmp_path)
    ids = np.zeros((1, 1), np.int64)
    with model.stepping(7, {"input_ids": ids}) as step:
        for number in range(24):
            if number % 8 == 6:
                ids[...] = 999
                with pytest.raises(ModelError, match=r"indices|out of"):
                    step(None)
            ids[...] = number
            equal(step(None), plain.step(ids))


def test_nothing_need_be_asked(tmp_path: Path) -> None:
    """Whatever computes it."""
    model, plain = made("buffered", tmp_path)
    ids = np.ones((1, 1), np.int64)
    for model.on_device in (False, True):
        with model.stepping(7, {"input_ids": ids}) as step:
            equal(step(), plain.step(ids))


def test_a_rewound_sequence_goes_on(tmp_path: Path) -> None:
    model, plain = made("buffered", tmp_path)
    ids = np.ones((1, 1), np.int64)
    with model.stepping(7, {"input_ids": ids}) as step:
        for _ in range(8):
            plain_state = dict(plain.state)
            step(None)
            last = plain.step(ids)
        model.sequences.rewind(7, PROMPT + 7)
        plain.state = plain_state
        equal(step(None), last)


def test_steps_go_on_where_memory_for_a_plan_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step before has been made, on all ranks."""
    model, plain = made("buffered", tmp_path)
    tried: list[int] = []

    def again(number: int, feeds: Any) -> None:
        tried.append(number)
        raise MemoryError

    monkeypatch.setattr(model.sequences, "again", again)
    ids = np.zeros((1, 1), np.int64)
    with model.stepping(7, {"input_ids": ids}) as step:
        for number in range(6):
            ids[...] = number
            equal(step(None), plain.step(ids))
    assert tried


def test_a_closed_model_makes_no_steps(tmp_path: Path) -> None:
    model, _ = made("buffered", tmp_path)
    ids = np.zeros((1, 1), np.int64)
    with model.stepping(7, {"input_ids": ids}) as step:
        step(None)
        model.close()
        with pytest.raises(ShardrunError, match="is closed"):
            step(None)
