"""Who this process is: its rank, the number of ranks and its place on its host, as its launcher set them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace

from ranks.common import sources
from ranks.common.processes import status
from ranks.common.settings import IDENTITY, JOB, RUN_ALL
from ranks.errors import IdentityError
from ranks.identity.place import Identity
from sharding.common.ranges import expand_counts
from sharding.common.text import parse_whole

Environ = Mapping[str, str]

# Slurm gives its own steps (batch script, interactive shell, extern, pending) the highest step ids:
# `slurm.h`.
_FIRST_SLURM_RESERVED_STEP = 0xFFFFFFF0
_THIS_HOST = {None, "localhost", "127.0.0.1", "::1"}


def identify(explicit: Identity | None = None, environ: Environ = os.environ) -> Identity:
    """The identity of this process.

    The first of these that is there decides: ``explicit``; ``RANK``, ``WORLD_SIZE`` and ``LOCAL_RANK`` as
    torchrun and shardrun set them; those that ``SHARDRUN_IDENTITY`` names; Open MPI's
    ``OMPI_COMM_WORLD_*``; ``PMI_*`` of MPICH and Intel MPI; Slurm's variables inside an ``srun`` step (with
    or without PMIx); the Ascend variables ``RANK_ID``, ``RANK_SIZE``, ``DEVICE_ID`` and
    ``RANK_TABLE_FILE``. With none of them the process is a world of its own. Raises `IdentityError` where a
    set of variables is incomplete, is not numbers, or contradicts the launcher that really started the
    process.
    """
    if explicit is not None:
        return (
            explicit
            if explicit.key
            else replace(explicit, key=_environment_key(explicit.world_size, environ))
        )
    mpi = _from_openmpi(environ) or _from_pmi(environ) or _from_slurm(environ)
    plain = _from_rank(environ)
    if plain is not None:
        _refuse_contradiction(plain, mpi, environ)
        return plain
    told = _from_named(environ)
    if told is not None:
        return told
    if mpi is not None:
        return mpi
    if _text(environ, sources.PMIX_RANK) is not None:
        raise IdentityError(
            f"PMIX_RANK is set to {environ[sources.PMIX_RANK]!r}, but nothing says how many ranks there are "
            "(OMPI_COMM_WORLD_SIZE and SLURM_NTASKS are missing): start the ranks with mpirun or srun, "
            "or set RANK, WORLD_SIZE and LOCAL_RANK."
        )
    return _from_ascend(environ) or Identity()


def of_launcher(identity: Identity, environ: Environ = os.environ) -> bool:
    """Whether run_all.sh, torchrun or srun has started this process as this rank: not something that runs
    inside what srun has started, such as the commands of a job's script or of an interactive shell."""
    if RUN_ALL.text(environ) or _text(environ, sources.TORCHELASTIC_RUN_ID):
        return True
    try:
        task = _from_slurm(environ)
    except IdentityError:
        return False
    return task is not None and (task.rank, task.world_size) == (identity.rank, identity.world_size)


def _from_rank(environ: Environ) -> Identity | None:
    numbers = _numbers(
        environ, (sources.RANK, sources.WORLD_SIZE, sources.LOCAL_RANK), "set all three, or none"
    )
    if numbers is None:
        return None
    rank, size, local_rank = numbers
    local_size = _number(environ, sources.LOCAL_WORLD_SIZE)
    if local_size is None and local_rank == rank and _text(environ, sources.MASTER_ADDR) in _THIS_HOST:
        local_size = size  # nothing says where another host would be
    source = "RANK, WORLD_SIZE and LOCAL_RANK"
    return Identity(rank, size, local_rank, local_size, source=source, key=_environment_key(size, environ))


def _from_named(environ: Environ) -> Identity | None:
    """By the variables of a launcher that another package brings."""
    names = IDENTITY.text(environ).split(",")
    if len(names) < len(("rank", "size", "local rank")):
        return None
    numbers = _numbers(environ, tuple(names[:3]), f"{IDENTITY.name} names all three")
    if numbers is None:
        raise IdentityError(f"{IDENTITY.name} names {', '.join(names[:3])}, but none of them is set.")
    rank, size, local_rank = numbers
    local_size = _number(environ, names[3]) if len(names) > len(numbers) else None
    source = ", ".join(names[:2])
    return Identity(rank, size, local_rank, local_size, source=source, key=_environment_key(size, environ))


