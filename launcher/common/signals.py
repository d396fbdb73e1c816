"""How SIGTERM, SIGHUP and Ctrl-C end the command: as an exception in its main thread, which undoes what was
begun.

Python calls a handler between two instructions of whatever runs. There are two places where an exception does
not do. A native module that is being imported may call Python to set itself up: if that raises, the process
is aborted, or goes on with half of a module. And what is raised in a destructor or in a callback of a native
library is printed and forgotten. So imports are waited for, and what was forgotten is raised again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from importlib.machinery import ExtensionFileLoader
from types import CodeType, FrameType
from typing import TypeAlias

Handler: TypeAlias = Callable[[int, FrameType | None], object] | int | signal.Handlers | None


SOON = 0.05
"""Seconds until it is tried again."""
_IMPORTING = "<frozen importlib."
_NATIVE = {
    method.__code__
    for method in (ExtensionFileLoader.create_module, ExtensionFileLoader.exec_module)
    if isinstance(getattr(method, "__code__", None), CodeType)
}


class Terminated(KeyboardInterrupt):
    """SIGTERM arrived; unwinds like Ctrl-C, so that everything which was started is ended."""


class HungUp(Terminated):
    """SIGHUP arrived: the terminal or session is gone."""


class Ending:
    """The handlers of a process. ``came``: the signals that it got, in order."""

    def __init__(self) -> None:
        self.came: list[int] = []
        self._owner = os.getpid()
        self._of_a_library = False
        self._before: dict[int, Handler] = {}
        # A forked child that is asked to end would unwind what is the parent's.
        os.register_at_fork(after_in_child=self.hand_over)

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """These signals raise inside, in the main thread; elsewhere this does nothing."""
        self.came.clear()
        self._owner = os.getpid()
        self._of_a_library = False
        try:
            self._before = {signal.SIGTERM: signal.signal(signal.SIGTERM, self.stop)}
        except ValueError:  # not the main thread
            yield
            return
        if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # else nohup ignores it
            self._before[signal.SIGHUP] = signal.signal(signal.SIGHUP, self.stop)
        if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # else it is ignored, for one
            self._before[signal.SIGINT] = signal.signal(signal.SIGINT, self.stop)
        self._before[signal.SIGALRM] = signal.signal(signal.SIGALRM, self.stop)
        printed, sys.unraisablehook = sys.unraisablehook, self._forgotten
        try:
            yield
        finally:
            sys.unraisablehook = printed
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number, handler in self._before.items():
                if handler is not None:
                    signal.signal(number, handler)
            self._before = {}

    def stop(self, number: int, frame: FrameType | None) -> None:
        """The handler."""
        if os.getpid() != self._owner:  # a child that has just been forked
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        if number != signal.SIGALRM:
            self.came.append(number)
        signal.setitimer(signal.ITIMER_REAL, SOON)
        raised = number == signal.SIGALRM and _is_raised()
        self._of_a_library |= number == signal.SIGINT and _in_import(frame, native=True)
        # Who asks twice waits for what is native only.
        if not raised and not _in_import(frame, native=len(self.came) > 1):
            self._raise()

    def done(self) -> None:
        """The work is done. Raises what was forgotten and not yet raised again."""
        if self.came:
            self._raise()
        self.heard()

    def heard(self) -> None:
        """Nothing is raised any more: a signal, or a second one, ends the process at once."""
        if self._before:
            signal.setitimer(signal.ITIMER_REAL, 0)
            for number in self._before.keys() - {signal.SIGALRM}:
                signal.signal(number, signal.SIG_DFL)

    def hand_over(self) -> None:
        """From here on the process is a script's: signals do what they do in `python SCRIPT`. Its children
        inherit that, and a handler in Python could miss the signal while one is forked, so that a
        multiprocessing.Pool never ends."""
        for number in self._before:
            own = signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
            signal.signal(number, own)
        self._before.clear()

    def _forgotten(self, problem: sys.UnraisableHookArgs) -> None:
        """Nothing is to be printed of what is raised again."""
        if not (self.came and isinstance(problem.exc_value, KeyboardInterrupt)):
            sys.__unraisablehook__(problem)

    def _raise(self) -> None:
        if self._of_a_library and self.came == [signal.SIGINT]:
            # OpenBLAS, which numpy brings, sends this to itself where it may start no thread.
            self._of_a_library = False
            try:
                threading.Thread(target=int).start()
            except RuntimeError:
                self.came.clear()
                raise
        if signal.SIGTERM in self.came:
            raise Terminated
        raise HungUp if signal.SIGHUP in self.came else KeyboardInterrupt


ENDING = Ending()
"""This process's: a process has one handler of a signal."""


def _is_raised() -> bool:
    """Whether what the main thread does now is done because of such an exception: it is on its way."""
    error = sys.exc_info()[1]
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return True
        error = error.__cause__ or error.__context__
    return False


def _in_import(frame: FrameType | None, *, native: bool) -> bool:
    """Whether an import is under way, or with ``native`` that of a native module."""
    while frame is not None:
        if frame.f_code in _NATIVE or (not native and frame.f_code.co_filename.startswith(_IMPORTING)):
            return True
        frame = frame.f_back
    return False
