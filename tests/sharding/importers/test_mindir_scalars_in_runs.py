"""Numbers, truths and tuples of MindIR: known while converting, and only in a run. Python answers."""

from __future__ import annotations

import math
import operator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.errors import ModelError
from tests.sharding.importers.mindir_runs import open_axes, open_lengths, run

X = np.arange(6, dtype=np.float32).reshape(2, 3)
FLOAT16, FLOAT32, INT32, TRUTH = 42, 43, 34, 30  # of a file, MindSpore's own numbers
ONE = np.array(3)


def one(folder: Path, kind: str, *operands: Any, **settings: Any) -> Any:
    (found,) = run(folder, kind, *operands, **settings)
    return found


def refusal(folder: Path, kind: str, *operands: Any, **settings: Any) -> str:
    with pytest.raises(ModelError) as caught:
        run(folder, kind, *operands, **settings)
    return str(caught.value)


@pytest.mark.parametrize("given", [X, open_lengths(X), open_axes(X)], ids=["known", "lengths", "axes"])
def test_what_is_asked_of_a_shape(given: Any, tmp_path: Path) -> None:
    assert one(tmp_path, "Rank", given) == 2
    assert one(tmp_path, "Size", given) == 6


@pytest.mark.parametrize("kind", ["ScalarDiv", "ScalarMod", "ScalarFloorDiv", "ScalarPow", "ScalarAdd"])
def test_numbers_that_are_not_whole(kind: str, tmp_path: Path) -> None:
    wanted = {
        "ScalarDiv": operator.truediv,
        "ScalarMod": operator.mod,
        "ScalarFloorDiv": operator.floordiv,
        "ScalarPow": operator.pow,
        "ScalarAdd": operator.add,
    }[kind]
    for x, y in ((7.5, 2), (-7.5, 2), (7, 2.5), (4.0, 3.0)):
        kinds = [np.float32 if isinstance(item, float) else np.int64 for item in (x, y)]
        for operands in ((x, y), (np.array(x, kinds[0]), y), (x, np.array(y, kinds[1]))):
            found = one(tmp_path, kind, *operands)
            assert found.dtype == np.float32 and found.shape == ()
            assert found == pytest.approx(wanted(x, y), rel=1e-6), operands


def test_the_type_of_a_number_is_that_of_a_run(tmp_path: Path) -> None:
    """A number of the file takes the other's type if that holds it; of two of a run the wider one."""
    for x, y, wanted in (
        (np.array(3, np.int32), 4, "int32"),
        (np.array(3, np.int32), np.array(4, np.int64), "int64"),
        (np.array(3, np.int64), np.array(4, np.int32), "int64"),
        (np.array(3, np.float16), 4, "float16"),
        (np.array(3, np.float16), 4.0, "float16"),
        (np.array(3, np.int32), np.array(4, np.float16), "float16"),
        (np.array(3, np.int32), 4.0, "float32"),
        (np.array(True), 6, "int64"),
        (np.array(True), np.array(6, np.int32), "int32"),
    ):
        found = one(tmp_path, "ScalarAdd", x, y)
        assert found.dtype == wanted and found == 7, (x, y)
    assert one(tmp_path, "ScalarDiv", np.array(7, np.int32), 2) == 3.5
    assert one(tmp_path, "ScalarDiv", 7, 2) == 3.5


def test_powers(tmp_path: Path) -> None:
    assert one(tmp_path, "ScalarPow", 2, 62) == 2**62
    assert one(tmp_path, "ScalarPow", -1, 1000) == 1
    assert one(tmp_path, "ScalarPow", 2, -1) == 0.5
    assert one(tmp_path, "ScalarPow", np.array(3), 4) == 81
    for x, y in ((2, 63), (2, 64), (3, 50), (-2, 63), (10, 1000)):
        assert "its result is beyond 64-bit integers" in refusal(tmp_path, "ScalarPow", x, y)
    assert "its result is no real number" in refusal(tmp_path, "ScalarPow", -8, 0.5)


def test_results_beyond_64_bits(tmp_path: Path) -> None:
    most = 1 << 62
    assert one(tmp_path, "ScalarAdd", most - 1, 1) == most
    assert one(tmp_path, "ScalarSub", 1 - most, 1) == -most
    for kind, x, y in (("ScalarAdd", most, 1), ("ScalarSub", -most, 1), ("ScalarMul", 2**40, 2**40)):
        assert "its result is beyond 64-bit integers" in refusal(tmp_path, kind, x, y)


def test_extremes_of_a_tuple(tmp_path: Path) -> None:
    for items in ((3, 9, -4), (3, np.array(9), np.array(-4)), (np.array(3), np.array(9), np.array(-4))):
        for kind, wanted in (("SequenceMax", 9), ("SequenceMin", -4)):
            found = one(tmp_path, kind, items)
            assert found.shape == () and found == wanted


