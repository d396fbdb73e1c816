"""Open MPI's, MPICH's or Intel MPI's mpirun."""

from __future__ import annotations

from launcher.starters.base import Launcher, Starter


def _make() -> Launcher:
    from launcher.starters.mpirun import MpirunLauncher

    return MpirunLauncher()


STARTER = Starter(_make, order=2, by_mpi=True)
