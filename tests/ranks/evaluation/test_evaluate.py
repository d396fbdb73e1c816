"""How many samples of a batch have a NaN, and which batches a model takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec
from ranks.evaluation.errors import EvaluationError
from ranks.evaluation.evaluate import LARGEST_BATCH, Options, evaluate

Array = np.ndarray[Any, Any]
X = TensorSpec("x", np.dtype(np.float32), ("n", 2))
Y = TensorSpec("y", np.dtype(np.float32), ("n", 2))
NAN = float("nan")


class Seen:
    """A metric that takes anything."""

    def __init__(self) -> None:
        self.shapes: list[tuple[int, ...]] = []

    def clear(self) -> None:
        self.shapes = []

    def update(self, prediction: Array, labels: Array) -> None:
        self.shapes.append(prediction.shape)

    def eval(self) -> int:
        return len(self.shapes)


@pytest.mark.parametrize(
    ("prediction", "count"),
    [
        (np.ones((4, 2), np.float32), 0),
        (np.float32([[NAN, NAN], [1, 1], [1, NAN], [1, 1]]), 2),
        (np.float32([1, NAN, 1, 1]), 1),
        (np.full((4, 2, 2), NAN, np.float32), 4),
        # No row for each sample: none of them is known to be without.
        (np.float32(NAN), 4),
        (np.float32([1, NAN]), 4),
        (np.float32([[1, 1, 1, NAN]]), 4),
        (np.float32([[1, NAN]] + [[1, 1]] * 7), 4),
        (np.ones(3, np.int64), 0),
    ],
)
def test_samples_with_nan(prediction: Any, count: int) -> None:
    """Of two batches of four, the second of which has none."""
    answers = iter([np.asarray(prediction), np.ones((4, 2), np.float32)])
    batch = (np.ones((4, 2), np.float32), np.zeros(4, np.int64))
    report = evaluate(lambda _: {"y": next(answers)}, [X], [Y], [batch, batch], Seen())
    assert (report.samples, report.batches, report.with_nan) == (8, 2, count)


@pytest.mark.parametrize(
    ("asked", "fixed", "wanted"),
    [
        (None, None, [5]),
        (2, None, [2, 2, 1]),
        (5, None, [5]),
        (LARGEST_BATCH, None, [5]),
        (None, 2, [2, 2, 2]),
        (2, 2, [2, 2, 2]),
    ],
)
def test_batches_are_as_large_as_asked_for_or_fixed(
    asked: int | None, fixed: int | None, wanted: list[int], tmp_path: Any
) -> None:
    """The last one is padded where the model fixes how many samples there are, and told without."""
    np.savez(tmp_path / "d.npz", x=np.arange(10, dtype=np.float32).reshape(5, 2), label=np.zeros(5, np.int64))
    rows: list[int] = []

    def run(feeds: Any) -> dict[str, Array]:
        rows.append(len(feeds["x"]))
        return {"y": feeds["x"]}

    metric, told = Seen(), list[tuple[int, int]]()
    x = X._replace(shape=(fixed or "n", 2))
    options = Options(batch_size=asked)
    report = evaluate(
        run, [x], [Y], tmp_path / "d.npz", metric, options, progress=lambda *done: told.append(done)
    )
    assert rows == wanted and report.samples == 5
    assert sum(shape[0] for shape in metric.shapes) == 5
    assert told[-1] == (5, 5) and [done for done, _ in told] == list(
        np.cumsum([shape[0] for shape in metric.shapes])
    )


@pytest.mark.parametrize(
    ("asked", "fixed", "why"),
    [
        (0, None, "must be a whole number from 1 to"),
        (LARGEST_BATCH + 1, None, "must be a whole number from 1 to"),
        (True, None, "must be a whole number from 1 to .*, but is True"),
        (1.5, None, "must be a whole number from 1 to .*, but is 1.5"),
        (3, 2, "fixes its batch to 2 samples, but a batch of 3 is asked for"),
        (None, 0, "fixes its batch to 0 samples: there is nothing to evaluate"),
    ],
)
def test_batches_that_there_are_not(asked: Any, fixed: int | None, why: str, tmp_path: Any) -> None:
    np.savez(tmp_path / "d.npz", x=np.zeros((5, 2), np.float32), label=np.zeros(5, np.int64))
    x = X._replace(shape=("n" if fixed is None else fixed, 2))
    with pytest.raises(EvaluationError, match=why):
        evaluate(lambda _: {}, [x], [Y], tmp_path / "d.npz", Seen(), Options(batch_size=asked))
