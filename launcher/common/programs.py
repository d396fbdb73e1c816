"""What other programs of this machine say, asked with a time-out."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping

from ranks.common.sources import alone

PROGRAM_SECONDS = 15.0


class SilentError(OSError):
    """A program gave no answer in time."""


def ask(
    *command: str, seconds: float | None = None, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """What a program says; it and what it started end here, whatever they do. Raises `FileNotFoundError`
    where it is not there, `SilentError` where it does not answer."""
    limit = PROGRAM_SECONDS if seconds is None else seconds
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        errors="replace", env={**alone(), **(environ or {})}, cwd="/", start_new_session=True,
    )  # fmt: skip
    try:
        out, err = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        raise SilentError(f"`{command[0]}` gave no answer within {limit:g} s") from None
    finally:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
    return subprocess.CompletedProcess(command, process.returncode, out, err)


def last_line(done: subprocess.CompletedProcess[str]) -> str:
    """Why a program failed, as it says itself."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return lines[-1].strip()[:300] if lines else f"exit code {done.returncode}"
