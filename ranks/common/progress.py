"""Progress bars, which a person at a terminal sees and nobody else. rich is loaded when one appears."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from ranks.common.sources import OPEN_MPI

Progress = Callable[[int, int], None]
"""Takes how much is done, and of how much."""


def is_terminal(stream: TextIO) -> bool:
    """Whether a person looks at this stream. Open MPI gives every rank a pseudo-terminal that nobody sees."""
    return stream.isatty() and not any(map(OPEN_MPI.identifies, os.environ))


@contextlib.contextmanager
def progress(
    description: str, *, counted: bool = False, text: Callable[[], str] | None = None
) -> Iterator[Progress | None]:
    """A progress bar on standard error while the block runs: yields ``update(done, total)``, or None if
    standard error is no terminal. It appears only after one second. ``counted``: it shows ``1/4`` too;
    ``text``: gives what else is shown."""
    if not is_terminal(sys.stderr):
        yield None
        return
    import time

    start = time.monotonic()
    bar: Any = None
    task: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - start < 1:
                return
            from rich.console import Console
            from rich.progress import MofNCompleteColumn
            from rich.progress import Progress as Bar

            columns = (*Bar.get_default_columns(), *([MofNCompleteColumn()] if counted else []))
            bar = Bar(*columns, console=Console(stderr=True), transient=True)
            task = bar.add_task(description)
            bar.start()
        more = {} if text is None else {"description": text()}
        bar.update(task, completed=done, total=total, **more)

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()
