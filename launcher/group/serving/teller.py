"""Futures are told of their answers in a thread of their own: what is called then is a user's."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from launcher.group import halted
from launcher.starters import cause

if TYPE_CHECKING:
    from launcher.group.serving.asked import Asked


class Teller:
    """Tells futures, in the order in which they were answered. Its thread starts with the first one."""

    def __init__(self, look: Callable[[], None]) -> None:
        """``look``: is called every second while something is expected."""
        self._look = look
        self._lock = threading.Lock()
        self._told: queue.SimpleQueue[Asked | bool] = queue.SimpleQueue()
        self._expected = 0
        self._thread: threading.Thread | None = None

    def expect(self) -> None:
        """A future more will be answered. Raises `LaunchError` where there can be no thread for it."""
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="shardrun answers", daemon=True)
                try:
                    thread.start()
                except (RuntimeError, MemoryError) as error:
                    raise cause.shortage(error) from None
                self._thread = thread
            self._expected += 1
            if self._expected == 1:
                self._told.put(True)  # it waits without end as long as nothing is expected

    def forget(self) -> None:
        """One that was expected does not come."""
        with self._lock:
            self._expected -= 1

    def tell(self, asked: Asked) -> None:
        """A request is done. Waits for nothing."""
        self._told.put(asked)

    def close(self) -> None:
        """Nothing more is asked: the thread ends when it has told all."""
        self._told.put(False)

    def _work(self) -> None:
        while True:
            try:
                item = self._told.get(timeout=halted.LOOK_SECONDS if self._expected else None)
            except queue.Empty:
                # Whatever goes wrong with it, who waits for an answer is told it.
                with contextlib.suppress(Exception):
                    self._look()
                continue
            if item is False:
                return
            if item is not True:
                self.forget()
                # Of a future that its owner has set, or a callback that ends the thread it is called in.
                with contextlib.suppress(BaseException):
                    _set(item)
            del item


def _set(asked: Asked) -> None:
    future = asked.future
    assert future is not None
    if not future.running() and not future.set_running_or_notify_cancel():
        return
    if asked.error is not None:
        future.set_exception(asked.error)
    elif asked.result is not None:
        future.set_result(asked.result.tensors)
