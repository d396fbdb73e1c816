"""Predicted classes and labels, one a sample, from arrays in the layouts that networks use."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranks.evaluation.errors import EvaluationError
from sharding.common.arrays import Array, DType

_BEYOND = 2.0**63


def scores_and_labels(scores: Array, labels: Array, ignore: int | None = None) -> tuple[Array, Array]:
    """Scores as [samples, classes] and labels as class numbers [samples], without those labelled ``ignore``.

    Labels are class numbers, of the scores' shape without its class axis (which is the last one where that
    fits, else the second, as [N, C, H, W] with [N, H, W]), or one-hot rows of the scores' own shape. Scores
    that are whole numbers with one label each are classes already: they come back as [samples] of them.

    Raises `EvaluationError` with what does not fit.
    """
    if not is_number(scores.dtype):
        raise EvaluationError(f"the prediction holds {scores.dtype}, of which no class can be told.")
    if labels.ndim == 2 and labels.shape[1] == 1 and scores.ndim == 2 and scores.shape[1] != 1:
        labels = labels[:, 0]
    if scores.shape == labels.shape and scores.dtype.kind in "biu" and labels.dtype.kind in "biu":
        flat: Array = scores.reshape(-1)
        numbers: Array = _whole(labels).reshape(-1)
    else:
        axis = _class_axis(scores, labels)
        if scores.shape[axis] < 2:
            raise EvaluationError(
                f"the prediction {list(scores.shape)} has one score a sample, and classes need two or more: "
                "use a metric of numbers (mse, mae), or a function of your own."
            )
        one_hot = scores.shape == labels.shape
        numbers = _from_one_hot(labels) if one_hot else _whole(labels).reshape(-1)
        flat = np.moveaxis(scores, axis, -1).reshape(-1, scores.shape[axis])
    if ignore is not None:
        keep = numbers != ignore
        flat, numbers = flat[keep], numbers[keep]
    if flat.ndim == 2 and numbers.size and (numbers.min() < 0 or numbers.max() >= flat.shape[1]):
        wrong = int(numbers.min() if numbers.min() < 0 else numbers.max())
        advice = " (--ignore-label leaves samples out)" if wrong < 0 else ""
        raise EvaluationError(
            f"a label is {wrong}, but the prediction has the classes 0 to {flat.shape[1] - 1}{advice}."
        )
    return flat, numbers


def predicted(scores: Array) -> Array:
    """The class of the greatest score, -1 where a score is NaN; of equal scores the first one's."""
    if scores.ndim == 1:
        return scores.astype(np.int64)
    best = scores.argmax(axis=1)
    return np.where(np.isnan(scores).any(axis=1), -1, best) if has_nan(scores) else best


def among_best(scores: Array, labels: Array, k: int) -> Array:
    """Whether each label is among the ``k`` greatest scores; of equal ones, the first are greater.

    A sample with a NaN among its scores is not. ``k`` = 1 is the same as `predicted`.
    """
    rows = np.arange(len(labels))
    own = scores[rows, labels][:, None]
    before = np.arange(scores.shape[1])[None, :] < labels[:, None]
    better = ((scores > own) | ((scores == own) & before)).sum(axis=1)
    found: Array = (better < k) & ~np.isnan(scores).any(axis=1)
    return found


def is_number(dtype: DType) -> bool:
    """Whether it is a real number's type; bfloat16 and the 8-bit floats, which numpy does not know, are."""
    return dtype.kind in "biuf" or dtype.name.startswith(("bfloat", "float8"))


def has_nan(array: Array) -> bool:
    """Whether there is a NaN in it."""
    return array.dtype.kind == "f" and bool(np.isnan(array).any())


def _class_axis(scores: Array, labels: Array) -> int:
    if scores.ndim >= 2 and (scores.shape == labels.shape or scores.shape[:-1] == labels.shape):
        return scores.ndim - 1
    if scores.ndim >= 3 and (scores.shape[0], *scores.shape[2:]) == labels.shape:
        return 1
    raise EvaluationError(
        f"labels of shape {list(labels.shape)} do not fit a prediction of shape {list(scores.shape)}: "
        "expected a class number for each of its rows of scores, or one-hot rows of the same shape."
    )


def _whole(labels: Array) -> NDArray[np.int64]:
    if labels.dtype.kind not in "biuf":
        raise EvaluationError(f"labels are class numbers, but hold {labels.dtype}.")
    if labels.dtype.kind == "f":
        fits = (labels == np.floor(labels)) & (np.abs(labels) < _BEYOND)  # False for NaN
    else:
        fits = labels <= np.iinfo(np.int64).max if labels.dtype == np.uint64 else np.True_
    if not np.all(fits):
        raise EvaluationError(f"labels are class numbers, but one is {labels[~fits].reshape(-1)[0]}.")
    return labels.astype(np.int64)


def _from_one_hot(labels: Array) -> NDArray[np.int64]:
    rows = labels.reshape(-1, labels.shape[-1])
    if labels.dtype.kind not in "biuf" or not (
        ((rows == 0) | (rows == 1)).all() and (rows.sum(axis=1) == 1).all()
    ):
        raise EvaluationError(
            f"labels have the prediction's shape {list(labels.shape)}, but are not one-hot: each row must "
            "hold one 1 and else 0."
        )
    found: NDArray[np.int64] = rows.argmax(axis=1)
    return found
