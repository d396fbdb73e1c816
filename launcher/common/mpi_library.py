"""Which MPI library mpi4py loads here, asked in another process: importing it takes a second, or hangs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping

from ranks.common.sources import alone

SECONDS = 30.0
_ASK = "import mpi4py; mpi4py.rc.initialize = False; from mpi4py import MPI; print(MPI.Get_library_version())"
FLAVOURS = (("Open MPI", "openmpi"), ("Intel(R) MPI", "intel"), ("MPICH", "mpich"))
"""What the libraries say of themselves, and their names here."""

AS_ROOT = {
    f"{program}_ALLOW_RUN_AS_ROOT{confirm}": "1"
    for program in ("OMPI", "PRTE")
    for confirm in ("", "_CONFIRM")
}
"""What Open MPI's mpirun wants to be told before it works for root."""

PLUGINS = {"openmpi": "pmix", "mpich": "pmi2", "intel": "pmi2"}
"""By which of Slurm's plugins each learns of its ranks: with another one every rank is a world of its own."""


def library_version(environ: Mapping[str, str] | None = None) -> str:
    """The first line of what the library says of itself. Raises `OSError` with the reason where mpi4py or a
    library is missing, or does not answer."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _ASK], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=SECONDS, check=False, env={**alone(), **(environ or {})}, cwd="/",
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise OSError(f"mpi4py did not load its MPI within {SECONDS:.0f} s") from None
    if done.returncode or not done.stdout.strip():
        last = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise OSError(last[:300])
    return done.stdout.strip().splitlines()[0].rstrip("\0 ")


def flavour_of(version: str) -> str:
    """The name of the library that says this of itself; "" for another one."""
    return next((name for mark, name in FLAVOURS if version.startswith(mark)), "")
