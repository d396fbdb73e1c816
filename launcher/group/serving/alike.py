"""Ranks of which some could not compute a request: if none could, they are still in step."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from launcher.errors import RankFailedError

if TYPE_CHECKING:
    from launcher.group.serving.asked import Asked
    from launcher.group.watch import Job

_SECONDS = 2.0  # a group whose ranks do not all fail alike within this time is out of step


def judge(job: Job, asked: Asked, rank: int) -> None:
    """Ends the ranks, unless all turn out to have failed as this one did; in a thread of its own, where there
    can be one."""
    try:
        threading.Thread(target=_judge, args=(job, asked, rank), name="shardrun failed", daemon=True).start()
    except (RuntimeError, MemoryError):
        _judge(job, asked, rank)


def _judge(job: Job, asked: Asked, rank: int) -> None:
    with job.changed:
        if job.changed.wait_for(lambda: job.failure is not None or asked.done, _SECONDS):
            return
    host = job.host(rank)
    text = f"rank {rank} on host {host}: {asked.failed[rank]}\nOther ranks did not fail alike."
    job.abort(RankFailedError(text, rank=rank, host=host))
