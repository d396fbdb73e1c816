"""The C library's heap."""

from __future__ import annotations

import ctypes
import resource

_M_ARENA_MAX = -8  # <malloc.h>


def trim() -> None:
    """Gives memory that was freed back to the system; milliseconds, and nothing where the C library cannot.

    Loading a model leaves a heap in pieces that glibc keeps: a third of the size of BERT-base.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own (malloc_trim(3))
    if release is not None:
        release(0)


def spare_addresses() -> None:
    """Where addresses are limited (``ulimit -v``), has all threads share one heap.

    glibc sets 64 MiB aside for each thread's own, until none are left for the stack of the next thread.
    """
    if resource.getrlimit(resource.RLIMIT_AS)[0] == resource.RLIM_INFINITY:
        return
    option = getattr(ctypes.CDLL(None), "mallopt", None)  # glibc's own (mallopt(3))
    if option is not None:
        option(_M_ARENA_MAX, 1)
