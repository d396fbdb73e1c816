"""Time limits in an event loop."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any

import pytest

from launcher.common.within import Within, this_task


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 30))


def test_what_ends_in_time_gives_its_result() -> None:
    async def work() -> str:
        async with Within(20):
            await asyncio.sleep(0.01)
            return "done"

    assert ran(work()) == "done"


def test_the_time_of_what_has_ended_does_not_run_on() -> None:
    async def work() -> str:
        async with Within(0):
            pass  # the loop has not had a turn: the limit is due, and not yet seen
        for _ in range(5):
            await asyncio.sleep(0)
        return "not cancelled"

    assert ran(work()) == "not cancelled"


def test_what_takes_longer_is_ended_there_and_then() -> None:
    async def work() -> list[str]:
        seen = []
        try:
            async with Within(0.01):
                try:
                    await asyncio.sleep(20)
                finally:
                    seen.append("cleaned")
        except asyncio.TimeoutError:
            seen.append("late")
        await asyncio.sleep(0.02)  # the task itself goes on
        return seen

    assert ran(work()) == ["cleaned", "late"]


def test_other_errors_and_other_cancels_pass() -> None:
    async def failing() -> None:
        async with Within(20):
            raise KeyError("x")

    with pytest.raises(KeyError):
        ran(failing())

    async def failing_late() -> None:
        async with Within(0.01):
            try:
                await asyncio.sleep(20)
            finally:
                raise KeyError("y")

    with pytest.raises(KeyError, match="y"):
        ran(failing_late())

    async def waiting(begun: asyncio.Event) -> None:
        async with Within(20):
            begun.set()
            await asyncio.sleep(20)

    async def work() -> None:
        begun = asyncio.Event()
        task = asyncio.create_task(waiting(begun))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    ran(work())


def test_the_inner_limit_is_told_from_the_outer() -> None:
    async def work() -> list[str]:
        seen = []
        async with Within(20):
            try:
                async with Within(0.01):
                    await asyncio.sleep(20)
            except asyncio.TimeoutError:
                seen.append("inner")
        try:
            async with Within(0.01), Within(20):
                await asyncio.sleep(20)
        except asyncio.TimeoutError:
            seen.append("outer")
        return seen

    assert ran(work()) == ["inner", "outer"]


@pytest.mark.skipif(sys.version_info < (3, 11), reason="tasks do not count what cancels them")
def test_another_cancel_in_the_same_turn_passes() -> None:
    """Who cancels a task is not told that it took too long; and a time-out leaves the task as it was."""

    async def waiting() -> None:
        async with Within(0.01):
            try:
                await asyncio.sleep(20)
            finally:
                this_task().cancel()

    async def work() -> int:
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(waiting())
        with pytest.raises(asyncio.TimeoutError):
            async with Within(0.01):
                await asyncio.sleep(20)
        return this_task().cancelling()

    assert ran(work()) == 0
