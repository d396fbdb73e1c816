"""The buffers of a model that nobody runs: they go back to the system.

ONNX Runtime's arena keeps what a run took, so that the next one finds it: of BERT-base 4 MB after a sequence
of 128 and 39 MB after one of 512, in each process. While requests come that is as it should be; a process
that waits holds it for nothing. The first region of an arena stays, which the first run began with: 1 MiB, or
what its first value took.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ranks.common import forks, heap
from ranks.common.elsewhere import ELSEWHERE
from ranks.common.tensors import spec_of
from ranks.devices.providers import CPU

if TYPE_CHECKING:
    import onnxruntime as ort

IDLE_SECONDS = 0.5
"""How long nobody must have run a model until it gives back its buffers."""
SHORT_SECONDS = 0.001
"""Runs that take less fill no buffers that would be worth it."""
_clock = time.monotonic


class Idle:
    """Is told when each run of a model begins and ends; also a context manager. Once there was none for
    `IDLE_SECONDS` it calls ``give_back``, in a thread that is there only from a run to that moment: a process
    at rest has none.

    Short runs take no lock, and a tiny model's take microseconds: what `begin` and `end` do in one step, no
    other thread sees half done. With two runs at once, one may end with the beginning of the other, which
    ends with this one's: the earlier beginning is found all the same.
    """

    def __init__(self, give_back: Callable[[], None]) -> None:
        self.give_back = give_back
        self._lock = threading.Lock()
        self._began: list[float] = []
        """When the runs began that have not ended."""
        self._last = 0.0
        self._watch = _Watch()
        forks.in_child(self, Idle._renew)
        # Also at the interpreter's end, which must not come while the thread is inside of ONNX Runtime.
        ELSEWHERE.when_gone(self, self._watch.end, at_exit=True)

    def _renew(self) -> None:
        self._lock = threading.Lock()
        self._began.clear()
        self._watch.renew()

    def begin(self) -> None:
        """A run begins."""
        self._began.append(_clock())

    def end(self) -> None:
        """A run has ended."""
        before = self._last
        self._last = now = _clock()  # first: where nothing runs, it must be the last run's
        began = self._began.pop() if self._began else before  # else a child that was forked in a run
        if now - began >= SHORT_SECONDS:
            with self._lock:
                self._watch.start(self)

    def __enter__(self) -> None:
        self.begin()

    def __exit__(self, *_: object) -> None:
        self.end()

    def left(self) -> float:
        """Seconds until the model is idle, if nothing runs it; where there are none, nobody watches now."""
        with self._lock:
            left = IDLE_SECONDS if self._began else self._last + IDLE_SECONDS - _clock()
            if left <= 0:
                self._watch.watching = False
            return left


class _Watch:
    """The thread of an `Idle`, which does not keep that alive."""

    def __init__(self) -> None:
        self.watching = False
        self._thread: threading.Thread | None = None  # also while it gives back
        self._ended = threading.Event()

    def renew(self) -> None:
        """In a forked child, which has no such thread."""
        self.watching, self._thread, self._ended = False, None, threading.Event()

    def start(self, idle: Idle) -> None:
        """Watches until the model is idle, unless that is done already. Where no thread can be had, the
        buffers stay."""
        if not self.watching and not self._ended.is_set():
            told = weakref.ref(idle), self._ended, self._thread
            thread = threading.Thread(target=_watch, args=told, daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self.watching, self._thread = True, thread

    def end(self) -> None:
        """Ends the thread. It may be the caller: the last to hold the `Idle`."""
        self._ended.set()
        thread = self._thread
        if thread is not None and thread.ident != threading.get_ident():
            thread.join()


def _watch(watched: weakref.ref[Idle], ended: threading.Event, before: threading.Thread | None) -> None:
    """A thread's work. ``before``: the one before it, which may still give back: `end` waits for both."""
    if before is not None:
        before.join()
    idle = watched()
    while idle is not None and not ended.is_set():
        left = idle.left()
        if left <= 0:
            with forks.whole():
                idle.give_back()
            return
        del idle
        ended.wait(left)
        idle = watched()


def of_sessions(sessions: Sequence[ort.InferenceSession | None]) -> Idle | None:
    """For a model that these run, which share one arena where there are several. None where they compute on a
    device, or what they take cannot be made up. Does not keep them alive."""
    for session in sessions:
        if session is None:
            continue
        specs = [spec_of(argument) for argument in session.get_inputs()]
        plain = all(spec.is_tensor and spec.dtype.type.__module__ == "numpy" for spec in specs)
        if plain and session.get_providers()[0] == CPU and not any(spec.dtype.hasobject for spec in specs):
            return Idle(partial(give_back, weakref.ref(session)))
    return None


def give_back(held: weakref.ref[ort.InferenceSession]) -> None:
    """Returns to the system what the session's arena holds and no run uses.

    ONNX Runtime does so at the end of a run that asks for it. This one is told to end before its first node,
    and its inputs, zeros that nobody reads, take no memory.
    """
    import onnxruntime as ort

    session = held()
    if session is None:
        return
    options = ort.RunOptions()
    options.terminate = True
    options.log_severity_level = 4  # that it ended early is no error
    options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
    with contextlib.suppress(Exception):  # that it ended early; and where there is no arena, nothing is held
        feeds = {
            spec.name: np.zeros([dim if isinstance(dim, int) else 1 for dim in spec.shape], spec.dtype)
            for spec in map(spec_of, session.get_inputs())
        }
        session.run(None, feeds, options)
    heap.trim()
