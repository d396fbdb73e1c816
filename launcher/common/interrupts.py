"""Ctrl-C while something is done that must not be left half done."""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]
import contextlib
import signal
import threading
from collections.abc import Iterator

ENDS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""The signals that end a command in order."""


_OF_LOOPS = {"uvloop.loop", "asyncio.unix_events"}
"""Modules whose handlers of signals do nothing: an event loop is told of them in another way."""


def held_back(*numbers: signal.Signals) -> contextlib.AbstractContextManager[None]:
    """A Ctrl-C (SIGINT), or one of these signals, that comes inside takes effect at the end. Only the main
    thread is interrupted, and not where an event loop takes the signal."""
    if threading.current_thread() is not threading.main_thread():
        return _NOTHING
    # The signal module's own searches the names of handlers for each, which ends in an error that it catches.
    handlers = [_signal.getsignal(number) for number in numbers or (signal.SIGINT,)]
    if all(getattr(handler, "__module__", None) in _OF_LOOPS for handler in handlers):
        return _NOTHING
    return _held_back(*numbers)


_NOTHING: contextlib.AbstractContextManager[None] = contextlib.nullcontext()


@contextlib.contextmanager
def _held_back(*numbers: signal.Signals) -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in numbers or (signal.SIGINT,)}
    came: list[tuple[int, object]] = []
    for number, handler in before.items():
        if callable(handler):
            signal.signal(number, lambda number, frame: came.append((number, frame)))
    try:
        yield
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)
        if came and callable(handler := before[signal.Signals(came[0][0])]):
            handler(*came[0])  # type: ignore[arg-type]  # the frame is the one that the handler was given
