"""Workers that threads use in turn: first come, first served, with a bound on how many may wait."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

from ranks.common import forks
from ranks.common.elsewhere import ELSEWHERE
from ranks.errors import QueueFullError, ShardrunError

Worker = TypeVar("Worker")
Given = TypeVar("Given")
Result = TypeVar("Result")

PATIENCE = 1.0
"""Seconds without a prediction begun, after which a worker in reserve takes one."""


class Pool(Generic[Worker, Given, Result]):
    """Runs ``work(worker, given)`` for any number of threads, each worker for one of them at a time.

    While all workers are busy, callers wait, at most ``queue_limit`` at once, and are served in the order in
    which they came. While a worker is free, a caller's work runs in the caller's own thread. Work that waited
    is run by threads of the pool. So a worker goes from one piece to the next at once, and need not wait
    until another thread wakes up and gets a core and Python's global lock. That wait would cost some
    percent with a processor per worker, and a quarter of the work done on a busy machine.

    ``at_once`` workers are used (all, unless given). The others are a reserve for long work, when none has
    ended for `PATIENCE`. More at once than there are processors would end no sooner, and each takes memory
    and cache of the processor from the others.
    """

    def __init__(
        self,
        workers: Sequence[Worker],
        work: Callable[[Worker, Given], Result],
        queue_limit: int,
        at_once: int | None = None,
    ) -> None:
        self.size = len(workers)
        self.queue_limit = queue_limit
        reserve = 0 if at_once is None else max(0, self.size - max(1, at_once))
        self._queue: _Queue[Worker, Given, Result] = _Queue(workers, work, reserve)
        ELSEWHERE.when_gone(self, self._queue.close)  # the pool's threads know the queue only

    @property
    def waiting(self) -> int:
        """How many callers wait for a worker now."""
        return len(self._queue.waiting)

    @property
    def free(self) -> list[Worker]:
        """The workers that do nothing now."""
        return [slot.worker for slot in self._queue.free]

    def run(self, given: Given) -> Result:
        """The result of the work on ``given``, or what the work raises.

        Raises `QueueFullError` where too many wait already, `ShardrunError` where the pool is closed, also
        while this thread waits. A thread that is interrupted while it waits (Ctrl-C) leaves the queue.
        """
        queue = self._queue
        held: list[_Slot[Worker]] = []
        try:
            with queue.lock:
                if queue.closed:
                    raise _closed()
                if len(queue.free) > queue.reserve:
                    held.append(queue.free[-1])  # recorded before it is taken: a Ctrl-C may come in between
                    del queue.free[-1]
                else:
                    turn = self._enter(given)
            if held:
                return queue.work(held[0].worker, given)
        finally:
            if held:
                try:
                    queue.give_back(held)
                except BaseException:  # Ctrl-C
                    queue.give_back(held)
                    raise
        return queue.wait(turn)

    def _enter(self, given: Given) -> _Turn[Given, Result]:
        """A place in the queue, whose lock is held."""
        queue = self._queue
        beyond = len(queue.waiting) - len(queue.free)  # those in reserve will take as many
        if beyond >= self.queue_limit:
            raise QueueFullError(
                f"all workers ({self.size}) are busy and {beyond} predictions wait "
                "already, which is the limit: predict again later, or raise [parallel_runner] "
                "queue_limit in context.parallel.config_info."
            )
        turn: _Turn[Given, Result] = _Turn(given)
        queue.waiting.append(turn)
        return turn

    def close(self) -> None:
        """Who waits gets an error, as who comes later; work that runs is done to its end."""
        self._queue.close()


class _Turn(Generic[Given, Result]):
    """A caller's place in the queue; ``done`` opens when there is a result or an error."""

    __slots__ = ("done", "error", "given", "results")

    def __init__(self, given: Given) -> None:
        self.given: list[Given] = [given]
        self.results: list[Result] = []
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()


class _Slot(Generic[Worker]):
    """A worker, told from others though several may be one object."""

    __slots__ = ("worker",)

    def __init__(self, worker: Worker) -> None:
        self.worker = worker


class _Helper(Generic[Worker]):
    """A thread of the pool; ``wake`` opens when it has a worker to use, or None to end."""

    __slots__ = ("wake", "worker")

    def __init__(self, worker: _Slot[Worker] | None) -> None:
        self.worker = worker
        self.wake = threading.Lock()
        self.wake.acquire()


