"""Locks that say what is in use. The kernel gives them back, however a process ends (flock).

What is in use is held shared, by any number of processes; who removes it must get it alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)


class Pin:
    """Something in use: held, it is not thrown out. ``close`` lets go of it."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_at(self, path: Path) -> bool:
        """Whether what is held is still what lies at ``path``."""
        return self._descriptor >= 0 and is_at(self._descriptor, path)

    def close(self) -> None:
        """Lets go. Safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    __del__ = close


_held: dict[Path, Pin] = {}


def pin(folder: Path) -> Pin | None:
    """Holds a folder of the cache, and notes that it is used now; None where there is none."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        return None
    held = Pin(descriptor)
    lock(descriptor, fcntl.LOCK_SH)
    # Between opening and locking it may have been removed: then the name is gone, or another folder's.
    if not held.is_at(folder):
        return None
    with contextlib.suppress(OSError):
        os.utime(descriptor)
    return held


def hold(folder: Path) -> bool:
    """As `pin`, until this process ends. Gives whether the folder is there."""
    held = pin(folder)
    if held is not None:
        _held[folder] = held
    return held is not None


def lock(descriptor: int, how: int) -> bool:
    """Whether a descriptor could be locked (flock); with ``LOCK_NB`` without waiting for others."""
    try:
        fcntl.flock(descriptor, how)
    except BlockingIOError:
        return False
    except OSError as problem:  # some network file systems have no locks
        log.info("no lock: %s", problem)
        return False
    return True


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a descriptor is of the file or folder that lies at ``path`` now."""
    try:
        there = path.stat()
    except OSError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_ino, ours.st_dev) == (there.st_ino, there.st_dev)
