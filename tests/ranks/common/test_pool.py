"""The pool of workers: order, bound, errors and interruptions."""

import gc
import os
import random
import signal
import threading
import time
import weakref
from types import FrameType
from typing import Any

import pytest

from ranks.common.pool import Pool
from ranks.errors import QueueFullError, ShardrunError
from tests.ranks.threads import SECONDS, until, works_in_child


class Work:
    """Work that waits until it is let go; records what was given, in the order in which it began."""

    def __init__(self) -> None:
        self.begun: list[Any] = []
        self._passes = threading.Semaphore(0)

    def __call__(self, worker: str, given: Any) -> tuple[str, Any]:
        self.begun.append(given)
        assert self._passes.acquire(timeout=SECONDS)
        if isinstance(given, Exception):
            raise given
        return worker, given

    def let(self, number: int) -> None:
        self._passes.release(number)


class Client:
    """A thread that runs one thing on a pool."""

    def __init__(self, pool: Pool[Any, Any, Any], given: Any) -> None:
        self.result: Any = None
        self.error: BaseException | None = None

        def target() -> None:
            try:
                self.result = pool.run(given)
            except BaseException as error:
                self.error = error

        self.thread = threading.Thread(target=target, daemon=True)
        self.thread.start()

    def join(self) -> Any:
        self.thread.join(SECONDS)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.result


def helpers() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name == "shardrun-runner"}


def test_first_come_first_served() -> None:
    work = Work()
    pool = Pool(["worker"], work, 100)
    clients = []
    for number in range(20):
        clients.append(Client(pool, number))
        until(lambda number=number: len(work.begun) == 1 and pool.waiting == number)  # type: ignore[misc]
    work.let(20)
    assert [client.join() for client in clients] == [("worker", number) for number in range(20)]
    assert work.begun == list(range(20))
    until(lambda: pool.free == ["worker"])  # the last caller has its answer a little before
    assert pool.waiting == 0


def test_nobody_overtakes_one_who_waits() -> None:
    """A client that comes back at once is behind those that wait already."""
    work = Work()
    pool = Pool(["worker"], work, 100)
    first = Client(pool, "first")
    until(lambda: work.begun == ["first"])
    other = Client(pool, "other")
    until(lambda: pool.waiting == 1)
    work.let(1)
    first.join()
    again = Client(pool, "again")
    until(lambda: work.begun == ["first", "other"] and pool.waiting == 1)
    work.let(2)
    other.join()
    again.join()
    assert work.begun == ["first", "other", "again"]


def test_a_free_worker_works_in_the_callers_own_thread() -> None:
    pool: Pool[int, None, threading.Thread] = Pool([1], lambda worker, given: threading.current_thread(), 0)
    assert [pool.run(None) for _ in range(3)] == [threading.current_thread()] * 3


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_the_queue_has_a_bound(limit: int) -> None:
    work = Work()
    pool = Pool(["a", "b"], work, limit)
    clients = [Client(pool, number) for number in range(2)]
    until(lambda: len(work.begun) == 2)
    clients += [Client(pool, number) for number in range(limit)]
    until(lambda: pool.waiting == limit)
    with pytest.raises(QueueFullError, match=rf"^all workers \(2\) are busy and {limit} predictions wait"):
        pool.run(9)
    assert pool.waiting == limit
    work.let(3 + limit)
    for client in clients:
        client.join()
    until(lambda: sorted(pool.free) == ["a", "b"])
    assert pool.run(9)[1] == 9


def test_an_error_is_its_callers_alone() -> None:
    work = Work()
    pool = Pool(["worker"], work, 100)
    clients = [Client(pool, given) for given in ("good", ValueError("one"), "good", KeyError("two"), "good")]
    until(lambda: pool.waiting == 4)
    work.let(5)
    for client, expected in zip(clients, (None, ValueError, None, KeyError, None), strict=True):
        if expected is None:
            assert client.join() == ("worker", "good")
        else:
            with pytest.raises(expected):
                client.join()
    until(lambda: pool.free == ["worker"])


def test_closing_wakes_who_waits() -> None:
    work = Work()
    pool = Pool(["worker"], work, 100)
    first = Client(pool, "first")
    until(lambda: work.begun == ["first"])
    clients = [Client(pool, number) for number in range(5)]
    until(lambda: pool.waiting == 5)
    pool.close()
    for client in clients:
        with pytest.raises(ShardrunError, match=r"^the runner was closed\.$"):
            client.join()
    work.let(1)
    assert first.join() == ("worker", "first")
    with pytest.raises(ShardrunError, match="closed"):
        pool.run(1)
    assert pool.free == []
    pool.close()


@pytest.mark.parametrize("how", ["closed", "forgotten"])
def test_threads_end_and_workers_are_freed(how: str) -> None:
    class Worker:
        pass

    before = helpers()  # of earlier tests, which may end meanwhile
    barrier = threading.Barrier(2)

    def work(worker: Worker, given: bool) -> None:
        if given:
            barrier.wait(SECONDS)

    pool: Pool[Worker, bool, None] | None = Pool([Worker(), Worker()], work, 100)
    assert pool is not None
    workers = [weakref.ref(worker) for worker in pool.free]
    clients = [Client(pool, True) for _ in range(8)]
    for client in clients:
        client.join()
    until(lambda: pool is not None and len(pool.free) == 2)
    if how == "closed":
        pool.close()
    del clients, client
    pool = None
    until(lambda: helpers() <= before)
    until(lambda: gc.collect() >= 0 and [worker() for worker in workers] == [None, None])