class _Queue(Generic[Worker, Given, Result]):
    """What a pool and its threads have in common. More than ``reserve`` are free only while nobody waits."""

    def __init__(
        self, workers: Sequence[Worker], work: Callable[[Worker, Given], Result], reserve: int
    ) -> None:
        self.work = work
        self.reserve = reserve
        self.begun = time.monotonic()  # when one of those who waited was served last
        self.closed = False
        self._workers = [_Slot(worker) for worker in workers]
        self._nobody_is_here()
        forks.in_child(self, _Queue._nobody_is_here)

    def _nobody_is_here(self) -> None:
        """All workers are free. So they are in a forked child too: its parent's threads are not in it."""
        self.lock = threading.Lock()
        self.free = list(self._workers)
        self.waiting: deque[_Turn[Given, Result]] = deque()
        self._helpers: list[_Helper[Worker]] = []  # those that sleep

    def wait(self, turn: _Turn[Given, Result]) -> Result:
        """Waits until another thread has done this turn's work."""
        try:
            while not turn.done.acquire(timeout=PATIENCE if self.reserve else -1):
                self._help_out()
        except BaseException:
            with self.lock:
                if turn in self.waiting:
                    self.waiting.remove(turn)
            raise
        if turn.error is None:
            return turn.results.pop()
        error, turn.error = turn.error, None
        try:
            raise error
        finally:
            del error  # its traceback holds this frame

    def give_back(self, held: list[_Slot[Worker]]) -> None:
        """The worker that is held is free, or goes to a thread for those who wait; ``held`` is empty then.
        May be interrupted anywhere, and be called again."""
        with self.lock:
            if not held or held[0] in self.free:
                del held[:]
                return
            if not self.waiting or len(self.free) < self.reserve:
                if not self.closed:
                    self.free.append(held[0])
                del held[:]
                return
        self._lend(held)

    def _help_out(self) -> None:
        """A worker in reserve takes a turn, where nobody has been served for long."""
        held: list[_Slot[Worker]] = []
        try:
            with self.lock:
                now = time.monotonic()
                if not self.free or not self.waiting or now - self.begun < PATIENCE:
                    return
                held.append(self.free[-1])
                del self.free[-1]
                self.begun = now
            self._lend(held)
        except BaseException:
            self.give_back(held)
            raise

    def _lend(self, held: list[_Slot[Worker]]) -> None:
        """The worker that is held goes to a thread for those who wait."""
        with self.lock:
            if self._helpers:
                helper = self._helpers[-1]
                helper.worker = held[0]
                del self._helpers[-1], held[:]  # no call, after which an interruption could come
                helper.wake.release()
                return
        new = _Helper(held[0])
        try:
            threading.Thread(target=self._help, args=(new,), name="shardrun-runner", daemon=True).start()
            del held[:]
        except RuntimeError:  # the system allows no more threads: this one works for the others first
            worker = held[0]
            del held[:]
            self._serve(worker, None)
        except BaseException:
            with self.lock:
                if new.worker is None:  # the thread has it
                    del held[:]
                new.worker = None
            raise

    def close(self) -> None:
        """Ends all waiting, and the threads that sleep."""
        with self.lock:
            self.closed = True
            self.free.clear()
            self._workers.clear()
            while self.waiting:
                turn = self.waiting.popleft()
                turn.error = _closed()
                turn.done.release()
            while self._helpers:
                self._helpers.pop().wake.release()

    def _help(self, helper: _Helper[Worker]) -> None:
        """The pool's threads: serve with the worker they are given, then sleep until there is another."""
        while True:
            with self.lock:
                worker, helper.worker = helper.worker, None
            if worker is None or not self._serve(worker, helper):
                return
            del worker
            helper.wake.acquire()

    def _serve(self, worker: _Slot[Worker], helper: _Helper[Worker] | None) -> bool:
        """Does the work of all who wait, in order; then the worker is free and ``helper`` counts as asleep.

        Also free is a worker that has done its turn while another should be in reserve. False where the pool
        was closed meanwhile.
        """
        served = False
        while True:
            with self.lock:
                if self.closed:
                    return False
                if not self.waiting or (served and len(self.free) < self.reserve):
                    self.free.append(worker)
                    if helper is not None:
                        self._helpers.append(helper)
                    return True
                turn = self.waiting.popleft()
                self.begun = time.monotonic()
            try:
                turn.results.append(self.work(worker.worker, turn.given.pop()))
            except BaseException as error:
                turn.error = error
            turn.done.release()
            del turn
            served = True


def _closed() -> ShardrunError:
    return ShardrunError("the runner was closed.")
