"""Waiting for a lock (flock) that another process holds: aloud, and not for ever.

The kernel gives a lock back however its holder ends, but not while the holder is stopped (Ctrl-Z, a frozen
container): who waits then must be told for whom, or would seem to hang.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import time
from pathlib import Path

from ranks.common.processes import is_stopped
from ranks.common.pulse import wait
from ranks.errors import ShardrunError
from sharding.common.text import one_line, shortened

log = logging.getLogger(__name__)

NOTICE_SECONDS = 3.0
"""After this long it is said who is waited for."""
_SHORTEST_NAP, _LONGEST_NAP = 0.001, 0.05
_COMMAND = 100  # characters of a command that are shown


class HeldError(ShardrunError, TimeoutError):
    """Another process holds a lock longer than this one waits. Also an `OSError`, for those to whom a cache
    that cannot be used is none."""


@wait
def take(descriptor: int, how: int, path: Path, seconds: float | None = None) -> None:
    """Locks a descriptor (flock) of ``path``, waiting for others at most ``seconds``, by default
    ``SHARDRUN_TIMEOUT``.

    Raises `HeldError`, and `OSError` where the file system has no locks.
    """
    if _taken(descriptor, how):
        return
    if seconds is None:
        from ranks.common.settings import default_timeout

        seconds = default_timeout()
    began = time.monotonic()
    said, nap = False, _SHORTEST_NAP
    while not _taken(descriptor, how):
        waited = time.monotonic() - began
        if waited >= seconds:
            raise HeldError(
                f"{path} has been held for {seconds:.3g} s by {holder(descriptor)}: end that process or let "
                "it go on, or wait longer (--timeout, SHARDRUN_TIMEOUT)."
            )
        if waited >= NOTICE_SECONDS and not said:
            said = True
            log.warning("waiting for %s, at most %.3g s: it holds %s", holder(descriptor), seconds, path)
        time.sleep(min(nap, max(0.0, seconds - waited)))
        nap = min(2 * nap, _LONGEST_NAP)


def _taken(descriptor: int, how: int) -> bool:
    try:
        fcntl.flock(descriptor, how | fcntl.LOCK_NB)
    except OSError as problem:
        if problem.errno in {errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES}:
            return False
        raise
    return True


def holder(descriptor: int) -> str:
    """The process that holds a lock of the descriptor's file, in words."""
    pid = _holding(descriptor)
    if pid is None:
        return "a process that cannot be seen from here (of another host or container)"
    if pid == os.getpid():
        return f"another thread of this process ({pid})"
    return in_words(pid)


def in_words(pid: int) -> str:
    """``process 4242 (shardrun run model.onnx), which is stopped by a signal such as SIGSTOP (`kill
    -CONT 4242` lets it go on)``."""
    told = f"process {pid}"
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().rstrip(b"\0").replace(b"\0", b" ")
    except OSError:
        return told
    if command:
        told += f" ({shortened(one_line(command.decode(errors='backslashreplace')), _COMMAND)})"
    if not is_stopped(pid):
        return told
    return stopped_in_words(told, pid)


def stopped_in_words(told: str, pid: int) -> str:
    """``told``, a process in words, which is stopped."""
    return f"{told}, which is stopped by a signal such as SIGSTOP (`kill -CONT {pid}` lets it go on)"


def _holding(descriptor: int) -> int | None:
    """The process id of who locked a file; None where the kernel does not say, as of other containers."""
    status = os.fstat(descriptor)
    name = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    found: dict[bool, int] = {}
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return None
    for line in lines:
        words = line.split()
        # "1: FLOCK ADVISORY WRITE 4242 08:01:1234 0 EOF"; of those who wait, "->" stands before FLOCK.
        if len(words) >= 6 and words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(status.st_ino):
            # Some file systems show another device here than to stat.
            found.setdefault(words[5] == name, int(words[4]))
    pid = found.get(True, found.get(False, 0))
    return pid if pid > 0 else None
