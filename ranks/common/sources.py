"""By which variables processes are told who they are: each launcher's, and whether it speaks MPI.

The names of all variables of launchers and batch systems stand here; elsewhere they are imported.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import NamedTuple

from ranks.common.settings import VARIABLES

RANK, WORLD_SIZE = "RANK", "WORLD_SIZE"
LOCAL_RANK, LOCAL_WORLD_SIZE = "LOCAL_RANK", "LOCAL_WORLD_SIZE"
"""torchrun's, which shardrun sets for the ranks that it starts, too (`told`)."""
MASTER_ADDR, MASTER_PORT = "MASTER_ADDR", "MASTER_PORT"
"""Where ranks of several hosts meet."""
TORCHELASTIC_RUN_ID, TORCHELASTIC_RESTART_COUNT = "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"
TORCHELASTIC_USE_AGENT_STORE = "TORCHELASTIC_USE_AGENT_STORE"
"""Torchrun's alone: whose job it is, how often it was started anew, and whether its agent listens already."""
RANK_ID, RANK_SIZE, DEVICE_ID, RANK_TABLE_FILE = "RANK_ID", "RANK_SIZE", "DEVICE_ID", "RANK_TABLE_FILE"
OMPI_RANK, OMPI_SIZE = "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"
OMPI_LOCAL_RANK, OMPI_LOCAL_SIZE = "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"
PMIX_RANK, PMIX_NAMESPACE, PMIX_SERVER_TMPDIR = "PMIX_RANK", "PMIX_NAMESPACE", "PMIX_SERVER_TMPDIR"
PMI_RANK, PMI_SIZE = "PMI_RANK", "PMI_SIZE"
MPI_LOCALRANKID, MPI_LOCALNRANKS = "MPI_LOCALRANKID", "MPI_LOCALNRANKS"
SLURM_JOB_ID, SLURM_JOB_NODELIST, SLURM_NODELIST = "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_NODELIST"
SLURM_STEP_NODELIST, SLURM_LAUNCH_NODE_IPADDR = "SLURM_STEP_NODELIST", "SLURM_LAUNCH_NODE_IPADDR"
SLURM_DISTRIBUTION, SLURM_HET_SIZE = "SLURM_DISTRIBUTION", "SLURM_HET_SIZE"
SLURM_STEP_ID, SLURM_STEPID = "SLURM_STEP_ID", "SLURM_STEPID"
SLURM_PROCID, SLURM_LOCALID, SLURM_NODEID = "SLURM_PROCID", "SLURM_LOCALID", "SLURM_NODEID"
SLURM_NTASKS, SLURM_NPROCS, SLURM_STEP_NUM_TASKS = "SLURM_NTASKS", "SLURM_NPROCS", "SLURM_STEP_NUM_TASKS"
SLURM_NTASKS_PER_NODE, SLURM_TASKS_PER_NODE = "SLURM_NTASKS_PER_NODE", "SLURM_TASKS_PER_NODE"
SLURM_STEP_TASKS_PER_NODE = "SLURM_STEP_TASKS_PER_NODE"
SLURM_CPUS_PER_TASK, SLURM_HOSTFILE = "SLURM_CPUS_PER_TASK", "SLURM_HOSTFILE"
SLURM_ARRAY_TASK_ID = "SLURM_ARRAY_TASK_ID"
PBS_JOBID, PBS_NODEFILE, PBS_ARRAY_INDEX = "PBS_JOBID", "PBS_NODEFILE", "PBS_ARRAY_INDEX"
LSB_JOBID, LSB_DJOB_HOSTFILE, LSB_MCPU_HOSTS = "LSB_JOBID", "LSB_DJOB_HOSTFILE", "LSB_MCPU_HOSTS"
PE_HOSTFILE, COBALT_JOBID, LOADL_STEP_ID = "PE_HOSTFILE", "COBALT_JOBID", "LOADL_STEP_ID"
JOB_COMPLETION_INDEX = "JOB_COMPLETION_INDEX"
"""Kubernetes': which pod of an indexed Job this is."""
RAY_ADDRESS = "RAY_ADDRESS"

