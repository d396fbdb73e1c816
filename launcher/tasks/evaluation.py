"""``shardrun eval``: labelled data through a group that this process starts, or through this one rank."""

from __future__ import annotations

import contextlib
import json
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.files import check_target
from launcher.errors import ConfigError
from launcher.job.job import Job
from launcher.job.model import Check, Loadable, check_declared, opened, world_size
from launcher.tasks.loading import lead, start_group

if TYPE_CHECKING:
    from launcher.inspection.signature import Signature
    from ranks.common.tensors import TensorSpec
    from ranks.evaluation.evaluate import Options, Predict, Report
    from ranks.identity.place import Identity


@dataclass(frozen=True)
class Task:
    """What is evaluated on which data; ``options`` say how the two go together."""

    data: Path
    metrics: Sequence[str]
    options: Options
    output: Path | None = None


def eval_group(job: Job, task: Task) -> None:
    """Starts a group, evaluates, and prints the metrics."""
    assert job.model is not None
    _check_data(task)
    ranks = world_size(job)
    with (
        _opened(job, ranks, check=lambda found: _check_model(job, task, found)) as model,
        start_group(job, model) as group,
    ):
        report = _evaluate(task, group.predict, group.inputs, group.outputs, group.optional_inputs)
    finish(task, report, model.ranks)


@contextlib.contextmanager
def _opened(
    job: Job, ranks: int | None, rank: int | None = None, check: Check | None = None
) -> Iterator[Loadable]:
    """What ranks load (`launcher.job.model.opened`); a model file that one rank runs is not sliced."""
    assert job.model is not None
    alone = job.reference.kind == "file" and ranks in {None, 1} and job.slicing.ranks() in {None, 1}
    if alone and job.key is None:
        check_declared(job, check)
        yield Loadable(path=job.model, ranks=1)
        return
    from launcher.inspection.signature import check_dims, manifest_symbols

    with opened(job, 1 if alone else ranks, rank, check) as made:
        if job.reference.kind != "file":
            check_dims(job.dims, manifest_symbols(made.manifest))
        yield made


def eval_rank(job: Job, task: Task, identity: Identity) -> None:
    """This process as one rank that something else started: rank 0 reads the data, which all ranks then run,
    and prints."""
    assert job.model is not None
    if identity.rank == 0:
        # Before the group exists, so that a wrong input ends this rank while nobody waits for it in MPI.
        _check_data(task)
    check = (lambda found: _check_model(job, task, found)) if identity.rank == 0 else None
    with _opened(job, identity.world_size, identity.rank, check) as model:
        report = lead(
            job,
            [model],
            identity,
            lambda led: _evaluate(
                task, led[0].predict, led[0].inputs, led[0].outputs, led[0].optional_inputs
            ),
            "evaluate",
        )
    if report is not None:
        finish(task, report, identity.world_size)


def _check_data(task: Task) -> None:
    """Raises `ConfigError` for data and metrics that are wrong whatever the model is."""
    from ranks.evaluation.columns import find_shards
    from ranks.evaluation.errors import EvaluationError
    from ranks.evaluation.metrics import collect

    if task.output is not None:
        check_target("--output", task.output, "report")
    try:
        collect(list(task.metrics))
    except EvaluationError as error:
        raise ConfigError(f"--metric: {error}") from None
    try:
        find_shards(task.data)
    except EvaluationError as error:
        raise ConfigError(f"--data: {error}") from None


def _check_model(job: Job, task: Task, found: Signature) -> None:
    """Raises `ConfigError` for data and lengths that do not fit what a model declares."""
    from launcher.inspection.signature import check_dims
    from ranks.evaluation.errors import EvaluationError
    from ranks.evaluation.evaluate import check

    check_dims(job.dims, found.symbols)
    try:
        check(*found.specs(), task.data, task.options)
    except EvaluationError as error:
        raise ConfigError(str(error)) from error


def _evaluate(
    task: Task,
    run: Predict,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    optional: Sequence[TensorSpec],
) -> Report:
    """Raises `ConfigError` for data that do not fit."""
    from launcher.common.report import progress
    from ranks.evaluation.errors import EvaluationError
    from ranks.evaluation.evaluate import evaluate

    with progress("evaluating") as update:
        try:
            return evaluate(
                run, inputs, outputs, task.data, list(task.metrics), task.options,
                optional=optional, progress=update,
            )  # fmt: skip
        except EvaluationError as error:
            raise ConfigError(str(error)) from error


def finish(task: Task, report: Report, ranks: int) -> None:
    """Prints the metrics, and writes them to the report's file."""
    from launcher.common.report import human_seconds, print_table, say
    from ranks.evaluation.evaluate import odd

    for note in odd(report):
        logging.getLogger(__name__).warning("%s", note)
    rows = [
        (name, f"{value:.6g}" if isinstance(value, float) else str(value))
        for name, value in report.values.items()
    ]
    print_table(["metric", "value"], rows, "lr")
    print()
    each = human_seconds(report.seconds / report.samples)
    facts = [
        ("ranks", str(ranks)),
        ("samples", str(report.samples)),
        ("batches", str(report.batches)),
        ("time in the model", f"{human_seconds(report.seconds)} ({each} a sample)"),
    ]
    print_table(["", "value"], facts, "ll")
    if task.output is not None:
        _write(task.output, report, ranks)
        say(f"wrote {task.output}")


def _write(path: Path, report: Report, ranks: int) -> None:
    from launcher.common.files import write_file

    # JSON has no NaN and no infinity.
    metrics = {
        name: value if not isinstance(value, float) or math.isfinite(value) else str(value)
        for name, value in report.values.items()
    }
    document = {
        "metrics": metrics, "samples": report.samples, "samples_with_nan": report.with_nan, "ranks": ranks,
        "seconds": report.seconds,
    }  # fmt: skip
    text = json.dumps(document, indent=2) + "\n"
    write_file(path, text.encode(), "report")
