"""The end of what ranks leave running."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ranks.common import processes
from ranks.common.processes import Groups
from ranks.talk.connect import adopt_orphans
from tests.launcher.processes import wait_until
from tests.ranks.threads import until

LEAVES = "trap '' TERM; sleep 100 >/dev/null 2>&1 & echo $!"
"""A shell that ends, and what it leaves does not end when it is asked to."""


def left() -> tuple[int, subprocess.Popen[str]]:
    """What was left, and the first process of its group, which has ended."""
    first = subprocess.Popen(["sh", "-c", LEAVES], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert first.stdout is not None
    pid = int(first.stdout.read())
    first.stdout.close()
    return pid, first


def none_left(*_: object) -> Any:
    raise OSError(errno.EMFILE, "Too many open files")


def nothing(patch: pytest.MonkeyPatch) -> None:
    """All is as usual."""


def no_files(patch: pytest.MonkeyPatch) -> None:
    for name in ("listdir", "open", "pidfd_open"):
        patch.setattr(os, name, none_left)


def no_pidfds(patch: pytest.MonkeyPatch) -> None:
    patch.delattr(os, "pidfd_open")


@pytest.mark.parametrize("lacks", [nothing, no_files, no_pidfds])
@pytest.mark.parametrize("alone", [True, False])
def test_what_ignores_sigterm_is_killed(
    lacks: Callable[[pytest.MonkeyPatch], None], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, first = left()
    groups = Groups()
    with monkeypatch.context() as patch:
        lacks(patch)
        groups.end(first.pid, first.wait)
        assert groups
        while groups:
            groups.look(alone=alone)
            time.sleep(processes.LOOK_SECONDS)
    assert wait_until(lambda: processes.status(pid) is None, 10)


def test_all_processes_are_looked_at_only_where_nothing_else_is_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be thousands of them, and other ranks' ends are to be told at once."""
    pid, first = left()
    looks, listdir = list[str](), os.listdir
    monkeypatch.setattr(os, "listdir", lambda path: looks.append(path) or listdir(path))
    groups = Groups()
    groups.end(first.pid, first.wait)
    for _ in range(3):
        groups.look(alone=False)
    assert groups and not looks
    groups.look(alone=True)
    assert groups and looks
    os.kill(pid, 9)
    assert wait_until(lambda: processes.status(pid) is None, 10)


@pytest.mark.parametrize("lacks", [nothing, no_pidfds])
def test_who_is_asked_to_end(
    lacks: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    pid, first = left()
    first.wait()
    lacks(monkeypatch)
    processes.ask_to_end(lambda: processes.running(lambda number, name, fields: number == pid))
    assert wait_until(lambda: processes.status(pid) is None, 10)


def test_who_computes_and_who_waits() -> None:
    assert processes.is_running(os.getpid())
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(writer)
        os._exit(len(os.read(reader, 1)))
    try:
        until(lambda: not processes.is_running(child))
    finally:
        os.close(writer)
        os.close(reader)
        until(lambda: processes.status(child) is None)  # which nobody has waited for yet
        os.waitpid(child, 0)
    assert not processes.is_running(child)


def test_what_is_known_of_a_process() -> None:
    """Its name may hold what stands around names; how it ended is known until somebody waits for it."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        Path("/proc/self/comm").write_text("a) R (b", encoding="ascii")
        os.close(writer)
        os.read(reader, 1)
        os._exit(3)
    try:
        until(lambda: (found := processes.status(child)) and found.name == "a) R (b")
        found = processes.status(child)
        assert found is not None and found.parent == os.getpid() and not found.stopped
        assert processes.left_with(child) is None
        os.kill(child, signal.SIGSTOP)
        until(lambda: (now := processes.status(child)) and now.stopped)
        os.kill(child, signal.SIGCONT)
        until(lambda: (now := processes.status(child)) and not now.stopped)
        assert found.same(processes.status(child)) and not found.same(processes.status(os.getpid()))
    finally:
        os.close(writer)
        os.close(reader)
        until(lambda: processes.status(child) is None)
        left = processes.left_with(child)
        assert os.waitpid(child, 0) == (child, left)
    assert os.waitstatus_to_exitcode(left) == 3 and processes.left_with(child) is None


def test_what_descendants_leave_is_adopted() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            adopt_orphans()
            if (between := os.fork()) == 0:
                between = os.getpid()
                if os.fork() == 0:
                    until(lambda: os.getppid() != between)
                    os.write(writer, str(os.getppid()).encode())
                os._exit(0)
            os.waitpid(between, 0)
            os.waitpid(-1, 0)
        finally:
            os._exit(0)
    os.close(writer)
    assert os.read(reader, 20) == str(child).encode()
    os.close(reader)
    os.waitpid(child, 0)


def test_what_threads_have_spent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a processor counts for threads that work alone; ``7`` does not count at all."""
    threads = {
        5: (b"R", b"2000000000 1000000000 9", b""),
        6: (b"S", b"3000000000 500000000 9", b"pipe_write"),
    }
    threads[7] = (b"D", b"90000000000 0 9", b"")
    for number in threads:
        (tmp_path / str(number)).mkdir()

    def text(path: str) -> bytes:
        state, times, place = threads[int(Path(path).parent.name)]
        stat = b"5 (a) b) %s 1 " % state + b"0 " * 9 + b"40 2 " + b"0 " * 20
        found = {"stat": stat, "schedstat": times, "wchan": place}[Path(path).name]
        if not found:
            raise FileNotFoundError
        return found

    monkeypatch.setattr(processes, "_text", text)
    monkeypatch.setattr(os, "scandir", lambda path, real=os.scandir: real(tmp_path))
    assert processes.spent_by_threads({5}, {7}) == (pytest.approx(2 + 1 + 3), False)
    assert processes.spent_by_threads({5, 6}, {7}) == (pytest.approx(2 + 1 + 3 + 0.5), True)
    assert processes.spent_by_threads((), {5, 6}) == (pytest.approx(90), True)
    threads[5] = (b"R", b"", b"")  # a kernel that does not say it
    assert processes.spent_by_threads({5}, {6, 7}) == (pytest.approx(42 / os.sysconf("SC_CLK_TCK")), False)
