"""A job's ranks with its model loaded: a group that this process starts, or this process as one rank."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

from launcher.errors import ShardrunError
from launcher.job import precision
from ranks.common import settings

if TYPE_CHECKING:
    from launcher.group.group import Group
    from launcher.group.led import LedModel
    from launcher.job.job import Job
    from launcher.job.model import Loadable
    from ranks.collectives.base import Communicator
    from ranks.common.progress import Progress
    from ranks.identity.place import Identity
    from ranks.run.rank_model import RankModel

T = TypeVar("T")


def start_group(
    job: Job, model: Loadable, progress: Progress | None = None, variable_weights: Sequence[str] = ()
) -> Group:
    """Starts the ranks as the job says; raises what `launcher.group.group.start` raises."""
    from launcher.group.group import start

    group = start(
        model.path,
        ranks=model.ranks,
        launcher=job.launcher,
        rank_table=job.rank_table,
        target=job.target,
        collectives=job.collectives or settings.collectives(),
        threads=job.threads,
        timeout=job.timeout,
        hang_timeout=job.hang_timeout,
        environment={**job.env, **model.environment},
        placement=job.placement,
        logs=job.logs,
        restart=job.restart,
        precision=precision.asked(job),
        variable_weights=variable_weights,
        progress=progress,
    )
    try:
        model.loaded()
    except BaseException:
        group.close()
        raise
    return group


@contextlib.contextmanager
def awaited(flags: Mapping[str, object]) -> Iterator[None]:
    """While it lasts, the other ranks learn that this process has ended before it joined them, if something
    else has made it a rank: a wrong input may end it alone. Until the job's options are read, ``flags`` say
    whether it may be one."""
    from ranks.collectives.absence import ABSENCE
    from ranks.identity.identity import identify

    if flags.get("launcher", "auto") in {"auto", "external"}:
        with contextlib.suppress(ShardrunError):  # which is told where it is needed
            ABSENCE.stand(identify(), str(flags.get("collectives") or ""))
    yield
    ABSENCE.over()  # not where it fails


def take_part(job: Job, identity: Identity) -> None:
    """Makes this process one of the ranks that something else starts: it has their name, and ends with what
    started it, or where it is stopped for too long."""
    from ranks.collectives.absence import ABSENCE
    from ranks.talk import orphan
    from ranks.talk.guard import GUARD
    from ranks.talk.title import name_process

    if identity.world_size > 1:
        ABSENCE.stand(identity, job.collectives or "")
        GUARD.stand(identity.rank, identity.host, orphan.end_with_launcher(), job.hang_timeout)
        GUARD.feel(identity.rank, identity.host, job.hang_timeout)
        name = settings.JOB.text() or identity.key  # that of whatever started the ranks
        name_process(identity.rank, identity.world_size, name, f"run {job.model}")


def join_group(job: Job, model: Loadable, identity: Identity) -> tuple[Communicator, RankModel]:
    """Joins the group that something else starts, as `ranks.run.target.load` does."""
    from ranks.run.executor import LoadOptions
    from ranks.run.target import load

    take_part(job, identity)
    loaded = load(
        model.path,
        identity,
        job.target,
        collectives=job.collectives,
        threads=job.threads,
        asked=precision.asked(job),
        options=LoadOptions(timeout=job.timeout, keep=model.keep),
    )
    model.loaded()
    return loaded


def lead(
    job: Job,
    made: Sequence[Loadable],
    identity: Identity,
    work: Callable[[Sequence[LedModel]], T],
    verb: str,
) -> T | None:
    """Joins the group of this process, where rank 0 does the ``work`` with these models, as
    `launcher.group.led.lead_models` says, and leaves it."""
    from launcher.group.led import lead_loaded
    from ranks.run import group

    result = lead_loaded([join_group(job, one, identity) for one in made], work, verb)
    group.leave()
    return result


@contextlib.contextmanager
def alone(job: Job, made: Loadable) -> Iterator[LedModel]:
    """A model that this process runs by itself, on the CPU, whatever group it is in."""
    from launcher.group.led import LedModel
    from ranks.collectives.broadcast import Spreader
    from ranks.collectives.single import SingleCommunicator
    from ranks.run import executor, placement
    from ranks.run.led import Leader

    single = SingleCommunicator()
    asked = precision.asked(job) if job.target == "cpu" else None
    model = executor.load(
        made.path,
        communicator=single,
        threads=job.threads,
        precision=placement.precision("cpu", placement.ON_CPU, asked),
        options=executor.LoadOptions(timeout=job.timeout, keep=made.keep),
    )
    made.loaded()
    try:
        yield LedModel(Leader([model], Spreader(single)))
    finally:
        model.close()