def _from_openmpi(environ: Environ) -> Identity | None:
    names = (sources.OMPI_RANK, sources.OMPI_SIZE, sources.OMPI_LOCAL_RANK)
    numbers = _numbers(environ, names, "Open MPI sets all three: start the ranks with its mpirun")
    if numbers is None:
        return None
    local_size = _number(environ, sources.OMPI_LOCAL_SIZE)
    rank, size, local_rank = numbers
    source = f"{sources.OMPI_RANK} and _SIZE"
    return Identity(rank, size, local_rank, local_size, source=source, key=_environment_key(size, environ))


def _from_pmi(environ: Environ) -> Identity | None:
    # Not PMI_ID and PMI_PORT, which a singleton also has; RANK and SIZE are what every PMI launcher sets.
    numbers = _numbers(
        environ, (sources.PMI_RANK, sources.PMI_SIZE), "MPICH, Intel MPI and srun --mpi=pmi2 set both"
    )
    if numbers is None:
        return None
    rank, size = numbers
    local_rank, local_size = (
        _number(environ, sources.MPI_LOCALRANKID),
        _number(environ, sources.MPI_LOCALNRANKS),
    )
    if local_rank is None and in_slurm_step(environ):
        local_rank = _number(environ, sources.SLURM_LOCALID)
        local_size = _slurm_local_size(environ, size)
    if local_rank is None and size == 1:
        local_rank, local_size = 0, 1
    if local_rank is None:
        raise IdentityError(
            f"PMI_RANK={rank} and PMI_SIZE={size} are set, but MPI_LOCALRANKID (or SLURM_LOCALID) is "
            "missing, so the rank's place on its host is unknown: set MPI_LOCALRANKID."
        )
    source = "PMI_RANK and PMI_SIZE"
    return Identity(rank, size, local_rank, local_size, source=source, key=_environment_key(size, environ))


def _from_slurm(environ: Environ) -> Identity | None:
    """Slurm's variables, believed only inside an srun step.

    The script that sbatch starts has SLURM_PROCID=0 and SLURM_NTASKS=n although it is one lone process, and
    a shell from salloc has SLURM_NTASKS too; neither is a rank. Only a process that srun started has the
    SLURM_STEP_ID of an ordinary step.
    """
    if not in_slurm_step(environ):
        return None
    size_name = (
        sources.SLURM_STEP_NUM_TASKS if _text(environ, sources.SLURM_STEP_NUM_TASKS) else sources.SLURM_NTASKS
    )
    names = (sources.SLURM_PROCID, size_name, sources.SLURM_LOCALID)
    numbers = _numbers(environ, names, "srun sets all three in each of its tasks")
    if numbers is None:
        return None
    rank, size, local_rank = numbers
    local_size = _slurm_local_size(environ, size)
    source = f"SLURM_PROCID and {size_name}"
    return Identity(rank, size, local_rank, local_size, source=source, key=_environment_key(size, environ))


def _from_ascend(environ: Environ) -> Identity | None:
    table = _text(environ, sources.RANK_TABLE_FILE)
    rank = _number(environ, sources.RANK_ID)
    size = _number(environ, sources.RANK_SIZE)
    device = _number(environ, sources.DEVICE_ID)
    if table is not None:
        if rank is None:
            raise IdentityError(
                f"RANK_TABLE_FILE is set to {table!r}, but RANK_ID is missing: set RANK_ID to this "
                f"process's rank."
            )
        from ranks.identity.rank_file import identity_from_table

        return identity_from_table(table, rank, device, size)
    if rank is None and size is None:
        return None if device is None else Identity(device=device)
    if rank is None or size is None:
        there, missing = (
            (sources.RANK_ID, sources.RANK_SIZE) if size is None else (sources.RANK_SIZE, sources.RANK_ID)
        )
        raise IdentityError(
            f"{there} is set to {environ[there]!r}, but {missing} is missing: set both, or RANK_ID and "
            f"RANK_TABLE_FILE."
        )
    if device is None and size > 1:
        raise IdentityError(f"RANK_ID={rank} and RANK_SIZE={size} are set, but DEVICE_ID is missing: set it.")
    return Identity(
        rank,
        size,
        local_rank=0 if size == 1 else device or 0,
        local_size=1 if size == 1 else None,
        source="RANK_ID and RANK_SIZE",
        device=device,
        key=_environment_key(size, environ),
    )


