"""The evaluation of a model that `ranks.Model` holds."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ranks.api.notice import warn_user
from ranks.evaluation.evaluate import Options, Progress, evaluate, odd

if TYPE_CHECKING:
    from ranks.api.built import Built


def evaluated(built: Built, data: Any, metrics: Any, options: Options) -> dict[str, Any]:
    """`ranks.Model.eval`; warns of what the values alone do not say."""
    names = [spec.name for spec in built.outputs]
    with _progress() as update:
        report = evaluate(
            lambda feeds: dict(zip(names, built.run(feeds), strict=True)),
            built.inputs,
            built.outputs,
            data,
            metrics,
            options,
            optional=built.model.optional_inputs,
            progress=update,
        )
    for note in odd(report):
        warn_user(note)
    return report.values


@contextlib.contextmanager
def _progress() -> Iterator[Progress | None]:
    """A progress bar on standard error, after one second and on a terminal only.

    Open MPI gives every rank a pseudo-terminal that nobody sees.
    """
    if not sys.stderr.isatty() or "OMPI_COMM_WORLD_RANK" in os.environ:
        yield None
        return
    began = time.monotonic()
    bar: Any = None
    task: Any = None

    def update(done: int, total: int) -> None:
        nonlocal bar, task
        if bar is None:
            if time.monotonic() - began < 1:
                return
            from rich.console import Console
            from rich.progress import Progress as Bar

            bar = Bar(console=Console(stderr=True), transient=True)
            task = bar.add_task("evaluating")
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield update
    finally:
        if bar is not None:
            bar.stop()
