"""A temporary folder for what must not outlive its process: a decrypted model, while it is loaded.

A process that is killed cannot remove anything. So a guard, a shell that waits for the end of a pipe, removes
the folder when its process is gone, by whatever signal.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

_GUARD = 'trap "" HUP INT TERM QUIT; read -r _; exec rm -rf -- "$1"'
_PATIENCE = 5.0  # seconds; the guard has nothing left to remove then


@contextlib.contextmanager
def plain_folder() -> Iterator[Path]:
    """A new folder of this user alone (mode 0700, under ``TMPDIR``), removed on leaving or when the process
    dies. Raises `OSError` where none can be made."""
    folder = Path(tempfile.mkdtemp(prefix="shardrun-")).absolute()
    with contextlib.ExitStack() as stack:
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        stack.enter_context(_guarded(folder))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)  # by us: the guard has then nothing to do
        yield folder


@contextlib.contextmanager
def _guarded(folder: Path) -> Iterator[None]:
    try:
        # In a session of its own, so that what ends this process's group, or a terminal's, does not end it.
        # Nothing of our environment: whoever looks for our processes by it need not wait for this one.
        guard = subprocess.Popen(
            ["/bin/sh", "-c", _GUARD, "shardrun-guard", str(folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
            env={"PATH": os.defpath},
        )
    except OSError:  # no shell, or no more processes: only a kill can leave the folder then
        yield
        return
    try:
        yield
    finally:
        assert guard.stdin is not None
        with contextlib.suppress(OSError):
            guard.stdin.close()
        try:
            guard.wait(_PATIENCE)
        except subprocess.TimeoutExpired:  # a child that was forked meanwhile holds the pipe too
            guard.kill()
            guard.wait()
