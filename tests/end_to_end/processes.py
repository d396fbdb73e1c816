"""Running a program so that afterwards nothing of it may be left: no process, nothing in shared memory."""

import os
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from tests.copies import Copies
from tests.left_behind import SHARED_MEMORY, holding, in_shared_memory, left_in_shared_memory

MARK = "SHARDRUN_TEST_MARK"
LIMIT = 5.0

T = TypeVar("T")


def _once_empty(look: Callable[[], T], seconds: float) -> T:
    """What is still there after at most so many seconds."""
    deadline = time.monotonic() + seconds
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.05)
    return found


def run_clean(
    command: Sequence[str],
    *,
    cwd: Path,
    environment: Mapping[str, str] | None = None,
    timeout: float = 300,
    copies: Copies | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run to the end; fails the test if the program left a process or a shared-memory file behind.

    ``copies``: the command is what follows `python`, in one of these copies.
    """
    mark = uuid.uuid4().hex
    before = in_shared_memory()
    variables = {**os.environ, **(environment or {}), MARK: mark}
    if copies is not None:
        done = copies.run(command, variables, cwd, timeout)
    else:
        done = subprocess.run(
            command,
            cwd=cwd,
            env=variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
    if left := _once_empty(lambda: holding(f"{MARK}={mark}"), LIMIT):
        pytest.fail(f"{command} left processes: {left}")
    if names := _once_empty(lambda: left_in_shared_memory(before), LIMIT):
        pytest.fail(f"{command} left in {SHARED_MEMORY}: {names}")
    return done
