"""Answers for which an event loop waits: no thread stands between a rank's and the loop's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING

from launcher.group import halted
from launcher.group.serving.asked import MOST_HERE, Asked
from ranks.talk import wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from launcher.group.requests import Requests
    from sharding.common.arrays import Array

    Answer = asyncio.Future[dict[str, Array]]


def awaited(requests: Requests, tensors: dict[str, Array]) -> Answer:
    """The outputs to come of a request that waits for its turn from now on, or, where it is of more than
    `MOST_HERE` bytes, from when a thread has it; until they have come, the tensors must stay as they are. A
    cancelled one gives its turn up, where that has not come. It raises as `predict` of
    `launcher.group.group.Group` does; where there are no ranks, and none come, this does."""
    loop = asyncio.get_running_loop()
    answer: Answer = loop.create_future()
    asked = Asked(wire.Kind.PREDICT, {}, tensors)

    def settle() -> None:
        if answer.done():
            return
        if asked.error is not None:
            answer.set_exception(asked.error)
        else:
            answer.set_result(asked.answer.tensors)

    here = threading.get_ident()

    def ring() -> None:
        if threading.get_ident() == here:
            settle()  # which calls nothing yet: a future has the loop do that
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle)

    def begun(done: asyncio.Future[None]) -> None:
        if not done.cancelled() and (error := done.exception()) is not None and not answer.done():
            answer.set_exception(error)

    asked.ring = ring
    timer = _Timer(loop, lambda: _look(requests))
    answer.add_done_callback(lambda answer: _over(answer, timer, requests, asked))

    def begin() -> None:
        if not asked.abandoned:  # before a thread came to it
            requests.begin(asked)

    try:
        if asked.size <= MOST_HERE:
            begin()
        else:
            loop.run_in_executor(None, begin).add_done_callback(begun)
    except BaseException:
        answer.cancel()
        raise
    return answer


def _over(answer: Answer, timer: _Timer, requests: Requests, asked: Asked) -> None:
    timer.cancel()
    if answer.cancelled():
        requests.drop(asked)


def _look(requests: Requests) -> None:
    # Whatever goes wrong with it, who waits for an answer is told it.
    with contextlib.suppress(Exception):
        requests.look()


class _Timer:
    """Has something done in a thread every `halted.LOOK_SECONDS`: it asks ranks, and may wait for them."""

    def __init__(self, loop: asyncio.AbstractEventLoop, work: Callable[[], None]) -> None:
        self._loop, self._work = loop, work
        self._next = loop.call_later(halted.LOOK_SECONDS, self._due)

    def _due(self) -> None:
        self._next = self._loop.call_later(halted.LOOK_SECONDS, self._due)
        self._loop.run_in_executor(None, self._work)

    def cancel(self) -> None:
        """No more."""
        self._next.cancel()
