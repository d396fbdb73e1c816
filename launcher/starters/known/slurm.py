"""Slurm's srun, in an allocation or with one of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from launcher.starters.base import Launcher, Starter

if TYPE_CHECKING:
    from launcher.job.places.placement import Placement
    from launcher.job.rank_table import RankTable


def _make() -> Launcher:
    from launcher.starters.slurm import SlurmLauncher

    return SlurmLauncher()


def _here(table: RankTable | None, placement: Placement) -> bool:
    """Whether Slurm gave these hosts, or is to be asked for some."""
    import os
    import shutil

    from launcher.job.places import allocation

    if shutil.which("srun") is None:
        return False
    if placement.nodes is not None:
        return True
    found = allocation.of_slurm(os.environ)
    return found is not None and table is not None and set(table.hosts) <= {host for host, _ in found.hosts}


STARTER = Starter(
    _make,
    order=2,
    takes=("nodes", "srun_args"),
    by_mpi=True,
    meaning="Slurm's srun, in an allocation or with --nodes",
    here=_here,
)
