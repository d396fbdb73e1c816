"""What a start is asked for, checked before any rank is there: how many ranks, and what they are told."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from launcher.common.logs import Logs
from launcher.common.restarts import NEVER, parse_restart
from launcher.errors import ConfigError, RankTableError
from launcher.inspection.model_kinds import check_whole
from launcher.job.places.hosts import remote_hosts
from launcher.job.places.placement import Placement
from launcher.job.ports import check_port, free_port
from ranks.common import settings
from ranks.common.settings import COLLECTIVES, SECONDS
from ranks.common.sources import MASTER_ADDR, MASTER_PORT, RANK, TORCHELASTIC_RUN_ID
from ranks.common.targets import TARGETS, unknown
from sharding.common.bounds import LONGEST_TIMEOUT, MAX_RANKS, MAX_THREADS
from sharding.common.text import counted, did_you_mean

if TYPE_CHECKING:
    from launcher.inspection.reference import ModelReference
    from launcher.job.places.placement import Places
    from launcher.job.rank_table import RankTable
    from ranks.common.progress import Progress
    from ranks.precision.request import Asked
    from sharding.demands.options import SliceOptions

_MOST_WEIGHTS = 100_000
"""Characters of all names of variable weights, which are one argument of a rank: Linux takes 128 KiB."""
_AROUND_US = {RANK, TORCHELASTIC_RUN_ID, settings.JOB.name}


class RankArguments(TypedDict, total=False):
    """What `launcher.lead` takes by name, and `launcher.start` too: what holds for each rank."""

    collectives: str
    """What joins the ranks; default: "auto"."""
    threads: int | None
    """ONNX Runtime threads per rank, by default the cores shared among the ranks."""
    target: str
    """What the ranks compute on: "cpu", "gpu" or "ascend"."""
    timeout: float | None
    """Seconds that start-up, and later any one collective, may take; default: ``SHARDRUN_TIMEOUT``, 300."""
    allow_replicated: bool
    """Whether slices may be made of which each rank holds all weights."""


class StartArguments(RankArguments, total=False):
    """What `launcher.start` takes by name."""

    ranks: int | None
    """How many; a slice folder, the files that fit a pattern, a mesh and a rank table say it too."""
    launcher: str
    """What starts them; default: "auto"."""
    rank_table: str | os.PathLike[str] | RankTable | None
    """On which hosts and devices they run."""
    hang_timeout: float | None
    """Seconds for which a rank that is waited for may be stopped, stand still or be silent (60)."""
    environment: Mapping[str, str] | None
    """More variables for the ranks."""
    precision: Asked | None
    """In which types they compute, if not in the model's own."""
    placement: Placement
    """On which hosts and cores they run, if not on this host or those that a batch system gave."""
    logs: Logs
    """Where the lines go that they print."""
    restart: str
    """Whether ranks that are lost are started again: "never" (default), "on-failure" or "on-failure:N"."""
    variable_weights: Sequence[str]
    """The names of weights that `launcher.Group.update_weights` may replace."""
    progress: Progress | None
    """Called with how many ranks are ready, what the others have loaded as parts of one, and of how many."""


@dataclass(kw_only=True, eq=False, repr=False)
class Start:
    """How ranks are to be started: `StartArguments` with their defaults, and how a model file is sliced."""

    ranks: int | None = None
    launcher: str = "auto"
    rank_table: str | os.PathLike[str] | RankTable | None = None
    collectives: str = "auto"
    threads: int | None = None
    target: str = "cpu"
    timeout: float | None = None
    hang_timeout: float | None = None
    allow_replicated: bool = False
    options: SliceOptions | None = None
    environment: Mapping[str, str] | None = None
    precision: Asked | None = None
    placement: Placement = field(default_factory=Placement)
    logs: Logs = field(default_factory=Logs)
    restart: str = NEVER
    variable_weights: Sequence[str] = ()
    progress: Progress | None = None

    @classmethod
    def asked(
        cls, function: str, takes: type[object], options: SliceOptions | None, named: Mapping[str, object]
    ) -> Start:
        """What a call of ``function`` asks for, whose arguments by name are those that ``takes`` has; None
        stands for the default. Raises `TypeError` for others."""
        known = takes.__annotations__
        for name in named:
            if name not in known:
                hint = did_you_mean(name, known)
                raise TypeError(f"{function}() got an unexpected keyword argument {name!r}{hint}")
        given = {name: value for name, value in named.items() if value is not None}
        make: Callable[..., Start] = cls  # each value is checked where it is used
        return make(**{"options": options, **given})

    def check_target(self) -> None:
        """Raises `ConfigError` for a target that does not exist, and for collectives of another one."""
        if self.target not in TARGETS:
            raise ConfigError(unknown(self.target))
        check_collectives(self.collectives, self.target)

    @property
    def weights_text(self) -> str:
        """The weights that may be replaced as ranks are told of them; "" for none. Raises `ConfigError`."""
        names = self.variable_weights
        if isinstance(names, str) or not all(isinstance(name, str) and name for name in names):
            raise ConfigError(
                f"variable_weights: expected a list of names of weights, found {str(names)[:80]!r}"
            )
        text = json.dumps(list(dict.fromkeys(names))) if names else ""
        if len(text) > _MOST_WEIGHTS:
            raise ConfigError(
                f"variable_weights: expected at most {_MOST_WEIGHTS} characters of names, found {len(text)}"
            )
        return text

    @cached_property
    def places(self) -> Places | None:
        """The hosts that are given or that a batch system gave; None with a rank table, and without any.
        Raises `ConfigError`."""
        return self.placement.places() if self.rank_table is None else None

    def size(self) -> int | None:
        """How many ranks the rank table or the hosts are for; None without any of them."""
        if self.table is not None:
            return self.table.world_size
        return self.places.ranks if self.places is not None else None

    @cached_property
    def table(self) -> RankTable | None:
        """The rank table, read where it is a file. Raises `RankTableError`."""
        if self.rank_table is None or not isinstance(self.rank_table, str | os.PathLike):
            return self.rank_table
        from launcher.job.rank_table import load_rank_table

        return load_rank_table(Path(self.rank_table))

    @property
    def restarts(self) -> int:
        """How often in a row the ranks may be started again. Raises `ConfigError`."""
        return parse_restart(self.restart)

    @property
    def hang_seconds(self) -> float:
        """How long a rank may give no sign of life."""
        return settings.DEFAULT_HANG if self.hang_timeout is None else self.hang_timeout

    @cached_property
    def seconds(self) -> float:
        """How long anything may take, said or by default. Raises `SettingError`."""
        return settings.default_timeout() if self.timeout is None else self.timeout


