"""Runs a model over labelled data, batch by batch, and gathers metrics."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import numpy as np

from ranks.common.progress import Progress
from ranks.common.tensors import TensorSpec, is_extended
from ranks.errors import ShardrunError
from ranks.evaluation.classes import has_nan
from ranks.evaluation.data import Batch, Stored, fixed_batch, given_batches, padded
from ranks.evaluation.errors import EvaluationError
from ranks.evaluation.metrics import Metric, Wanted, collect
from sharding.common.arrays import Array
from sharding.common.text import did_you_mean

Predict = Callable[[dict[str, "Array"]], Mapping[str, "Array"]]
DEFAULT_BATCH = 32
LARGEST_BATCH = 1 << 24


@dataclass(frozen=True)
class Report:
    """What an evaluation gave: values by metric, how much was evaluated, and what looked odd."""

    values: dict[str, object]
    samples: int
    batches: int
    seconds: float
    """In the model alone."""
    with_nan: int
    """Samples whose prediction holds a NaN."""
    unused: tuple[str, ...]
    """Arrays of the data that are neither an input nor the label."""


@dataclass(frozen=True)
class Options:
    """How data and metrics go together; `evaluate` has the meanings."""

    label: str | None = None
    rename: Mapping[str, str] | None = None
    batch_size: int | None = None
    prediction: str | None = None
    ignore_label: int | None = None


def evaluate(  # noqa: PLR0917 - the model is three of them
    run: Predict,
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    data: str | os.PathLike[str] | Iterable[object],
    metrics: Wanted,
    options: Options | None = None,
    *,
    optional: Sequence[TensorSpec] = (),
    progress: Progress | None = None,
) -> Report:
    """Evaluates the model that ``run`` computes: from inputs by name to outputs by name.

    ``data``: an ``.npz`` file, a folder of ``.npz`` or ``.npy`` files, or an iterable of (inputs, labels).
    ``metrics``: as `ranks.evaluation.metrics.collect` takes them. ``options.label`` and ``options.rename``
    (input of the model -> array) say which array is what; ``options.batch_size`` is how many samples a run
    takes (default: what the model fixes, else 32); ``options.prediction`` is the output that the metrics
    take (default: the first); samples labelled ``options.ignore_label`` do not count in metrics of classes.
    ``progress`` is called with samples done and all samples after each batch.

    Raises `EvaluationError` with one sentence for what does not fit, `TypeError` for arguments of other
    types, and what ``run`` raises.
    """
    options = options or Options()
    found = collect(metrics, options.ignore_label)
    name = _output(outputs, options.prediction)
    fixed = fixed_batch(inputs)
    total = 0
    unused: tuple[str, ...] = ()
    batches: Iterator[Batch]
    if isinstance(data, (str, os.PathLike)):
        stored = Stored(_path(data), inputs, optional=optional, label=options.label, rename=options.rename)
        total, unused = stored.samples, stored.roles.unused
        batches = stored.batches(_batch_size(options.batch_size, fixed))
    else:
        for what in ("label", "rename", "batch_size"):
            if getattr(options, what) is not None:
                raise EvaluationError(
                    f"{what} is of data in files: an iterable gives its batches as they are."
                )
        if not isinstance(data, Iterable):
            raise TypeError(f"data must be a path or an iterable of (inputs, labels), but got {type(data)}.")
        batches = given_batches(data, inputs)
    done = count = with_nan = 0
    spent = 0.0
    for batch in batches:
        whole = padded(batch, fixed) if fixed is not None else batch
        began = time.perf_counter()
        predicted = run(whole.feeds)[name]
        spent += time.perf_counter() - began
        where = f"samples {done} to {done + batch.samples - 1}"
        with_nan += _update(found, _of_batch(predicted, whole, name), batch, where)
        done, count = done + batch.samples, count + 1
        if progress is not None:
            progress(done, max(total, done))
    if done == 0:
        raise EvaluationError("the data have no samples.")
    values = {key: _plain(metric.eval()) for key, metric in found.items()}
    return Report(values, done, count, spent, with_nan, unused)


def check(
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    optional: Sequence[TensorSpec],
    data: Path,
    options: Options,
) -> None:
    """Raises what `evaluate` would for data in files that do not fit the model; reads no array."""
    _output(outputs, options.prediction)
    Stored(data, inputs, optional=optional, label=options.label, rename=options.rename)
    _batch_size(options.batch_size, fixed_batch(inputs))


def _path(data: str | os.PathLike[str]) -> Path:
    text = os.fspath(data)
    if not isinstance(text, str) or "\0" in text:
        raise EvaluationError(f"{text!r} is no path of data.")
    return Path(text)


def _output(outputs: Sequence[TensorSpec], chosen: str | None) -> str:
    names = [spec.name for spec in outputs]
    if chosen is not None and chosen not in names:
        hint = did_you_mean(chosen, names) or "."
        raise EvaluationError(
            f"the model has no output {chosen!r}: it has {', '.join(map(repr, names))}{hint}"
        )
    spec = outputs[0 if chosen is None else names.index(chosen)]
    if not spec.is_tensor:
        raise EvaluationError(
            f"the output {spec.name!r} is a sequence or a map, no tensor to compare: name another with "
            "--prediction (in Python: prediction=...)."
        )
    return spec.name


def _batch_size(asked: int | None, fixed: int | None) -> int:
    if asked is not None and (
        isinstance(asked, bool) or not isinstance(asked, int) or not 1 <= asked <= LARGEST_BATCH
    ):
        raise EvaluationError(
            f"batch_size must be a whole number from 1 to {LARGEST_BATCH}, but is {asked!r}."
        )
    if fixed == 0:
        raise EvaluationError("the model fixes its batch to 0 samples: there is nothing to evaluate.")
    if fixed is not None and asked not in {None, fixed}:
        raise EvaluationError(
            f"the model fixes its batch to {fixed} samples, but a batch of {asked} is asked for."
        )
    return fixed or asked or DEFAULT_BATCH


def _of_batch(predicted: object, batch: Batch, name: str) -> Array:
    """The prediction of the batch's samples alone, as numpy's own type."""
    if not isinstance(predicted, np.ndarray):
        raise EvaluationError(f"the output {name!r} is {type(predicted).__name__}, no tensor to compare.")
    if is_extended(predicted.dtype):
        predicted = predicted.astype(np.float32)
    rows = {array.shape[0] for array in batch.feeds.values() if array.ndim}
    if rows and max(rows) > batch.samples:  # it was padded
        if predicted.ndim == 0 or predicted.shape[0] != max(rows):
            raise EvaluationError(
                f"the output {name!r} of shape {list(predicted.shape)} has no row for each of the "
                f"{max(rows)} samples that the model fixes, so that the last, shorter batch cannot be told "
                "from its padding."
            )
        return predicted[: batch.samples]
    return predicted


def _update(metrics: Mapping[str, Metric], prediction: Array, batch: Batch, where: str) -> int:
    """Gives the batch to every metric; returns how many samples have a NaN in their prediction."""
    for name, metric in metrics.items():
        try:
            metric.update(prediction, batch.labels)
        except EvaluationError as error:
            raise EvaluationError(f"{where}, metric {name!r}: {error}") from error
        except ShardrunError:
            raise
        except (TypeError, ValueError, MemoryError) as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise EvaluationError(f"{where}, metric {name!r}: it failed: {reason}.") from error
    if not has_nan(prediction):
        return 0
    if prediction.ndim == 0 or prediction.shape[0] != batch.samples:
        return batch.samples
    return int(np.isnan(prediction.reshape(batch.samples, -1)).any(axis=1).sum())


def _plain(value: object) -> object:
    """A metric's value as a float, where it is one number."""
    try:
        return float(cast("float", value))  # or what can be made one
    except (TypeError, ValueError):
        return value


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def odd(report: Report) -> list[str]:
    """What of an evaluation its user should be told besides the values, one sentence each."""
    notes = []
    if report.with_nan:
        notes.append(
            f"{report.with_nan} of {report.samples} samples have NaN in their prediction: they count as "
            "wrong in metrics of classes, and make other metrics NaN."
        )
    elif any(map(_is_nan, report.values.values())):
        nans = ", ".join(name for name, value in report.values.items() if _is_nan(value))
        notes.append(f"{nans}: NaN, because no sample counted or a label is NaN.")
    if report.unused:
        notes.append(f"the data's {', '.join(map(repr, report.unused))} went unused: no input has that name.")
    return notes
