"""An event loop reads what ranks answer, in place of a thread."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import launcher
from launcher.errors import LaunchError, RankFailedError
from launcher.group.group import Group
from launcher.group.serving import flight
from launcher.group.serving.asked import MOST_HERE, Asked
from launcher.group.serving.lent import Lent
from ranks.talk import wire
from ranks.talk.stream import Stream
from tests.launcher.serving.conftest import save_model

SMALL, LARGE, HUGE = 3, 20_000, 40_000


def feeds(rows: int, seed: int = 0) -> dict[str, Any]:
    x = np.random.default_rng(seed).normal(size=(rows, 8)).astype(np.float32)
    return {"x": x, "s": np.array([f"{seed} {row}" for row in range(rows)], object)}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("lent") / "rows.onnx")


@pytest.fixture(scope="module")
def plain(model: Path) -> Any:
    import onnxruntime

    return onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])


@pytest.fixture
def group(model: Path) -> Iterator[Group]:
    how: Any = {"ranks": 2, "launcher": "local", "threads": 1, "restart": "on-failure"}
    with launcher.start(model, **how) as group:
        assert isinstance(group, Group)
        yield group


async def taken(group: Group, plain: Any, rows: int, seed: int) -> None:
    arrays = feeds(rows, seed)
    found = await group.predict_async(arrays)
    expected = plain.run(["y", "t"], arrays)
    np.testing.assert_allclose(found["y"], expected[0], rtol=1e-5, atol=1e-6)
    assert found["t"].tolist() == expected[1].tolist()


@pytest.mark.timeout(120)
def test_answers_and_restarts(group: Group, plain: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small answers come in the loop's thread, and large ones, and what is asked by threads, as ever."""
    threads: set[int] = set()
    real = group._requests.take

    def noted(rank: int, message: wire.Message) -> Any:
        if message.kind is wire.Kind.RESULT:
            threads.add(threading.get_ident())
        return real(rank, message)

    async def work() -> None:
        group._read_in(asyncio.get_running_loop())
        await taken(group, plain, SMALL, 0)  # whose answer the thread has read still
        monkeypatch.setattr(group._requests, "take", noted)
        for seed in range(20):
            await taken(group, plain, SMALL, seed)
        assert threads == {threading.get_ident()}
        await asyncio.gather(
            *(taken(group, plain, (SMALL, LARGE)[seed % 5 == 0], seed) for seed in range(30))
        )
        with ThreadPoolExecutor(4) as pool:
            asked = [feeds(SMALL, seed) for seed in range(40)]
            loop = asyncio.get_running_loop()
            answers = [loop.run_in_executor(pool, group.predict, arrays) for arrays in asked]
            for arrays, answer in zip(asked, await asyncio.gather(*answers), strict=True):
                np.testing.assert_allclose(answer["y"], plain.run(["y"], arrays)[0], rtol=1e-5, atol=1e-6)
        for rank in (0, 1):
            os.kill(group.stats[rank].pid, signal.SIGKILL)
            await taken(group, plain, SMALL, rank)
        threads.clear()
        for seed in range(3):  # of the ranks that have come since
            await taken(group, plain, SMALL, seed)
        assert threading.get_ident() in threads
        await asyncio.to_thread(group.close)

    asyncio.run(work())
    assert group.restarts == 2