class _InterruptedError(Exception):
    pass


def test_an_interrupted_thread_leaves_the_queue() -> None:
    """As by Ctrl-C: the main thread waits, and a signal's handler raises there."""
    work = Work()
    pool = Pool(["worker"], work, 100)
    first = Client(pool, "first")
    until(lambda: work.begun == ["first"])

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _InterruptedError

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.1)
        with pytest.raises(_InterruptedError):
            pool.run("interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert pool.waiting == 0
    work.let(2)
    first.join()
    assert pool.run("next") == ("worker", "next")
    assert work.begun == ["first", "next"]


def test_without_more_threads_callers_work_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    work = Work()
    pool = Pool(["worker"], work, 100)
    clients = [Client(pool, number) for number in range(4)]
    until(lambda: pool.waiting == 3)

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    work.let(4)
    assert sorted(client.join()[1] for client in clients) == list(range(4))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_while_all_is_in_use() -> None:
    """It has none of the parent's threads: not who holds the lock, who works, who waits, nor the helpers."""
    work = Work()
    pool = Pool(["one", "two"], work, 1)
    clients = [Client(pool, number) for number in range(3)]
    until(lambda: pool.waiting == 1 and len(work.begun) == 2)
    work.let(3)
    for client in clients:
        client.join()
    until(lambda: len(pool.free) == 2 and bool(pool._queue._helpers))  # one sleeps
    clients = [Client(pool, number) for number in range(3)]
    until(lambda: pool.waiting == 1 and len(work.begun) == 5)

    def serves() -> bool:
        work._passes = threading.Semaphore(0)
        theirs = [Client(pool, number) for number in range(3)]
        until(lambda: pool.waiting == 1 and len(work.begun) == 7)
        work.let(3)
        return sorted(client.join()[1] for client in theirs) == [0, 1, 2]

    assert works_in_child(serves, pool._queue.lock)
    work.let(3)
    assert sorted(client.join()[1] for client in clients) == [0, 1, 2]
    pool.close()


def test_many_threads_never_share_a_worker() -> None:
    lock = threading.Lock()
    lent: set[int] = set()
    failures: list[str] = []
    most = 0

    def work(worker: int, given: int) -> int:
        nonlocal most
        with lock:
            if worker in lent:
                failures.append(f"worker {worker} was lent twice")
            lent.add(worker)
            most = max(most, len(lent))
        if given % 3 == 0:
            time.sleep(0)
        with lock:
            lent.discard(worker)
        return given + 1

    pool = Pool(list(range(3)), work, 1000)
    done = [0] * 24

    def client(number: int) -> None:
        dice = random.Random(number)
        for _ in range(200):
            given = dice.randrange(1000)
            if pool.run(given) != given + 1:
                failures.append("another client's result")
            done[number] += 1

    threads = [threading.Thread(target=client, args=(number,), daemon=True) for number in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
    assert failures == []
    assert done == [200] * 24
    assert 1 <= most <= 3
    until(lambda: sorted(pool.free) == [0, 1, 2])


def test_no_more_work_at_once_than_is_worth_it() -> None:
    """Workers in reserve do nothing while work ends in time."""
    inside: list[int] = []
    most: list[int] = []

    def work(worker: int, given: int) -> int:
        inside.append(worker)
        most.append(len(inside))
        time.sleep(0.001)
        inside.remove(worker)
        return given

    pool = Pool(list(range(4)), work, 1000, at_once=2)
    clients = [Client(pool, number) for number in range(200)]
    assert [client.join() for client in clients] == list(range(200))
    assert max(most) == 2
    until(lambda: sorted(pool.free) == [0, 1, 2, 3])


def test_workers_in_reserve_take_over_from_work_that_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """In order, one after the other; when work goes on, there are no more at once than before."""
    monkeypatch.setattr("ranks.common.pool.PATIENCE", 0.05)
    work = Work()
    pool = Pool(list("abcd"), work, 100, at_once=2)
    clients = []
    for number in range(2):
        clients.append(Client(pool, number))
        until(lambda: len(work.begun) == len(clients))
    started = time.monotonic()
    for number in range(2, 8):
        clients.append(Client(pool, number))
        until(lambda: pool.waiting + len(work.begun) == len(clients))
    until(lambda: len(work.begun) == 4)
    assert time.monotonic() - started >= 0.05
    assert pool.free == []
    monkeypatch.setattr("ranks.common.pool.PATIENCE", float(SECONDS))
    time.sleep(0.06)  # those who wait look once more
    work.let(2)
    until(lambda: len(pool.free) == 2)
    assert work.begun == [0, 1, 2, 3]
    work.let(6)
    assert {client.join()[1] for client in clients} == set(range(8))
    assert sorted(work.begun[4:]) == [4, 5, 6, 7]
    until(lambda: sorted(pool.free) == list("abcd"))


def test_those_whom_the_reserve_takes_are_not_beyond_the_bound() -> None:
    work = Work()
    pool = Pool(list("abc"), work, 1, at_once=1)
    clients = []
    for number in range(4):
        clients.append(Client(pool, number))
        until(lambda: pool.waiting + len(work.begun) == len(clients))
    with pytest.raises(QueueFullError, match=r"^all workers \(3\) are busy and 1 predictions wait already"):
        pool.run(4)
    work.let(4)
    assert [client.join()[1] for client in clients] == [0, 1, 2, 3]
