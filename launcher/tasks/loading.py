"""A job's ranks with its model loaded: a group that this process starts, or this process as one rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

from launcher.errors import ConfigError
from launcher.job import precision
from ranks.common import settings

if TYPE_CHECKING:
    from launcher.group.group import Group
    from launcher.job.job import Job
    from launcher.job.model import Loadable
    from ranks.collectives.base import Communicator
    from ranks.common.progress import Progress
    from ranks.identity.place import Identity
    from ranks.run.rank_model import RankModel
    from sharding.common.arrays import Array

    Run = Callable[[Mapping[str, Array]], dict[str, Array]]

T = TypeVar("T")


def start_group(job: Job, model: Loadable, progress: Progress | None = None) -> Group:
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
        precision=precision.asked(job),
        progress=progress,
    )
    try:
        model.loaded()
    except BaseException:
        group.close()
        raise
    return group


def join_group(job: Job, model: Loadable, identity: Identity) -> tuple[Communicator, RankModel]:
    """Joins the group that something else starts, as `ranks.run.target.load` does."""
    from ranks.run.target import load

    loaded = load(
        model.path,
        identity,
        job.target,
        collectives=job.collectives,
        threads=job.threads,
        asked=precision.asked(job),
        timeout=job.timeout,
        keep=model.keep,
    )
    model.loaded()
    return loaded


def lead(
    job: Job, made: Loadable, identity: Identity, work: Callable[[RankModel, Run], T], verb: str
) -> T | None:
    """Joins the group of this process, where rank 0 does the ``work`` and has all ranks run the model for it.

    ``work`` is given the model and what runs it on every rank, by names. Returns its result on rank 0, None
    elsewhere. Where it raises `ConfigError`, the other ranks end with one that says that rank 0 cannot
    ``verb``.
    """
    from ranks.collectives.broadcast import Spreader
    from ranks.run import group
    from ranks.talk.wire import Kind, Message

    communicator, model = join_group(job, made, identity)
    spreader = Spreader(communicator)
    names = [spec.name for spec in model.outputs]

    def run(feeds: Mapping[str, Array]) -> dict[str, Array]:
        given = spreader.spread(Message(Kind.PREDICT, {}, dict(feeds))).tensors
        return dict(zip(names, model.run(given), strict=True))

    result = None
    if identity.rank == 0:
        try:
            result = work(model, run)
        except ConfigError:
            # The others wait for the next inputs: they end like this rank, which says why.
            spreader.spread(Message(Kind.STOP, {"failed": True}))
            raise
        spreader.spread(Message(Kind.STOP, {}))
    else:
        while (message := spreader.spread(None)).kind is not Kind.STOP:
            model.run(message.tensors)
        if message.fields.get("failed"):
            raise ConfigError(f"rank 0 cannot {verb} (it says why)")
    model.close()
    group.leave()
    return result
