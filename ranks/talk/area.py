"""Shared memory beside a Unix socket: large tensors are written once by the sender and found there by the
receiver.

Measured between two processes of one host, 64 KB to 64 MB: 3 to 6 times as fast as the socket. An area is an
anonymous file (memfd_create(2)) whose descriptor travels over the socket, so it is gone with its last user,
however that ends. A sender has several areas, its slots, and writes one anew for each message that it sends
in that slot: in each slot messages must alternate, as a request and its answer do.
"""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
from collections.abc import Iterable, Sequence

SLOTS = 4
"""Requests that may be on their way at once."""
MINIMUM = 64 << 10  # bytes; below, the socket alone is as fast
MAXIMUM = 1 << 30  # an area stays as large as the largest message, so the largest messages take the socket
ALIGNMENT = 64
# <linux/fcntl.h>; the module fcntl has these names only where the C library's headers do.
_ADD_SEALS, _GET_SEALS, _SEAL_SHRINK = 1033, 1034, 2


def available() -> bool:
    """Whether this system has anonymous files."""
    return hasattr(os, "memfd_create")


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


class Writer:
    """The sender's areas, one for each slot in use."""

    def __init__(self) -> None:
        self._made = 0
        self._maps: dict[int, mmap.mmap] = {}
        self._numbers: dict[int, int] = {}

    def number(self, slot: int) -> int:
        """What a message calls the slot's area: how many were made before it, and the slot."""
        return self._numbers[slot]

    def write(self, buffers: Sequence[bytes | memoryview], slot: int = 0) -> tuple[bool, int | None]:
        """Writes the buffers; says whether that was possible, and the descriptor to pass on if the area is
        new."""
        size = sum(_aligned(len(data)) for data in buffers)
        if not MINIMUM <= size <= MAXIMUM:
            return False, None
        descriptor = None
        area = self._maps.get(slot)
        if area is None or len(area) < size:
            descriptor = self._make(size, slot)
            if descriptor is None:
                return False, None
        area = self._maps[slot]
        at = 0
        for data in buffers:
            area[at : at + len(data)] = data
            at += _aligned(len(data))
        return True, descriptor

    def _make(self, size: int, slot: int) -> int | None:
        size = max(2 * size if size < MAXIMUM // 4 else size, 1 << 20)
        try:
            descriptor = os.memfd_create("shardrun", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError:  # no descriptor is left: the socket takes it
            return None
        try:
            # Memory that is not there is noticed now; while writing it would end the process (SIGBUS).
            os.posix_fallocate(descriptor, 0, size)
            fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL_SHRINK)
            self._maps[slot] = mmap.mmap(descriptor, size)
        except OSError:
            os.close(descriptor)
            return None
        self._made += 1
        self._numbers[slot] = self._made * SLOTS + slot
        return descriptor


class Reader:
    """The receiver's view of its peer's areas."""

    def __init__(self) -> None:
        self._arrived, self._closed = 0, False
        self._descriptors: dict[int, int] = {}
        self._current: dict[int, tuple[int, mmap.mmap]] = {}

    def take(self, descriptors: Iterable[int]) -> None:
        """Descriptors that came over the socket, in order."""
        for descriptor in descriptors:
            self._arrived += 1
            self._descriptors[self._arrived] = descriptor
            old = self._descriptors.pop(self._arrived - 2 * SLOTS, None)
            if old is not None:
                os.close(old)
        if self._closed:
            self.close()

    def views(self, number: int, sizes: Sequence[int]) -> list[memoryview]:
        """The buffers of one message, in the area of this `Writer.number`; good until the next message in its
        slot. Raises `ValueError` where the area is not what the peer says."""
        total = sum(_aligned(size) for size in sizes)
        slot = number % SLOTS
        if slot not in self._current or self._current[slot][0] != number:
            self._current[slot] = (number, self._open(number))
        area = self._current[slot][1]
        if total > len(area):
            raise ValueError(f"its area has {len(area)} bytes, but the message needs {total}")
        whole, views, at = memoryview(area), [], 0
        for size in sizes:
            views.append(whole[at : at + size])
            at += _aligned(size)
        return views

    def _open(self, number: int) -> mmap.mmap:
        descriptor = self._descriptors.pop(number // SLOTS, None)
        if descriptor is None:
            raise ValueError(f"its area {number!r} has not come")
        try:
            if not fcntl.fcntl(descriptor, _GET_SEALS) & _SEAL_SHRINK:
                raise ValueError("its area could shrink while it is read")
            return mmap.mmap(descriptor, os.fstat(descriptor).st_size)
        except OSError as error:
            raise ValueError(f"its area cannot be used ({error})") from None
        finally:
            os.close(descriptor)

    def close(self) -> None:
        """Closes descriptors that were never used; views that were given out stay good. Another thread may
        receive meanwhile: whoever takes a descriptor out closes it, and nobody else, for by then its number
        may be that of another file."""
        self._closed = True
        while self._descriptors:
            with contextlib.suppress(KeyError, OSError):
                os.close(self._descriptors.popitem()[1])
