"""The folder of a decrypted model is gone when its process is, whatever ended it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from sharding.common.plain_folder import plain_folder

ROOT = Path(__file__).parents[3]
PROGRAM = """
import time
from sharding.common.plain_folder import plain_folder
with plain_folder() as folder:
    (folder / "deeper").mkdir()
    (folder / "deeper" / "model.onnx").write_bytes(b"plain")
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp $HOME 'x'"  # what a shell would read must not matter
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder


def guards(folder: Path) -> int:
    count = 0
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            count += {"shardrun-guard", str(folder)} <= set(process.cmdline())
    return count


def begun(folder: Path) -> bool:
    """Whether there is one: a process that has just begun has no words for a moment."""
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if guards(folder) == 1:
            return True
        time.sleep(0.02)
    return False


def gone(folder: Path) -> bool:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        if not list(folder.iterdir()):
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGSEGV, signal.SIGINT])
@pytest.mark.parametrize("group", [False, True])
def test_killed(temporary: Path, number: signal.Signals, group: bool) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd=ROOT,
    )
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        (folder,) = temporary.iterdir()
        assert folder.stat().st_mode & 0o777 == 0o700
        if group:
            os.killpg(process.pid, number)
        else:
            process.send_signal(number)
        assert process.wait(20) != 0
    finally:
        process.kill()
        process.communicate()
    assert gone(temporary)


def ignores(process: psutil.Process) -> set[int]:
    """The signals that a process does not take (proc(5), SigIgn)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    mask = int(status.partition("SigIgn:")[2].split()[0], 16)
    return {number for number in range(1, 65) if mask >> number - 1 & 1}


@pytest.mark.timeout(120)
def test_what_ends_all_processes_does_not_end_the_guard_first(temporary: Path) -> None:
    """As where a batch system asks all of a job to end, and kills those that do not."""
    signals = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGQUIT}
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None and process.stdout.readline() == b"ready\n"
        (folder,) = temporary.iterdir()
        assert begun(folder)
        [guard] = psutil.Process(process.pid).children()
        until = time.monotonic() + 20
        while not signals <= ignores(guard) and time.monotonic() < until:  # a shell that has just begun
            time.sleep(0.02)
        for number in signals:
            guard.send_signal(number)
    finally:
        process.kill()
        process.communicate()
    assert gone(temporary)


def test_left(temporary: Path) -> None:
    with pytest.raises(ValueError, match="mine"), plain_folder() as folder:
        (folder / "model.onnx").touch()
        assert begun(folder)
        raise ValueError("mine")
    assert not list(temporary.iterdir())
    assert not guards(folder)


def test_without_a_shell(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fails)
    with plain_folder() as folder:
        assert folder.is_dir()
    assert not list(temporary.iterdir())


def test_no_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/dev/null")
    with pytest.raises(OSError), plain_folder():
        pass


@pytest.mark.timeout(60)
def test_a_guard_that_another_process_keeps_is_ended(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A child that was forked meanwhile holds the pipe by which the guard would notice the end."""
    popen, kept = subprocess.Popen, list[int]()

    def inherited(*arguments: Any, **more: Any) -> Any:
        guard = popen(*arguments, **more)
        assert guard.stdin is not None
        kept.append(os.dup(guard.stdin.fileno()))
        return guard

    monkeypatch.setattr(subprocess, "Popen", inherited)
    monkeypatch.setattr("sharding.common.plain_folder._PATIENCE", 0.05)
    try:
        with plain_folder() as folder:
            assert begun(folder)
        assert not guards(folder) and not list(temporary.iterdir())
    finally:
        for descriptor in kept:
            os.close(descriptor)


def test_the_guard_is_in_a_session_of_its_own(temporary: Path) -> None:
    """So that what ends this process's group, or a terminal's, does not end it."""
    with plain_folder() as folder:
        assert begun(folder)
        (guard,) = (one for one in psutil.Process().children() if str(folder) in one.cmdline())
        assert os.getsid(guard.pid) == os.getpgid(guard.pid) == guard.pid
        assert guard.cwd() == "/" and set(guard.environ()) <= {"PATH", "PWD"}
