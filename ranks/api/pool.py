"""Workers that threads take in turn: first come, first served, with a bound on how many may wait."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import Generic, TypeVar

from ranks.errors import QueueFullError, ShardrunError

Worker = TypeVar("Worker")


class _Turn(Generic[Worker]):
    """A thread's place in the queue; its lock opens when a worker, or the end of the pool, has come."""

    __slots__ = ("come", "worker")

    def __init__(self) -> None:
        self.come = threading.Lock()
        self.come.acquire()
        self.worker: Worker | None = None


class Pool(Generic[Worker]):
    """Lends each worker to one thread at a time.

    Whoever asks while all are lent waits; a worker that comes back goes to the one who has waited longest,
    and never to one who asks only then. ``queue_limit`` is how many may wait.
    """

    def __init__(self, workers: Sequence[Worker], queue_limit: int) -> None:
        self.size = len(workers)
        self.queue_limit = queue_limit
        self._free = list(workers)
        self._waiting: deque[_Turn[Worker]] = deque()
        self._lock = threading.Lock()
        self._closed = False

    @property
    def waiting(self) -> int:
        """How many threads wait for a worker now."""
        return len(self._waiting)

    def take(self) -> Worker:
        """A worker for this thread alone, until it is given back with `give`.

        Raises `QueueFullError` where too many wait already, `ShardrunError` where the pool is closed, also
        while this thread waits. Interrupted while it waits (Ctrl-C), the thread loses its place.
        """
        with self._lock:
            if self._closed:
                raise _closed()
            if self._free:
                return self._free.pop()
            if len(self._waiting) >= self.queue_limit:
                raise QueueFullError(
                    f"all workers ({self.size}) are busy and {len(self._waiting)} predictions wait already, "
                    "which is the limit: predict again later, or raise [parallel_runner] queue_limit in "
                    "context.parallel.config_info."
                )
            turn: _Turn[Worker] = _Turn()
            self._waiting.append(turn)
        try:
            turn.come.acquire()
        except BaseException:
            self._leave(turn)
            raise
        if turn.worker is None:
            raise _closed()
        return turn.worker

    def give(self, worker: Worker) -> None:
        """Gives a worker back: to the thread that has waited longest, if one waits."""
        with self._lock:
            self._hand_on(worker)

    def close(self) -> None:
        """No worker is lent any more; whoever waits gets an error, and lent workers work to their end."""
        with self._lock:
            self._closed = True
            self._free.clear()
            while self._waiting:
                self._waiting.popleft().come.release()

    def _hand_on(self, worker: Worker) -> None:
        if self._waiting:
            turn = self._waiting.popleft()
            turn.worker = worker
            turn.come.release()
        elif not self._closed:
            self._free.append(worker)

    def _leave(self, turn: _Turn[Worker]) -> None:
        with self._lock:
            if turn.worker is not None:
                self._hand_on(turn.worker)
            elif turn in self._waiting:
                self._waiting.remove(turn)


def _closed() -> ShardrunError:
    return ShardrunError("the runner was closed.")
