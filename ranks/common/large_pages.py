"""Memory in large pages.

A processor that streams through all weights for a token needs the place of another page every 4 KiB, and
reads ahead within one page only. In its usual setting (``madvise``) Linux gives pages of 2 MiB where a
program asks for them, and ONNX Runtime does not ask.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
from collections.abc import Iterator
from pathlib import Path

import numpy as np

_MADV_COLLAPSE = 25  # Linux 6.1; asm-generic/mman-common.h
_PAGE = 2 << 20
_USED = 0.9
"""The part of a large page's place that must be in use: what is not would be taken, too."""
_SPARSE = 1 / 16
"""Of a block that is used less than this much it is not looked up which pages are: it may have terabytes."""
_TRIES = 3
"""A call gives up at the first place that finds no free page, or whose pages something holds just now. The
kernel makes large pages free by moving others, so that the next call often gets further (madvise(2): ENOMEM,
EAGAIN)."""
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def collapse() -> None:
    """Moves what this process's own large blocks of memory hold into large pages, now.

    Nothing where the system is set to have none, or its kernel is older. Where there are no such pages left,
    memory stays as it is.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError, IndexError):
        if "[never]" in _SETTING.read_text():
            return
        advise = ctypes.CDLL(None).madvise
        for start, end in _blocks():
            for first, last in _full(start, end):
                for _ in range(_TRIES):
                    if not advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE):
                        break


def _blocks() -> list[tuple[int, int]]:
    """Private memory of no file that is in use: where it begins and ends."""
    found, here = [], (0, 0)
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        # start-end permissions offset device inode path, and then lines of "Name: value kB".
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            used = int(rest.split()[0]) << 10 if name == "Anonymous:" else 0
            if used >= max(_PAGE, _SPARSE * (here[1] - here[0])) and here[1]:
                found.append(here)
            continue
        permissions, _, _, inode = rest.split(None, 4)[:4]
        start, _, end = name.partition("-")
        here = (int(start, 16), int(end, 16)) if permissions == "rw-p" and inode == "0" else (0, 0)
    return found


def _full(start: int, end: int) -> Iterator[tuple[int, int]]:
    """The parts of a block in which nearly all of each large page's place is in use.

    A block is no measure: the kernel joins neighbours, so that weights and a buffer that hardly anything has
    been written to may be one.
    """
    first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
    if first >= last:
        return
    # Of pagemap, a word a page: bit 63 says that it is there, bit 56 that it is not all's, as that of zeros.
    word = np.dtype(np.uint64).itemsize
    with Path("/proc/self/pagemap").open("rb") as pages:
        pages.seek(first // mmap.PAGESIZE * word)
        words = np.frombuffer(pages.read((last - first) // mmap.PAGESIZE * word), np.uint64)
    there = words >> np.uint64(63) & words >> np.uint64(56) & np.uint64(1)
    used = np.mean(there.reshape(-1, _PAGE // mmap.PAGESIZE), axis=1) >= _USED
    edges = np.flatnonzero(np.diff(used, prepend=False, append=False)).tolist()
    for begin, stop in zip(edges[::2], edges[1::2], strict=True):
        yield first + begin * _PAGE, first + stop * _PAGE
