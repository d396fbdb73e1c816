"""What the kernel says of a process of this host: proc(5), /proc/PID/stat."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

_STAT_BYTES = 4096


@dataclass(frozen=True)
class Status:
    """What is known of a running process: its parent's number; its start in clock ticks since the host
    started, which tells it from a later process with the same number; its name, of at most 15 characters;
    whether it is stopped by a signal, by a debugger or in a frozen container."""

    parent: int
    start: int
    name: str = field(default="", compare=False)
    stopped: bool = field(default=False, compare=False)


def status(pid: int) -> Status | None:
    """The status of process ``pid``; None where no such process runs (one that only waits for its parent to
    notice its end does not)."""
    try:
        descriptor = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            text = os.read(descriptor, _STAT_BYTES)
        finally:
            os.close(descriptor)
        # The command's name stands in parentheses and may itself hold any character.
        begin, end = text.index(b"(") + 1, text.rindex(b")")
        state, parent, *further = text[end + 1 :].split()
        if state in {b"Z", b"X", b"x"}:
            return None
        return Status(int(parent), int(further[17]), os.fsdecode(text[begin:end]), state in {b"T", b"t"})
    except (OSError, ValueError, IndexError):
        return None


def is_stopped(pid: int) -> bool:
    """Whether a process runs on this host, and is stopped."""
    now = status(pid)
    return now is not None and now.stopped
