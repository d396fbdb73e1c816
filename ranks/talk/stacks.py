"""Where a rank is in its Python code, for who finds that it hangs.

Python's faulthandler writes that when a signal comes, also while a library keeps the interpreter to itself.
It goes into memory that has no name, which a process of the same user and host can read: the launcher, or
the process above a rank of another host. Where py-spy is installed there, native stacks can be had, too.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import re
import signal
import sys
import time
from pathlib import Path

from ranks.common.processes import is_running, is_stopped

SIGNAL = signal.SIGRTMIN + 7 if sys.platform == "linux" else 0
"""One that programs do not use for themselves."""
MOST_BYTES = 64 << 10
_NAME = "shardrun-stacks"
_SPY = "py-spy"
_WRITE_SECONDS, _NAP = 3.0, 0.02
_SETTLED_SECONDS = 0.5  # no more has come from a process that computes
SPY_SECONDS = 10.0
"""The most that `native` takes."""


def offer() -> int:
    """From now on the signal has the stacks of all threads written; gives the descriptor of where, -1 where
    that cannot be had."""
    if not hasattr(os, "memfd_create"):
        return -1
    with contextlib.suppress(OSError, RuntimeError, ValueError):
        place = os.memfd_create(_NAME, os.MFD_CLOEXEC)
        faulthandler.register(SIGNAL, file=place, all_threads=True)
        return place
    return -1


def read(pid: int, process: int, place: int) -> str:
    """What another process of this host then writes; "" where that cannot be had. ``process``: its pidfd,
    ``place``: the number that `offer` gave there."""
    if place < 0:
        return ""
    path = Path(f"/proc/{pid}/fd/{place}")
    said = ""
    with contextlib.suppress(OSError):
        if _NAME not in os.fspath(path.readlink()):
            return ""
        # Opened before the rank goes on: it may end at once, and what it has written is here all the same.
        with path.open("rb", buffering=0) as written:
            signal.pidfd_send_signal(process, SIGNAL)
            if is_stopped(pid):  # it writes where it was stopped before it does anything else
                signal.pidfd_send_signal(process, signal.SIGCONT)
            came = began = time.monotonic()
            while time.monotonic() < began + _WRITE_SECONDS:
                time.sleep(_NAP)
                # It writes word by word, and on a busy machine it may lose its processor in between.
                busy = is_running(pid)
                written.seek(0)
                before, said = said, (written.read(MOST_BYTES) or b"").decode(errors="replace")
                if said != before:
                    came = time.monotonic()
                elif said and (not busy or time.monotonic() >= came + _SETTLED_SECONDS):
                    break
    return main_first(said)


def can_spy() -> bool:
    """Whether `native` may give something on this host."""
    import shutil

    return shutil.which(_SPY) is not None


def native(pid: int) -> str:
    """Python and native stacks of a process of this host, which is held up meanwhile; "" where that cannot be
    had, as of one that is stopped."""
    import shutil
    import subprocess

    if (program := shutil.which(_SPY)) is None:
        return ""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        done = subprocess.run(
            [program, "dump", "--native", "--pid", str(pid)], capture_output=True, text=True,
            errors="replace", stdin=subprocess.DEVNULL, timeout=SPY_SECONDS, check=False,
        )  # fmt: skip
        return done.stdout if done.returncode == 0 else ""
    return ""


def own() -> str:
    """Those of this process, native ones too where they can be had."""
    if said := native(os.getpid()):
        return said
    with contextlib.suppress(OSError, ValueError), open(os.memfd_create(_NAME), "w+b") as place:  # noqa: PTH123
        faulthandler.dump_traceback(place, all_threads=True)
        place.seek(0)
        return main_first(place.read(MOST_BYTES).decode(errors="replace"))
    return ""


def main_first(text: str) -> str:
    """The stacks of faulthandler, which writes the newest thread first, with the main thread's first: errors
    show the beginning."""
    head, *threads = re.split(r"(?m)^(?=(?:Current thread|Thread) 0x)", text)
    return head + "\n".join(stack.rstrip("\n") + "\n" for stack in reversed(threads))


def place_in(pid: int) -> int:
    """The number that `offer` gave in another process of this host, or -1."""
    with contextlib.suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if _NAME in os.fspath(link.readlink()):
                    return int(link.name)
    return -1
