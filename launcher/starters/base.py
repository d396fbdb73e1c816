"""What a launcher is: one class with one job, to start these ranks and to say when each ended and how.

Watching, output, time-outs, the first cause and clean-up are common code above it (`launcher.group.watch`).
A new launcher is one module in `launcher.starters.known`, with a `Starter` in it, or an entry point of the
group ``shardrun.starters`` that another package brings.
"""

from __future__ import annotations

import logging
import queue
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from launcher.common.starters import STARTERS
from launcher.errors import ConfigError, LaunchError
from launcher.job.places.placement import Placement
from sharding.common.registry import Registry

if TYPE_CHECKING:
    from launcher.common.lines import StreamName
    from launcher.job.rank_table import RankTable

log = logging.getLogger(__name__)

#: The rank of an `Ended` whose launching program says how the first rank ended, but not which one it was.
SOME_RANK = -1


class Ended(NamedTuple):
    """A process ended. ``rank`` None: the launching program itself. ``code``: negative for a signal, None
    unknown, and then ``why`` may say what is known of it. ``heard``: it is what the launching program says of
    the process that it started, which may be the one above the rank, and which it may have killed itself.
    ``process``: the host and number of that process, where only these are said."""

    rank: int | None
    code: int | None
    why: str = ""
    heard: bool = False
    process: tuple[str, int] | None = None


class Pipe(NamedTuple):
    """A file descriptor to read output from; ``rank`` None: of several ranks, told apart by
    `Handle.attribute`."""

    descriptor: int
    rank: int | None
    name: StreamName


class Handle(ABC):
    """Ranks that were started. ``pipes`` belong to the reader, who closes them at their end.

    ``short``: what they lacked, or may have had too little of, from the start, as a sentence; "" where
    nothing is known.
    """

    pipes: list[Pipe]
    short: str = ""
    report_seconds: float = 1.0
    """How long what it says of a rank's end may take to come, after the rank's own connection has ended."""

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

    def heard(self, line: str) -> Sequence[Ended]:
        """The ends of ranks that this line of the launching program's own tells of, or completes."""
        return ()

    def settle(self, ranks: Collection[int]) -> None:  # noqa: B027 - most launchers leave nothing open
        """All ranks, given by their process ids, are there and on this host: closes to other hosts what
        starting has opened, and notes by what it finds later what they leave running."""

    def lost_host(self, here: Collection[int], awaited: Collection[str]) -> str:
        """Called every now and then while something is waited for: ``here`` are the process ids of ranks of
        this host, ``awaited`` the hosts with ranks that have not said anything. The host that will start none
        any more, as far as this is known and the end of the launching program does not tell it; else ""."""
        return ""

    def cut_off(self, rank: int) -> None:  # noqa: B027 - most launchers ask ranks to end, and wait for none
        """Nothing comes from this rank's host any more: it is not to be waited for at the end."""

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
    identity: tuple[str, ...] = ()
    """As `Starter.identity`, which says it."""
    placement: Placement = Placement()
    """What the job says of where and how its ranks are started."""
    cores: int = 1
    gpus: int = 0
    """What each rank needs, for a launcher that asks for it."""
    input_arrives: bool = True
    """See `on_host`."""
    over_ssh: bool = True
    """Whether other hosts are reached by ssh, which messages about hosts that do not answer name."""

    def place(self, world_size: int, table: RankTable | None) -> RankTable | None:
        """Where the ranks are to run, if this launcher must ask for hosts first; raises `LaunchError`.

        What it got is given back by `release`, or when the handle of `start` is closed.
        """
        return table

    def release(self) -> None:  # noqa: B027 - most launchers get nothing
        """Gives back what `place` got, where `start` was not called or failed."""

    def check(self, table: RankTable | None) -> None:  # noqa: B027 - most launchers can use any table
        """Raises `LaunchError` for a rank table that this launcher cannot use."""

    def on_host(
        self, host: str, module: str, environment: Mapping[str, str]
    ) -> tuple[list[str], Mapping[str, str] | None]:
        """A command on this machine, with its environment (None: ours), that has one process of this Python
        run ``module`` on a host where `start` could start ranks. Its input and output are that process's;
        where input does not reach other hosts, `input_arrives` is false, and the process gets the variables
        ``environment``.

        Raises `LaunchError` where this launcher has no such way.
        """
        raise LaunchError(f"The launcher {self.name} cannot copy files to other hosts: leave out --stage.")

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