def _refuse_contradiction(plain: Identity, mpi: Identity | None, environ: Environ) -> None:
    """Stops a RANK left over in the environment from making every started process the same rank.

    A launcher inside another one (torchrun under srun, shardrun under mpirun) rightly sets its own numbers.
    """
    if mpi is None or mpi.world_size == 1 or JOB.text(environ) or _text(environ, sources.TORCHELASTIC_RUN_ID):
        return
    if (plain.rank, plain.world_size) != (mpi.rank, mpi.world_size):
        raise IdentityError(
            f"RANK={plain.rank} and WORLD_SIZE={plain.world_size} contradict {mpi.source}, which say rank "
            f"{mpi.rank} of {mpi.world_size}: unset RANK, WORLD_SIZE and LOCAL_RANK, or start the ranks with "
            "one launcher only."
        )


def _environment_key(size: int, environ: Environ) -> str:
    """What all ranks of this job on this host, and no other job's, have in common."""
    if job := JOB.text(environ):
        return f"job:{job}"
    if run := _text(environ, sources.TORCHELASTIC_RUN_ID):
        return f"torchrun:{run}:{_text(environ, sources.MASTER_ADDR)}:{_text(environ, sources.MASTER_PORT)}"
    if _text(environ, sources.OMPI_RANK) and (space := _text(environ, sources.PMIX_NAMESPACE)):
        return f"pmix:{space}"
    if _text(environ, sources.PMI_RANK) and (proxy := _pmi_proxy()):
        return f"pmi:{proxy}"
    if in_slurm_step(environ):
        return f"slurm:{_text(environ, sources.SLURM_JOB_ID)}.{_text(environ, sources.SLURM_STEP_ID)}"
    return f"env:{size}:{_text(environ, sources.MASTER_ADDR)}:{_text(environ, sources.MASTER_PORT)}"


def _pmi_proxy() -> str | None:
    """The pid and start time of the process manager of MPICH or Intel MPI that started this process."""
    pid = os.getppid()
    for _ in range(32):
        now = status(pid)
        if now is None:
            return None
        if now.name.startswith(("hydra_", "mpiexec")):
            return f"{pid}:{now.start}"
        pid = now.parent
        if pid <= 1:
            return None
    return None


def in_slurm_step(environ: Environ = os.environ) -> bool:
    """Whether ``srun`` started this process as a task: see `_from_slurm`."""
    step = _text(environ, sources.SLURM_STEP_ID) or _text(environ, sources.SLURM_STEPID)
    return step is not None and parse_whole(step, 0, _FIRST_SLURM_RESERVED_STEP - 1) is not None


def _slurm_local_size(environ: Environ, size: int) -> int | None:
    """Tasks of this step on this node, from Slurm's compressed list such as ``2(x3),1``."""
    text = _text(environ, sources.SLURM_STEP_TASKS_PER_NODE) or _text(environ, sources.SLURM_TASKS_PER_NODE)
    node = _number(environ, sources.SLURM_NODEID)
    if text is None or node is None:
        return None
    counts = expand_counts(text) or []
    return counts[node] if node < len(counts) and sum(counts) == size else None


def _text(environ: Environ, name: str) -> str | None:
    value = environ.get(name, "").strip()
    return value or None


def _number(environ: Environ, name: str) -> int | None:
    text = _text(environ, name)
    if text is None:
        return None
    number = parse_whole(text, 0, 10**9 - 1)
    if number is None:
        raise IdentityError(
            f"The environment variable {name} must be a whole number of 0 or more, but is {text[:80]!r}."
        )
    return number


def _numbers(environ: Environ, names: tuple[str, ...], advice: str) -> tuple[int, ...] | None:
    """All of ``names`` as numbers, or None where none of them is set."""
    values = {name: _number(environ, name) for name in names}
    there = [name for name, value in values.items() if value is not None]
    if not there:
        return None
    missing = [name for name in names if name not in there]
    if missing:
        raise IdentityError(
            f"{' and '.join(f'{name}={values[name]}' for name in there)} {_are(there)} set, but "
            f"{' and '.join(missing)} {_are(missing)} missing: {advice}."
        )
    return tuple(value for value in values.values() if value is not None)


def _are(names: list[str]) -> str:
    return "is" if len(names) == 1 else "are"
