"""From what a start is asked for to its ranks: hosts, then what starts ranks there, then the job."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from launcher.errors import ConfigError
from launcher.group.watch import Job
from launcher.job.places.hosts import is_here, remote_hosts, unknown_host
from launcher.job.start_arguments import Start, StartArguments, check_count, rank_environment
from launcher.starters import base
from ranks.common import settings
from ranks.talk.frame import Kind

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from launcher.common.logs import Logs
    from launcher.group.control import Peer
    from launcher.job.places.placement import Places
    from launcher.job.rank_table import RankTable
    from launcher.starters.staging.copies import Copy
    from ranks.common.progress import Progress
    from ranks.identity.told import Told
    from ranks.talk.wire import Message

log = logging.getLogger(__name__)

_WHOLE = 1000


def prepared(
    how: Start, size: int, progress: Progress | None = None
) -> Callable[[Sequence[str]], StartedJob]:
    """What starts ``size`` ranks of a program, when all that can be wrong before is known to be right.
    ``progress``: is told how far those that load models have come."""
    how = _on_hosts(how, size)
    launcher = base.choose(how.launcher, how.table, how.collectives, how.placement)
    launcher.cores = how.threads or 1
    launcher.gpus = int(how.target == "gpu") if how.placement.gpus is None else how.placement.gpus
    rank_environment(how)
    how.logs.check(size)

    def begin(program: Sequence[str]) -> StartedJob:
        try:
            placed = replace(how, rank_table=launcher.place(size, how.table))
            environment = rank_environment(placed)
            told = _told(placed.table, _staged(placed, launcher, program, environment))
            if told:
                environment[settings.TOLD.name] = "1"
            return StartedJob(
                told,
                launcher,
                program,
                progress,
                world_size=size,
                environment=environment,
                table=placed.table,
                patience=how.seconds,
                hang=how.hang_seconds,
                logs=how.logs,
            )
        except BaseException:
            launcher.release()
            raise

    return begin


class StartedJob(Job):
    """A job that tells each rank, as soon as it has said hello, what is ``told`` of its place, and hears how
    far each has loaded its model, which ``progress`` is told."""

    def __init__(
        self,
        told: Sequence[Told],
        launcher: base.Launcher,
        program: Sequence[str],
        progress: Progress | None = None,
        **how: Unpack[JobArguments],
    ) -> None:
        self._told, self._progress = told, progress
        self._loaded: dict[int, int] = {}
        self._sum = 0  # of these, which are in thousandths of a model
        self._showing = threading.Lock()
        super().__init__(launcher, program, **how)

    def loaded(self) -> float:
        """How many ranks are ready, with what the others have loaded as parts of one. With the lock held."""
        return self._sum / _WHOLE

    def _message(self, peer: Peer, message: Message) -> None:
        done, total = message.fields.get("done"), message.fields.get("total")
        if message.kind is Kind.READY:
            self._has_loaded(peer.rank, _WHOLE)
        if message.kind is not Kind.LOADING:
            super()._message(peer, message)
        elif isinstance(done, int) and isinstance(total, int) and 0 <= done <= total and total:
            self._has_loaded(peer.rank, done * _WHOLE // total)

    def _has_loaded(self, rank: int, part: int) -> None:
        with self.changed:
            self._sum += part - self._loaded.get(rank, 0)
            self._loaded[rank] = part
            self.changed.notify_all()
            whole = self._sum / _WHOLE, len(self._loaded)
        with self._showing:
            if self._progress is not None:
                try:
                    self._progress(*whole)
                except Exception:  # such as of a terminal that is gone: what the ranks say is still heard
                    self._progress = None
                    log.debug("it cannot be shown how far ranks have loaded", exc_info=True)

    def _hello(self, peer: Peer) -> None:
        if self._told:
            with contextlib.suppress(OSError):  # it is gone, which is noticed elsewhere
                peer.send(Kind.TOLD, asdict(self._told[peer.rank]))
        super()._hello(peer)


class JobArguments(TypedDict):
    """What a `Job` takes by name."""

    world_size: int
    environment: Mapping[str, str]
    table: RankTable | None
    patience: float | None
    hang: float | None
    logs: Logs | None


def _told(table: RankTable | None, copies: Mapping[int, Copy]) -> list[Told]:
    """What each rank is told of its place; nothing where there is nothing to tell."""
    if table is None:
        return []
    from ranks.identity.binding import apart
    from ranks.identity.told import NOTHING, Told

    alone: dict[int, bool] = {}
    for there in table.hosts.values():
        cores = apart([device.cores for device in there])
        alone |= {device.rank: own for device, own in zip(there, cores, strict=True)}
    found = [
        Told(device.cores, device.interface, alone[device.rank], *_names(copies.get(device.rank)))
        for device in table.devices
    ]
    return found if any(told != NOTHING for told in found) else []


def _names(copy: Copy | None) -> tuple[str, str]:
    """The key of a copy, and the name of the model in it; "" where there is none."""
    return ("", "") if copy is None else (copy.key, copy.file)


def _staged(
    how: Start, launcher: base.Launcher, program: Sequence[str], environment: Mapping[str, str]
) -> dict[int, Copy]:
    """The copies that ranks load, which are made now."""
    if not how.placement.stage or how.table is None or program[0] != "serve":
        return {}
    from launcher.starters.staging.copies import needed
    from launcher.starters.staging.sender import send

    copies = needed(Path(program[1]), how.table)
    if not copies:
        return {}
    send(launcher, copies, environment, how.seconds, how.hang_seconds)
    return {rank: copy for copy in copies for rank in copy.ranks}


def _on_hosts(how: Start, size: int) -> Start:
    """The same with a rank table of the hosts that are given, or that a batch system gave."""
    places = how.places
    if how.rank_table is not None:
        return how
    if places is None:
        from launcher.job.places.allocation import lone_pod

        if how.placement.nodes is None and how.launcher != "local" and (pod := lone_pod()):
            log.warning(
                "this is pod %s of an indexed Job of Kubernetes, which says nothing of its others: ranks "
                "start in this pod alone (set RANK, WORLD_SIZE and LOCAL_RANK to make each pod one rank, as "
                "a Job of `shardrun submit --kubernetes` does)",
                pod,
            )
        return how
    if how.launcher == "local" and places.tasks is not None:
        _say_not_used(places)
        return how
    from launcher.job.rank_table import make_rank_table

    table = make_rank_table(places.spread(size))
    places.say_unused(size)
    if places.tasks is None and (host := unknown_host(table)):
        raise ConfigError(f"{places.said_by}: the host {host!r} cannot be found: correct its name")
    if not remote_hosts(table):
        return how
    return replace(how, rank_table=table)


def _say_not_used(places: Places) -> None:
    """The local launcher was asked for, though a batch system gave other hosts too."""
    names = [host for host, _ in places.hosts]
    if len(names) > 1 or not is_here(names[0]):
        log.warning(
            "%s has %s, but --launcher local starts all ranks on this one",
            places.said_by, f"{len(names)} hosts" if len(names) > 1 else f"the host {names[0]}",
        )  # fmt: skip


def run_program(program: Sequence[str], **how: Unpack[StartArguments]) -> None:
    """Runs ``program`` (arguments of `ranks.boot`, such as ``["exec", SCRIPT, ...]``) on every rank to its
    end.

    ``how``: what `launcher.start` takes by name. Raises like `launcher.start`, `RankFailedError`
    when a rank ends with anything but success, and `OSError` where some of what the ranks printed could not
    be written.
    """
    asked = Start.asked("run_program", StartArguments, None, how)
    size = asked.ranks if asked.ranks is not None else asked.size() or 1
    check_count(size, asked.table)
    job = prepared(asked, size, asked.progress)(program)
    try:
        job.wait()
    finally:
        job.close()
    if job.output.lost is not None:
        raise job.output.lost
