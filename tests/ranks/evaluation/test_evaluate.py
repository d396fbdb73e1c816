"""How many samples of a batch have a NaN, and which batches a model takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ranks.common.tensors import TensorSpec
from ranks.errors import ShardrunError
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


class Failing(Seen):
    """A metric that raises something at its first batch."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self._error = error

    def update(self, prediction: Array, labels: Array) -> None:
        raise self._error


BATCH = (np.ones((4, 2), np.float32), np.zeros(4, np.int64))


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (EvaluationError("it wants two"), "samples 0 to 3, metric 'Failing': it wants two"),
        (ValueError("one\n two"), "samples 0 to 3, metric 'Failing': it failed: one two."),
        (TypeError(), "samples 0 to 3, metric 'Failing': it failed: TypeError."),
        (MemoryError("x" * 400), f"samples 0 to 3, metric 'Failing': it failed: {'x' * 300}."),
        (ShardrunError("of our own"), "of our own"),
    ],
)
def test_a_metric_that_fails(error: Exception, why: str) -> None:
    with pytest.raises(ShardrunError) as caught:
        evaluate(lambda _: {"y": BATCH[0]}, [X], [Y], [BATCH], {"Failing": Failing(error)})
    assert str(caught.value) == why


@pytest.mark.parametrize(
    ("rows", "prediction", "why"),
    [
        (None, [1, 2], "the output 'y' is list, no tensor to compare"),
        (6, np.ones((), np.float32), "has no row for each of the 6 samples that the model fixes"),
        (6, np.ones((4, 2), np.float32), "has no row for each of the 6 samples that the model fixes"),
    ],
)
def test_predictions_that_cannot_be_compared(rows: int | None, prediction: Any, why: str) -> None:
    x = X._replace(shape=(rows or "n", 2))
    with pytest.raises(EvaluationError, match=why):
        evaluate(lambda _: {"y": prediction}, [x], [Y], [BATCH], Seen())


def test_values_that_are_no_number_come_as_they_are() -> None:
    class Rows(Seen):
        def eval(self) -> Any:
            return self.shapes

    report = evaluate(lambda _: {"y": BATCH[0]}, [X], [Y], [BATCH], {"a": Rows(), "b": Seen()})
    assert report.values == {"a": [(4, 2)], "b": 1.0} and type(report.values["b"]) is float


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ("z", "no output 'z': it has 'y', 'more'"),
        ("more", "'more' is a sequence or a map, no tensor to compare"),
    ],
)
def test_outputs_that_cannot_be_compared(chosen: str, why: str) -> None:
    more = TensorSpec("more", np.dtype(object), (), is_tensor=False)
    with pytest.raises(EvaluationError, match=why):
        evaluate(lambda _: {}, [X], [Y, more], [BATCH], Seen(), Options(prediction=chosen))


@pytest.mark.parametrize("option", [{"label": "y"}, {"rename": {"x": "a"}}, {"batch_size": 4}])
def test_options_of_files_are_none_of_given_batches(option: dict[str, Any]) -> None:
    with pytest.raises(EvaluationError, match=f"{next(iter(option))} is of data in files"):
        evaluate(lambda _: {}, [X], [Y], [BATCH], Seen(), Options(**option))


def test_what_holds_no_data() -> None:
    with pytest.raises(EvaluationError, match="the data have no samples"):
        evaluate(lambda _: {}, [X], [Y], [], Seen())
    with pytest.raises(EvaluationError, match="is no path of data"):
        evaluate(lambda _: {}, [X], [Y], "a\0b", Seen())
    with pytest.raises(TypeError, match="data must be a path or an iterable"):
        evaluate(lambda _: {}, [X], [Y], 3, Seen())  # type: ignore[arg-type]
