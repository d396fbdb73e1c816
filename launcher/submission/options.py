# ruff: noqa: RUF009 - the fields are what the table is made of
"""What a job system is told of a job, each option described once: the flags of ``shardrun submit``, and the
keys of ``submit`` in job files."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import ConfigError
from launcher.job.option_table import changed, described, table
from launcher.job.values import Choice, File, Several, Switch, Text, Whole, Written, parse_bytes
from sharding.common.bounds import MAX_RANKS, MAX_THREADS

PLACE, SETUP, WATCH = "what the job gets", "what it runs in", "its name and log"
"""Titles of groups in ``--help``."""
GROUPS = (PLACE, SETUP, WATCH)

_TIME = re.compile(r"(?:(\d{1,4})-)?(\d{1,7})(?::(\d{1,2}))?(?::(\d{1,2}))?", re.ASCII)
_ARRAY = re.compile(r"\d{1,7}(-\d{1,7}(:\d{1,7})?)?(,\d{1,7}(-\d{1,7}(:\d{1,7})?)?)*(%\d{1,7})?", re.ASCII)
_GPUS = re.compile(r"(?:([A-Za-z0-9_./-]{1,64}):)?(\d{1,3})", re.ASCII)
_CLAIM = re.compile(r"([a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?):(/[^\0-\x1f:]*)", re.ASCII)
_TIME_FORMS = "minutes, HOURS:MINUTES:SECONDS or DAYS-HOURS:MINUTES:SECONDS"


class Line(Text):
    """A text that fits into one line of a script."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}, without control characters")

    def fits(self, value: object) -> bool:
        return super().fits(value) and str(value).isprintable()


class Name(Line):
    """The name of something, which no program takes for an option."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} that begins with no hyphen")

    def fits(self, value: object) -> bool:
        return super().fits(value) and not str(value).startswith("-")


@dataclass(frozen=True)
class Gpus:
    """GPUs of one rank; ``kind`` is the cluster's name of their type, or nothing."""

    count: int
    kind: str = ""


