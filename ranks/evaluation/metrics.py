"""Metrics by name, gathered batch by batch.

All sums are kept in float64. Each is over all samples, never a mean of the batches' means, so that the size
of a batch does not matter. A NaN in a class's scores makes the sample count as wrong; in other metrics the
result is NaN then.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from ranks.evaluation.classes import among_best, is_number, predicted, scores_and_labels
from ranks.evaluation.errors import EvaluationError
from ranks.evaluation.names import GROUP, OF_CLASSES, OF_NUMBERS, names
from sharding.common.arrays import Array
from sharding.common.registry import entry_points, load

Wanted: TypeAlias = (
    "str | Callable[..., object] | Metric | Sequence[object] | Mapping[str, object] | set[str]"
)
"""Metrics as a user names them."""


class Metric(Protocol):
    """What gathers batches: ``update`` with a prediction and its labels, then ``eval``; ``clear`` first.

    Metrics of `mindspore.train` have these methods, so they can be used as they are.
    """

    def clear(self) -> object: ...
    def update(self, prediction: Array, labels: Array, /) -> object: ...
    def eval(self) -> object: ...


class _Mean:
    """A sum and how many it is of."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.total, self.count = 0.0, 0

    def add(self, values: Array) -> None:
        self.total += float(np.sum(values, dtype=np.float64))
        self.count += int(values.size)

    def eval(self) -> float:
        """NaN where there was nothing."""
        return self.total / self.count if self.count else math.nan


class TopK(_Mean):
    """The part of the samples whose label is among the ``k`` greatest scores; 1: accuracy."""

    def __init__(self, k: int = 1, ignore: int | None = None) -> None:
        self.k, self.ignore = k, ignore
        super().__init__()

    def update(self, prediction: Array, labels: Array) -> None:
        scores, labels = scores_and_labels(prediction, labels, self.ignore)
        if self.k == 1:
            self.add(predicted(scores) == labels)
        elif scores.ndim == 1:
            raise EvaluationError(f"top{self.k} needs scores, but the prediction holds one class a sample.")
        else:
            self.add(among_best(scores, labels, self.k))


class Confusion:
    """Precision, recall or F1 of each class, and the mean over the classes that occur (macro average).

    A class that is predicted but never a label has the recall 0; one that is never predicted, the precision
    0.
    """

    def __init__(self, what: str, ignore: int | None = None) -> None:
        self.what, self.ignore = what, ignore
        self.clear()

    def clear(self) -> None:
        self.right = self.said = self.true = np.zeros(0, np.int64)

    def update(self, prediction: Array, labels: Array) -> None:
        scores, labels = scores_and_labels(prediction, labels, self.ignore)
        classes = predicted(scores)
        known = classes >= 0
        if labels.size and (labels.min() < 0 or labels.max() > 10_000_000 or classes.max() > 10_000_000):
            raise EvaluationError(f"{self.what} is of the classes 0 to 10000000, but a label is beyond them.")
        self.said = _added(self.said, classes[known])
        self.true = _added(self.true, labels)
        self.right = _added(self.right, labels[classes == labels])

    def eval(self) -> float:
        size = max(len(self.right), len(self.said), len(self.true))
        right, said, true = (
            np.pad(counts, (0, size - len(counts))).astype(np.float64)
            for counts in (self.right, self.said, self.true)
        )
        below = {"precision": said, "recall": true, "f1": (said + true) / 2}[self.what]
        occurs = (said + true) > 0
        each = np.divide(right, below, out=np.zeros(size), where=below > 0)
        return float(each[occurs].mean()) if occurs.any() else math.nan


class CrossEntropy(_Mean):
    """The mean of -log softmax(scores)[label], in nats; ``exponential``: e to that, the perplexity."""

    def __init__(self, exponential: bool = False, ignore: int | None = None) -> None:
        self.exponential, self.ignore = exponential, ignore
        super().__init__()

    def update(self, prediction: Array, labels: Array) -> None:
        scores, labels = scores_and_labels(prediction, labels, self.ignore)
        if scores.ndim == 1:
            raise EvaluationError("cross_entropy needs scores, but the prediction holds one class a sample.")
        wide = scores.astype(np.float64)
        top = wide.max(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):  # inf - inf is the NaN that it should be
            summed = np.log(np.exp(wide - top).sum(axis=1)) + top[:, 0]
            self.add(summed - wide[np.arange(len(labels)), labels])

    def eval(self) -> float:
        mean = super().eval()
        if not self.exponential:
            return mean
        return math.exp(mean) if mean < 709 else mean + math.inf  # exp(710) is no float64; NaN stays NaN


class Differences(_Mean):
    """Of prediction - label, over all elements: "mse", "rmse", "mae", "max_error"."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__()

    def clear(self) -> None:
        super().clear()
        self.greatest = 0.0

    def update(self, prediction: Array, labels: Array) -> None:
        wide, wanted = same_shape(prediction, labels)
        with np.errstate(invalid="ignore", over="ignore"):
            difference = np.abs(wide - wanted)
            self.add(difference if self.what == "mae" else difference**2)
        # Not `max`: a NaN must stay.
        self.greatest = float(np.maximum(self.greatest, difference.max(initial=0.0)))

    def eval(self) -> float:
        mean = super().eval()
        if self.what == "max_error":
            return self.greatest if self.count else math.nan
        return math.sqrt(mean) if self.what == "rmse" else mean


class Cosine(_Mean):
    """The mean cosine of the angle between each sample's prediction and label; 0 where one is all zeros."""

    def update(self, prediction: Array, labels: Array) -> None:
        wide, wanted = same_shape(prediction, labels)
        a, b = (_unit(rows.reshape(len(rows), -1)) for rows in (wide, wanted))
        self.add((a * b).sum(axis=1))


