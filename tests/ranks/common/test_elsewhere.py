"""The end of an object that is collected in a thread which holds what that end needs."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from ranks.common.elsewhere import Elsewhere
from ranks.common.pool import Pool
from ranks.sessions.idle import Idle


class Owner:
    """Collected, not only counted."""

    def __init__(self) -> None:
        self.itself = self


def ends(work: Callable[[], object]) -> bool:
    """Whether ``work`` comes to its end; a thread that does not is left behind."""
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(30)
    return not thread.is_alive()


def test_whoever_collects_does_not_wait() -> None:
    lock, done = threading.Lock(), threading.Event()

    def end() -> None:
        with lock:
            done.set()

    def collect() -> None:
        owner = Owner()
        Elsewhere().when_gone(owner, end)
        with lock:
            del owner
            gc.collect()
            assert not done.is_set()

    assert ends(collect) and done.wait(30)


def pool() -> tuple[object, threading.Lock]:
    made = Pool([1], lambda worker, given: given, 4)
    assert made.run(3) == 3
    return made, made._queue.lock


def idle() -> tuple[object, threading.Lock]:
    made = Idle(lambda: None)
    with made:
        pass
    return made, made._watch._ended._cond._lock  # type: ignore[attr-defined]


@pytest.mark.parametrize("make", [pool, idle])
def test_their_finalizers_take_no_lock(make: Callable[[], tuple[object, threading.Lock]]) -> None:
    def collect() -> None:
        owner, lock = make()
        with lock:
            del owner
            gc.collect()

    assert ends(collect)


def test_at_the_interpreter_s_end() -> None:
    program = """
from ranks.common.elsewhere import ELSEWHERE
class Owner: pass
first, second = Owner(), Owner()
ELSEWHERE.when_gone(first, lambda: print("first"), at_exit=True)
ELSEWHERE.when_gone(second, lambda: print("second"))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "first\n"
