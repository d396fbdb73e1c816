"""The pool of workers: order, bound, errors and interruptions."""

import random
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType

import pytest

from ranks.api.pool import Pool
from ranks.errors import QueueFullError, ShardrunError

SECONDS = 30


def until(condition: Callable[[], bool]) -> None:
    """Waits for what another thread does; fails the test where it does not."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.001)


def start(target: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=target, daemon=True)
    thread.start()
    return thread


def test_first_come_first_served() -> None:
    pool = Pool(["worker"], 100)
    served: list[int] = []
    mine = pool.take()

    def client(number: int) -> None:
        worker = pool.take()
        served.append(number)
        pool.give(worker)

    threads = []
    for number in range(20):
        threads.append(start(lambda number=number: client(number)))  # type: ignore[misc]
        until(lambda number=number: pool.waiting == number + 1)  # type: ignore[misc]
    pool.give(mine)
    for thread in threads:
        thread.join(SECONDS)
    assert served == list(range(20))


def test_nobody_overtakes_one_who_waits() -> None:
    """A thread that gives its worker back and at once asks again is behind those that wait already."""
    pool = Pool(["worker"], 100)
    mine = pool.take()
    let_go = threading.Event()
    order: list[str] = []

    def other() -> None:
        worker = pool.take()
        order.append("other")
        let_go.wait(SECONDS)
        pool.give(worker)

    thread = start(other)
    until(lambda: pool.waiting == 1)
    pool.give(mine)

    def again() -> None:
        worker = pool.take()
        order.append("again")
        pool.give(worker)

    second = start(again)
    until(lambda: pool.waiting == 1)  # although the other may not have run yet
    let_go.set()
    thread.join(SECONDS)
    second.join(SECONDS)
    assert order == ["other", "again"]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_queue_has_a_bound(limit: int) -> None:
    pool = Pool(["a", "b"], limit)
    lent = [pool.take(), pool.take()]
    assert set(lent) == {"a", "b"}
    threads = [start(lambda: pool.give(pool.take())) for _ in range(limit)]
    until(lambda: pool.waiting == limit)
    with pytest.raises(
        QueueFullError, match=rf"^all workers \(2\) are busy and {limit} predictions wait already"
    ):
        pool.take()
    assert pool.waiting == limit
    for worker in lent:
        pool.give(worker)
    for thread in threads:
        thread.join(SECONDS)
    assert {pool.take(), pool.take()} == {"a", "b"}


def test_closing_wakes_who_waits() -> None:
    pool = Pool(["worker"], 100)
    mine = pool.take()
    errors: list[str] = []

    def client() -> None:
        try:
            pool.take()
        except ShardrunError as error:
            errors.append(str(error))

    threads = [start(client) for _ in range(5)]
    until(lambda: pool.waiting == 5)
    pool.close()
    for thread in threads:
        thread.join(SECONDS)
    assert errors == ["the runner was closed."] * 5
    pool.give(mine)
    with pytest.raises(ShardrunError, match="closed"):
        pool.take()
    pool.close()


class _InterruptedError(Exception):
    pass


@pytest.mark.parametrize("also_handed", [False, True])
def test_an_interrupted_thread_leaves_the_queue(also_handed: bool) -> None:
    """As by Ctrl-C: the main thread waits, and a signal's handler raises there."""
    pool = Pool(["worker"], 100)
    mine = pool.take()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if also_handed:  # the worker comes at the same moment, and must not be lost
            pool.give(mine)
        raise _InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(_InterruptedError):
            pool.take()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pool.waiting == 0
    if not also_handed:
        pool.give(mine)
    assert pool.take() == "worker"


def test_many_threads_never_share_a_worker() -> None:
    pool = Pool(list(range(3)), 1000)
    lock = threading.Lock()
    lent: set[int] = set()
    most = 0
    done = [0] * 24
    failures: list[str] = []

    def client(number: int) -> None:
        nonlocal most
        dice = random.Random(number)
        for _ in range(100):
            worker = pool.take()
            with lock:
                if worker in lent:
                    failures.append(f"worker {worker} was lent twice")
                lent.add(worker)
                most = max(most, len(lent))
            if dice.random() < 0.3:
                time.sleep(0)
            with lock:
                lent.discard(worker)
            pool.give(worker)
            done[number] += 1

    threads = [start(lambda number=number: client(number)) for number in range(24)]  # type: ignore[misc]
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert done == [100] * 24
    assert 1 <= most <= 3
    assert sorted(pool.take() for _ in range(3)) == [0, 1, 2]