def test_logarithm_sign_and_itself(tmp_path: Path) -> None:
    for x in (5, np.array(5), 5.0):
        found = one(tmp_path, "ScalarLog", x)
        assert found.dtype == np.float32 and found == pytest.approx(math.log(5), rel=1e-6)
    for x in (5, np.array(5)):
        for kind in ("ScalarUsub", "scalar_usub"):
            assert one(tmp_path, kind, x) == -5
    assert one(tmp_path, "ScalarUadd", 5) == 5


@pytest.mark.parametrize(
    ("x", "y", "same"),
    [
        (None, None, True), (None, 0, False), (True, True, True), (True, False, False), (True, 1, False),
        ("a", "a", True), ("a", "b", False), (X, None, False), (None, X, False), ((1, 2), None, False),
        (True, X, False), (1, 1.0, False),
    ],
)  # fmt: skip
def test_which_are_the_same(x: Any, y: Any, same: bool, tmp_path: Path) -> None:
    assert one(tmp_path, "is_", x, y) == same
    assert one(tmp_path, "is_not", x, y) != same


def test_whether_two_tensors_are_one(tmp_path: Path) -> None:
    for x, y in ((X, X), ((1, 2), X), ((1, 2), (1, 2))):
        assert "whether two tensors are one has no conversion" in refusal(tmp_path, "is_", x, y)


BOOLEANS = {
    "BoolAnd": operator.and_,
    "bool_or": operator.or_,
    "BoolOr": operator.or_,
    "ScalarAnd": operator.and_,
    "BoolEq": operator.eq,
}


@pytest.mark.parametrize("kind", BOOLEANS)
def test_truths(kind: str, tmp_path: Path) -> None:
    for x, y in product((False, True), repeat=2):
        for operands in ((x, y), (np.array(x), y), (x, np.array(y)), (np.array(x), np.array(y))):
            found = one(tmp_path, kind, *operands)
            assert found.dtype == bool and found == BOOLEANS[kind](x, y), operands


def test_truths_of_numbers(tmp_path: Path) -> None:
    for x in (0, 2, 0.5, np.array(0), np.array(2), np.array(0.5, np.float32), True, np.array(True)):
        assert one(tmp_path, "bool_not", x) == (not x)
        assert one(tmp_path, "ScalarNot", x) == (not x)
        assert one(tmp_path, "BoolAnd", x, 5) == bool(x)
        assert one(tmp_path, "BoolEq", x, 5) == bool(x)


@pytest.mark.parametrize("x", [2.75, np.array(2.75, np.float32), np.array([2.75], np.float32)], ids=str)
def test_a_number_of_another_type(x: Any, tmp_path: Path) -> None:
    for dtype, wanted in ((INT32, 2), (FLOAT32, 2.75), (TRUTH, True), (None, 2.75)):
        found = one(tmp_path, "ScalarCast", x, dtype)
        assert found == wanted and found.shape == ()
    for kind in ("ScalarBool", "scalar_bool"):
        found = one(tmp_path, kind, x)
        assert found.dtype == bool and found
    assert one(tmp_path, "TensorToScalar", x) == 2.75
    assert one(tmp_path, "ScalarToTensor", x, INT32).dtype == np.int32
    assert one(tmp_path, "ScalarToTensor", x) == 2.75


def test_a_number_cast_to_a_narrow_type(tmp_path: Path) -> None:
    assert one(tmp_path, "ScalarCast", np.array(3), FLOAT16).dtype == np.float16
    assert one(tmp_path, "ScalarCast", 0, TRUTH) == np.array(False)
    assert "the element type 99 is not known" in refusal(tmp_path, "ScalarCast", ONE, 99)


def test_tuples_as_tensors(tmp_path: Path) -> None:
    for items, dtype, wanted in (
        ((1, 2), None, np.array([1, 2])),
        ((1, 2), FLOAT32, np.float32([1, 2])),
        ((1, ONE), None, np.array([1, 3])),
        ((1, ONE), INT32, np.int32([1, 3])),
    ):
        found = one(tmp_path, "TupleToTensor", items, dtype)
        assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist()


def test_a_tensor_as_a_tuple(tmp_path: Path) -> None:
    numbers = np.array([4, 5, 6])
    assert [int(item) for item in run(tmp_path, "TensorToTuple", numbers)] == [4, 5, 6]
    (found,) = run(tmp_path, "TensorToTuple", open_lengths(numbers))
    assert found.tolist() == [4, 5, 6]
    assert len(run(tmp_path, "TensorToTuple", np.arange(64))) == 64
    (found,) = run(tmp_path, "TensorToTuple", np.arange(65))
    assert found.tolist() == [*range(65)]
