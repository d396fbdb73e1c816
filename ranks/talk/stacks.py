"""Where a rank is in its Python code, for who finds that it hangs.

Python's faulthandler writes that when a signal comes, also while a library keeps the interpreter to itself.
It goes into memory that has no name, which a process of the same user and host can read.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys

SIGNAL = signal.SIGRTMIN + 7 if sys.platform == "linux" else 0
"""One that programs do not use for themselves."""


def offer() -> int:
    """From now on the signal has the stacks of all threads written; gives the descriptor of where, -1 where
    that cannot be had."""
    if not hasattr(os, "memfd_create"):
        return -1
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        place = os.memfd_create("shardrun-stacks", os.MFD_CLOEXEC)
        faulthandler.register(SIGNAL, file=place, all_threads=True)
        return place
    return -1
