"""Steps that are asked for the likeliest token only, where each rank has the logits of some words."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import sharding
from ranks.run import executor
from ranks.run.rank_model import RankModel
from ranks.run.steps.likeliest import Likeliest
from sharding.demands.options import SliceOptions
from tests.launcher.generation import tiny
from tests.ranks import odd_states
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

WORDS, COUNT = tiny.VOCABULARY, 6
PROMPT = [5, 66, 7, 123, 9]
UNKNOWN = 8
"""A word whose embedding is no number."""
Array = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A decoder whose words come twice: the second half has the logits of the first."""
    path = tiny.save_decoder(tmp_path_factory.mktemp("words") / "model.onnx")
    model = onnx.load(path)
    for weight in model.graph.initializer:
        values = numpy_helper.to_array(weight).copy()
        if weight.name == "head":
            values[:, WORDS // 2 :] = values[:, : WORDS // 2]
        elif weight.name == "embed":
            values[UNKNOWN] = np.nan
        weight.CopyFrom(numpy_helper.from_array(values, weight.name))
    onnx.save(model, path)
    return path


@pytest.fixture(scope="module")
def slices(path: Path) -> Path:
    steering = path.with_name("steer.yaml")
    steering.write_text("head: column\n")
    sharding.slice_model(path, 2, path.with_name("slices"), options=SliceOptions(steering=steering))
    return path.with_name("slices")


@pytest.fixture(scope="module")
def plain(path: Path) -> tiny.Plain:
    return tiny.Plain(path)


Work = Callable[[RankModel, FakeCommunicator], Any]


def _both(slices: Path, work: Work) -> list[Any]:
    """What a work gave on each of two ranks, with an open sequence 1."""

    def run(communicator: FakeCommunicator) -> Any:
        model = executor.load(slices, communicator=communicator, threads=1)
        model.sequences.open(1)
        communicator.calls.clear()
        return work(model, communicator)

    return on_ranks(2, run)


def _feeds(ids: list[int]) -> dict[str, Array]:
    return {"input_ids": np.array([ids])}


def _assert_close(found: Array, want: Array) -> None:
    np.testing.assert_allclose(found, want, rtol=0, atol=1e-4 * np.abs(np.nan_to_num(want)).max())


def test_the_first_of_equal_ones_is_found_by_all(slices: Path, plain: tiny.Plain) -> None:
    def work(model: RankModel, communicator: FakeCommunicator) -> list[tuple[int, float]]:
        asked, found, ids = Likeliest("logits", WORDS), [], PROMPT
        for number in range(COUNT):
            asked.word = 10.0 * communicator.rank + number
            outputs = model.step(1, _feeds(ids), asked)
            assert outputs == {} and asked.found is not None
            found.append(asked.found)
            ids = [asked.found[0]]
        gathered = {shape for call, shape in communicator.calls if call == "all_gather"}
        assert (1, 3) in gathered and not any(shape[-1] == WORDS // 2 for shape in gathered)
        return found

    first, second = _both(slices, work)
    assert first == second
    assert [word for _, word in first] == list(range(COUNT))  # rank 0's
    tokens = [token for token, _ in first]
    assert tokens == [token % (WORDS // 2) for token in plain.greedy(PROMPT, COUNT)]


@pytest.mark.parametrize("why", ["no number", "another size", "another output"])
def test_else_the_output_is_whole(slices: Path, plain: tiny.Plain, why: str) -> None:
    ids = [*PROMPT, UNKNOWN] if why == "no number" else PROMPT

    def work(model: RankModel, _: FakeCommunicator) -> Array:
        asked = Likeliest(
            "others" if why == "another output" else "logits", WORDS + 2 * (why == "another size")
        )
        logits = model.step(1, _feeds(ids), asked)["logits"]
        assert asked.found is None
        # The one who asks next finds a new place.
        model.step(1, _feeds([3]), again := Likeliest("logits", WORDS))
        assert (again.found is None) == (why == "no number")
        return logits

    want = plain.logits(ids)
    for logits in _both(slices, work):
        _assert_close(logits[0], want)


def test_who_does_not_ask_gets_all(slices: Path, plain: tiny.Plain) -> None:
    """Between steps that ask: plans are the same for both."""

    def work(model: RankModel, _: FakeCommunicator) -> list[Array]:
        kept = []
        for place, token in enumerate([*PROMPT, 3, 4, 5]):
            asked = Likeliest("logits", WORDS) if place % 3 else None
            outputs = model.step(1, _feeds([token]), asked)
            assert (asked is None) == ("logits" in outputs)
            kept += [outputs["logits"][0]] if asked is None else []
        return kept

    want = plain.logits([*PROMPT, 3, 4, 5])[::3]
    for found in _both(slices, work):
        _assert_close(np.concatenate(found), want)


def test_steps_of_other_shapes_than_planned_gather_their_own(tmp_path: Path) -> None:
    """The result has the shape of the step before, but not what it is made of: it is not that step's."""
    text = """g (float[b,f,12] x, float[b,n,12] tail) => (float[b,12] y, float[b,m,12] tail_out) {
        j = Concat<axis=1>(tail, x) sh = Shape<start=1,end=2>(j) q = Div(sh, fours) u = Mul(q, fours)
        head = Slice(j, zeros, u, ones) tail_out = Slice(j, u, sh, ones)
        r = ReduceSum<keepdims=0>(head, ones) y = MatMul(r, w1) }"""
    path, steering = tmp_path / "model.onnx", tmp_path / "steer.yaml"
    odd_states.save(path, {"sum": text})
    steering.write_text("sum.w1: column\n")
    options = SliceOptions(steering=steering, state={"sum.tail": "sum.tail_out"})
    sharding.slice_model(path, 2, tmp_path / "slices", options=options)
    random = np.random.default_rng(0)
    tail = np.zeros((1, 0, 12), np.float32)
    feeds: list[dict[str, Array]] = [
        {"sum.x": random.standard_normal((1, 7, 12)).astype(np.float32)} for _ in range(9)
    ]
    feeds[0]["sum.tail"] = tail
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    want = []
    for fed in feeds:
        y, tail = plain.run(None, {"sum.tail": tail, **fed})
        want.append(y)

    def work(model: RankModel, communicator: FakeCommunicator) -> list[Array]:
        found = [model.step(1, fed)["sum.y"] for fed in feeds]
        assert [call for call, _ in communicator.calls] == ["all_gather"] * len(feeds)
        return found

    for found in _both(tmp_path / "slices", work):
        _assert_close(np.concatenate(found), np.concatenate(want))


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("value", [1.0 + 2.0**-40, 1e300])
def test_long_numbers_are_told_apart_as_far_as_in_the_whole_output(value: float) -> None:
    """Whoever chooses by whole logits reads them as float32."""
    row = np.ones(8)
    row[6] = value

    def work(rank: FakeCommunicator) -> tuple[bool, Any]:
        asked = Likeliest("logits", 8)
        return asked.find(row[None, 4 * rank.rank : 4 * rank.rank + 4], rank), asked.found

    with np.errstate(over="ignore"):
        whole = row.astype(np.float32)
    want = (True, (int(whole.argmax()), 0.0)) if np.isfinite(whole).all() else (False, None)
    assert on_ranks(2, work) == [want] * 2
