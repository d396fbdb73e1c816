"""Answers of a group in an event loop: ranks that stand still or die meanwhile, and large inputs."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import start
from launcher.errors import LaunchError, RankFailedError
from launcher.group import halted
from launcher.group.serving.awaited import MOST_HERE
from tests.launcher.group.test_serving import SECONDS, feeds


def ran(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, SECONDS))


def same(found: dict[str, Any], expected: dict[str, Any]) -> bool:
    return all(np.array_equal(found[name], expected[name]) for name in expected)


def test_ranks_are_looked_after_while_a_loop_waits(two_slices: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halted, "LOOK_SECONDS", 0.05)
    with start(two_slices, launcher="local", threads=1) as group:
        expected, looks = group.predict(feeds(1)), []

        def look(requests: Any) -> None:
            looks.append(requests)

        monkeypatch.setattr(type(group._requests), "look", look)

        async def work() -> dict[str, Any]:
            os.kill(group.stats[0].pid, signal.SIGSTOP)
            answer = group.submit_async(feeds(1))
            while len(looks) < 3:
                assert not answer.done()
                await asyncio.sleep(0.02)
            os.kill(group.stats[0].pid, signal.SIGCONT)
            found = await answer
            seen = len(looks)
            await asyncio.sleep(0.3)
            assert len(looks) <= seen + 1  # one may have been under way
            return found

        assert same(ran(work()), expected)


def test_large_inputs_are_sent_by_a_thread(two_slices: Path) -> None:
    with start(two_slices, launcher="local", threads=1) as group:
        large = feeds(2, 200_000)
        assert sum(value.nbytes for value in large.values()) > MOST_HERE

        async def work() -> list[dict[str, Any]]:
            return list(await asyncio.gather(*(group.predict_async(one) for one in (large, feeds(1), large))))

        found = ran(work())
        assert same(found[0], group.predict(large)) and same(found[2], found[0])
        assert same(found[1], group.predict(feeds(1)))


@pytest.mark.parametrize("rows", [3, 200_000])
def test_the_end_of_a_group_is_told(two_slices: Path, rows: int) -> None:
    group = start(two_slices, launcher="local", threads=1)

    async def work() -> None:
        os.kill(group.stats[0].pid, signal.SIGSTOP)
        waiting = [group.submit_async(feeds(seed, rows)) for seed in range(6)]
        await asyncio.sleep(0.1)
        waiting[3].cancel()
        os.kill(group.stats[0].pid, signal.SIGKILL)
        told = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(one) for one in told] == [
            asyncio.CancelledError if place == 3 else RankFailedError for place in range(6)
        ]
        assert len({id(one) for one in told}) == 6, "each has an error of its own"
        with pytest.raises(RankFailedError):
            await group.predict_async(feeds(0, rows))

    try:
        ran(work())
    finally:
        group.close()
    with pytest.raises(LaunchError, match="closed"):
        ran(group.predict_async(feeds(0)))
