"""Ranks of which some could not compute a request: if none could, they are still in step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.starters import cause
from ranks.collectives.base import ALIKE_SECONDS

if TYPE_CHECKING:
    from launcher.group.serving.asked import Asked
    from launcher.group.watch import Job


def judge(job: Job, asked: Asked, rank: int) -> None:
    """Ends the ranks, unless all turn out to have failed as this one did; in a thread of its own, where there
    can be one."""
    try:
        threading.Thread(target=_judge, args=(job, asked, rank), name="shardrun failed", daemon=True).start()
    except (RuntimeError, MemoryError):
        _judge(job, asked, rank)


def _judge(job: Job, asked: Asked, rank: int) -> None:
    with job.changed:
        if job.changed.wait_for(lambda: job.failure is not None or asked.done, ALIKE_SECONDS):
            return
    trouble = cause.Trouble(rank, job.host(rank), cause.unlike(asked.failed[rank]))
    job.abort(cause.error_of(trouble, ()))
