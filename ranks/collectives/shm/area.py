"""The memory that the ranks of one host share: one nameless memory file, mapped by each.

    control   for every rank a line of counters; for every ordered pair of ranks two
    slots     for every rank two halves of `SLOT` bytes, which successive phases use in turn
    mail      for every ordered pair of ranks `PLACES` pieces of `MAIL` bytes
    arenas    for every rank a number of bytes (`ARENA`, or less where ``ulimit -v`` or ``-f`` is tight), from
    which it allocates buffers that its peers read and write directly

The file is sparse: only pages that were touched cost memory.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import math
import mmap
import os
import resource
import weakref
from collections import deque
from pathlib import Path

import numpy as np

from ranks.errors import CollectiveError
from sharding.common.arrays import Array, DType
from sharding.common.storage import PAGE

SLOT = 1 << 20
MAIL = 1 << 16
PLACES = 7  # as many as a line has words for, two each
ARENA = 1 << 30
_LEAST_ARENA = 1 << 20
_SHARE = 4  # of the addresses that are left the arenas take one part in so many
LINE = 16  # words of 8 bytes: two cache lines, since neighbours are fetched in pairs
_ALIGNMENT = 128


def arena_bytes(size: int, room: int | None, longest: int | None = None) -> int:
    """Bytes of each arena of ``size`` ranks where the tightest of them has ``room`` bytes of addresses left
    and who makes the memory file may make none of more than ``longest``; None where there is no limit."""
    most = ARENA
    if room is not None:
        most = min(most, room // _SHARE // size)
    if longest is not None:
        most = min(most, (longest - _fixed_bytes(size)) // size)
    return max(_LEAST_ARENA, most // PAGE * PAGE)


def longest_file() -> int | None:
    """Bytes of the longest file that this process may make (``ulimit -f``), which holds for memory files too;
    None where it has no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return None if limit == resource.RLIM_INFINITY else limit


def address_room() -> int | None:
    """Bytes of addresses that this process may still map (``ulimit -v``); None where it has no limit."""
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    if limit == resource.RLIM_INFINITY:
        return None
    try:
        used = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        used = 0
    return max(0, limit - used)


def _fixed_bytes(size: int) -> int:
    """Bytes of the shared file of ``size`` ranks before the arenas."""
    return _control_bytes(size) + size * 2 * SLOT + size * size * PLACES * MAIL