@pytest.mark.timeout(120)
def test_large_requests_that_wait_are_not_sent_by_the_loop(
    group: Group, plain: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that waited for room goes when an answer comes, which a loop reads."""
    sent: list[tuple[int, int]] = []
    real = group._requests._send

    def noted(asked: Asked) -> None:
        sent.append((asked.size, threading.get_ident()))
        real(asked)

    monkeypatch.setattr(flight, "MOST_BYTES", MOST_HERE)
    monkeypatch.setattr(group._requests, "_send", noted)

    async def work() -> None:
        group._read_in(asyncio.get_running_loop())
        await taken(group, plain, SMALL, 0)
        rows = (SMALL, SMALL, HUGE, SMALL, HUGE)
        await asyncio.gather(*(taken(group, plain, count, seed) for seed, count in enumerate(rows)))

    asyncio.run(work())
    huge = [thread for size, thread in sent if size > MOST_HERE]
    assert len(huge) == 2 and threading.get_ident() not in huge
    assert threading.get_ident() in (thread for size, thread in sent if size <= MOST_HERE)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("where", ["loop", "after"])
def test_a_group_ends_where_its_loop_is(model: Path, plain: Any, where: str) -> None:
    group: Any = launcher.start(model, ranks=2, launcher="local", threads=1)

    async def work() -> None:
        group._read_in(asyncio.get_running_loop())
        for seed in range(3):
            await taken(group, plain, SMALL, seed)
        if where == "loop":
            group.close()

    asyncio.run(work())
    group.close()
    with pytest.raises(LaunchError):
        group.predict(feeds(SMALL))


@pytest.mark.timeout(60)
def test_ranks_that_are_lost_are_told(model: Path, plain: Any) -> None:
    group: Any = launcher.start(model, ranks=2, launcher="local", threads=1)

    async def work() -> None:
        group._read_in(asyncio.get_running_loop())
        for seed in range(3):
            await taken(group, plain, SMALL, seed)
        os.kill(group.stats[0].pid, signal.SIGKILL)
        with pytest.raises(RankFailedError, match="SIGKILL"):
            for _ in range(1000):
                await group.predict_async(feeds(SMALL))
        await asyncio.to_thread(group.close)

    asyncio.run(work())


def pair() -> tuple[Stream, Stream]:
    one, other = socket.socketpair()
    return Stream(one), Stream(other)


def frame(size: int, number: int) -> bytes:
    x = np.full(size, number, np.uint8)
    return b"".join(
        bytes(part) for part in wire.encode(wire.Message(wire.Kind.RESULT, {"n": number}, {"x": x}))[0]
    )


def test_messages_that_have_come() -> None:
    there, here = pair()
    assert here.receive_ready() is None
    there.socket.sendall(frame(5, 1) + frame(40_000, 2) + frame(0, 3)[:7])
    for number, size in ((1, 5), (2, 40_000)):
        message = here.receive_ready()
        assert message is not None and message.fields == {"n": number}
        assert message.tensors["x"].tolist() == [number] * size
    with pytest.raises(wire.UnfinishedError):
        here.receive_ready()
    there.socket.sendall(frame(0, 3)[7:] + frame(9, 4))
    assert here.receive().fields == {"n": 3}  # by a thread, which waits for the rest
    message = here.receive_ready()
    assert message is not None and message.fields == {"n": 4}
    there.socket.sendall(frame(70_000, 5)[:66_000])
    with pytest.raises(wire.UnfinishedError):
        here.receive_ready()
    there.socket.sendall(frame(70_000, 5)[66_000:])
    assert len(here.receive().tensors["x"]) == 70_000
    there.socket.sendall(b"x" * 40)
    with pytest.raises((wire.WireError, wire.UnfinishedError)):
        here.receive_ready()
    there.close()
    with pytest.raises(wire.WireError):
        here.receive()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("calm", [True, False])
def test_what_may_wait_is_left_to_the_thread(calm: bool) -> None:
    there, here = pair()
    seen: list[int] = []

    async def work() -> Any:
        lent = Lent(here, asyncio.get_running_loop(), lambda: calm)
        waiting = asyncio.ensure_future(asyncio.to_thread(lent.wait, lambda message: seen.append(len(seen))))
        there.socket.sendall(frame(1, 1))
        await asyncio.sleep(0.05)
        there.send(wire.Message(wire.Kind.ERROR, {"why": "it"}, {}))
        found = await waiting
        there.close()
        with pytest.raises(wire.PeerClosed):
            if not calm:
                await asyncio.to_thread(here.receive)
            await asyncio.to_thread(lent.wait, seen.append)
        return found

    found = asyncio.run(work())
    assert (found.kind, len(seen)) == ((wire.Kind.ERROR, 1) if calm else (wire.Kind.RESULT, 0))


@pytest.mark.timeout(60)
def test_answers_that_come_together_are_taken_together() -> None:
    """The system tells a loop of what has come only once, and all of it is read then."""
    there, here = pair()
    seen: list[int] = []

    async def work() -> None:
        lent = Lent(here, asyncio.get_running_loop(), lambda: True)
        waiting = asyncio.ensure_future(
            asyncio.to_thread(lent.wait, lambda message: seen.append(message.fields["n"]))
        )
        there.socket.sendall(frame(1, 1) + frame(9, 2) + frame(0, 3))
        until = time.monotonic() + 10
        while len(seen) < 3 and time.monotonic() < until:
            await asyncio.sleep(0.01)
        taken = list(seen)
        there.close()
        with pytest.raises(wire.PeerClosed):
            await waiting
        assert taken == [1, 2, 3]

    asyncio.run(work())


def test_large_messages_in_shared_memory_are_left_to_the_thread() -> None:
    there, here = pair()
    for stream in (there, here):
        stream.share_memory(borrow=False)
    for number, size in enumerate((200_000, 1 << 20, 2 << 20, 9)):
        x = np.full(size, number, np.uint8)
        there.send(wire.Message(wire.Kind.RESULT, {"n": number}, {"x": x}))
        if size > 1 << 20:
            with pytest.raises(wire.UnfinishedError):
                here.receive_ready()
            message = here.receive()
        else:
            message = here.receive_ready()  # type: ignore[assignment]
        assert message is not None and message.fields == {"n": number}
        assert (message.tensors["x"] == x).all() and len(message.tensors["x"]) == size
    there.close()


@pytest.mark.timeout(60)
def test_a_connection_that_ends_is_not_lent_to_a_loop_that_does_not_run() -> None:
    _, here = pair()
    loop = asyncio.new_event_loop()
    lent = Lent(here, loop, lambda: True)
    lent.stop()
    thread = threading.Thread(target=lent.wait, args=(print,), daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    loop.close()


@pytest.mark.timeout(30)
def test_where_a_loop_cannot_read_the_thread_does(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no room")

    async def work() -> object:
        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "add_reader", full)
        return await asyncio.to_thread(Lent(pair()[1], loop, lambda: True).wait, print)

    assert asyncio.run(work()) is None
