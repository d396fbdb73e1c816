"""What is done in a thread of its own, since whoever asks for it must not wait."""

from __future__ import annotations

import _thread
import contextlib
import queue
import weakref
from collections.abc import Callable


class Elsewhere:
    """Does what the end of an object asks for.

    Garbage is collected in whichever thread makes the next object, while that holds whichever locks: what
    waits for a lock or an answer there may wait for ever. So a finalizer only leaves word here.
    """

    def __init__(self) -> None:
        # Its `put` may be called again inside itself, as no lock of Python's could be.
        self._asked: queue.SimpleQueue[Callable[[], object]] = queue.SimpleQueue()

    def call(self, what: Callable[[], object]) -> None:
        """Has it called soon; its errors are nobody's. Waits for nothing, and takes no lock."""
        self._asked.put(what)
        with contextlib.suppress(RuntimeError):  # no thread can be started: the next one does it too
            _thread.start_new_thread(self._work, ())

    def when_gone(
        self, owner: object, what: Callable[[], object], *, at_exit: bool = False
    ) -> weakref.finalize[..., object]:
        """Has it called soon after ``owner`` has been collected; with ``at_exit`` also where the interpreter
        ends before, and then here and now."""
        found = weakref.finalize(owner, self._gone, weakref.ref(owner), what)
        found.atexit = at_exit
        return found

    def _gone(self, owner: weakref.ref[object], what: Callable[[], object]) -> None:
        if owner() is None:
            self.call(what)
        else:  # nothing is collected
            what()

    def _work(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                what = self._asked.get_nowait()
                with contextlib.suppress(Exception):
                    what()
                del what


ELSEWHERE = Elsewhere()