def always(table: RankTable | None, placement: Placement) -> bool:
    """Of a starter that every machine can use."""
    return True


class Starter(NamedTuple):
    """One way to start ranks: a module of `launcher.starters.known` holds one, and has its name."""

    make: Callable[[], Launcher]
    order: int | None = None
    """Of those that can do what a job needs, ``auto`` takes the one with the lowest; None: none of them."""
    spans_hosts: bool = True
    """Whether it starts ranks on other hosts."""
    takes: Collection[str] = ()
    """The options of `Placement` that it follows, and not every starter: who gives one to another is told."""
    by_mpi: bool = False
    """Whether its ranks find one another by MPI."""
    identity: Sequence[str] = ()
    """The variables that tell its ranks their rank, the number of ranks, their place on their host and how
    many are there (which may be left out), where they are not those that every rank looks for."""
    meaning: str = ""
    """What ``--help`` says it starts, where its name does not say all."""
    here: Callable[[RankTable | None, Placement], bool] = always
    """Whether this machine can use it for these hosts; ``auto`` asks it."""

    def fits(self, *, hosts: bool, mpi: bool, given: Iterable[str] = ()) -> bool:
        """Whether it can start ranks on several ``hosts``, ranks that talk by ``mpi``, and follows options
        that are ``given``."""
        follows = all(name in self.takes for name in given)
        return (self.spans_hosts or not hosts) and (self.by_mpi or not mpi) and follows


REGISTRY = Registry(STARTERS, Starter)


def choose(
    name: str,
    table: RankTable | None = None,
    collectives: str = "auto",
    placement: Placement | None = None,
) -> Launcher:
    """The launcher of that name; ``auto`` takes ``local`` on one host, and for several, or where MPI is to
    carry the collectives, ``slurm`` in its allocations, ``mpirun`` where there is one, or ``ssh``."""
    from launcher.job.places.hosts import remote_hosts, unknown_host

    placement = placement or Placement()
    if host := unknown_host(table):
        log.warning(
            "the rank table's server %r is no host name that can be found, and has no server_ip: "
            "its ranks run on this machine",
            host,
        )
    mpi = _by_mpi(collectives)
    given = _given(placement)
    if name == "auto":
        hosts = bool(remote_hosts(table))
        able = {
            key: item for key, item in REGISTRY.own().items() if item.fits(hosts=hosts, mpi=mpi, given=given)
        }
        ordered = sorted((item.order, key) for key, item in able.items() if item.order is not None)
        if not ordered:
            _refuse(given, "auto chooses none that can do all of this")
        # The last one says what is missing, where none can be used.
        name = next((key for _, key in ordered if able[key].here(table, placement)), ordered[-1][1])
    if name not in REGISTRY:
        known = (name for name in STARTERS if name != "external")
        raise ConfigError(f"There is no launcher {name!r}: choose one of {', '.join(known)}.")
    starter = REGISTRY[name]
    if mpi and not starter.by_mpi:
        able = {key: item for key, item in REGISTRY.own().items() if item.by_mpi}
        raise ConfigError(
            f"The {collectives} collectives need the launcher {' or '.join(able)}, but {name} is asked for: "
            "leave out one of the two."
        )
    if ignored := [option for option in given if option not in starter.takes]:
        _refuse(ignored, f"{name} is asked for")
    launcher = starter.make()
    launcher.identity = tuple(starter.identity)
    launcher.placement = placement
    return launcher


def _given(placement: Placement) -> list[str]:
    """The options that are given, and that not every starter follows."""
    default = Placement()
    given = [name for name in Placement._fields if getattr(placement, name) != getattr(default, name)]
    return [name for name in given if any(name in starter.takes for starter in REGISTRY.own().values())]


def _refuse(options: Sequence[str], but: str) -> NoReturn:
    """Raises `ConfigError` for options that only other starters follow."""
    from launcher.job.options import OPTIONS

    followed = {
        OPTIONS[option].flag: [name for name, starter in REGISTRY.own().items() if option in starter.takes]
        for option in options
    }
    said = ", ".join(f"{flag} is for the launcher {' or '.join(names)}" for flag, names in followed.items())
    raise ConfigError(f"{said}, but {but}: leave it out, or name the launcher that it is for with --launcher")


def _by_mpi(collectives: str) -> bool:
    if collectives == "auto":
        return False
    from ranks.collectives import BACKENDS

    return collectives in BACKENDS and BACKENDS[collectives].by_mpi
