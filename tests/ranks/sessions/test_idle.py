"""A model that nobody runs gives back the buffers of its runs."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from pathlib import Path
from typing import SupportsIndex

import numpy as np
import onnxruntime as ort
import pytest

from ranks.collectives.single import SingleCommunicator
from ranks.run import executor
from ranks.sessions import idle
from tests.ranks.rank_models import save
from tests.ranks.run.test_executor import mlp
from tests.ranks.threads import until
from tests.sharding import graphs

MB = 1 << 20
LENGTH = 16 * MB  # of a value inside, in floats: 64 MB


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 0.05)
    monkeypatch.setattr(idle, "SHORT_SECONDS", 0.0)


def watchers() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if getattr(thread, "_target", None) is idle._watch]


def test_is_called_once_after_runs() -> None:
    calls: list[float] = []
    watched = idle.Idle(lambda: calls.append(time.monotonic()))
    for _ in range(3):
        with watched:
            pass
    last = time.monotonic()
    until(lambda: bool(calls), "nothing was given back")
    until(lambda: not watchers(), "the thread stays")
    assert len(calls) == 1
    assert calls[0] - last > 0.04
    with watched:
        pass
    until(lambda: len(calls) == 2, "nothing was given back the second time")


def test_nothing_is_given_back_during_a_run() -> None:
    calls: list[None] = []
    watched = idle.Idle(lambda: calls.append(None))
    with watched:
        with watched:  # a second thread's, that ends earlier
            time.sleep(0.001)
        time.sleep(0.2)
        assert not calls
    until(lambda: bool(calls), "nothing was given back")


def test_a_look_in_the_middle_of_an_end_finds_a_model_that_has_just_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks: list[float] = []

    class Began(list[float]):
        """The thread looks right after the run is taken off."""

        def pop(self, *where: SupportsIndex) -> float:
            began = super().pop(*where)
            looks.append(watched.left())
            return began

    monkeypatch.setattr(idle, "IDLE_SECONDS", 60.0)
    watched = idle.Idle(lambda: None)
    monkeypatch.setattr(watched, "_began", Began())
    monkeypatch.setattr(watched, "_last", idle._clock() - 90.0)
    with watched:
        pass
    watched._watch.end()
    assert len(looks) == 1 and looks[0] > 0


def test_a_run_that_fails_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[None] = []
    watched = idle.Idle(lambda: calls.append(None))
    with pytest.raises(ValueError, match="refused"), watched:
        raise ValueError("refused")
    until(lambda: bool(calls), "nothing was given back")
    # Short runs start no thread.
    monkeypatch.setattr(idle, "SHORT_SECONDS", 60.0)
    with watched:
        pass
    assert not watchers()


def test_the_thread_does_not_keep_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle, "IDLE_SECONDS", 60.0)
    calls: list[None] = []
    watched = idle.Idle(lambda: calls.append(None))
    with watched:
        pass
    assert len(watchers()) == 1
    kept = weakref.ref(watched)
    del watched
    until(lambda: gc.collect() >= 0 and kept() is None, "the thread keeps it")
    until(lambda: not watchers(), "the thread stays")
    assert not calls


def test_without_a_thread_buffers_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls: list[None] = []
    watched = idle.Idle(lambda: calls.append(None))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with watched:
            pass
    with watched:  # and the next run tries again
        pass
    until(lambda: bool(calls), "nothing was given back")


def test_a_forked_child_watches_by_itself() -> None:
    calls: list[None] = []
    watched = idle.Idle(lambda: calls.append(None))
    watched.__enter__()  # the parent is in the midst of a run
    child = os.fork()
    if not child:
        with watched:
            pass
        end = time.monotonic() + 20
        while not calls and time.monotonic() < end:
            time.sleep(0.005)
        os._exit(0 if calls else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert not calls
    watched.__exit__()
    until(lambda: bool(calls), "nothing was given back in the parent")


def test_nobody_forks_while_buffers_are_given_back() -> None:
    """The child would have ONNX Runtime's locks as the thread held them, for ever."""
    lock, began = threading.Lock(), threading.Event()

    def give_back() -> None:
        with lock:
            began.set()
            time.sleep(0.3)

    watched = idle.Idle(give_back)
    with watched:
        pass
    assert began.wait(20)
    child = os.fork()
    if not child:
        os._exit(0 if lock.acquire(timeout=1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with watched:  # and goes on
        began.clear()
    assert began.wait(20)


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """A model with values of 64 MB inside, and small inputs and outputs."""
    text = """large (float[rows, 1] x, int64[2] shape) => (float y) {
        wide = Expand(x, shape)
        waved = Sin(wide)
        y = ReduceMax <keepdims = 0> (waved)
    }"""
    return graphs.save(tmp_path / "large.onnx", text, {})


def anonymous() -> int:
    """Bytes of this process's own memory."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Anonymous:"))


def test_buffers_go_back_and_answers_stay(large: Path) -> None:
    feeds = {"x": np.full((1, 1), 0.5, np.float32), "shape": np.array([1, LENGTH], np.int64)}
    small = {**feeds, "shape": np.array([1, 1], np.int64)}
    expected = ort.InferenceSession(str(large), providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idle, "IDLE_SECONDS", 600.0)
        model = executor.load(large, threads=1)
        model.run(small)
        before = anonymous()
        for _ in range(2):
            assert model.run(feeds)[0] == expected
        assert anonymous() - before > 100 * MB  # two values of 64 MB
    model.close()
    model = executor.load(large, threads=1)
    model.run(small)  # what the first run takes first, the arena keeps
    model.run(feeds)
    until(lambda: anonymous() - before < 16 * MB, "the buffers stay")
    assert model.run(feeds)[0] == expected


def test_a_rank_of_a_group_gives_back(tmp_path: Path) -> None:
    """Its sessions, of which there are several, run right afterwards."""
    (path,) = save([mlp(0, 1)], tmp_path)
    model = executor.load(path, communicator=SingleCommunicator(10))
    assert isinstance(model.idle, idle.Idle)
    assert model.stats.segments > 1
    given: list[None] = []
    give_back = model.idle.give_back
    model.idle.give_back = lambda: (give_back(), given.append(None))[1]
    feeds = {"x": np.ones((3, 4), np.float32)}
    first = model.run(feeds)
    until(lambda: bool(given), "nothing was given back")
    for ours, theirs in zip(model.run(feeds), first, strict=True):
        assert np.array_equal(ours, theirs)
    model.close()
    assert not isinstance(model.idle, idle.Idle)


def test_what_has_text_is_left_alone() -> None:
    session = graphs.session(graphs.model("text (string[n] x) => (string[n] y) { y = Identity(x) }", {}))
    assert not isinstance(idle.of_sessions([None, session]), idle.Idle)
    assert not isinstance(idle.of_sessions([]), idle.Idle)


@pytest.mark.parametrize("pause", [0.0, 0.02, 0.021, 0.05])
def test_the_end_of_the_interpreter_is_no_trouble(large: Path, pause: float) -> None:
    program = f"""
import time
import numpy as np
from ranks.run import executor
from ranks.sessions import idle
idle.IDLE_SECONDS = 0.02
model = executor.load({str(large)!r}, threads=1)
for rows in (1, {LENGTH}):
    model.run({{"x": np.ones((1, 1), np.float32), "shape": np.array([1, rows], np.int64)}})
time.sleep({pause})
"""
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=root, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
