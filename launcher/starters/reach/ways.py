"""The ssh processes by which an mpirun of this host reaches others."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from ranks.common import processes

GRACE_SECONDS = 2.0
_WITH_VALUE = "BbcDEeFIiJLlmOopPQRSWw"
"""ssh's options that have one."""


def marked(pid: int, mark: str) -> bool:
    """Whether ``mark`` stands in the environment of a process; without it, it is somebody else's. Raises
    `OSError` where it cannot be read."""
    return mark.encode() in Path("/proc", str(pid), "environ").read_bytes()


def is_way(pid: int, name: bytes) -> bool:
    """Whether a process is an ssh of one connection. One that is left to others, as `ControlPersist` has it,
    carries those of the user by now; it says so in its command."""
    if name != b"ssh":
        return False
    return not Path("/proc", str(pid), "cmdline").read_bytes().rstrip(b"\0 ").endswith(b"[mux]")


class Ways:
    """Those that are there, and those that were. They have sessions of their own in part."""

    def __init__(self, mark: str) -> None:
        """``mark``: as in `marked`."""
        self._mark = mark
        self._seen: set[str] = set()
        self._gone: dict[str, float] = {}

    def lost(self, hosts: Collection[str]) -> str:
        """The first of some hosts to which there was a way, and is none any more; else "". What mpirun says
        itself in the time that it then has says more: a program that is missing there ends a way too."""
        there: set[str] = set()
        for found in self._running():
            there.add(_target(found.pid))
        now = time.monotonic()
        gone = {host for host in hosts if host in self._seen and host not in there}
        self._seen |= there
        self._gone = {host: self._gone.get(host, now) for host in gone}
        over = sorted(host for host, since in self._gone.items() if now - since >= GRACE_SECONDS)
        return over[0] if over else ""

    def end(self) -> None:
        """Ends them at once, with what Intel's mpirun, a script, has started: none has anything to say any
        more."""
        for found in self._running(b"mpiexec.hydra"):
            processes.tell(found, signal.SIGKILL)

    def _running(self, *more: bytes) -> Iterator[processes.Found]:
        """``more``: names of other programs."""
        return processes.running(
            lambda pid, name, fields: (name in more or is_way(pid, name)) and marked(pid, self._mark)
        )


def _target(pid: int) -> str:
    """The host to which an ssh process leads, by its command: the first word that is no option, nor an
    option's value."""
    with contextlib.suppress(OSError):
        words = iter(os.fsdecode(Path("/proc", str(pid), "cmdline").read_bytes()).split("\0")[1:])
        for word in words:
            if not word.startswith("-"):
                return word.rpartition("@")[2]
            # As getopt(3): the value of `-o` follows, unless it stands in the same word.
            found = next((at for at, letter in enumerate(word) if letter in _WITH_VALUE), None)
            if word == "--" or (found is not None and found == len(word) - 1):
                given = next(words, "")
                if word == "--":
                    return given.rpartition("@")[2]
    return ""
