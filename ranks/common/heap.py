"""The C library's heap."""

from __future__ import annotations

import ctypes
import resource

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8  # <malloc.h>
_LARGEST = 32 << 20
"""glibc takes no more for the size from which each block gets a mapping of its own."""


def trim() -> None:
    """Gives memory that was freed back to the system; milliseconds, and nothing where the C library cannot.

    Loading a model leaves a heap in pieces that glibc keeps: a third of the size of BERT-base.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own (malloc_trim(3))
    if release is not None:
        release(0)


def join() -> None:
    """Has blocks lie side by side: weights that have a mapping each have gaps between them, and large pages
    span no gaps.

    The two limits are those at which glibc arrives by itself where blocks of this size are freed.
    """
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's own (mallopt(3))
    if option is not None and option(_M_MMAP_THRESHOLD, _LARGEST):
        option(_M_TRIM_THRESHOLD, 2 * _LARGEST)


def spare_addresses() -> None:
    """Where addresses are limited (``ulimit -v``), has all threads share one heap.

    glibc sets 64 MiB aside for each thread's own, until none are left for the stack of the next thread.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's own (mallopt(3))
    if option is not None:
        option(_M_ARENA_MAX, 1)
