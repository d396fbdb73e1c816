"""Futures and series of a model on ranks that something else started."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from launcher.errors import LaunchError, ShardrunError
from launcher.group.led import LedModel, lead_models
from launcher.group.requests import MOST_WAITING
from launcher.group.serving.series import in_order, in_order_async
from launcher.group.serving.turns import Turns
from ranks.collectives.single import SingleCommunicator
from ranks.errors import QueueFullError
from ranks.run import executor
from tests.launcher.group.test_new_weights import ROWS, save, some
from tests.ranks.threads import until

SECONDS = 60.0


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("turns") / "model.onnx", **some(0))


def feeds(seed: int) -> dict[str, Any]:
    return {"x": np.random.default_rng(seed).standard_normal((seed + 1, ROWS)).astype(np.float32)}


def led(path: Path, work: Any) -> Any:
    single = SingleCommunicator()
    return lead_models(single, [executor.load(path, communicator=single)], lambda models: work(models[0]))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_who_takes_no_more_of_a_series_has_what_is_left_cancelled(asynchronous: bool) -> None:
    asked: list[Future[Any]] = []

    def submit(_: object) -> Future[Any]:
        asked.append(Future())
        if len(asked) == 1:
            asked[0].set_result("first")
        return asked[-1]

    async def taken() -> object:
        answers = in_order_async(iter([{}] * 9), submit, ahead=4, errors=False)
        found = await anext(answers)
        await answers.aclose()
        await asyncio.sleep(0)  # a loop tells the future that it waited for one step later
        return found

    if asynchronous:
        assert asyncio.run(taken()) == "first"
    else:
        answers = in_order(iter([{}] * 9), submit, ahead=4, timeout=None, errors=False)
        assert next(answers) == "first"  # type: ignore[comparison-overlap]
        answers.close()
    assert [one.cancelled() for one in asked] == [False, True, True, True]


def test_futures_and_series_are_those_of_plain_onnx_runtime(path: Path) -> None:
    whole = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    want = [whole.run(None, feeds(seed))[0] for seed in range(12)]

    def right(found: Any) -> bool:
        return len(found) == 12 and all(
            np.allclose(one["y"], other, atol=1e-5) for one, other in zip(found, want, strict=True)
        )

    def work(model: LedModel) -> bool:
        mine = [feeds(seed) for seed in range(12)]
        futures = [model.submit(one) for one in mine]
        for one in mine:
            one["x"][:] = 0  # they are the caller's again
        good = right([future.result(SECONDS) for future in futures])
        good &= right(list(model.map(feeds(seed) for seed in range(12))))

        async def several() -> bool:
            first = await asyncio.gather(*(model.predict_async(feeds(seed)) for seed in range(12)))
            return right(first) and right([one async for one in model.map_async(map(feeds, range(12)))])

        good &= asyncio.run(several())
        wrong = {"x": np.zeros((1, 3), np.float32)}
        with pytest.raises(ShardrunError, match="x"):
            model.submit(wrong)
        found = list(model.map([feeds(0), wrong], return_errors=True))
        return good and isinstance(found[1], ShardrunError)

    assert led(path, work)


def test_too_many_are_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.group.serving.turns.MOST_WAITING", 2)

    def work(model: LedModel) -> None:
        with model._leader._turn:  # nothing is computed
            futures = [model.submit(feeds(seed)) for seed in (0, 1)]
            with pytest.raises(QueueFullError, match="2 requests wait already"):
                model.submit(feeds(2), block=False)
        for future in futures:
            future.result(SECONDS)
        model.submit(feeds(2), block=False).result(SECONDS)

    led(path, work)


def test_what_is_refused_at_the_end_takes_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.group.serving.turns.MOST_WAITING", 2)
    mine = Turns()
    mine.close()
    for _ in range(3):
        with pytest.raises(RuntimeError, match="after shutdown"):
            mine.submit(lambda: 0, block=False)


def test_what_waits_at_the_end_is_cancelled(path: Path) -> None:
    kept: list[Any] = []

    def asked(model: LedModel) -> Iterator[Any]:
        yield from (model.submit(feeds(seed)) for seed in range(5))

    def work(model: LedModel) -> None:
        kept.append(model)
        with model._leader._turn:
            kept.extend(asked(model))
            raise KeyError("the work went wrong")

    with pytest.raises(KeyError):
        led(path, work)
    model, first, *others = kept
    assert all(one.cancelled() for one in others)
    first.exception(SECONDS)  # it may have come before the end
    assert first.done()
    with pytest.raises(LaunchError, match="have ended"):
        model.submit(feeds(0))


def test_what_is_called_when_a_future_is_done_may_ask_more_where_as_many_wait_as_may() -> None:
    """It runs in the thread that would make room, and waits for none."""
    mine, more, go_on = Turns(), list[Future[int]](), threading.Event()

    def called(done: Future[int]) -> None:
        while mine._room.acquire(blocking=False):  # others are faster
            pass
        with pytest.raises(QueueFullError):
            mine.submit(lambda: 0, block=False)
        more.append(mine.submit(lambda: done.result() + 2, block=True))

    asked = mine.submit(lambda: int(go_on.wait(SECONDS)), block=True)
    asked.add_done_callback(called)
    go_on.set()
    try:
        until(lambda: bool(more))
        assert more[0].result(SECONDS) == 3
    finally:
        for _ in range(MOST_WAITING):
            mine._room.release()
        mine.close()
