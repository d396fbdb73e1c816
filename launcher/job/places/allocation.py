"""What a batch system gave this job: Slurm, PBS and LSF say it in environment variables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from launcher.errors import ConfigError
from launcher.job.places.host_list import read_hostfile
from ranks.common import sources
from ranks.identity import nodes
from ranks.identity.identity import identify, in_slurm_step
from sharding.common.bounds import MAX_RANKS
from sharding.common.ranges import expand_counts
from sharding.common.text import shortened

_NUMBER = re.compile(r"0*[1-9]\d{0,5}", re.ASCII)
"""Of ranks, above 0."""


class Allocation(NamedTuple):
    """The hosts of a job with the ranks that each is meant to have, and ``ranks`` of all of them."""

    name: str
    """The system and the job's number: ``Slurm job 12``."""
    hosts: tuple[tuple[str, int], ...]
    ranks: int
    slurm: bool = False


def find(environ: Mapping[str, str] = os.environ) -> Allocation | None:
    """The allocation that this process may fill with ranks; None without one, and where this process is
    itself a task that was started in one: others are beside it. Raises `ConfigError`."""
    if in_slurm_step(environ) or identify(environ=environ).world_size > 1:
        return None
    return of_slurm(environ) or _of_pbs(environ) or _of_lsf(environ)


def lone_pod(environ: Mapping[str, str] = os.environ) -> str | None:
    """The number of this pod in an indexed Job of Kubernetes, which says nothing of its others; None
    elsewhere, and where the pod is a rank, told which."""
    index = environ.get(sources.JOB_COMPLETION_INDEX)
    if not index or environ.get(sources.RANK) or identify(environ=environ).world_size > 1:
        return None
    return shortened(index, 20)


def of_slurm(environ: Mapping[str, str]) -> Allocation | None:
    """What Slurm says of a job, in its script, in a shell of ``salloc``, or to ``salloc``'s command."""
    listed = environ.get(sources.SLURM_JOB_NODELIST) or environ.get(sources.SLURM_NODELIST)
    number = environ.get(sources.SLURM_JOB_ID)
    if not listed or not number:
        return None
    names = list(expand(listed))
    per_node = environ.get(sources.SLURM_TASKS_PER_NODE)
    counts = _counts(per_node, sources.SLURM_TASKS_PER_NODE) if per_node else [1] * len(names)
    if len(counts) != len(names):
        raise ConfigError(
            f"SLURM_TASKS_PER_NODE ({shortened(per_node or '', 80)}) counts {len(counts)} nodes, but "
            f"SLURM_JOB_NODELIST ({shortened(listed, 80)}) has {len(names)}: give the hosts with --hosts"
        )
    tasks = environ.get(sources.SLURM_NTASKS) or environ.get(sources.SLURM_NPROCS) or ""
    # Where no number of tasks was asked for, the counts are those of processors.
    ranks = sum(counts) if environ.get(sources.SLURM_NTASKS_PER_NODE) else len(names)
    if _NUMBER.fullmatch(tasks) and int(tasks) <= MAX_RANKS:
        ranks = int(tasks)
    return Allocation(f"Slurm job {number}", tuple(zip(names, counts, strict=True)), ranks, slurm=True)


def _of_pbs(environ: Mapping[str, str]) -> Allocation | None:
    file, number = environ.get(sources.PBS_NODEFILE), environ.get(sources.PBS_JOBID)
    return _of_file(f"PBS job {number}", file) if file and number else None


def _of_lsf(environ: Mapping[str, str]) -> Allocation | None:
    number = environ.get(sources.LSB_JOBID)
    if not number:
        return None
    if file := environ.get(sources.LSB_DJOB_HOSTFILE):
        return _of_file(f"LSF job {number}", file)
    words = environ.get(sources.LSB_MCPU_HOSTS, "").split()
    if not words:
        return None
    if len(words) % 2 or not all(map(_NUMBER.fullmatch, words[1::2])):
        raise ConfigError(
            f"LSB_MCPU_HOSTS must be hosts, each with a number after it, but is "
            f"{shortened(environ[sources.LSB_MCPU_HOSTS], 80)!r}: give the hosts with --hosts"
        )
    hosts = tuple((host, int(count)) for host, count in zip(words[::2], words[1::2], strict=True))
    return Allocation(f"LSF job {number}", hosts, sum(count for _, count in hosts))


def _of_file(name: str, file: str) -> Allocation:
    """One line a rank, each with its host."""
    hosts = tuple((host, count or 1) for host, count in read_hostfile(Path(file)))
    return Allocation(name, hosts, sum(count for _, count in hosts))


def expand(text: str) -> Iterator[str]:
    """The nodes of Slurm's compressed list. Raises `ConfigError`."""
    try:
        yield from nodes.expand(text)
    except ValueError:
        raise ConfigError(
            f"SLURM_JOB_NODELIST must be a list of nodes such as a[1-3],b2, at most {MAX_RANKS}, but is "
            f"{shortened(text, 80)!r}: give the hosts with --hosts"
        ) from None


def _counts(text: str, name: str) -> list[int]:
    counts = expand_counts(text, MAX_RANKS)
    if counts is None or 0 in counts:
        raise ConfigError(
            f"{name} must be numbers above 0 such as 2(x3),1, of at most {MAX_RANKS} nodes, but is "
            f"{shortened(text, 80)!r}: give the hosts with --hosts"
        )
    return counts
