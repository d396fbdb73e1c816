"""Memory in large pages.

A processor that streams through all weights for a token needs the place of another page every 4 KiB, and
reads ahead within one page only. In its usual setting (``madvise``) Linux gives pages of 2 MiB where a
program asks for them, and ONNX Runtime does not ask.
"""

from __future__ import annotations

import contextlib
import ctypes
from pathlib import Path

_MADV_COLLAPSE = 25  # Linux 6.1; asm-generic/mman-common.h
_PAGE = 2 << 20
_USED = 0.9
"""The part of a block that must be in use: what is not would be taken, too."""
_SETTING = Path("/sys/kernel/mm/transparent_hugepage/enabled")


def collapse() -> None:
    """Moves this process's own large blocks of memory into large pages, now.

    Nothing where the system is set to have none, or its kernel is older. Where there are no such pages left,
    memory stays as it is.
    """
    with contextlib.suppress(AttributeError, OSError, ValueError, IndexError):
        if "[never]" in _SETTING.read_text():
            return
        advise = ctypes.CDLL(None).madvise
        for start, end in _blocks():
            first, last = -(-start // _PAGE) * _PAGE, end // _PAGE * _PAGE
            if first < last:
                advise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), _MADV_COLLAPSE)


def _blocks() -> list[tuple[int, int]]:
    """Private memory of no file, nearly all of it in use: where it begins and ends."""
    found, here = [], (0, 0)
    for line in Path("/proc/self/smaps").read_text(errors="replace").splitlines():
        # start-end permissions offset device inode path, and then lines of "Name: value kB".
        name, _, rest = line.partition(" ")
        if name.endswith(":"):
            size = here[1] - here[0]
            if name == "Anonymous:" and size >= _PAGE and int(rest.split()[0]) << 10 >= _USED * size:
                found.append(here)
            continue
        permissions, _, _, inode = rest.split(None, 4)[:4]
        start, _, end = name.partition("-")
        here = (int(start, 16), int(end, 16)) if permissions == "rw-p" and inode == "0" else (0, 0)
    return found
