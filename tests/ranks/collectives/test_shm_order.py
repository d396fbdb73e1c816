"""Shared-memory collectives where one rank is slow at the worst moment: two ranks as threads of this process.

A rank that comes late, or reads late, must find what its peer meant for it, whatever the peer did since.
"""

from __future__ import annotations

import itertools
import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ranks.collectives.shm import communicator, phases, sync
from ranks.collectives.shm.area import MAIL, PLACES, Area, create
from ranks.collectives.shm.phases import DIRECT
from ranks.collectives.shm.sync import STEP
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from ranks.identity.place import Identity

Array = np.ndarray[Any, np.dtype[Any]]
Pair = tuple[communicator.ShmCommunicator, communicator.ShmCommunicator]
PATIENCE = 60.0
LARGE = 3 * DIRECT  # bytes: large for collectives and for mail


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


@pytest.fixture
def pair(pool: ThreadPoolExecutor) -> Iterator[Pair]:
    job = secrets.token_hex(16)
    ranks = [
        pool.submit(communicator.connect, Identity(rank, 2, rank, 2, source="test", key=job), PATIENCE)
        for rank in range(2)
    ]
    first, second = (rank.result(PATIENCE) for rank in ranks)
    yield first, second
    for rank in (first, second):
        rank.close()


def numbered(number: int, count: int) -> Array:
    """An array that no other number gives."""
    return np.arange(count, dtype=np.int32) * 1000 + number


def got(rank: communicator.ShmCommunicator, count: int, peer: int = 0) -> Array:
    buffer = np.full(count, -1, np.int32)
    rank.recv(buffer, peer)
    return buffer


