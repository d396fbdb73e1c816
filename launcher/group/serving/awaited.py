"""An answer for which an event loop waits: no thread stands between a rank's and the loop's."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from launcher.group import halted
from launcher.group.serving.asked import Asked
from ranks.talk import wire

if TYPE_CHECKING:
    from launcher.group.requests import Requests
    from sharding.common.arrays import Array

MOST_HERE = 1 << 20
"""Bytes of tensors that the loop itself sends; more would keep its other work waiting."""


async def awaited(requests: Requests, tensors: dict[str, Array]) -> dict[str, Array]:
    """The outputs. Raises as `launcher.group.group.Group.predict` does."""
    loop = asyncio.get_running_loop()
    answered: asyncio.Future[None] = loop.create_future()

    def settle() -> None:
        if not answered.done():
            answered.set_result(None)

    def ring() -> None:
        with contextlib.suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(settle)

    timer = loop.call_later(halted.LOOK_SECONDS, lambda: look())

    def look() -> None:
        nonlocal timer
        timer = loop.call_later(halted.LOOK_SECONDS, look)
        loop.run_in_executor(None, _look, requests)  # it asks the ranks, and may wait for them

    asked = Asked(wire.Kind.PREDICT, {}, tensors, ring=ring)
    try:
        if asked.size > MOST_HERE:
            await loop.run_in_executor(None, requests.begin, asked)
        else:
            requests.begin(asked)
        await answered
    except BaseException:
        requests.drop(asked)
        raise
    finally:
        timer.cancel()
    return asked.answer.tensors


def _look(requests: Requests) -> None:
    # Whatever goes wrong with it, who waits for an answer is told it.
    with contextlib.suppress(Exception):
        requests.look()
