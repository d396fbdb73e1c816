"""Files that are cut short while they are read through a mapping.

The kernel then ends the process (SIGBUS), wherever it stands: in a copy, in a hash, in a library. Where a
thread has entered `WHOLE_FILES`, what is missing of a file is put in its place as zeros, and what it read
counts for nothing: it gets one sentence that names the file when it leaves. Other threads have no part in it:
to answer from zeros would be worse than to end.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import ContextDecorator
from dataclasses import dataclass, field
from types import TracebackType
from typing import NamedTuple

from sharding.common.nearby import shown
from sharding.errors import ModelError

_SIGINFO = 0x4
_CODE, _ADDRESS = 8, 16
"""Where ``siginfo_t`` says where a signal comes from (above 0: the kernel), and the address of a fault."""
_FIXED = 0x10
_MEMORY = ("/dev/shm/", "/memfd:")


class _Action(ctypes.Structure):
    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * 16),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


class _Mapping(NamedTuple):
    end: int
    writable: bool
    path: str


@dataclass(eq=False)
class _Reading:
    """What a thread reads from when it enters until it leaves; ``threads``: also those that do it for it."""

    owner: int
    threads: set[int]
    cut: dict[str, None] = field(default_factory=dict)


class WholeFiles(ContextDecorator):
    """A context manager and decorator, for any number of threads, each for itself. Leaving it raises
    `ModelError` where a mapped file that this thread read was shorter than its mapping, also in place of
    another error, due to zeros."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._readings: list[_Reading] = []
        self._before = _Action()
        self._action: _Action | None = None
        self._handler: object = None

    def __enter__(self) -> None:
        if sys.platform != "linux":
            return
        here = threading.get_ident()
        with self._lock:
            if not self._readings:
                self._install()
            self._readings.append(_Reading(here, {here}))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.platform != "linux":
            return
        here = threading.get_ident()
        with self._lock:
            ended = next(one for one in reversed(self._readings) if one.owner == here)
            self._readings.remove(ended)
            if not self._readings and self._is_ours():
                _sigaction(self._before, None)
        if kind is None or issubclass(kind, Exception):
            _raise(ended, error)

    def joining(self) -> Callable[[], None]:
        """What another thread calls first that reads for this one, which waits for it."""
        mine = self._of(threading.get_ident())

        def join() -> None:
            for one in mine:
                one.threads.add(threading.get_ident())

        return join

    def check(self) -> None:
        """Raises `ModelError` where a file was cut short that this thread reads: to be called before anything
        that was made of files takes its place."""
        for reading in self._of(threading.get_ident()):
            _raise(reading, None)

    def _of(self, thread: int) -> list[_Reading]:
        return [one for one in self._readings if thread in one.threads]

    def _is_ours(self) -> bool:
        """Whether no library has put a handler of its own there meanwhile."""
        now = _Action()
        _sigaction(None, now)
        return self._action is not None and now.handler == self._action.handler

    def _install(self) -> None:
        if self._action is None:  # kept for ever: whoever replaces the handler may call it later
            kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)
            self._handler = kind(self._handle)
            self._action = _Action(ctypes.cast(self._handler, ctypes.c_void_p), flags=_SIGINFO)
        if not self._is_ours():
            _sigaction(self._action, self._before)

    def _handle(self, _: int, information: int, context: int) -> None:
        try:
            if ctypes.c_int.from_address(information + _CODE).value <= 0:  # some process has sent it
                _sigaction(self._before, None)
                signal.raise_signal(signal.SIGBUS)
            elif not self._fill(ctypes.c_size_t.from_address(information + _ADDRESS).value):
                _sigaction(self._before, None)  # what was done before is done when the access is tried again
        except BaseException:  # nobody would hear of it, and the access be tried again for ever
            _sigaction(self._before, None)

    def _fill(self, address: int) -> bool:
        """Puts zeros where an address lies, and up to the end of its mapping; whether that was to be done."""
        readings = self._of(threading.get_ident())
        found = _mapping_of(address) if readings else None
        if found is None:
            return False
        page = address // mmap.PAGESIZE * mmap.PAGESIZE
        allowed = mmap.PROT_READ | (mmap.PROT_WRITE if found.writable else 0)
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
        if _libc().mmap(page, found.end - page, allowed, flags, -1, 0) != page:
            return False
        for one in readings:
            one.cut[found.path] = None
        return True


def _raise(reading: _Reading, error: BaseException | None) -> None:
    """Raises `ModelError` where a file was cut short, ``error`` being what came of it."""
    for path in reading.cut:
        raise ModelError(
            f"{shown(path)} could not be read to its end: it was cut short while it was read, or its "
            "disk fails. Try again when nobody writes to it."
        ) from error


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_size_t
    libc.mmap.argtypes = [
        *(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t)
    ]
    return libc


def _sigaction(action: _Action | None, before: _Action | None) -> None:
    given = [None if one is None else ctypes.byref(one) for one in (action, before)]
    _libc().sigaction(signal.SIGBUS, *given)


def _mapping_of(address: int) -> _Mapping | None:
    """The mapping of a file that an address lies in; None for memory that others see when it is written, for
    memory without a file, and for programs and libraries."""
    found, programs = None, set()
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - no more work than needed where a signal came
        for line in maps:
            place, access, _, _, _, *name = line.split(None, 5)
            start, end = (int(part, 16) for part in place.split(b"-"))
            path = os.fsdecode(name[0].rstrip(b"\n")) if name else ""
            if b"x" in access:
                programs.add(path)
            if start <= address < end:
                shared = access.endswith(b"s") and b"w" in access
                if shared or not path.startswith("/") or path.startswith(_MEMORY):
                    return None
                found = _Mapping(end, b"w" in access, path)
    if found is None or found.path in programs:
        return None
    return found._replace(path=found.path.removesuffix(" (deleted)"))


WHOLE_FILES = WholeFiles()
