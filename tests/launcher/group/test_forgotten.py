"""What nobody has any more may be collected while any lock is held: nobody waits there for its end."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, cast

import pytest

from launcher.generation.generate import Event, Generation
from launcher.generation.options import GenerateOptions
from launcher.generation.sample import Token
from launcher.group.group import Group
from launcher.group.requests import Requests
from launcher.group.serving.runs import RanksRun
from ranks.common.elsewhere import Elsewhere
from tests.launcher.group.test_requests import _Ranks
from tests.launcher.processes import wait_until

SECONDS = 20.0  # a thread that waits for itself waits for ever


def collected_under(lock: contextlib.AbstractContextManager[Any], holder: list[object]) -> bool:
    """Whether a thread that holds the lock can drop what is in ``holder``."""

    def drop() -> None:
        with lock:
            holder.clear()

    thread = threading.Thread(target=drop, daemon=True)
    thread.start()
    thread.join(SECONDS)
    return not thread.is_alive()


def events(run: RanksRun) -> Generator[Event]:
    try:
        yield Token(0, 1, "")
        yield Token(0, 2, "")
    finally:
        run.close()


def test_a_generation_is_forgotten_in_the_middle_of_a_request() -> None:
    requests = Requests(cast(Any, _Ranks()))
    run = requests.run({}, {}, 0)
    generation = Generation(events(run), GenerateOptions(), [1], has_text=False)
    next(generation)
    holder: list[object] = [generation]
    del generation
    assert collected_under(requests._state, holder)
    assert wait_until(lambda: run.ended, SECONDS)


class _Job:
    """A job without ranks, whose end needs a lock."""

    world_size, ready, launcher_name = 0, {0: {"inputs": [], "outputs": []}}, "none"
    failure = None

    def __init__(self) -> None:
        self.lock, self.ends = threading.Lock(), 0
        self.answers: object = None
        self.changed = threading.Condition()

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        return

    def close(self) -> None:
        with self.lock:
            self.ends += 1


def test_a_group_is_forgotten_by_a_thread_that_its_end_waits_for() -> None:
    job = _Job()
    assert collected_under(job.lock, [Group(lambda _: cast(Any, job), 1.0, Path("m.onnx"))])
    assert wait_until(lambda: job.ends == 1, SECONDS)


def test_a_group_ends_once() -> None:
    job = _Job()
    group = Group(lambda _: cast(Any, job), 1.0, Path("m.onnx"))
    group.close()
    group.close()
    del group
    assert job.ends == 1


def test_what_no_thread_can_be_started_for_is_done_with_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere, done = Elsewhere(), []

    def none(*arguments: object) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr("_thread.start_new_thread", none)
        elsewhere.call(lambda: done.append(1))
    assert done == []

    def fails() -> None:
        done.append(2)
        raise OSError

    elsewhere.call(fails)
    elsewhere.call(lambda: done.append(3))
    assert wait_until(lambda: sorted(done) == [1, 2, 3], SECONDS)
