"""A rank that something else started and a signal stops: it does not keep the others, nor what started it."""

from __future__ import annotations

import itertools
import os
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from ranks.talk import guard, sentry, stacks
from tests.launcher.cli_tools import environment
from tests.launcher.processes import LIMIT, MARK, marked, wait_until

PROGRAM = """
import os, sys, time
from ranks.talk.guard import GUARD
GUARD.stand(3, "here", int(sys.argv[1]), 1.0)
GUARD.stand(3, "here", int(sys.argv[1]), 1.0)
print("ready", flush=True)
time.sleep(100)
"""


@pytest.fixture
def mark() -> Iterator[str]:
    made = uuid.uuid4().hex
    yield made
    for pid in marked(made):
        os.kill(pid, signal.SIGKILL)


def start(mark: str, launcher: int) -> subprocess.Popen[str]:
    started = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(launcher)], env=environment(**{MARK: mark}), text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert started.stdout is not None and started.stdout.readline() == "ready\n"
    return started


def test_a_stopped_rank_is_ended(mark: str) -> None:
    started = start(mark, 0)
    assert wait_until(lambda: len(marked(mark)) == 2, 30)
    started.send_signal(signal.SIGSTOP)
    _, said = started.communicate(timeout=60)
    assert started.returncode == -signal.SIGKILL
    assert said.startswith(
        f"shardrun: error: rank 3 on host here did not go on within 1 s: it is process {started.pid} ("
    )
    assert "which is stopped by a signal such as SIGSTOP" in said and said.count("\n") == 1
    assert wait_until(lambda: not marked(mark), LIMIT), marked(mark)


@pytest.mark.parametrize(
    ("stopped", "step", "killed_at"),
    [
        ([True], 3600.0, 3),  # a host that was suspended for an hour has stopped its ranks for a look or two
        ([True, True, True, False], 1.0, None),  # each time less than the limit
        ([True], 1.0, 5),
    ],
)
def test_what_counts_as_stopped(
    stopped: list[bool], step: float, killed_at: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 5 s, by a clock that goes on by ``step`` between two looks."""
    looks: list[int] = []

    class Poll:
        def register(self, *what: int) -> None:
            pass

        def poll(self, milliseconds: float) -> list[int]:
            looks.append(len(looks))
            return [] if len(looks) < 20 else [0]

    monkeypatch.setattr(sys, "argv", ["", str(os.getppid()), "0", "5.0", "3", "here"])
    monkeypatch.setattr(sentry.select, "poll", Poll)
    monkeypatch.setattr(sentry.time, "monotonic", lambda: step * len(looks))
    states = itertools.cycle(stopped)
    monkeypatch.setattr("ranks.common.processes.is_stopped", lambda pid: next(states))
    killed: list[tuple[int, int]] = []
    monkeypatch.setattr(
        sentry.signal, "pidfd_send_signal", lambda process, number: killed.append((len(looks), number))
    )
    opened = os.pidfd_open
    processes: list[int] = []
    monkeypatch.setattr(os, "pidfd_open", lambda pid: processes.append(opened(pid)) or processes[-1])
    monkeypatch.setattr(sentry, "_say", lambda what, pid: None)
    sentry.main()
    os.close(processes.pop())
    assert killed == ([] if killed_at is None else [(killed_at, signal.SIGKILL)])


STILL = """
import sys, threading, time
from ranks.common.pulse import wait, work
from ranks.talk.guard import GUARD
GUARD.feel(3, "here", 1.0)
GUARD.feel(3, "here", 1.0)
@wait
def waits_for_others():
    time.sleep(5)
@work
def stands_still():
    waits_for_others()
    print("ready", flush=True)
    threading.Event().wait()
stands_still()
"""


def test_one_whose_work_stands_still_ends_itself_and_shows_where() -> None:
    """While it waits for others it does not."""
    done = subprocess.run(
        [sys.executable, "-c", STILL], env=environment(), text=True, capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (1, "ready\n")
    sentence, _, where = done.stderr.partition("\n")
    assert sentence.startswith("shardrun: error: rank 3 on host here has stood still for 1 s ")
    assert "stands_still" in where and done.stderr.count("stood still") == 1
    assert where.index("stands_still") < where.index("_feel")  # the main thread's first


@pytest.mark.skipif(shutil.which("py-spy") is None, reason="py-spy is not installed")
def test_native_stacks_by_py_spy_itself() -> None:
    code = "import threading\ndef stands_still():\n    print('ready', flush=True)\n    threading.Event()"
    with subprocess.Popen(
        [sys.executable, "-c", f"{code}.wait()\nstands_still()"], stdout=subprocess.PIPE, text=True
    ) as child:
        try:
            assert child.stdout is not None and child.stdout.readline() == "ready\n"
            assert wait_until(lambda: "PyThread_acquire_lock" in stacks.native(child.pid), 60)
            said = stacks.native(child.pid)
            assert "stands_still" in said and "MainThread" in said
        finally:
            child.kill()


def test_one_whose_launcher_is_stopped_too_waits(mark: str) -> None:
    """Ctrl-Z stops both."""
    launcher = subprocess.Popen(["sleep", "100"])
    try:
        started = start(mark, launcher.pid)
        launcher.send_signal(signal.SIGSTOP)
        started.send_signal(signal.SIGSTOP)
        with pytest.raises(subprocess.TimeoutExpired):
            started.wait(4)
        launcher.send_signal(signal.SIGCONT)
        assert started.wait(60) == -signal.SIGKILL
    finally:
        launcher.kill()
        launcher.wait()


def test_it_ends_with_the_rank(mark: str) -> None:
    started = start(mark, 0)
    started.kill()
    started.communicate(timeout=60)
    assert wait_until(lambda: not marked(mark), LIMIT), marked(mark)


@pytest.mark.parametrize(
    ("still", "steps", "looks"),
    [
        # Each look counts as long as it lay behind the one before, but never as more than two of them: a host
        # that was suspended stood still, and its ranks did not.
        ([True], [1.0], 5),
        ([True], [2.0], 3),
        ([True], [3600.0], 3),
        ([True, True, False], [2.0], None),
        ([False, True], [2.0], None),
        ([False, True, True, True], [2.0], 4),
    ],
)
def test_how_long_work_has_stood_still(
    still: list[bool], steps: list[float], looks: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit of 5 s and a look each second, which may come late."""
    clock, done = [0.0], list[bool]()
    states, lengths = itertools.cycle(still), itertools.cycle(steps)

    class Ended(BaseException):
        pass

    def sleep(_: float) -> None:
        if len(done) == 20:
            raise Ended
        clock[0] += next(lengths)

    def leave(status: int) -> None:
        raise Ended(status)

    def beat() -> SimpleNamespace:
        done.append(next(states))
        return SimpleNamespace(still=done[-1])

    monkeypatch.setattr(guard, "LOOK_SECONDS", 1.0)
    monkeypatch.setattr(guard.time, "sleep", sleep)
    monkeypatch.setattr(guard.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(guard.os, "_exit", leave)
    pulse: Any = SimpleNamespace(beat=beat)
    with pytest.raises(Ended) as caught:
        guard._feel(pulse, 5.0, "rank 3")
    assert caught.value.args == (() if looks is None else (1,))
    assert len(done) == (looks or 20)
