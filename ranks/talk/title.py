"""What a rank's process is called in lists of processes, such as that of ps."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

_PR_SET_NAME = 15
_NAME_LENGTH = 15
_ARG_START, _ARG_END = 47, 48
"""Fields of /proc/PID/stat, proc(5), counted from 0: where the command line lies in memory."""


def short_name(secret: str) -> str:
    """The name of a job, which tells it from others and says nothing of its secret."""
    import hashlib

    return hashlib.sha256(b"name of " + secret.encode()).hexdigest()[:6]


def process_name(rank: int, job: str) -> str:
    """What the kernel calls a rank's process: at most 15 characters. Slurm's proctrack/linuxproc, like others
    that read /proc/PID/stat word by word, does not find one with a space in it, and so never ends it."""
    return f"rank-{rank}-{job}"[:_NAME_LENGTH]


def name_process(rank: int, size: int, secret: str, work: str) -> None:
    """Calls this process after its rank, its job and what it works on. Linux only, and as far as the memory
    of its command line goes, which is where ps looks."""
    if sys.platform != "linux":
        return
    job = short_name(secret)
    title = f"shardrun rank {rank} of {size}, job {job}: {work}"
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_NAME, process_name(rank, job).encode(), 0, 0, 0)
        # What comes before the last parenthesis is two fields.
        fields = (
            Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
        )
        start, end = (int(fields[at - 2]) for at in (_ARG_START, _ARG_END))
        if 0 < start < end and end - start < 1 << 20:
            room = end - start
            ctypes.memmove(start, title.encode(errors="replace")[: room - 1].ljust(room, b"\0"), room)
