"""Time limits in an event loop that cost no task."""

from __future__ import annotations

import asyncio
from types import TracebackType


class Within:
    """``async with Within(seconds)``: `asyncio.TimeoutError` where the block takes longer.

    `asyncio.wait_for` starts a task each time, and Python 3.10 has no `asyncio.timeout`.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds, self._expired = seconds, False

    async def __aenter__(self) -> None:
        self._task = this_task()
        self._timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def _expire(self) -> None:
        self._expired = True
        self._task.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._expired and taken_back(self._task) and kind is asyncio.CancelledError:
            raise asyncio.TimeoutError from error


def this_task() -> asyncio.Task[object]:
    """The task that runs."""
    task = asyncio.current_task()
    assert task is not None
    return task


def taken_back(task: asyncio.Task[object]) -> bool:
    """Takes back a ``cancel`` of our own, whose error becomes another one; whether nobody else has cancelled
    the task, as far as is known: tasks count since Python 3.11."""
    uncancel = getattr(task, "uncancel", None)
    return uncancel is None or uncancel() == 0
