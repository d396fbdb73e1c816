"""Answers of a group in an event loop: ranks that stand still or die meanwhile, and large inputs."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import start
from launcher.errors import LaunchError, RankFailedError
from launcher.group import halted
from launcher.group.serving.asked import MOST_HERE
from ranks.talk import wire
from tests.launcher.group.test_serving import SECONDS, feeds
from tests.ranks.threads import until


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


def test_who_gives_up_before_a_thread_has_the_inputs_is_not_computed(two_slices: Path) -> None:
    with start(two_slices, launcher="local", threads=1) as group:
        large, go_on = feeds(2, 200_000), threading.Event()

        async def work() -> None:
            loop = asyncio.get_running_loop()
            loop.set_default_executor(ThreadPoolExecutor(1))
            loop.run_in_executor(None, go_on.wait, SECONDS)
            answer = group.submit_async(large)
            answer.cancel()
            await asyncio.sleep(0)
            go_on.set()
            await asyncio.to_thread(lambda: None)
            assert not group._requests._flight and not group._requests._waiting

        ran(work())
        assert group.spent.answered == 0


def test_ranks_are_not_asked_of_their_work_again_before_they_have_said_it(two_slices: Path) -> None:
    """Or whoever asks often would fill the connection of a rank that computes, or stands still."""
    with start(two_slices, launcher="local", threads=1) as group:
        peers, sent = group._job._peers, list[tuple[int, Any]]()
        for peer in peers.values():
            send = peer.stream.send

            def counted(message: Any, *more: Any, peer: Any = peer, send: Any = send) -> None:
                if message.kind is wire.Kind.STATS:
                    sent.append((peer.rank, message))
                send(message, *more)

            peer.stream.send = counted
        until(lambda: len(group.work()) == 2)
        until(lambda: not group._requests.spent._asked)
        os.kill(group.stats[1].pid, signal.SIGSTOP)
        try:
            before = len(sent)
            for _ in range(20):
                group.work()
            assert [rank for rank, _ in sent[before:]] == [0, 1]
            with group._requests._sending:  # as while somebody sends for long
                group.work()
        finally:
            os.kill(group.stats[1].pid, signal.SIGCONT)
        until(lambda: not group._requests.spent._asked)
        said = group.said
        until(lambda: all(group.work()[rank] != said[rank] for rank in said))
