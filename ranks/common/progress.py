"""Progress bars, which a person at a terminal sees and nobody else; and how far this process has loaded
models. rich is loaded when a bar appears."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TextIO

from ranks.common.sources import OPEN_MPI

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

Progress = Callable[[float, float], None]
"""Takes how much is done, and of how much."""
PAUSE_SECONDS = 0.2
"""Between two times at which it is told how far a model has loaded."""


class Loading:
    """How far this process has loaded a model. One per process; nobody listens by default."""

    def __init__(self) -> None:
        self._tell: Progress | None = None
        self._owner, self._pause = 0, PAUSE_SECONDS
        self._lock = threading.Lock()
        self._last = 0.0

    def listen(self, tell: Progress, pause: float = PAUSE_SECONDS) -> None:
        """Has ``tell`` called from now on, in this process and none that it forks, each ``pause`` seconds."""
        self._tell, self._owner, self._pause = tell, os.getpid(), pause

    def report(self, done: int, total: int) -> None:
        """So much of a model is loaded; ``done`` is ``total`` in the end, and never before."""
        if self._tell is None or self._owner != os.getpid():
            return
        with self._lock:
            now = time.monotonic()
            if 0 < done < total and now - self._last < self._pause:
                return
            self._last = now
        self._tell(done, total)


LOADING = Loading()


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream. Open MPI gives every rank a pseudo-terminal that nobody sees."""
    return stream.isatty() and not any(map(OPEN_MPI.identifies, os.environ))


@contextlib.contextmanager
def progress(
    description: str, *, counted: bool = False, text: Callable[[], str] | None = None
) -> Iterator[Progress | None]:
    """A progress bar on standard error while the block runs: yields ``update(done, total)``, or None if
    standard error is no terminal. It appears only after one second, and goes when all is done. ``counted``:
    it shows ``1/4`` too; ``text``: gives what else is shown."""
    if not is_terminal(sys.stderr):
        yield None
        return
    start = time.monotonic()
    bar: Bar | None = None
    task: TaskID | None = None

    def update(done: float, total: float) -> None:
        nonlocal bar, task, start
        if bar is None:
            if time.monotonic() - start < 1:
                return
            from rich.console import Console
            from rich.progress import MofNCompleteColumn
            from rich.progress import Progress as Bars

            columns = (*Bars.get_default_columns(), *([MofNCompleteColumn()] if counted else []))
            # It would take what is printed meanwhile to the stream that it is on itself.
            bar = Bars(
                *columns,
                console=Console(stderr=True),
                transient=True,
                redirect_stdout=is_terminal(sys.stdout),
            )
            task = bar.add_task(description)
            bar.start()
        assert task is not None
        if text is None:
            bar.update(task, completed=done, total=total)
        else:
            bar.update(task, completed=done, total=total, description=text())
        if done >= total:
            bar.stop()
            bar, start = None, time.monotonic()

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()
