"""Running a program so that afterwards nothing of it may be left: no process, nothing in /dev/shm."""

import os
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

MARK = "SHARDRUN_TEST_MARK"


def _marked(mark: str) -> list[str]:
    """Processes that inherited the mark, and so descend from the program, whoever their parent is now."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(f"{process.pid} {' '.join(process.cmdline())}")
        except psutil.Error:
            continue
    return found


def run_clean(
    command: Sequence[str], *, cwd: Path, environment: Mapping[str, str] | None = None, timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """Run to the end; fails the test if the program left a process or a shared-memory file behind."""
    mark = uuid.uuid4().hex
    shared = Path("/dev/shm")
    before = set(shared.iterdir()) if shared.is_dir() else set()
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
    assert _marked(mark) == []
    if before or shared.is_dir():
        ours = {path for path in set(shared.iterdir()) - before if "shardrun" in path.name}
        assert ours == set()
    return done
