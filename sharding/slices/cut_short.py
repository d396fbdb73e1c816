"""Files that are cut short while they are read through a mapping.

The kernel then ends the process (SIGBUS), wherever it stands: in a copy, in a hash, in a library. While
`WHOLE_FILES` is entered, what is missing of a file is put in its place as zeros, and what was read counts for
nothing: whoever leaves it gets one sentence that names the file.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import signal
import sys
import threading
from contextlib import ContextDecorator
from types import TracebackType
from typing import NamedTuple

from sharding.common.nearby import shown
from sharding.errors import ModelError

_SIGINFO = 0x4
_CODE, _ADDRESS = 8, 16
"""Where ``siginfo_t`` says where a signal comes from (above 0: the kernel), and the address of a fault."""
_FIXED = 0x10


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


class WholeFiles(ContextDecorator):
    """A context manager and decorator, for any number of threads at once. Leaving it raises `ModelError`
    where a mapped file was shorter than its mapping, also in place of another error, due to zeros."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        self._cut: dict[str, None] = {}
        self._before = _Action()
        self._handler: object = None

    def __enter__(self) -> None:
        if sys.platform != "linux":
            return
        with self._lock:
            if not self._inside:
                self._cut.clear()
                self._install()
            self._inside += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if sys.platform != "linux":
            return
        with self._lock:
            self._inside -= 1
            if not self._inside:
                _sigaction(self._before, None)
        if kind is None or issubclass(kind, Exception):
            self.check(error)

    def check(self, error: BaseException | None = None) -> None:
        """Raises `ModelError` where a file was cut short, ``error`` being what came of it: to be called
        before anything that was made of files takes its place."""
        for path in self._cut:
            raise ModelError(
                f"{shown(path)} could not be read to its end: it was cut short while it was read, or its "
                "disk fails. Try again when nobody writes to it."
            ) from error

    def _install(self) -> None:
        libc = _libc()
        kind = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)

        def fill(_: int, information: int, context: int) -> None:
            if ctypes.c_int.from_address(information + _CODE).value <= 0:  # some process has sent it
                _sigaction(self._before, None)
                signal.raise_signal(signal.SIGBUS)
                return
            address = ctypes.c_size_t.from_address(information + _ADDRESS).value
            found = _mapping_of(address)
            page = address // mmap.PAGESIZE * mmap.PAGESIZE
            if found is not None:
                allowed = mmap.PROT_READ | (mmap.PROT_WRITE if found.writable else 0)
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _FIXED
                if libc.mmap(page, found.end - page, allowed, flags, -1, 0) == page:
                    self._cut[found.path] = None
                    return
            _sigaction(self._before, None)  # what was done before is done when the access is tried again

        self._handler = kind(fill)
        action = _Action(ctypes.cast(self._handler, ctypes.c_void_p), flags=_SIGINFO)
        _sigaction(action, self._before)


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_size_t
    libc.mmap.argtypes = [
        *(ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_ssize_t)
    ]
    return libc


def _sigaction(action: _Action, before: _Action | None) -> None:
    _libc().sigaction(signal.SIGBUS, ctypes.byref(action), None if before is None else ctypes.byref(before))


def _mapping_of(address: int) -> _Mapping | None:
    """The mapping of a file that an address lies in; None for memory that others see
    when it is written, and for programs and libraries."""
    with open("/proc/self/maps", "rb") as maps:  # noqa: PTH123 - no more work than needed where a signal came
        for line in maps:
            place, access, _, _, _, *name = line.split(None, 5)
            start, end = (int(part, 16) for part in place.split(b"-"))
            if start <= address < end:
                path = os.fsdecode(name[0].rstrip(b"\n")) if name else ""
                shared = access.endswith(b"s") and b"w" in access
                if shared or b"x" in access or not path.startswith("/"):
                    return None
                return _Mapping(end, b"w" in access, path.removesuffix(" (deleted)"))
    return None


WHOLE_FILES = WholeFiles()
