"""Futures of a model whose requests take turns in this process: one thread asks for all of them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from launcher.group.requests import MOST_WAITING
from ranks.errors import QueueFullError

T = TypeVar("T")


class Turns:
    """Work that is done in the order in which it was given. Its thread starts with the first."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(
            1, thread_name_prefix="shardrun answers", initializer=self._begin_here
        )
        self._here = 0
        """The thread that does the work."""
        self._room = threading.Semaphore(MOST_WAITING)

    def _begin_here(self) -> None:
        self._here = threading.get_ident()

    def submit(self, work: Callable[[], T], *, block: bool, bounded: bool = True) -> Future[T]:
        """A future of what the work returns or raises. ``block``: waits while too many wait, else
        `QueueFullError` is raised; unless ``bounded``, any number may wait, and for what is called when a
        future is done, for room comes only after that."""
        if not bounded or (block and threading.get_ident() == self._here):
            return self._pool.submit(work)
        if not self._room.acquire(blocking=block):
            raise QueueFullError(f"{MOST_WAITING} requests wait already: try again later.")
        try:
            future = self._pool.submit(work)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        return future

    def close(self, *, wait: bool = True) -> None:
        """What has not begun is cancelled. ``wait``: returns when what has begun is done."""
        self._pool.shutdown(wait=wait, cancel_futures=True)