SLURM = "SLURM_"
"""How all of Slurm's begin."""


class Source(NamedTuple):
    """The variables of one launcher. ``own`` and what begins with ``prefixes`` would tell a process of
    another job that it is another rank; what begins with ``settings`` is the user's, and stays."""

    own: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    by_mpi: tuple[str, ...] = ()
    """Of these, one is set wherever an MPI library can join the ranks."""
    mark: str = ""
    """How the sources of `Identity` that mean this launcher begin, where it is always one of MPI."""

    def identifies(self, name: str) -> bool:
        """Whether a variable says who a rank is."""
        begins = bool(self.prefixes) and name.startswith(self.prefixes)
        return name in self.own or (begins and not (self.settings and name.startswith(self.settings)))


TORCHRUN = Source((
    *(RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, "GROUP_RANK", "ROLE_RANK"),
    TORCHELASTIC_RUN_ID,
))  # fmt: skip
ASCEND = Source((RANK_ID, RANK_SIZE, DEVICE_ID))
OPEN_MPI = Source(prefixes=("OMPI_COMM_WORLD_",), by_mpi=(OMPI_SIZE,), mark="OMPI_")
PMIX = Source(prefixes=("PMIX_",), settings=("PMIX_MCA_",), by_mpi=(PMIX_RANK,))
PMI = Source(
    (PMI_RANK, PMI_SIZE, "PMI_FD", "PMI_PORT", "PMI_ID", MPI_LOCALRANKID, MPI_LOCALNRANKS),
    by_mpi=(PMI_RANK, PMI_SIZE),
    mark="PMI_",
)
SOURCES = (TORCHRUN, ASCEND, OPEN_MPI, PMIX, PMI)
"""OMPI_MCA_*, PRTE_MCA_* and I_MPI_* are in none: they are a user's settings. Slurm's are in none: what is
inside its step stays there."""

_OF_RANKS = (SLURM_STEP_ID, SLURM_STEPID, RANK_TABLE_FILE)
"""What a process that is told its rank may see, and makes another one a rank."""
_OF_A_JOB = tuple(variable.name for variable in VARIABLES if variable.of_one_job)

BY_MPI = tuple(name for source in SOURCES for name in source.by_mpi)
"""Of these, one is set in every rank that an MPI launcher started."""


def segments(*, in_memory: bool = False) -> dict[str, str]:
    """What to set before MPI begins, so that Open MPI puts the memory that its ranks share into the folder
    that its mpirun clears, or who else started them: in /dev/shm it stays when they are killed.
    ``in_memory``: only where that folder is in memory too."""
    name, folder = "OMPI_MCA_btl_sm_backing_directory", os.environ.get(PMIX_SERVER_TMPDIR, "")
    there = folder and os.path.isdir(folder)  # noqa: PTH112 - an import less
    use = there and name not in os.environ and (not in_memory or folder.startswith("/dev/shm/"))
    return {name: folder} if use else {}


def identifies(name: str) -> bool:
    """Whether a variable says who a rank of a launcher's job is."""
    return any(source.identifies(name) for source in SOURCES)


def clean(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` without what identifies a rank of another job.

    Left over from a launcher around us, it would tell a rank that it is another one. Variables of a
    `launcher.starters.base.Starter.identity` may stay: nobody reads them without ``SHARDRUN_IDENTITY``.
    """
    return {
        name: value
        for name, value in environ.items()
        if not identifies(name) and not name.startswith(_OF_A_JOB)
    }


def alone(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """``environ`` for a process that is no rank: `clean`, in no step of Slurm, without a rank table."""
    return {name: value for name, value in clean(environ).items() if name not in _OF_RANKS}


def by_mpi(source: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether an MPI launcher said who this rank is; ``source``: that of its `Identity`.

    Under ``srun --mpi=none`` an MPI library would make every rank a world of its own.
    """
    if source.startswith(SLURM):
        return any(name in environ for name in PMIX.by_mpi)
    return source.startswith(tuple(other.mark for other in SOURCES if other.mark))
