"""The end of a process whose work is done, and what libraries would leave behind."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from collections.abc import Collection, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from importlib.machinery import ModuleSpec

_MPICH_FOLDER, _MPICH_FILE, _OPEN_MPI_FILE = "/dev/shm", "mpich_shm_", "sm_segment."
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


def mpich_left() -> bool:
    """Whether any process of this host has such files: few have, and to look through each takes long."""
    with contextlib.suppress(OSError):
        return any(name.startswith(_MPICH_FILE) for name in os.listdir(_MPICH_FOLDER))  # noqa: PTH208 - as below
    return False


def mpich_files(pid: int | str = "self") -> set[str]:
    """The files by which a process shares memory with MPICH's other ranks, as long as they have names."""
    files = _mapped(_MPICH_FILE, pid)
    return {path for path in files if path.rpartition("/")[0] == _MPICH_FOLDER}


def _mapped(begin: str, pid: int | str) -> set[str]:
    """The files in the memory of a process whose names begin so, as long as they have these names."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8") as maps:  # noqa: PTH123 - an import less
        paths = {words[5].rstrip("\n") for line in maps if len(words := line.split(None, 5)) > 5}
        there = {path for path in paths if not path.endswith(" (deleted)")}
        return {path for path in there if path.rpartition("/")[2].startswith(begin)}
    return set()


def remove_mpich_files() -> None:
    """Removes those of this process, unless another rank has: no rank opens them after MPI has begun, nor
    where it does not begin."""
    _remove(mpich_files())


def remove_open_mpi_files() -> None:
    """The same of Open MPI, for a process that no mpirun has started."""
    _remove(_mapped(_OPEN_MPI_FILE, "self"))


def _remove(paths: Collection[str]) -> None:
    for path in paths:
        with contextlib.suppress(OSError):
            os.unlink(path)  # noqa: PTH108 - an import less


class _OfScripts:
    """Finds mpi4py for a script, and takes away the name of MPICH's file as soon as MPI has begun.

    `MPI_Init` returns when all ranks of the host have opened the file. Whoever imports mpi4py begins MPI,
    unless told not to.
    """

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name not in {"mpi4py", "mpi4py.MPI"}:
            return None
        from importlib.util import find_spec

        sys.meta_path.remove(self)
        try:
            spec = find_spec(name)
        finally:  # whoever looks whether there is one may import it later
            sys.meta_path.insert(0, self)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def begin(module: ModuleType) -> None:
                execute(module)
                if name == "mpi4py":  # which has put a finder of its own before all others
                    sys.meta_path.remove(self)
                    sys.meta_path.insert(0, self)
                elif module.Is_initialized():
                    remove_mpich_files()

            spec.loader.exec_module = begin  # type: ignore[method-assign]
        return spec


def clear_after_scripts() -> None:
    """Has a script that begins MPI leave no file of MPICH, however it ends."""
    from ranks.common import sources

    if sources.PMI_RANK in os.environ and "mpi4py" not in sys.modules:
        sys.meta_path.insert(0, _OfScripts())
