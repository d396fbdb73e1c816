"""Ranks of which some could not compute a request: if none could, they are still in step."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from launcher.errors import LaunchError
from launcher.group.answers import PredictError
from launcher.group.serving.asked import AGAIN
from launcher.starters import cause
from ranks.common.pulse import ALIKE_SECONDS
from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.group.serving.asked import Asked
    from launcher.group.watch import Job


def heard(
    job: Job, asked: Asked, rank: int, said: Mapping[str, object]
) -> tuple[PredictError | None, list[Callable[[], None]]]:
    """A rank could not compute a request, and said so: the error, once all have, and what is to be called
    with no lock held."""
    asked.failed[rank] = said
    if AGAIN in asked.fields:  # before any of them goes on
        why = f"The ranks could not be given the newest weights again: {said.get('message')}"
        return None, [functools.partial(job.abort, LaunchError(why))]
    if len(asked.failed) == job.world_size:
        resume = {"request": said.get("request")}
        after = [
            functools.partial(job.send, other, wire.Kind.RESUME, resume) for other in range(job.world_size)
        ]
        return PredictError(str(asked.failed[0].get("message"))), [*after]
    if len(asked.failed) == 1:
        return None, [functools.partial(_begin_judging, job, asked, rank, said)]
    return None, []


def _begin_judging(job: Job, asked: Asked, rank: int, said: Mapping[str, object]) -> None:
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
