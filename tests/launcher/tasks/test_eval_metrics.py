"""Metrics: values against formulas written out anew, layouts of labels, and what is refused."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from ranks.evaluation.errors import EvaluationError
from ranks.evaluation.evaluate import Report, odd
from ranks.evaluation.metrics import collect

RANDOM = np.random.default_rng(5)
SCORES = RANDOM.standard_normal((37, 9)).astype(np.float32)
LABELS = RANDOM.integers(0, 9, 37)


def value(metric: Any, *batches: tuple[Any, Any], ignore: int | None = None) -> float:
    (found,) = collect(metric, ignore).values()
    for prediction, labels in batches:
        found.update(np.asarray(prediction), np.asarray(labels))
    return float(found.eval())


def in_batches(size: int) -> list[tuple[Any, Any]]:
    return [(SCORES[i : i + size], LABELS[i : i + size]) for i in range(0, len(SCORES), size)]


def softmax(scores: Any) -> Any:
    e = np.exp(scores.astype(np.float64))
    return e / e.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("size", [1, 5, 37])
def test_classes_whatever_the_batches_are(size: int) -> None:
    batches = in_batches(size)
    guess = [max(range(9), key=list(row).__getitem__) for row in SCORES]
    assert value("accuracy", *batches) == sum(g == w for g, w in zip(guess, LABELS, strict=True)) / 37
    for k in (1, 2, 5, 9):
        order = [sorted(range(9), key=list(-row).__getitem__)[:k] for row in SCORES]
        assert value(f"top{k}", *batches) == sum(w in o for w, o in zip(LABELS, order, strict=True)) / 37
    nll = -np.log(softmax(SCORES)[np.arange(37), LABELS]).mean()
    assert value("loss", *batches) == pytest.approx(nll, rel=1e-12)
    assert value("perplexity", *batches) == pytest.approx(math.exp(nll), rel=1e-12)
    each = {"precision": [], "recall": [], "f1": []}  # type: dict[str, list[float]]
    for c in sorted({*guess, *LABELS}):
        right = sum(g == w == c for g, w in zip(guess, LABELS, strict=True))
        said, true = guess.count(c), int((c == LABELS).sum())
        each["precision"].append(right / said if said else 0.0)
        each["recall"].append(right / true if true else 0.0)
        each["f1"].append(2 * right / (said + true))
    for name, values in each.items():
        assert value(name, *batches) == pytest.approx(sum(values) / len(values), rel=1e-12), name


@pytest.mark.parametrize(
    ("name", "each"), [("precision", (1, 1, 0)), ("recall", (1, 1 / 3, 0)), ("f1", (1, 0.5, 0))]
)
def test_a_class_that_is_only_predicted_counts(name: str, each: tuple[float, ...]) -> None:
    assert value(name, ([0, 1, 2, 2], [0, 1, 1, 1])) == pytest.approx(sum(each) / 3, rel=1e-12)


def test_layouts_of_labels() -> None:
    want = value("accuracy", (SCORES, LABELS))
    one_hot = np.eye(9, dtype=np.float32)[LABELS]
    for labels in (LABELS.astype(np.int8), LABELS.astype(np.float32), LABELS[:, None], one_hot, one_hot > 0):
        assert value("accuracy", (SCORES, labels)) == want
    # Token by token: the last axis; pictures: the second one.
    tokens, numbers = SCORES[:36].reshape(4, 9, 9), LABELS[:36].reshape(4, 9)
    assert value("accuracy", (tokens, numbers)) == value("accuracy", (SCORES[:36], LABELS[:36]))
    pictures = SCORES[:36].reshape(4, 3, 3, 9).transpose(0, 3, 1, 2)
    assert value("accuracy", (pictures, LABELS[:36].reshape(4, 3, 3))) == value(
        "accuracy", (SCORES[:36], LABELS[:36])
    )
    classes = SCORES.argmax(axis=1)
    assert value("accuracy", (classes, LABELS)) == want
    assert value("f1", (classes, LABELS)) == value("f1", (SCORES, LABELS))


def test_equal_scores_and_nan() -> None:
    assert value("accuracy", ([[1, 1, 0], [0, 1, 1]], [0, 2])) == 0.5
    assert value("top2", ([[1.0, 1, 1], [1, 1, 1]], [1, 2])) == 0.5
    scores = np.array([[np.nan, 1, 5], [0, 1, 5]])
    for name in ("accuracy", "top2", "recall"):
        assert value(name, (scores, [2, 2])) == 0.5, name
        assert value(name, (scores, [0, 2])) == 0.5, f"{name} of the class whose score is NaN"
    assert math.isnan(value("loss", (scores, [2, 2])))
    assert math.isnan(value("mse", ([np.nan, 1.0], [1.0, 1.0])))
    assert math.isnan(value("max_error", ([np.nan, 1.0], [1.0, 1.0]), ([0.0], [1.0])))
    assert value("accuracy", ([[-np.inf, np.inf]], [1])) == 1


def test_ignored_labels() -> None:
    padded = LABELS.copy()
    padded[::2] = -100
    for name in ("accuracy", "top5", "f1", "loss"):
        assert value(name, (SCORES, padded), ignore=-100) == pytest.approx(
            value(name, (SCORES[1::2], LABELS[1::2])), rel=1e-12
        )
    assert math.isnan(value("accuracy", (SCORES, np.full(37, -100)), ignore=-100))


def test_numbers() -> None:
    a, b = SCORES, RANDOM.standard_normal((37, 9)).astype(np.float32)
    wide = a.astype(np.float64) - b.astype(np.float64)
    halves = [(a[:20], b[:20]), (a[20:], b[20:])]
    assert value("mse", *halves) == pytest.approx((wide**2).mean(), rel=1e-12)
    assert value("rmse", *halves) == pytest.approx(math.sqrt((wide**2).mean()), rel=1e-12)
    assert value("mae", *halves) == pytest.approx(np.abs(wide).mean(), rel=1e-12)
    assert value("max_error", *halves) == np.abs(wide).max()
    cosine = [
        x @ y / np.sqrt((x @ x) * (y @ y)) for x, y in zip(*(s.astype(float) for s in (a, b)), strict=True)
    ]
    assert value("cosine_similarity", *halves) == pytest.approx(np.mean(cosine), rel=1e-12)
    assert value("cosine", ([[0.0, 0.0]], [[1.0, 0.0]])) == 0
    assert value("mse", ([[1.0], [3.0]], [1.0, 1.0])) == 2  # one number a sample, with and without its axis
    # float16 and whole numbers are summed in float64.
    assert value("mse", (np.full(5000, 300, np.float16), np.zeros(5000, np.int8))) == 90000


def test_functions_and_objects() -> None:
    class Count:
        def clear(self) -> None:
            self.seen = 0

        def update(self, prediction: Any, labels: Any) -> None:
            self.seen += len(labels)

        def eval(self) -> int:
            return self.seen

    def error(prediction: Any, labels: Any) -> Any:
        return np.abs(prediction[:, 0] - labels)

    def mean_error(prediction: Any, labels: Any) -> Any:
        return error(prediction, labels).mean()

    want = float(np.abs(SCORES[:, 0].astype(float) - LABELS).mean())
    assert value(error, *in_batches(5)) == pytest.approx(want)
    assert value(mean_error, *in_batches(5)) == pytest.approx(want)  # batches of other lengths weigh less
    assert value(Count(), *in_batches(5)) == 37
    assert list(collect({"n": Count(), "acc": "accuracy"})) == ["n", "acc"]
    assert list(collect({"mse", "mae"})) == ["mae", "mse"]
    assert list(collect(["top5", error])) == ["top5", "error"]


@pytest.mark.parametrize(
    ("metric", "prediction", "labels", "message"),
    [
        ("accuracy", np.zeros((4, 3)), [0, 1, 3, 0], "a label is 3, but the prediction has the classes 0"),
        ("accuracy", np.zeros((4, 3)), [0, 1, -1, 0], "a label is -1, .*--ignore-label"),
        ("accuracy", np.zeros((4, 3)), [0, 0.5, 0, 0], "labels are class numbers, but one is 0.5"),
        ("top2", np.zeros((4, 3)), [0, np.nan, 0, 0], "but one is nan"),
        ("accuracy", np.zeros((4, 3)), ["a", "b", "c", "d"], "labels are class numbers, but hold <U1"),
        ("accuracy", np.zeros((4, 3)), np.ones((4, 3)), "not one-hot"),
        ("accuracy", np.zeros((4, 3)), [0, 1], r"labels of shape \[2\] do not fit a prediction of"),
        ("f1", np.zeros((4, 1)), [0, 1, 1, 0], "has one score a sample"),
        ("top2", np.zeros(4, np.int64), np.zeros(4, np.int64), "top2 needs scores"),
        ("loss", np.zeros(4, np.int64), np.zeros(4, np.int64), "cross_entropy needs scores"),
        ("mse", np.zeros((4, 3)), np.zeros(4), "expected the same shape"),
        ("mae", np.array(["a"]), np.zeros(1), "the prediction holds <U1"),
        (lambda p, y: "x", np.zeros((4, 3)), np.zeros(4), "gave no number"),
        (lambda p, y: [1, 2], np.zeros((4, 3)), np.zeros(4), "gave 2 numbers for 4 samples"),
        ("recall", np.zeros(1, np.int64), np.full(1, 2**40), "beyond them"),
    ],
)  # fmt: skip
def test_what_does_not_fit(metric: Any, prediction: Any, labels: Any, message: str) -> None:
    with pytest.raises(EvaluationError, match=message):
        value(metric, (prediction, labels))


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ("acurracy", EvaluationError, "no metric 'acurracy': expected one of accuracy, topK"),
        ("top0", EvaluationError, "no metric"),
        ([], EvaluationError, "no metric is given"),
        (["mse", "mse"], EvaluationError, "'mse' is given twice"),
        (3, TypeError, "metrics must be names"),
        ({1: "mse"}, TypeError, "metrics' names must be str"),
    ],
)
def test_unknown_metrics(metrics: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        collect(metrics)


def test_cosines_of_any_size() -> None:
    """Nothing is squared that is too large, or too small, for it; what has no cosine is NaN, without a
    warning."""
    a, b = RANDOM.standard_normal((2, 20, 7))
    want = float(np.mean((a * b).sum(1) / np.sqrt((a * a).sum(1) * (b * b).sum(1))))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scale in (1.0, 1e300, 1e-300):
            assert value("cosine", (a * scale, b)) == pytest.approx(want, rel=1e-12)
            assert value("cosine", (a, b * scale)) == pytest.approx(want, rel=1e-12)
        assert value("cosine", (a * 0, b)) == 0
        assert math.isnan(value("cosine", (a, b * np.inf)))
        assert math.isnan(value("cosine", (a * np.nan, b)))


@pytest.mark.parametrize(
    "wrong",
    [np.float64(1e300), np.float32(-np.inf), np.float64(2.0**63), np.uint64(2**63), np.uint64(2**64 - 1)],
)
def test_labels_beyond_all_class_numbers(wrong: Any) -> None:
    labels = np.full(37, wrong)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for scores in (SCORES, LABELS.astype(np.uint64) if wrong.dtype.kind == "u" else SCORES):
            with pytest.raises(EvaluationError, match="labels are class numbers, but one is"):
                value("accuracy", (scores, labels), ignore=-1)


def test_what_looks_odd_is_said() -> None:
    nan = math.nan
    whole = Report({"loss": 0.5, "f1": nan}, 3, 1, 0.1, 0, ())
    assert odd(whole) == ["f1: NaN, because no sample counted or a label is NaN."]
    assert odd(replace(whole, values={"loss": 0.5, "matrix": [nan]})) == []
    (of_samples, unused) = odd(replace(whole, with_nan=2, unused=("a", "b")))
    assert "2 of 3 samples" in of_samples and "'a', 'b'" in unused
