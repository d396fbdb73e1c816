"""Memory of prepared weights: what a process gives back, and what it maps before its first run."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Collection
from pathlib import Path

_MADV_POPULATE_READ = 22  # Linux 5.14; asm-generic/mman-common.h


def give_back_memory() -> None:
    """Returns to the system what ONNX Runtime freed in this process: it packs each weight before it takes the
    packed form from the file instead."""
    with contextlib.suppress(AttributeError, OSError):  # another C library than glibc
        ctypes.CDLL(None).malloc_trim(ctypes.c_size_t(0))


def populate(names: Collection[str]) -> None:
    """Maps the pages of packed weights in the files of these names now, as far as this process has mapped the
    files.

    They would be mapped one by one in the first run, which was half again as slow for it. The raw bytes, from
    which files begin, are left alone: of a table only the rows that are looked up are ever needed.
    """
    wanted = set(names)
    with contextlib.suppress(AttributeError, OSError), Path("/proc/self/maps").open("rb") as maps:
        advise = ctypes.CDLL(None).madvise
        for line in maps:
            # start-end permissions offset device inode path
            fields = line.split(None, 5)
            if len(fields) < 6 or int(fields[2], 16) == 0:
                continue
            if fields[5].strip().rpartition(b"/")[2].decode(errors="replace") in wanted:
                start, end = (int(part, 16) for part in fields[0].split(b"-"))
                advise(ctypes.c_void_p(start), ctypes.c_size_t(end - start), _MADV_POPULATE_READ)
