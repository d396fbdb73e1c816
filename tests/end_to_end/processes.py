"""Running a program so that afterwards nothing of it may be left: no process, nothing in shared memory."""

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

MARK = "SHARDRUN_TEST_MARK"
SHARED_MEMORY = Path("/dev/shm")
LIMIT = 5.0

T = TypeVar("T")


def _holding(text: str) -> dict[int, str]:
    """The living processes with this text in their environment, and their command lines."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and text.encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def _in_memory() -> set[str]:
    names = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    return {name for name in names if "shardrun" in name}


def _left_since(before: set[str]) -> set[str]:
    """What is new in shared memory and told to no living process: other jobs may be running meanwhile."""
    return {name for name in _in_memory() - before if not _holding(name)}


def _once_empty(look: Callable[[], T], seconds: float) -> T:
    """What is still there after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def run_clean(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run to the end; fails the test if the program left a process or a shared-memory file behind."""
    mark = uuid.uuid4().hex
    before = _in_memory()
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**os.environ, **(environment or {}), MARK: mark},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    # Every descendant inherits the mark, whoever its parent is now.
    if left := _once_empty(lambda: _holding(f"{MARK}={mark}"), LIMIT):
        pytest.fail(f"{command} left processes: {left}")
    if names := _once_empty(lambda: _left_since(before), LIMIT):
        pytest.fail(f"{command} left in {SHARED_MEMORY}: {names}")
    return done