def parse_time(text: str) -> int:
    """Seconds of a time as job systems write it; raises `ConfigError`."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ConfigError(f"expected a time as {_TIME_FORMS}, found {text[:40]!r}")
    days, *rest = found.groups()
    numbers = [int(part) for part in rest if part is not None]
    if days is not None:  # hours first
        numbers += [0] * (3 - len(numbers))
    elif len(numbers) < 3:  # minutes, or minutes:seconds
        numbers = [0, *numbers, *[0] * (2 - len(numbers))]
    hours, minutes, seconds = numbers
    total = int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    if total < 1 or any(int(part) > 59 for part in rest[1:] if part is not None):
        raise ConfigError(f"expected a time above 0 as {_TIME_FORMS}, found {text[:40]!r}")
    return total


def written_time(seconds: int) -> str:
    """The same as HOURS:MINUTES:SECONDS, which all job systems read."""
    return f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"


def parse_gpus(text: str) -> Gpus:
    """GPUs of a rank from ``[TYPE:]N``; raises `ConfigError`."""
    found = _GPUS.fullmatch(text)
    if found is None or not int(found[2]):
        raise ConfigError(f"expected N or TYPE:N, the GPUs of one rank, found {text[:40]!r}")
    return Gpus(int(found[2]), found[1] or "")


def _parse_array(text: str) -> str:
    if not _ARRAY.fullmatch(text):
        raise ConfigError(f"expected indices such as 0-3 or 1,4,8-10%2, found {text[:40]!r}")
    return text


class Claim(Line):
    """A volume claim and where it is mounted: ``CLAIM:/PATH``."""

    def fits(self, value: object) -> bool:
        return super().fits(value) and _CLAIM.fullmatch(str(value)) is not None


@dataclass(frozen=True)
class SubmitOptions:
    """What a job system is told; None where an option is not given. Sizes are bytes, times seconds."""

    partition: str | None = described(
        Name("the name of a partition or queue"), PLACE, "the partition or queue", "NAME"
    )
    account: str | None = described(
        Name("the name of an account"), PLACE, "the account or project that pays", "NAME"
    )
    time: int | None = described(
        # No number: YAML takes 1:00:00 without quotes for 3600.
        Written(parse_time, f"a time in quotes, as {_TIME_FORMS}"), PLACE,
        f"the longest the job may take: {_TIME_FORMS}", "TIME",
    )  # fmt: skip
    nodes: int | None = described(
        Whole(1, MAX_RANKS), PLACE, "on how many nodes the ranks run (default: as few as hold them)", "N"
    )
    tasks_per_node: int | None = described(
        Whole(1, MAX_RANKS), PLACE, "ranks on each node (default: shared out evenly)", "N"
    )
    gpus: Gpus | None = described(
        Written(parse_gpus, "N or TYPE:N", Whole(1, 999)), PLACE,
        "GPUs of each rank, and their type as the cluster names it", "[TYPE:]N",
    )  # fmt: skip
    cpus: int | None = described(
        Whole(1, MAX_THREADS), PLACE, "processors of each rank; --threads follows it", "N"
    )
    mem: int | None = described(
        Written(parse_bytes, "a number of bytes, or text such as 24GB", Whole(1, 2**63 - 1)), PLACE,
        "memory on each node (Kubernetes: of each pod)", "SIZE",
    )  # fmt: skip
    constraint: str | None = described(
        Line("what nodes must have"), PLACE,
        "what nodes must have: features of Slurm, NAME=VALUE of PBS, a LABEL=VALUE of Kubernetes", "TEXT",
    )  # fmt: skip
    array: str | None = described(
        Written(_parse_array, "indices such as 0-3"), PLACE,
        "one job for each index; %%a in a path stands for the index", "INDICES",
    )  # fmt: skip
    requeue: bool = described(
        Switch(), PLACE, "start again where a node was lost or taken away", default=False
    )
    directives: tuple[str, ...] = described(
        Several(Line("an option of the job system"), "a list of options of the job system"), PLACE,
        "another option of sbatch or qsub, as it takes it, such as --directive=--qos=high; repeatable",
        "OPTION", "--directive", default=(),
    )  # fmt: skip
    modules: tuple[str, ...] = described(
        Several(Name("the name of a module"), "a list of names of modules"), SETUP,
        "load this environment module first; repeatable", "NAME", "--module", default=(),
    )  # fmt: skip
    venv: Path | None = described(
        File("the path of a virtual environment"), SETUP,
        "the virtual environment with shardrun (default: this one)", "DIR",
    )  # fmt: skip
    image: str | None = described(
        Name("a container image"), SETUP, "run in this container image, where shardrun is installed", "IMAGE"
    )
    container: str | None = described(
        Choice(("apptainer", "singularity", "pyxis")), SETUP,
        "what runs the image on Slurm and PBS (default: apptainer)",
    )  # fmt: skip
    mpi: str | None = described(
        Choice(("none", "pmi2", "pmix")), SETUP,
        "by what srun tells MPI of the ranks (default: none, and Gloo between nodes; with --collectives mpi "
        "what mpi4py's MPI knows)",
    )  # fmt: skip
    kind: str | None = described(
        Choice(("job", "mpijob")), SETUP,
        "Kubernetes: an indexed Job with a service (default), or an MPIJob of the MPI operator",
    )  # fmt: skip
    namespace: str | None = described(
        Line("the name of a namespace"), PLACE, "Kubernetes: the namespace", "NAME"
    )
    volumes: tuple[str, ...] = described(
        Several(Claim("CLAIM:/PATH"), "a list of CLAIM:/PATH"), SETUP,
        "Kubernetes: mount the persistent volume claim there; repeatable", "CLAIM:/PATH", "--volume",
        default=(),
    )  # fmt: skip
    shm: int | None = described(
        Written(parse_bytes, "a number of bytes, or text such as 24GB", Whole(1, 2**63 - 1)), SETUP,
        "Kubernetes: size of each pod's /dev/shm (default: 1 GiB)", "SIZE",
    )  # fmt: skip
    name: str | None = described(
        Name("the name of a job"), WATCH, "the job's name (default: the model's)", "NAME"
    )
    log: Path | None = described(
        File("the path of a folder"), WATCH, "the folder of NAME-NUMBER.log (default: the current one)", "DIR"
    )

    def with_flags(self, flags: Mapping[str, object]) -> SubmitOptions:
        """The same with the flags that were given, which win."""
        given = {name: value for name, value in flags.items() if name in SUBMIT and value is not None}
        changes = {name: SUBMIT[name].merged(getattr(self, name), value) for name, value in given.items()}
        return changed(self, changes)

    @property
    def given(self) -> list[str]:
        """The names of the options that are given."""
        return [name for name in SUBMIT if getattr(self, name) != getattr(SubmitOptions(), name)]


SUBMIT = table(SubmitOptions)
"""Option by name."""
