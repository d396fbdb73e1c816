"""Running a program so that afterwards nothing of it may be left: no process, nothing in shared memory."""

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

MARK = "SHARDRUN_TEST_MARK"
SHARED_MEMORY = Path("/dev/shm")
LIMIT = 5.0

T = TypeVar("T")


def _marked(mark: str) -> dict[int, str]:
    """Processes that inherited the mark, and so descend from the program, whoever their parent is now."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"{MARK}={mark}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


def _in_memory() -> set[str]:
    names = {path.name for path in SHARED_MEMORY.iterdir()} if SHARED_MEMORY.is_dir() else set()
    return {name for name in names if "shardrun" in name}


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
    assert _once_empty(lambda: _marked(mark), LIMIT) == {}
    # Other programs may be running ranks of their own meanwhile; what they make goes again.
    assert _once_empty(lambda: _in_memory() - before, 2 * LIMIT) == set()
    return done
