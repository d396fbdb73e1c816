"""What a launcher is: one class with one job, to start these ranks and to say when each ended and how.

Watching, output, time-outs, the first cause and clean-up are common code above it (`launcher.group.watch`). A
new launcher is one module and one line in `LAUNCHERS`.
"""

from __future__ import annotations

import importlib
import logging
import queue
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from launcher.errors import ConfigError
from launcher.job.hosts import remote_hosts, unknown_host

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable

log = logging.getLogger(__name__)

LAUNCHERS = {
    "local": "launcher.starters.local:LocalLauncher",
    "mpirun": "launcher.starters.mpirun:MpirunLauncher",
}

StreamName = Literal["stdout", "stderr"]


#: The rank of an `Ended` whose launching program says how the first rank ended, but not which one it was.
SOME_RANK = -1


@dataclass(frozen=True)
class Ended:
    """A process ended. ``rank`` None: the launching program itself. ``code``: negative for a signal, None
    unknown."""

    rank: int | None
    code: int | None


@dataclass(frozen=True)
class Pipe:
    """A file descriptor to read output from; ``rank`` None: of several ranks, told apart by
    `Handle.attribute`."""

    descriptor: int
    rank: int | None
    name: StreamName


class Handle(ABC):
    """Ranks that were started. ``pipes`` belong to the reader, who closes them at their end.

    ``short``: what they may have had too little of from the start, as a sentence; "" where nothing is known.
    """

    pipes: list[Pipe]
    short: str = ""

    def __init__(self) -> None:
        self.pipes = []
        self._ended: queue.SimpleQueue[Ended | None] = queue.SimpleQueue()

    def wait(self) -> Ended | None:
        """Blocks for the next end of a process; None once everything has ended."""
        return self._ended.get()

    def attribute(self, line: str) -> list[tuple[int | None, str]]:
        """The ranks that wrote a line of a pipe without a rank, each with its part of it, without the
        launching program's marks."""
        return [(None, line)]

    def heard(self, line: str) -> Ended | None:
        """The end of a rank, if this line of the launching program's own completes what it says of one."""
        return None

    def settle(self, ranks: Collection[int]) -> None:  # noqa: B027 - most launchers leave nothing open
        """Closes to other hosts what starting has opened: all ranks, given by their process ids, are there
        and on this host."""

    def end_children(self, ranks: Collection[int]) -> None:  # noqa: B027 - most launchers see each rank's end
        """Ends what ranks, given by their process ids, that have ended themselves left running."""

    @abstractmethod
    def terminate(self) -> None:
        """Asks everything to end (SIGTERM); safe to call at any time."""

    @abstractmethod
    def kill(self) -> None:
        """Ends everything that this handle can reach (SIGKILL); safe to call at any time."""

    def close(self) -> None:  # noqa: B027 - most launchers leave nothing behind
        """Removes what starting made (files); called when everything has ended."""


class Launcher(ABC):
    """Starts ranks in one way."""

    name: str

    def check(self, table: RankTable | None) -> None:  # noqa: B027 - most launchers can use any table
        """Raises `LaunchError` for a rank table that this launcher cannot use."""

    @abstractmethod
    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> Handle:
        """Starts ``world_size`` processes of ``ranks.boot`` with the arguments ``program``.

        ``environment`` is set in each of them on top of the caller's own; ``table`` says on which hosts
        they run. Raises `LaunchError` when they cannot be started.
        """


def choose(name: str, table: RankTable | None = None, collectives: str = "auto") -> Launcher:
    """The launcher of that name; ``auto`` takes ``local`` on one host and ``mpirun`` for several, or where
    MPI is to carry the collectives."""
    if host := unknown_host(table):
        log.warning(
            "the rank table's server %r is no host name that can be found, and has no server_ip: "
            "its ranks run on this machine",
            host,
        )
    if name == "auto":
        name = "mpirun" if collectives == "mpi" or remote_hosts(table) else "local"
    if name == "local" and collectives == "mpi":
        raise ConfigError(
            "The mpi collectives need the launcher mpirun, but local is asked for: leave out one of the two."
        )
    try:
        module, _, attribute = LAUNCHERS[name].partition(":")
    except KeyError:
        raise ConfigError(
            f"There is no launcher {name!r}: choose one of auto, {', '.join(LAUNCHERS)}."
        ) from None
    launcher: Launcher = getattr(importlib.import_module(module), attribute)()
    return launcher
