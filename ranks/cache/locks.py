"""Locks that say what is in use. The kernel gives them back, however a process ends (flock).

What is in use is held shared, by any number of processes; who removes it must get it alone. What processes
that do not run yet are about to use has the time until which it stays, as the time of its last use.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar

from ranks.common import waiting

log = logging.getLogger(__name__)


LONGEST_EXPECTED = 3600.0
"""Seconds for which something may be kept for who does not hold it yet."""


class Pin:
    """Something in use: held, it is not thrown out. ``close`` lets go of it."""

    _close = staticmethod(os.close)  # at the interpreter's end the module's names may be gone already

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_at(self, path: Path) -> bool:
        """Whether what is held is still what lies at ``path``."""
        return self._descriptor >= 0 and is_at(self._descriptor, path)

    def close(self) -> None:
        """Lets go. Safe to call twice."""
        if self._descriptor >= 0:
            self._close(self._descriptor)
            self._descriptor = -1

    __del__ = close


class Keeper(Protocol):
    """Something that needs what it was made of, as long as it is there."""

    kept: Sequence[Pin]


_Made = TypeVar("_Made", bound=Keeper)
_Arguments = ParamSpec("_Arguments")


def pin(folder: Path, seconds: float | None = None) -> Pin | None:
    """Holds a folder of the cache, and notes that it is used now; None where there is none of this user.

    Raises `HeldError` where it is being removed for longer than ``seconds``, by default ``SHARDRUN_TIMEOUT``.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return None
    held = Pin(descriptor)
    if os.fstat(descriptor).st_uid != os.geteuid():  # from a time when others could write to the cache
        return None
    lock(descriptor, fcntl.LOCK_SH, folder, seconds)
    # Between opening and locking it may have been removed: then the name is gone, or another folder's.
    if not held.is_at(folder):
        return None
    with contextlib.suppress(OSError):
        if not is_expected(descriptor):
            os.utime(descriptor)
    return held


def expect(folder: Path, seconds: float) -> None:
    """Keeps a folder of the cache for processes that will hold it in so many seconds. Raises `OSError`."""
    until = time.time() + min(seconds, LONGEST_EXPECTED)
    os.utime(folder, (until, until))


def is_expected(descriptor: int) -> bool:
    """Whether a folder is kept for processes that may not hold it yet."""
    # A clock that was wrong once must not keep it for years.
    return 0 < os.fstat(descriptor).st_mtime - time.time() <= LONGEST_EXPECTED


class Pins:
    """What a process holds: until it ends, or as long as a thread of it says. One per process."""

    def __init__(self) -> None:
        self.held: dict[Path, Pin] = {}
        """Until the process ends."""
        self._threads = threading.local()

    def hold(self, folder: Path, seconds: float | None = None) -> bool:
        """As `pin`, until this process ends or, within `collected`, as long as its list is there. Gives
        whether the folder is there."""
        held = pin(folder, seconds)
        if held is None:
            return False
        lists = getattr(self._threads, "lists", None)
        if lists:
            lists[-1].append(held)
        else:
            self.held[folder] = held
        return True

    @contextlib.contextmanager
    def collected(self) -> Iterator[list[Pin]]:
        """A list of what this thread holds inside, which is let go of with the list."""
        lists = self._threads.__dict__.setdefault("lists", [])
        kept: list[Pin] = []
        lists.append(kept)
        try:
            yield kept
        finally:
            lists.pop()

    def keeping(self, make: Callable[_Arguments, _Made]) -> Callable[_Arguments, _Made]:
        """Makes what a function returns hold what the function has held, and nothing else."""

        @functools.wraps(make)
        def made(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> _Made:
            with self.collected() as kept:
                found = make(*args, **kwargs)
            found.kept = kept
            return found

        return made


PINS = Pins()
hold, collected, keeping = PINS.hold, PINS.collected, PINS.keeping


def lock(descriptor: int, how: int, path: Path, seconds: float | None = None) -> bool:
    """Whether a descriptor of ``path`` could be locked (flock); with ``LOCK_NB`` without waiting for others.

    Else it waits aloud, at most ``seconds`` (`ranks.common.waiting`). Raises `HeldError` where that is too
    long.
    """
    try:
        if how & fcntl.LOCK_NB:
            fcntl.flock(descriptor, how)
        else:
            waiting.take(descriptor, how, path, seconds)
    except waiting.HeldError:
        raise
    except BlockingIOError:
        return False
    except OSError as problem:  # some network file systems have no locks
        log.info("no lock: %s", problem)
        return False
    return True


@contextlib.contextmanager
def folder_lock(folder: Path, how: int) -> Iterator[bool]:
    """Locks a folder; gives whether that worked."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield lock(descriptor, how, folder)
    finally:
        os.close(descriptor)


def is_at(descriptor: int, path: Path) -> bool:
    """Whether a descriptor is of the file or folder that lies at ``path`` now."""
    try:
        there = path.stat()
    except OSError:
        return False
    ours = os.fstat(descriptor)
    return (ours.st_ino, ours.st_dev) == (there.st_ino, there.st_dev)
