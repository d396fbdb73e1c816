"""What a forked child must set right: locks that are held by threads which only its parent has.

A child has the thread that forked, and a copy of all memory as it was then. A lock that another thread of the
parent held stays held in the child for ever, and what ends those threads would wait for them for ever.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TypeVar
from weakref import WeakKeyDictionary

Owner = TypeVar("Owner")


class Forks:
    """What is set right in every child that a process forks. One per process."""

    def __init__(self) -> None:
        self._renewals: WeakKeyDictionary[object, Callable[..., None]] = WeakKeyDictionary()
        self._threaded: WeakKeyDictionary[object, tuple[object, ...]] = WeakKeyDictionary()
        self._whole = threading.RLock()
        os.register_at_fork(before=self._hold, after_in_parent=self._release, after_in_child=self._renew_all)

    def in_child(self, owner: Owner, renew: Callable[[Owner], None]) -> None:
        """Calls ``renew(owner)`` in every child that is forked while ``owner`` is in use elsewhere."""
        self._renewals[owner] = renew

    def whole(self) -> AbstractContextManager[bool]:
        """Nobody forks while this is entered: for what a thread of ours does for milliseconds, under locks
        of native libraries that no child could renew."""
        return self._whole

    def never_freed(self, owner: object, *parts: object) -> None:
        """Has every forked child keep ``owner`` and ``parts`` to its end, and past the end of its
        interpreter.

        For objects of native libraries with threads of their own, such as ONNX Runtime's sessions. A child
        can run a session, for the caller's thread does all work where no other comes. But the destructor
        waits until threads that sleep have woken up, and the child has none that would.
        """
        self._threaded[owner] = parts

    def _hold(self) -> None:
        self._whole.acquire()

    def _release(self) -> None:
        with contextlib.suppress(RuntimeError):  # a Ctrl-C came while it was waited for
            self._whole.release()

    def _renew_all(self) -> None:
        self._whole = threading.RLock()
        for owner, renew in list(self._renewals.items()):
            renew(owner)
        if threaded := list(self._threaded.items()):
            import ctypes

            for owner, parts in threaded:
                # A reference that nobody gives back: a list of ours would be emptied when the interpreter
                # ends.
                for item in (owner, *parts):
                    ctypes.pythonapi.Py_IncRef(ctypes.py_object(item))


FORKS = Forks()
in_child, never_freed, whole = FORKS.in_child, FORKS.never_freed, FORKS.whole
