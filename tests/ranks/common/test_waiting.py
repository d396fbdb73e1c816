"""Every wait for a lock of the cache: it says for whom, and it ends, also where the holder is stopped."""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.job import cache
from ranks.cache import locks, weight_entries
from ranks.cache.folder import locked
from ranks.common import waiting
from ranks.common.waiting import HeldError
from ranks.errors import ShardrunError
from ranks.models import imported
from tests.launcher import cli_tools

MINDIR = Path(__file__).parents[2] / "data" / "mindir" / "mlp" / "model.mindir"
HOLDER = """
import fcntl, os, sys
descriptor = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(descriptor, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""
pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def held(path: Path) -> Iterator[int]:
    """The id of a process that holds the lock of a file or folder, and is stopped."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"held\n"
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        yield process.pid
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHARDRUN_TIMEOUT", "0.3")
    monkeypatch.setattr(waiting, "NOTICE_SECONDS", 0.1)
    return tmp_path


def slicing(folder: Path) -> tuple[Path, Callable[[], Any]]:
    model = cli_tools.save_mlp(folder / "m.onnx")
    place = cache.sliced(model, 2)
    (place / "manifest.json").unlink()  # so that it is to be made again
    return place.with_suffix(".lock"), lambda: cache.sliced(model, 2, timeout=0.2)


def removing(folder: Path) -> tuple[Path, Callable[[], Any]]:
    model = cli_tools.save_mlp(folder / "m.onnx")
    return cache.sliced(model, 2), lambda: cache.sliced(model, 2)


def converting(folder: Path) -> tuple[Path, Callable[[], Any]]:
    place = imported.as_onnx(MINDIR).parent
    (place / "complete.json").unlink()  # as above
    return place.with_suffix(".lock"), lambda: imported.as_onnx(MINDIR)


def a_lock_file(folder: Path) -> tuple[Path, Callable[[], Any]]:
    (folder / "lock").touch()
    return folder / "lock", lambda: locked(folder / "lock").__enter__()


def pruning(folder: Path) -> tuple[Path, Callable[[], Any]]:
    weight_entries.make_folders(folder / "weights")
    return folder / "weights" / weight_entries.BLOBS, lambda: weight_entries.throw_out(folder / "weights", 0)


def preparing(folder: Path) -> tuple[Path, Callable[[], Any]]:
    weight_entries.make_folders(folder / "weights")
    return (
        folder / "weights" / weight_entries.WORK,
        lambda: weight_entries.workplace(folder / "weights").__enter__(),
    )


@pytest.mark.parametrize("case", [slicing, removing, converting, a_lock_file, pruning, preparing])
def test_a_stopped_holder_is_named(
    folder: Path, case: Callable[[Path], tuple[Path, Callable[[], Any]]], caplog: pytest.LogCaptureFixture
) -> None:
    path, wait = case(folder)
    locks.PINS.held.clear()  # what this process itself holds of it
    with held(path) as pid, caplog.at_level(logging.WARNING), pytest.raises(HeldError) as raised:
        wait()
    told = f"process {pid} ({sys.executable} -c"
    stopped = f"which is stopped by a signal such as SIGSTOP (`kill -CONT {pid}` lets it go on)"
    for text in (str(raised.value), *(record.getMessage() for record in caplog.records)):
        assert told in text and stopped in text and str(path) in text
    assert [record.getMessage().split(" ", 2)[:2] for record in caplog.records] == [["waiting", "for"]]


def test_the_wait_goes_on_when_the_holder_does(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TIMEOUT", "60")
    (folder / "lock").touch()
    with held(folder / "lock") as pid:
        descriptor = os.open(folder / "lock", os.O_RDONLY)
        assert not locks.lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, folder / "lock")
        os.kill(pid, signal.SIGKILL)
        assert locks.lock(descriptor, fcntl.LOCK_EX, folder / "lock")
        os.close(descriptor)


def test_another_thread_of_this_process_is_named(folder: Path) -> None:
    with locked(folder / "lock"), pytest.raises(HeldError, match="another thread of this process"):
        locked(folder / "lock", 0.1).__enter__()


def test_the_command_ends_with_its_time_out(folder: Path) -> None:
    lock, _ = slicing(folder)
    with held(lock) as pid:
        done = cli_tools.shardrun("run", folder / "m.onnx", "--ranks", 2, "--timeout", 0.5, cwd=folder)
    assert done.returncode == 1 and done.stdout == ""
    assert f"has been held for 0.5 s by process {pid}" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_an_error_is_both_kinds() -> None:
    """A cache that cannot be used is no error for those who can do without; else it is one sentence."""
    assert issubclass(HeldError, ShardrunError) and issubclass(HeldError, OSError)


def test_a_wait_that_is_long_is_told_of_and_does_not_oversleep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of this test's: what the defaults say of a wait of 300 seconds."""
    monkeypatch.undo()  # the shorter notice of the other tests
    now, told = [0.0], []

    def sleep(seconds: float) -> None:
        assert 0 <= seconds <= 0.1  # as late may it be seen that the lock is free
        now[0] += max(seconds, 1e-6)

    monkeypatch.setattr(waiting, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    monkeypatch.setattr(waiting.log, "warning", lambda text, *of: told.append((now[0], text % of)))
    monkeypatch.setattr(waiting, "_taken", lambda descriptor, how: False)
    with (tmp_path / "lock").open("wb") as file, pytest.raises(HeldError, match="has been held for 300 s by"):
        waiting.take(file.fileno(), fcntl.LOCK_EX, tmp_path / "lock", 300.0)
    ((when, words),) = told
    assert 1 <= when <= 10 and "waiting for a process" in words and "at most 300 s" in words
    assert 300 <= now[0] < 300.1
