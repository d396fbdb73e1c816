"""Ranks of which some could not compute a request: if none could, they are still in step."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING

from launcher.starters import cause
from ranks.collectives.base import ALIKE_SECONDS

if TYPE_CHECKING:
    from launcher.group.serving.asked import Asked
    from launcher.group.watch import Job


def judge(job: Job, asked: Asked, rank: int, said: Mapping[str, object]) -> None:
    """Ends the ranks, unless all turn out to have failed as this one did, which ``said`` so; in a thread of
    its own, where there can be one."""
    what = job, asked, rank, said
    try:
        threading.Thread(target=_judge, args=what, name="shardrun failed", daemon=True).start()
    except (RuntimeError, MemoryError):
        _judge(*what)


def _judge(job: Job, asked: Asked, rank: int, said: Mapping[str, object]) -> None:
    with job.changed:
        if job.changed.wait_for(lambda: job.failure is not None or asked.done, ALIKE_SECONDS):
            return
    trouble = cause.Trouble(rank, job.host(rank), cause.unlike(said))
    job.abort(cause.error_of(trouble, ()))
