"""Whether a rank gets on with its work: what it says each time that it is asked for a sign of life.

That a thread answers shows only that the interpreter runs. Where the work itself stands still (a lock that
nobody gives back, a sleep without an end), the work's own thread cannot say so; but another one sees where it
is in its code, and how much processor time the process takes. A rank that waits, for a peer or for its
launcher, is no rank that hangs: whoever it waits for is looked at.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType
from typing import NamedTuple, TypeVar

from ranks.common.processes import spent_by_threads

MOVES = 0.05
"""Processors that the threads of a rank which computes take together at least, or would if they got them: a
loop of sleeps takes less."""

ALIKE_SECONDS = 2.0
"""Ranks that do not all fail alike within this time are out of step."""
STANDS_STILL = (
    "has stood still for {:g} s in the midst of its work: it computes nothing, and waits neither for another "
    "rank nor for a disk (--hang-timeout allows more time)."
)

Function = TypeVar("Function", bound=Callable[..., object])
Value = TypeVar("Value")

PLACES: dict[CodeType, str] = {}
"""What a thread does that is inside of a function: "works", or "waits"."""


def work(function: Function) -> Function:
    """A decorator: who is inside of the function is at work, and not idle."""
    PLACES[function.__code__] = "works"
    return function


def wait(function: Function) -> Function:
    """A decorator: who is inside of the function waits for others, and cannot get on by itself."""
    PLACES[function.__code__] = "waits"
    return function


@wait
def by_device(call: Callable[[], Value]) -> Value:
    """What a device computes for ``call``: processors may be at rest meanwhile."""
    return call()


class Beat(NamedTuple):
    """One sign of life. ``still``: the rank is at work, waits for nobody, and has hardly computed since the
    one before. ``moves``: it is at work and computes."""

    still: bool = False
    moves: bool = False


class Pulse:
    """Feels this process's. One thread at a time calls `beat`."""

    def __init__(self) -> None:
        self._known: tuple[frozenset[int], float, float] | None = None

    def beat(self) -> Beat:
        """What has been since the call before."""
        now, working = time.monotonic(), _working()
        if not working:
            self._known = None
            return Beat()
        # Threads of Python's that do something else, such as this one, do not count; those of libraries do.
        numbers: dict[bool, set[int | None]] = {True: set(), False: set()}
        for one in threading.enumerate():
            numbers[one.ident in working].add(kernel_number(one))
        spent, waits = spent_by_threads(numbers[True], numbers[False])
        known, self._known = self._known, (working, now, spent)
        if known is None or known[0] != working or waits:
            return Beat(moves=True)
        took, gained = now - known[1], spent - known[2]
        still = 0.0 <= gained < MOVES * took  # less than nothing: a thread has ended
        return Beat(still=still, moves=not still)


def kernel_number(thread: threading.Thread) -> int | None:
    """What the kernel calls a thread. (In a forked child Python keeps the number of the parent's.)"""
    return os.getpid() if thread is threading.main_thread() else thread.native_id


def _working() -> frozenset[int]:
    """The threads that are at work, by their numbers; none where one waits for others, and those that wait
    for it with it."""
    found = set()
    own = threading.get_ident()
    for thread, innermost in sys._current_frames().items():
        frame = innermost if thread != own else None
        while frame is not None:
            place = PLACES.get(frame.f_code)
            if place == "waits":
                return frozenset()
            if place is not None:
                found.add(thread)
                break
            frame = frame.f_back
    return frozenset(found)
