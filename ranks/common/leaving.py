"""The end of a process whose work is done."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

MPICH_FILE, OPEN_MPI_FILE = "mpich_shm_", "sm_segment."
"""How the names of the files begin by which an MPI's ranks of one host share memory. MPICH removes its own
only when MPI ends in order, though no rank opens it after MPI has begun. Open MPI's is in the folder of its
mpirun, which clears that; but a process that no mpirun has started leaves its own in any case."""
_TOOLS = 6  # numbers that `sys.monitoring` gives to tools


class Exit:
    """How this process ends, where that is decided before its exit handlers run. One per process."""

    def __init__(self) -> None:
        self._code: int | None = None
        self.at_once = False
        """Whether nothing is to be taken apart: threads of a library that come back from C++ meanwhile would
        end the process by SIGABRT."""

    def decide(self, code: int) -> None:
        """Whatever an exit handler finds, the process ends with this code."""
        self._code = code

    @property
    def code(self) -> int:
        """What a handler that ends the process at once ends it with; without a decision, as Python would."""
        return int(getattr(sys, "last_type", None) is not None) if self._code is None else self._code


EXIT = Exit()


def leave(code: int = 0) -> NoReturn:
    """Ends the process: its threads are waited for and its exit handlers run, but nothing is taken apart.

    The kernel takes back in no time what Python would free piece by piece: that took a sixth of what a rank
    costs from start to end. And after Gloo between hosts, now and then a rank aborted (SIGABRT) meanwhile.
    Where a profiler or a debugger watches, the process ends as any other: only then they say what they found.
    """
    if _watched():
        EXIT.decide(code)
        sys.exit(code)
    threading._shutdown()  # type: ignore[attr-defined]  # what Python itself does first
    end(code)


def _watched() -> bool:
    tools = getattr(sys, "monitoring", None)
    told = tools is not None and any(tools.get_tool(number) for number in range(_TOOLS))
    return told or sys.gettrace() is not None or sys.getprofile() is not None


def end(code: int) -> NoReturn:
    """The same without waiting for threads: after a signal some may never come to their end."""
    EXIT.decide(code)
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(
            OSError, ValueError, AttributeError
        ):  # nobody reads it any more, or it is None
            stream.flush()
    os._exit(code)


def shared_files(begin: str) -> set[str]:
    """The files of shared memory of this process whose names begin so, as long as they have these names."""
    with contextlib.suppress(OSError), open("/proc/self/maps", encoding="utf-8") as maps:  # noqa: PTH123 - an import less
        paths = {words[5].rstrip("\n") for line in maps if len(words := line.split(None, 5)) > 5}
        there = {path for path in paths if not path.endswith(" (deleted)")}
        return {path for path in there if path.rpartition("/")[2].startswith(begin)}
    return set()


def remove_shared(begin: str) -> None:
    """Removes them, unless another process has."""
    for path in shared_files(begin):
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - the same