class Function(_Mean):
    """A function of (prediction, labels): the mean of the numbers it gives for each sample, or of the one
    number it gives for a batch, by the batch's length."""

    def __init__(self, function: Callable[[Array, Array], object], name: str) -> None:
        self.function, self.name = function, name
        super().__init__()

    def update(self, prediction: Array, labels: Array) -> None:
        try:
            values = np.asarray(self.function(prediction, labels), np.float64)
        except (TypeError, ValueError) as error:
            raise EvaluationError(f"the metric {self.name!r} gave no number or failed: {error}.") from error
        samples = len(labels) if labels.ndim else 1
        if values.ndim == 0:
            values = np.repeat(values, samples)
        if values.shape[0] != samples:
            raise EvaluationError(
                f"the metric {self.name!r} gave {values.shape[0]} numbers for {samples} samples: expected "
                "one each, or one for all."
            )
        self.add(values)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """Rows of length 1; of zeros where a row is. The greatest number is divided out first, so that no square
    is too large."""
    largest = np.abs(rows).max(axis=1, keepdims=True, initial=0.0)
    with np.errstate(invalid="ignore"):  # inf / inf is the NaN that it should be
        scaled = np.divide(rows, largest, out=np.zeros_like(rows), where=largest != 0)
    length = np.linalg.norm(scaled, axis=1, keepdims=True)
    unit: NDArray[np.float64] = np.divide(scaled, length, out=np.zeros_like(rows), where=length != 0)
    return unit


def same_shape(prediction: Array, labels: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Both in float64; a label a sample fits a prediction [samples, 1], and the other way round."""
    for what, array in (("the prediction holds", prediction), ("labels hold", labels)):
        if not is_number(array.dtype):
            raise EvaluationError(f"{what} {array.dtype}, which is no number to compare.")
    if prediction.shape != labels.shape:
        if tuple(d for d in prediction.shape[1:] if d != 1) != tuple(
            d for d in labels.shape[1:] if d != 1
        ) or (prediction.shape[:1] != labels.shape[:1]):
            raise EvaluationError(
                f"labels of shape {list(labels.shape)} do not fit a prediction of shape "
                f"{list(prediction.shape)}: expected the same shape."
            )
        labels = labels.reshape(prediction.shape)
    return prediction.astype(np.float64), labels.astype(np.float64)


def _added(counts: NDArray[np.int64], classes: Array) -> NDArray[np.int64]:
    new = np.bincount(classes, minlength=len(counts))
    new[: len(counts)] += counts
    return new


_SAME = {
    "acc": "accuracy",
    "loss": "cross_entropy",
    "top_1_accuracy": "top1",
    "top_5_accuracy": "top5",
    "cosine": "cosine_similarity",
}
_OF_CLASSES: dict[str, Callable[..., Metric]] = {
    kind.__name__: kind for kind in (TopK, Confusion, CrossEntropy)
}


def _own(name: str, ignore: int | None) -> Metric | None:
    if name in OF_CLASSES:
        kind, told = OF_CLASSES[name]
        return _OF_CLASSES[kind](told, ignore)
    return (Cosine() if name == "cosine_similarity" else Differences(name)) if name in OF_NUMBERS else None


def named(name: str, ignore: int | None = None) -> Metric:
    """The metric of a name, in any case; mindspore's names are known too. Raises `EvaluationError`."""
    key = name.strip().lower()
    key = _SAME.get(key, key)
    if own := _own(key, ignore):
        return own
    if (match := re.fullmatch(r"top_?(\d{1,6})", key)) and int(match[1]) > 0:
        return TopK(int(match[1]), ignore)
    others = entry_points().get(GROUP, {})
    if key in others:
        value = load(others[key], key, GROUP)
        return _metric(value() if isinstance(value, type) else value, key, ignore)
    raise EvaluationError(f"there is no metric {name[:80]!r}: expected one of {', '.join(names())}.")


def collect(
    given: Wanted,
    ignore: int | None = None,
) -> dict[str, Metric]:
    """Metrics by name: of one name, function or metric, of several, or of a mapping of names to them.

    Raises `TypeError` for what is none of these, `EvaluationError` for an unknown name or one given twice.
    """
    if isinstance(given, Mapping):
        pairs = [(name, value) for name, value in given.items()]
    else:
        several = sorted(given) if isinstance(given, (set, frozenset)) else given
        values = list(several) if isinstance(several, (list, tuple)) else [several]
        pairs = [(_name_of(value), value) for value in values]
    found: dict[str, Metric] = {}
    for name, value in pairs:
        if not isinstance(name, str):
            raise TypeError(f"metrics' names must be str, but got {type(name)}.")
        if name in found:
            raise EvaluationError(f"the metric {name!r} is given twice.")
        found[name] = _metric(value, name, ignore)
    if not found:
        raise EvaluationError(f"no metric is given: expected one or more of {', '.join(names())}.")
    for metric in found.values():
        metric.clear()
    return found


def _name_of(value: object) -> str:
    return value.strip() if isinstance(value, str) else str(getattr(value, "__name__", type(value).__name__))


def _metric(value: object, name: str, ignore: int | None) -> Metric:
    if isinstance(value, str):
        return named(value, ignore)
    if all(callable(getattr(value, method, None)) for method in ("clear", "update", "eval")):
        return cast("Metric", value)
    if callable(value):
        return Function(value, name)
    raise TypeError(
        f"metrics must be names, functions or objects with clear, update and eval, but got {type(value)}."
    )
