"""Threads that a test waits for, and children forked while threads of their parent hold locks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

SECONDS = 30


def until(condition: Callable[[], object], what: str = "") -> None:
    """Waits for what another thread or process does; fails the test, with ``what``, where it does not."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.001)


def works_in_child(check: Callable[[], object], *locks: AbstractContextManager[Any]) -> bool:
    """Whether ``check`` is true in a child that is forked while another thread holds ``locks``."""
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.set()
            done.wait(2 * SECONDS)

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait(SECONDS)
    child = os.fork()
    if child == 0:
        signal.alarm(SECONDS)
        try:
            os._exit(0 if check() else 1)
        finally:
            os._exit(2)
    done.set()
    thread.join()
    return os.waitpid(child, 0)[1] == 0
