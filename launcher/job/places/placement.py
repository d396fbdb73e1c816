"""What is said of where ranks run, and of how they are started there."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from launcher.errors import ConfigError
from ranks.common.settings import BIND, VARIABLES
from sharding.common.text import counted, shortened

if TYPE_CHECKING:
    from launcher.job.places.host_list import Host

log = logging.getLogger(__name__)

_SHOWN = 8
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]{0,254}"


class Placement(NamedTuple):
    """The options of a job that say where ranks run: see `launcher.job.options.Options`."""

    hosts: tuple[Host, ...] | None = None
    hostfile: Path | None = None
    nodes: int | None = None
    bind: str | None = None
    mpi_args: tuple[str, ...] = ()
    srun_args: tuple[str, ...] = ()
    stage: bool = False
    ray_address: str | None = None
    gpus: int | None = None

    def places(self, environ: Mapping[str, str] = os.environ) -> Places | None:
        """The hosts that are given, or else those of this process's allocation. Raises `ConfigError`."""
        if self.hosts is not None:
            return Places("--hosts", self.hosts)
        if self.hostfile is not None:
            from launcher.job.places.host_list import read_hostfile

            return Places(f"the hostfile {self.hostfile}", read_hostfile(self.hostfile))
        if self.nodes is not None:
            return None
        from launcher.job.places import allocation

        found = allocation.find(environ)
        return None if found is None else Places(found.name, found.hosts, found.ranks, slurm=found.slurm)


class Places(NamedTuple):
    """Hosts, and the ranks that each may have; ``said_by`` names where they stand.

    ``tasks``: how many ranks the batch system was asked for; it may be given more, which share processors.
    """

    said_by: str
    hosts: tuple[Host, ...]
    tasks: int | None = None
    slurm: bool = False

    @property
    def ranks(self) -> int:
        """How many ranks to start where nothing else says it."""
        return sum(count or 1 for _, count in self.hosts) if self.tasks is None else self.tasks

    @property
    def room(self) -> int | None:
        """The ranks that have a place of their own; None where nothing says."""
        counts = [count for _, count in self.hosts if count is not None]
        return sum(counts) if len(counts) == len(self.hosts) else None

    def spread(self, size: int) -> list[tuple[str, int]]:
        """Hosts with the number of ranks of each: all hosts have some before one has more than another.

        Raises `ConfigError` for more ranks than a user's list has places.
        """
        if self.tasks is None and self.room is not None and size > self.room:
            raise ConfigError(
                f"{self.said_by}: expected places for {counted(size, 'rank')}, found {self.room}: give more "
                "hosts, or higher numbers after them"
            )
        most = [size if count is None else count for _, count in self.hosts]
        counts = [0] * len(most)
        free: Sequence[int] = range(len(most))
        while size:
            # Where all are full, every host takes one more.
            free = [at for at in free if counts[at] < most[at]] or range(len(most))
            for at in free[:size]:
                counts[at] += 1
            size -= min(size, len(free))
        return [(host, count) for (host, _), count in zip(self.hosts, counts, strict=True) if count]

    def say_unused(self, size: int) -> None:
        """Warns of what of an allocation so many ranks do not use, or use twice."""
        if self.tasks is None:
            return
        used = {host for host, _ in self.spread(size)}
        idle = [host for host, _ in self.hosts if host not in used]
        if idle:
            shown = ", ".join(idle[:_SHOWN]) + (", ..." if len(idle) > _SHOWN else "")
            log.warning(
                "%s has %s, but %s: %s not used", self.said_by, counted(len(self.hosts), "host"),
                _start(size), f"{shown} {'is' if len(idle) == 1 else 'are'}",
            )  # fmt: skip
        elif size < self.tasks:
            log.warning("%s has places for %d ranks, but %s", self.said_by, self.tasks, _start(size))
        elif self.room is not None and size > self.room:
            log.warning(
                "%s has places for %s, but %s: some share a place",
                self.said_by, counted(self.room, "rank"), _start(size),
            )  # fmt: skip


def _start(size: int) -> str:
    return f"{size} {'starts' if size == 1 else 'start'}"


def parse_words(text: str) -> tuple[str, ...]:
    """The words of a command line. Raises `ConfigError`."""
    import shlex

    try:
        return tuple(shlex.split(text))
    except ValueError as problem:
        raise ConfigError(
            f"expected words as in a shell, found {shortened(text, 80)!r} ({problem})"
        ) from None


def parse_bind(text: str) -> str:
    """What binds ranks to cores, as `ranks.identity.binding` has it. Raises `ConfigError`."""
    if BIND.parse(text) is None:
        raise ConfigError(f"expected {BIND.values}, found {shortened(text, 80)!r}")
    return text


def parse_variables(texts: Iterable[str]) -> dict[str, str]:
    """The variables of ``NAME=VALUE`` and, with the values that they have here, of ``NAME``. Raises
    `ConfigError`."""
    found = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not re.fullmatch(_VARIABLE, name):
            raise ConfigError(f"--env: expected NAME or NAME=VALUE, found {shortened(text, 80)!r}")
        if not equals and name not in os.environ:
            raise ConfigError(f"--env {name}: {name} is not set here; give --env {name}=VALUE")
        found[name] = value if equals else os.environ[name]
    check_variables(found, "--env ")
    return found


def check_variables(variables: Mapping[str, str], where: str) -> None:
    """Raises `ConfigError` for what is no variable, or says who a rank is: whatever starts it sets that.
    ``where`` comes before a name in messages."""
    from ranks.common.sources import identifies

    own = {variable.name for variable in VARIABLES if variable.of_one_job}
    for name, value in variables.items():
        if not re.fullmatch(_VARIABLE, name):
            raise ConfigError(f"{where}{shortened(name, 80)}: expected the name of a variable")
        if "\0" in value:
            raise ConfigError(f"{where}{name}: expected a text without NUL characters")
        if identifies(name) or name in own:
            raise ConfigError(f"{where}{name}: each rank gets a {name} of its own; leave it out")
