"""MPI is begun in this process, which does not wait for ever for ranks that never come.

``MPI_Init`` returns when every rank has called it. A rank that ended before, with exit code 0, never does,
and what started the ranks sees nothing wrong in that. mpi4py keeps the interpreter to itself meanwhile: no
thread could notice that, nor even that mpirun was killed. So the library is called past it, and threads go
on.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from typing import Any

from ranks.common.leaving import remove_mpich_files
from ranks.common.pulse import wait
from ranks.identity.place import Identity

_LOOK_SECONDS = 1.0


@wait
def begin(mpi: Any, identity: Identity, seconds: float) -> None:
    """Begins MPI; the process ends, with one sentence and exit code 1, where that takes so many seconds.

    It cannot be an exception: the library's call is under way, and nothing takes it back.
    """
    begun = threading.Event()
    with contextlib.suppress(RuntimeError):  # no more threads: then it waits for ever, as MPI itself
        threading.Thread(
            target=_watch, args=(identity, seconds, begun), name="shardrun MPI_Init", daemon=True
        ).start()
    try:
        _begin(mpi)
    finally:
        begun.set()


def _begin(mpi: Any) -> None:
    try:
        call = ctypes.CDLL(mpi.__file__).MPI_Init_thread  # of the library that mpi4py uses
    except (OSError, AttributeError):  # it is hidden in mpi4py
        mpi.Init_thread(mpi.THREAD_SERIALIZED)
    else:
        if code := call(None, None, ctypes.c_int(mpi.THREAD_SERIALIZED), ctypes.byref(ctypes.c_int())):
            raise mpi.Exception(code)
        for world in (mpi.COMM_WORLD, mpi.COMM_SELF):  # as mpi4py does it
            world.Set_errhandler(mpi.ERRORS_RETURN)
    if not mpi.Get_library_version().startswith("Open MPI"):
        # On all ranks: one alone on its host shares no file. When all have opened theirs, no name is needed,
        # and whatever ends a rank from now on leaves nothing.
        mpi.COMM_WORLD.Barrier()
        remove_mpich_files()


def _watch(identity: Identity, seconds: float, begun: threading.Event) -> None:
    left = seconds
    while left > 0:  # in short waits: the time in which all are stopped does not count
        if begun.wait(min(left, _LOOK_SECONDS)):
            return
        left -= _LOOK_SECONDS
    others = "rank" if identity.world_size == 2 else "ranks"
    end(
        f"rank {identity.rank} on host {identity.host} has waited {seconds:g} s in MPI_Init for the other "
        f"{others}: look for one that never started, still loads, or ended with exit code 0, for which "
        "mpirun and srun end no other; or raise --timeout (SHARDRUN_TIMEOUT)."
    )


def end(why: str) -> None:
    """Ends this process from whichever thread calls it, and takes with it what MPICH would leave behind."""
    remove_mpich_files()
    with contextlib.suppress(OSError, ValueError, AttributeError):  # nobody reads it any more
        print(f"shardrun: error: {why}", file=sys.stderr, flush=True)
    os._exit(1)
