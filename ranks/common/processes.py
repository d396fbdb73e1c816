"""What the kernel says of a process of this host: proc(5), /proc/PID/stat."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from typing import NamedTuple

_STAT_BYTES = 4096
_EXIT_CODE = 48
"""Which of the numbers after the state it is."""
_NANO = 1e-9
_AWAITED = (b"_write", b"request_wait_answer")
"""Parts of names of the kernel's functions in which a thread waits for whoever reads what it writes, and for
a file system that is a program."""


class Status(NamedTuple):
    """What is known of a running process: its parent's number; its start in clock ticks since the host
    started, which tells it from a later process with the same number; its name, of at most 15 characters;
    whether it is stopped by a signal, by a debugger or in a frozen container."""

    parent: int
    start: int
    name: str = ""
    stopped: bool = False

    def same(self, other: Status | None) -> bool:
        """Whether ``other`` is the same process, below the same parent."""
        return other is not None and self[:2] == other[:2]


def status(pid: int) -> Status | None:
    """The status of process ``pid``; None where no such process runs (one that only waits for its parent to
    notice its end does not)."""
    try:
        text = _text(f"/proc/{pid}/stat")
        # The command's name stands in parentheses and may itself hold any character.
        begin, end = text.index(b"(") + 1, text.rindex(b")")
        state, parent, *further = text[end + 1 :].split()
        if state in {b"Z", b"X", b"x"}:
            return None
        return Status(int(parent), int(further[17]), os.fsdecode(text[begin:end]), state in {b"T", b"t"})
    except (OSError, ValueError, IndexError):
        return None


def left_with(pid: int) -> int | None:
    """The status with which a process of this user has ended that its parent has not waited for, as
    `os.waitpid` gives it; None where it runs, is gone, or the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        text = _text(f"/proc/{pid}/stat")
        state, *fields = text[text.rindex(b")") + 2 :].split()
        return int(fields[_EXIT_CODE]) if state == b"Z" else None
    return None


def is_stopped(pid: int) -> bool:
    """Whether a process runs on this host, and is stopped."""
    now = status(pid)
    return now is not None and now.stopped


def became(pid: int, name: str) -> str:
    """The program that a process is that had this name (prctl), where it has another name now, as after
    exec(2); "" where it has not, or has ended."""
    now = status(pid)
    with contextlib.suppress(OSError):
        place = os.readlink(f"/proc/{pid}/exe")  # noqa: PTH115 - an import less; one that ends has none
        return "" if now is None or now.name == name else place
    return ""


def is_running(pid: int) -> bool:
    """Whether a thread of a process of this host computes, or is ready to and waits for a processor."""
    with contextlib.suppress(OSError):
        for thread in os.scandir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
                text = _text(f"{thread.path}/stat")
                if text[text.rindex(b")") + 2 :].startswith(b"R"):
                    return True
    return False


def spent_by_threads(working: Collection[int | None], but: Collection[int | None]) -> tuple[float, bool]:
    """Seconds for which threads of this process have run, all together, and those that are ``working`` also
    for which they were ready to and got no processor; and whether one of them waits now for a disk (or for
    memory that lies on one), or for who reads what it writes. ``but``: numbers of those that do not count.

    A library's thread that wakes up now and then, as they do, is ready all the time on a crowded machine.
    """
    seconds, waits = 0.0, False
    with contextlib.suppress(OSError):
        for thread in os.scandir("/proc/self/task"):
            number = int(thread.name)
            if number in but:
                continue
            with contextlib.suppress(OSError, ValueError, IndexError):  # it has ended meanwhile
                text = _text(f"{thread.path}/stat")
                state, *fields = text[text.rindex(b")") + 2 :].split()
                waits = waits or state == b"D"
                if number in working and state == b"S":
                    place = _text(f"{thread.path}/wchan")
                    waits = waits or any(name in place for name in _AWAITED)
                try:
                    run, ready = _text(f"{thread.path}/schedstat").split()[:2]
                    seconds += (int(run) + (int(ready) if number in working else 0)) * _NANO
                except OSError:  # a kernel without
                    seconds += (int(fields[10]) + int(fields[11])) / os.sysconf("SC_CLK_TCK")
    return seconds, waits


def _text(path: str) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        return os.read(descriptor, _STAT_BYTES)
    finally:
        os.close(descriptor)
