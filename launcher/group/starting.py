"""From what a start is asked for to its ranks: hosts, then what starts ranks there, then the job."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.group.watch import Job
from launcher.job.places.hosts import is_here, remote_hosts, unknown_host
from launcher.job.places.placement import Places
from launcher.job.rank_table import make_rank_table
from launcher.job.start_arguments import Start, StartArguments, check_count, rank_environment
from launcher.starters import base
from ranks.common import settings

if TYPE_CHECKING:
    from typing_extensions import Unpack

log = logging.getLogger(__name__)


def prepared(how: Start, size: int) -> Callable[[Sequence[str]], Job]:
    """What starts ``size`` ranks of a program, when all that can be wrong before is known to be right."""
    how = _on_hosts(how, size)
    launcher = base.choose(how.launcher, how.table, how.collectives, how.placement)
    launcher.cores = how.threads or 1
    launcher.gpus = int(how.target == "gpu") if how.placement.gpus is None else how.placement.gpus
    rank_environment(how)
    how.logs.check(size)

    def begin(program: Sequence[str]) -> Job:
        try:
            placed = replace(how, rank_table=launcher.place(size, how.table))
            environment = rank_environment(placed)
            return Job(
                launcher,
                program,
                world_size=size,
                environment=environment | _staged(placed, launcher, program, environment),
                table=placed.table,
                patience=how.seconds,
                hang=how.hang_seconds,
                logs=how.logs,
            )
        except BaseException:
            launcher.release()
            raise

    return begin


def _staged(
    how: Start, launcher: base.Launcher, program: Sequence[str], environment: Mapping[str, str]
) -> dict[str, str]:
    """What ranks are told of the copies of their files, which are made now."""
    if not how.placement.stage or how.table is None or program[0] != "serve":
        return {}
    from launcher.starters.staging.copies import needed
    from launcher.starters.staging.sender import send
    from ranks.cache import staged

    copies = needed(Path(program[1]), how.table)
    if not copies:
        return {}
    send(launcher, copies, environment, how.seconds, how.hang_seconds)
    return {settings.STAGED.name: staged.said((copy.key, copy.ranks) for copy in copies)}


def _on_hosts(how: Start, size: int) -> Start:
    """The same with a rank table of the hosts that are given, or that a batch system gave."""
    places = how.places
    if how.rank_table is not None or places is None:
        return how
    if how.launcher == "local" and places.tasks is not None:
        _say_not_used(places)
        return how
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
    job = prepared(asked, size)(program)
    try:
        job.wait()
    finally:
        job.close()
    if job.output.lost is not None:
        raise job.output.lost