def create(size: int, arena: int = ARENA) -> int:
    """A new memory file for ``size`` ranks, sealed against truncation; its descriptor."""
    try:
        descriptor = os.memfd_create("shardrun-collectives", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(descriptor, _fixed_bytes(size) + size * arena)
            fcntl.fcntl(
                descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
            )
        except BaseException:
            os.close(descriptor)
            raise
    except OSError as error:
        advice = ": raise the limit `ulimit -f`" if error.errno == errno.EFBIG else ""
        raise CollectiveError(
            f"Shared memory for {size} ranks cannot be made: {error.strerror}{advice}."
        ) from error
    return descriptor


class Area:
    """The shared memory as one rank sees it."""

    def __init__(self, descriptor: int, rank: int, size: int) -> None:
        found = os.fstat(descriptor).st_size
        fixed = _fixed_bytes(size)
        self.arena_bytes, rest = divmod(found - fixed, size)
        if rest or self.arena_bytes % PAGE or not _LEAST_ARENA <= self.arena_bytes <= ARENA:
            raise CollectiveError(
                f"The shared memory of {size} ranks has {found} bytes, which cannot be: start every rank "
                "with the same version of shardrun."
            )
        try:
            self._map = mmap.mmap(descriptor, found)
        except OSError as error:
            raise CollectiveError(
                f"Shared memory of {found >> 20} MiB of addresses cannot be mapped ({error.strerror}): "
                "raise the limit `ulimit -v`."
            ) from error
        with contextlib.suppress(OSError):
            self._map.madvise(mmap.MADV_DONTDUMP)  # a core file would hold every rank's buffers
        self.rank = rank
        self.size = size
        view = memoryview(self._map)
        self.words = view[: _control_bytes(size)].cast("Q")
        self._view = view
        self._bytes: Array = np.frombuffer(view, np.uint8)
        self._slots = _control_bytes(size)
        self._mail = self._slots + size * 2 * SLOT
        self._arenas = self._mail + size * size * PLACES * MAIL
        self._address: int = self._bytes.__array_interface__["data"][0]
        self._free: list[tuple[int, int]] = [(0, self.arena_bytes)]  # (offset, bytes), sorted
        self._returned: deque[tuple[int, int]] = deque()

    def line(self, rank: int) -> int:
        """Index in `words` of a rank's line: its counter, then the published offset."""
        return rank * LINE

    def mail_line(self, sender: int, receiver: int) -> int:
        """Index in `words` of a pair's line, which the sender writes: pieces sent, and from the third word on
        for each place what lies there and where. The receiver writes the next line: pieces taken.
        """
        return (self.size + (sender * self.size + receiver) * 2) * LINE

    def slot(self, rank: int, half: int, shape: tuple[int, ...], dtype: DType) -> Array:
        """The start of one of a rank's halves, as an array."""
        return self._at(self._slots + (rank * 2 + half) * SLOT, shape, dtype)

    def mail(self, sender: int, receiver: int, place: int, count: int) -> Array:
        """The first ``count`` bytes of one of a pair's places."""
        offset = self._mail + ((sender * self.size + receiver) * PLACES + place) * MAIL
        return self._bytes[offset : offset + count]

    def arena(self, rank: int, offset: int, shape: tuple[int, ...], dtype: DType) -> Array:
        """What lies at ``offset`` of a rank's arena."""
        return self._at(self._arenas + rank * self.arena_bytes + offset, shape, dtype)

    def offset_of(self, array: Array) -> int | None:
        """Where in this rank's arena ``array`` lies, or None where it is ordinary memory."""
        start = (
            array.__array_interface__["data"][0] - self._address - self._arenas - self.rank * self.arena_bytes
        )
        return start if start >= 0 and start + array.nbytes <= self.arena_bytes else None

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """An uninitialised array in this rank's arena, or in ordinary memory where the arena is full.

        Its bytes are used again only when the array and all views of it are gone.
        """
        while self._returned:
            self._give_back(*self._returned.popleft())
        count = math.prod(shape) * dtype.itemsize
        taken = (count // _ALIGNMENT + 1) * _ALIGNMENT
        for i, (offset, free) in enumerate(self._free):
            if free >= taken:
                self._free[i : i + 1] = [(offset + taken, free - taken)] if free > taken else []
                break
        else:
            return np.empty(shape, dtype)
        start = self._arenas + self.rank * self.arena_bytes + offset
        # From a slice of the mapping, not of an array: so numpy keeps `owner` alive as the base of all its
        # views.
        owner: Array = np.frombuffer(self._view[start : start + taken], np.uint8)
        # A finalizer may run anywhere, even inside this method: it only notes the block.
        weakref.finalize(owner, self._returned.append, (offset, taken)).atexit = False
        return owner[:count].view(dtype).reshape(shape)

    def _give_back(self, offset: int, taken: int) -> None:
        start = self._arenas + self.rank * self.arena_bytes + offset
        first, last = -(-start // PAGE) * PAGE, (start + taken) // PAGE * PAGE
        if last - first >= 1 << 20:
            self._map.madvise(mmap.MADV_REMOVE, first, last - first)
        blocks = sorted([*self._free, (offset, taken)])
        self._free = blocks[:1]
        for block, count in blocks[1:]:
            before, length = self._free[-1]
            if before + length == block:
                self._free[-1] = (before, length + count)
            else:
                self._free.append((block, count))

    def _at(self, start: int, shape: tuple[int, ...], dtype: DType) -> Array:
        count = math.prod(shape) * dtype.itemsize
        return self._bytes[start : start + count].view(dtype).reshape(shape)


def _control_bytes(size: int) -> int:
    lines = size + 2 * size * size
    return -(-lines * LINE * 8 // PAGE) * PAGE
