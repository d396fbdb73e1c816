"""The C library's heap."""

from __future__ import annotations

import ctypes


def trim() -> None:
    """Gives memory that was freed back to the system; milliseconds, and nothing where the C library cannot.

    Loading a model leaves a heap in pieces that glibc keeps: a third of the size of BERT-base.
    """
    release = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's own (malloc_trim(3))
    if release is not None:
        release(0)
