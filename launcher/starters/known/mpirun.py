"""Open MPI's, MPICH's or Intel MPI's mpirun."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.starters.base import Launcher, Starter

if TYPE_CHECKING:
    from launcher.job.places.placement import Placement
    from launcher.job.rank_table import RankTable


def _make() -> Launcher:
    from launcher.starters.mpirun import MpirunLauncher

    return MpirunLauncher()


def _here(table: RankTable | None, placement: Placement) -> bool:
    from launcher.starters.mpirun import candidates, numeric_6

    return next(candidates(), None) is not None and not numeric_6(table)


STARTER = Starter(
    _make, order=3, takes=("mpi_args",), by_mpi=True, meaning="Open MPI, MPICH or Intel MPI", here=_here
)
