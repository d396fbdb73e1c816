"""A job's ranks with its model loaded: a group that this process starts, or this process as one rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
        environment=model.environment,
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