def count_ranks(model: ModelReference, how: Start) -> int:
    """How many ranks to start, from whoever says it; raises `ConfigError` where they contradict one
    another."""
    table = how.table
    sources: list[tuple[str, int]] = []
    if how.ranks is not None:
        sources.append(("ranks", how.ranks))
    if table is not None:
        sources.append((f"the rank table {table.path or ''}".rstrip(), table.world_size))
    if (there := model.rank_count()) is not None:
        sources.append(there)
    if how.options is not None and how.options.mesh is not None:
        sources.append((f"the mesh {how.options.mesh}", how.options.mesh.size))
    if not sources and how.places is not None:
        sources.append((how.places.said_by, how.places.ranks))
    if not sources:
        check_whole(model.path)
        raise ConfigError(
            f"How many ranks shall run {model.path}? Give the number of ranks, or a rank table."
        )
    name, size = sources[0]
    for other, count in sources[1:]:
        if count != size:
            given = f"ranks={size}" if name == "ranks" else f"{name} ({counted(size, 'rank')})"
            raise ConfigError(
                f"{given} contradicts {other} ({counted(count, 'rank')}): they must be the same "
                "(slice the model anew for another number of ranks)."
            )
    check_count(size, table)
    return size


def check_count(size: int, table: RankTable | None) -> None:
    """Raises `ConfigError` for a number that cannot be, `RankTableError` where the table has another."""
    if not isinstance(size, int) or isinstance(size, bool) or not 1 <= size <= MAX_RANKS:
        raise ConfigError(f"The number of ranks must be an integer from 1 to {MAX_RANKS}, but is {size!r}.")
    if table is not None and table.world_size != size:
        raise RankTableError(f"The rank table has {table.world_size} ranks, but {size} were asked for.")


def rank_environment(how: Start) -> dict[str, str]:
    """The variables that tell ranks how to work; raises `ConfigError` for values that cannot be."""
    check_numbers(how)
    ours = {settings.CHOSEN.name: how.collectives, settings.TIMEOUT.name: f"{how.seconds:g}"}
    if how.threads is not None:
        ours[settings.THREADS.name] = str(how.threads)
    # Of a launcher around us, the two are that one's, and its port is in use.
    chosen = os.environ if not _AROUND_US & os.environ.keys() else {}
    address = chosen.get(MASTER_ADDR) or next(iter(remote_hosts(how.table)), "127.0.0.1")
    port = chosen.get(MASTER_PORT)
    variables = {MASTER_ADDR: address}
    variables[MASTER_PORT] = str(free_port() if port is None else check_port(port, address))
    # Not every starter passes this process's environment on to other hosts.
    variables |= {item.name: text for item in settings.FOR_RANKS if (text := item.text())} | ours
    if how.placement.bind is not None:
        variables[settings.BIND.name] = how.placement.bind
    variables |= how.environment or {}
    settings.check({**os.environ, **variables})
    return variables


def check_numbers(how: Start) -> None:
    """Raises `ConfigError` for collectives, a time-out or threads that cannot be."""
    timeout, threads = how.seconds, how.threads
    check_collectives(how.collectives)
    if not isinstance(timeout, int | float) or not 0 < timeout <= LONGEST_TIMEOUT:
        raise ConfigError(f"The time-out must be {SECONDS}, but is {timeout!r}.")
    if threads is not None and (
        not isinstance(threads, int) or isinstance(threads, bool) or not 1 <= threads <= MAX_THREADS
    ):
        raise ConfigError(
            f"The number of threads must be an integer from 1 to {MAX_THREADS}, but is {threads!r}."
        )


def check_collectives(collectives: str, target: str | None = None) -> None:
    """Raises `ConfigError` for collectives that do not exist, or do not join ranks on this target."""
    if collectives not in COLLECTIVES:
        raise ConfigError(
            f"There are no collectives {collectives!r}: choose one of {', '.join(COLLECTIVES)}."
        )
    if target is None or collectives == "auto":
        return
    from ranks.collectives import BACKENDS

    backend = BACKENDS[collectives]
    needed = target if backend.device == "cpu" else backend.target
    if target != needed:
        raise ConfigError(
            f"The {collectives} collectives do not join ranks on the target {target}: give --target {needed} "
            f"(in Python: target={needed!r}), or leave the choice of collectives to auto."
        )