@pytest.mark.parametrize("count", [0, 3, MAIL // 4, LARGE // 4])
def test_a_sender_is_ahead_by_the_places_of_its_pair_and_no_more(
    pair: Pair, pool: ThreadPoolExecutor, count: int
) -> None:
    first, second = pair
    messages = 4 * PLACES
    sent = [threading.Event() for _ in range(messages)]

    def send() -> None:
        for number, event in enumerate(sent):
            first.send(numbered(number, count), 1)
            event.set()

    sending = pool.submit(send)
    assert sent[PLACES - 1].wait(PATIENCE), "a sender waits although there is room"
    assert not sent[PLACES].wait(0.1), "a sender writes where its receiver has not read yet"
    for number in range(messages):
        assert np.array_equal(got(second, count), numbered(number, count)), number
        assert number + PLACES >= messages or sent[number + PLACES].wait(PATIENCE)
    sending.result(PATIENCE)


def test_a_message_of_more_pieces_than_places(pair: Pair, pool: ThreadPoolExecutor) -> None:
    """Where the arena is full, a large message goes piece by piece, and pieces of two do not mix."""
    first, second = pair
    first._mailbox._copied = lambda raw, peer: None  # type: ignore[method-assign]
    count = 3 * PLACES * MAIL // 4 + 5
    sending = pool.submit(lambda: [first.send(numbered(number, count), 1) for number in range(3)])
    for number in range(3):
        assert np.array_equal(got(second, count), numbered(number, count)), number
    sending.result(PATIENCE)


@pytest.mark.parametrize("where", ["ordinary", "allocated"])
@pytest.mark.parametrize("count", [3, MAIL // 4, LARGE // 4])
def test_a_sent_buffer_may_be_used_again_at_once(pair: Pair, count: int, where: str) -> None:
    first, second = pair
    kind = np.dtype(np.int32)
    buffer = first.allocate((count,), kind) if where == "allocated" else np.empty(count, kind)
    for _ in range(3):  # copies made for earlier messages are used again
        for number in range(PLACES):
            buffer[...] = numbered(number, count)
            first.send(buffer, 1)
            buffer[...] = -7
        for number in range(PLACES):
            assert np.array_equal(got(second, count), numbered(number, count)), number


def test_a_copy_is_not_used_again_before_all_its_receivers_have_read(pool: ThreadPoolExecutor) -> None:
    """Rank 1 reads at once, rank 2 late: what the second is to get must not be overwritten meanwhile."""
    job = secrets.token_hex(16)
    joining = [
        pool.submit(communicator.connect, Identity(rank, 3, rank, 3, source="test", key=job), PATIENCE)
        for rank in range(3)
    ]
    world = [rank.result(PATIENCE) for rank in joining]
    count = LARGE // 4
    for number in range(PLACES):
        world[0].send(numbered(number, count), 2)
        world[0].send(numbered(100 + number, count), 1)
        assert np.array_equal(got(world[1], count), numbered(100 + number, count))
    for number in range(PLACES):
        assert np.array_equal(got(world[2], count), numbered(number, count)), number
    for rank in world:
        rank.close()


@pytest.mark.parametrize("where", ["ordinary", "allocated"])
@pytest.mark.parametrize("count", [6, DIRECT // 4 - 1, LARGE // 4])
def test_both_ranks_get_the_same_bits_of_two_nans(
    pair: Pair, pool: ThreadPoolExecutor, count: int, where: str
) -> None:
    """Which of two NaNs a sum takes depends on their order: then a rank's decision could be its own alone."""
    payloads = [np.full(count, bits, np.uint32) for bits in (0x7FC00001, 0xFFC00002)]

    def reduce(rank: int) -> Array:
        kind = np.dtype(np.float32)
        buffer = pair[rank].allocate((count,), kind) if where == "allocated" else np.empty(count, kind)
        buffer.view(np.uint32)[...] = payloads[rank]
        pair[rank].all_reduce(buffer)
        return buffer.view(np.uint32).copy()

    first, second = (pool.submit(reduce, rank) for rank in range(2))
    found = first.result(PATIENCE)
    assert np.isnan(found.view(np.float32)).all()
    assert np.array_equal(found, second.result(PATIENCE))


def slow_to_read(rank: communicator.ShmCommunicator) -> None:
    """After each meeting the rank sleeps before it reads what its peers have put there."""
    meet = rank._phases.meet

    def late(*arguments: Any) -> None:
        meet(*arguments)
        time.sleep(0.02)

    rank._phases.meet = late  # type: ignore[method-assign]
    rank._phases.order = lambda: time.sleep(0.02)  # what is made ready once does not go through `meet`


def gather(rank: communicator.ShmCommunicator, source: Array) -> Array:
    out = np.empty((2, *source.shape), source.dtype)
    rank.all_gather(source[None], out, 0)
    return out


def gathered_again(rank: communicator.ShmCommunicator, source: Array) -> Array:
    """By what is made ready once for a buffer that stays."""
    ready = rank.__dict__.setdefault("ready", {})
    if id(source) not in ready:
        out = np.empty((2, *source.shape), source.dtype)
        ready[id(source)] = (rank.gathering(source[None], out, 0), out)
    call, out = ready[id(source)]
    call()
    return out.copy()


def exchange(rank: communicator.ShmCommunicator, source: Array) -> Array:
    out = np.empty_like(source)
    rank.all_to_all(source, out)
    return out


def total(rank: communicator.ShmCommunicator, source: Array) -> Array:
    rank.all_reduce(source)
    return source.copy()


def spread(rank: communicator.ShmCommunicator, source: Array) -> Array:
    rank.broadcast(source, 0)
    return source.copy()


OPERATIONS: dict[str, tuple[Callable[..., Array], Callable[[list[Array], int], Array]]] = {
    "all_gather": (gather, lambda parts, rank: np.stack(parts)),
    "gathering": (gathered_again, lambda parts, rank: np.stack(parts)),
    "all_to_all": (exchange, lambda parts, rank: np.concatenate([np.split(p, 2)[rank] for p in parts])),
    "all_reduce": (total, lambda parts, rank: parts[0] + parts[1]),
    "broadcast": (spread, lambda parts, rank: parts[0]),
}


@pytest.mark.parametrize("slow", [0, 1])
@pytest.mark.parametrize("where", ["ordinary", "allocated"])
@pytest.mark.parametrize("count", [6, LARGE // 4])
@pytest.mark.parametrize("operation", OPERATIONS)
def test_a_source_may_be_rewritten_right_after(
    pair: Pair, pool: ThreadPoolExecutor, operation: str, count: int, where: str, slow: int
) -> None:
    slow_to_read(pair[slow])
    run, wanted = OPERATIONS[operation]
    kind = np.dtype(np.int32)

    def work(rank: communicator.ShmCommunicator) -> list[Array]:
        buffer = rank.allocate((count,), kind) if where == "allocated" else np.empty(count, kind)
        results = []
        for number in range(4):
            buffer[...] = numbered(10 * number + rank.rank, count)
            results.append(run(rank, buffer))
            buffer[...] = -7
        return results

    working = [pool.submit(work, rank) for rank in pair]
    for rank, results in enumerate(one.result(PATIENCE) for one in working):
        for number, result in enumerate(results):
            parts = [numbered(10 * number + peer, count) for peer in range(2)]
            assert np.array_equal(result, wanted(parts, rank)), (operation, number, rank)


def test_what_is_sent_is_in_order_before_it_is_announced(pair: Pair) -> None:
    """Processors that reorder memory need the fence between a piece and its counter, on both sides."""
    first, second = pair
    area, message = first._area, numbered(1, 5)
    line = area.mail_line(0, 1)
    seen: list[tuple[str, bool, int]] = []

    def note(who: str, target: Array) -> None:
        written = bool(np.array_equal(target, message))
        seen.append((who, written, first._phases.words[line] // STEP))

    place = area.mail(0, 1, 1, message.nbytes).view(np.int32)
    first._phases.order = lambda: note("sender", place)
    first.send(message, 1)
    assert ("sender", True, 0) in seen, "the counter may be seen before the piece"
    target = np.full(5, -1, np.int32)
    second._phases.order = lambda: note("receiver", target)
    second.recv(target, 0)
    assert ("receiver", False, 1) in seen, "the piece may be read before its counter is seen"
    taken = seen.index(("receiver", False, 1))
    assert ("receiver", True, 1) in seen[taken:], "the place may be given back before it is read"


class Clock:
    """A clock that goes by a hundredth of a second each time it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def monotonic(self) -> float:
        self.asked += 1
        return self.asked / 100

    def sleep(self, seconds: float) -> None:
        assert seconds >= 0


WAITS: dict[str, Callable[[communicator.ShmCommunicator], object]] = {
    "barrier": lambda rank: rank.barrier(),
    "all_reduce": lambda rank: rank.all_reduce(np.ones(3, np.float32)),
    "all_gather": lambda rank: gather(rank, np.ones(3, np.float32)),
    "gathering": lambda rank: gathered_again(rank, np.ones(3, np.float32)),
    "recv": lambda rank: rank.recv(np.ones(3, np.float32), 1),
    "send": lambda rank: [rank.send(np.ones(3, np.float32), 1) for _ in range(PLACES + 1)],
}


@pytest.mark.parametrize("operation", WAITS)
def test_waiting_ends_when_the_time_is_over_neither_sooner_nor_later(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, operation: str
) -> None:
    clock = Clock()
    monkeypatch.setattr(
        sync,
        "time",
        SimpleNamespace(monotonic=clock.monotonic, sleep=clock.sleep, perf_counter=time.perf_counter),
    )
    pair[0]._phases.timeout = 2.0
    with pytest.raises(CollectiveTimeoutError, match="within 2 s"):
        WAITS[operation](pair[0])
    assert 2.0 <= clock.asked / 100 < 2.1


def test_gathers_made_ready_that_do_not_agree_raise_and_end_the_group(
    pair: Pair, pool: ThreadPoolExecutor
) -> None:
    calls = [
        rank.gathering(np.ones((1, 3 + rank.rank), np.float32), np.empty((2, 3 + rank.rank), np.float32))
        for rank in pair
    ]
    gathers = [pool.submit(call) for call in calls]
    assert any(isinstance(one.exception(PATIENCE), CollectiveError) for one in gathers)
    told = [
        re.match(
            rf"Rank {1 - rank} is in .* while rank {rank} is in all_gather of float32\[1, {3 + rank}\]", why
        )
        for rank, one in enumerate(gathers)
        if (why := str(one.exception()))
    ]
    assert any(told), [one.exception() for one in gathers]
    for one, call in zip(gathers, calls, strict=True):
        if one.exception() is not None:
            why = f"The group cannot be used any more: {one.exception()}"
            with pytest.raises(CollectiveError, match=re.escape(why)):
                call()


def test_a_gather_made_ready_says_that_its_peer_is_gone(pair: Pair) -> None:
    first, second = pair
    call = first.gathering(np.ones((1, 3), np.float32), np.empty((2, 3), np.float32))
    second.close()
    with pytest.raises(PeerLostError):
        call()


@pytest.mark.parametrize("only", [None, 1])
def test_a_wait_ends_with_its_time_out(only: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that goes on by a tenth of a second each time that it is looked at."""
    looks = itertools.count()
    clock = SimpleNamespace(
        monotonic=lambda: next(looks) / 10, sleep=lambda seconds: None, perf_counter=time.perf_counter
    )
    monkeypatch.setattr(sync, "time", clock)
    words = memoryview(bytearray(256)).cast("Q")
    reading, writing = os.pipe()
    try:
        waiter = sync.Waiter(
            words, {1: 16}, SimpleNamespace(rank=0, life={1: reading}), (0, 1),  # type: ignore[arg-type]
            crowded=True, why=lambda peer, value: "",
        )  # fmt: skip
        wait = waiter.collective if only is None else lambda peer, *rest: waiter.mail(peer, 17, *rest)
        with pytest.raises(CollectiveTimeoutError, match="Rank 1 did not come to the test within 2 s"):
            wait(1, STEP, 2.0, lambda: "the test")
        assert 20 <= next(looks) <= 23
    finally:
        os.close(reading)
        os.close(writing)


def test_who_waits_for_one_rank_is_not_disturbed_by_the_end_of_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A message of rank 1 comes, though rank 2 has ended; had rank 1 ended, it would be missed."""
    looks = itertools.count()
    words = memoryview(bytearray(512)).cast("Q")

    def look() -> float:
        if (number := next(looks)) == 12:
            words[20] = STEP
        return number / 10

    clock = SimpleNamespace(monotonic=look, sleep=lambda seconds: None, perf_counter=time.perf_counter)
    monkeypatch.setattr(sync, "time", clock)
    pipes = [os.pipe() for _ in range(2)]
    os.close(pipes[1][1])
    told = SimpleNamespace(
        rank=0, life={1: pipes[0][0], 2: pipes[1][0]}, lost=lambda peer: PeerLostError(f"Rank {peer}", peer)
    )
    try:
        for first, lost in ((1, None), (2, 2)):
            waiter = sync.Waiter(
                words, {1: 16, 2: 32}, told, (0, 1, 2),  # type: ignore[arg-type]
                crowded=True, why=lambda peer, value: "",
            )  # fmt: skip
            if lost is None:
                waiter.mail(first, 20, STEP, 60.0, lambda: "mail")
                assert next(looks) > 12
            else:
                with pytest.raises(PeerLostError, match="Rank 2 while rank 0 waited for it in mail"):
                    waiter.mail(first, 21, STEP, 60.0, lambda: "mail")
    finally:
        for descriptor in (*pipes[0], pipes[1][0]):
            os.close(descriptor)


@pytest.fixture
def arena() -> Iterator[Area]:
    descriptor = create(2, 4 << 20)
    yield Area(descriptor, 0, 2)
    os.close(descriptor)


def test_what_lies_beside_a_block_stays_when_its_memory_is_given_back(arena: Area) -> None:
    bytes_ = np.dtype(np.uint8)
    small = arena.allocate((100,), bytes_)
    large = arena.allocate((2 << 20,), bytes_)
    after = arena.allocate((100,), bytes_)
    small[:], large[:], after[:] = 7, 8, 9
    del large
    large = arena.allocate((2 << 20,), bytes_)  # now what was let go of is given back
    assert arena.offset_of(large) is not None
    assert (small == 7).all() and (after == 9).all()


def test_blocks_that_are_free_again_make_one(arena: Area) -> None:
    bytes_ = np.dtype(np.uint8)
    blocks = [arena.allocate((1 << 20,), bytes_) for _ in range(3)]
    assert None not in map(arena.offset_of, blocks)
    for place in (1, 0, 0):
        del blocks[place]
        assert arena.offset_of(arena.allocate((100,), bytes_)) is not None
    assert arena.offset_of(arena.allocate(((4 << 20) - 128,), bytes_)) is not None


def test_only_what_lies_in_the_own_arena_has_a_place_there(arena: Area) -> None:
    bytes_ = np.dtype(np.uint8)
    last = arena.arena_bytes - 8
    assert arena.offset_of(arena.arena(0, last, (8,), bytes_)) == last
    assert arena.offset_of(arena.arena(1, 0, (8,), bytes_)) is None
    assert arena.offset_of(arena.slot(1, 1, (8,), bytes_)) is None
    assert arena.offset_of(np.empty(8, np.uint8)) is None


def test_what_a_rank_said_when_it_failed_is_told_as_it_was(
    pair: Pair, pool: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = pair
    monkeypatch.setattr(phases, "ALIKE_SECONDS", 0.1)
    failed = pool.submit(first.all_failed, "it has a cold")
    with pytest.raises(CollectiveError, match=r"it has a cold$"):
        second.barrier()
    assert failed.result(PATIENCE) is False


@pytest.mark.parametrize("at", [None, "first", "second"])
def test_large_buffers_of_shared_memory_are_used_where_they_lie(
    pair: Pair, pool: ThreadPoolExecutor, at: str | None
) -> None:
    """By all ranks or by none."""
    ranks = pair
    count = DIRECT // 4

    def buffer(rank: communicator.ShmCommunicator, place: str) -> Array:
        found = rank._phases.area.allocate((count,), np.dtype(np.int32))
        assert rank._phases.area.offset_of(found) is not None
        return np.empty(count, np.int32) if place == at else found

    buffers = [buffer(rank, place) for rank, place in zip(ranks, ("first", "second"), strict=True)]
    seen = [
        pool.submit(rank._phases.buffers, own, STEP - 1, lambda: "a test")
        for rank, own in zip(ranks, buffers, strict=True)
    ]
    for found in seen:
        views = found.result(PATIENCE)
        assert len(views) == (2 if at is None else 0)
        for view, own in zip(views, buffers, strict=False):
            own[:] = np.arange(count)
            np.testing.assert_array_equal(view, own)
    small = buffers[0][: count - 1]
    assert ranks[0]._phases.buffers(small, STEP - 1, lambda: "a test") == []
