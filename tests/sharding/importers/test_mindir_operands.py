"""What the conversions of MindIR take as numbers, axes and types, and what they refuse."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from sharding.importers.mindir.primitives.base import RefusedError, Value
from sharding.importers.mindir.primitives.operands import Builder, known_rank, tensors

FLOAT, HALF, DOUBLE, INT, SHORT, TRUTH = map(np.dtype, ("f4", "f2", "f8", "i8", "i4", "?"))
BFLOAT = np.dtype(ml_dtypes.bfloat16)
OPEN = Value("x", FLOAT, None)
KNOWN = Value("x", FLOAT, (2, 3))


@pytest.fixture
def b() -> Builder:
    return Builder(18)


def test_one_number(b: Builder) -> None:
    for given, wanted in (
        (3, 3),
        (2.5, 2.5),
        (True, True),
        (b.const([[4]], np.int64), 4),
        (b.const(1.5, np.float32), 1.5),
    ):
        found = b.number(given, "it")
        assert found == wanted and type(found) is type(wanted)
    for given in (KNOWN, (1, 2), None, b.const([1, 2], np.int64)):
        with pytest.raises(RefusedError, match="it must be a number that is known before a run, found"):
            b.number(given, "it")


def test_integers(b: Builder) -> None:
    assert b.integer(3, "it") == b.integer((3,), "it") == b.integer(b.const([3], np.int64), "it") == 3
    assert b.integers((1, 2), "it") == b.integers(b.const([1, 2], np.int64), "it", 2) == (1, 2)
    assert b.integers(5, "it", 3) == (5, 5, 5)
    wrong: tuple[Any, ...] = (KNOWN, (1, 2), None, 2.5)
    for given in wrong:
        with pytest.raises(RefusedError, match="it must be one integer that is known before a run, found"):
            b.integer(given, "it")
    for given in (KNOWN, None, 2.5):
        with pytest.raises(RefusedError, match="it must be integers that are known before a run, found"):
            b.integers(given, "it")
    for given in ((1, 2), ()):
        with pytest.raises(RefusedError, match="it must have 3 numbers, found"):
            b.integers(given, "it", 3)


def test_tensors(b: Builder) -> None:
    assert tensors(KNOWN) == [KNOWN] and tensors((KNOWN, OPEN)) == [KNOWN, OPEN]
    for given in ((), (KNOWN, 3), 3, None):
        with pytest.raises(RefusedError, match="them must be a tuple of tensors, found"):
            tensors(given, "them")
    assert known_rank(KNOWN) == 2
    with pytest.raises(RefusedError, match="whose number of axes is known"):
        known_rank(OPEN)


def test_axes(b: Builder) -> None:
    assert b.axes_of((-1, 0), KNOWN) == [0, 1] and b.axes_of(1, KNOWN) == [1]
    assert b.axes_of((0, -1), Value("x", FLOAT, ())) == []
    with pytest.raises(RefusedError, match="names one axis twice"):
        b.axes_of((1, -1), KNOWN)


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        (FLOAT, FLOAT), (DOUBLE, DOUBLE), (HALF, HALF), (BFLOAT, FLOAT), (INT, INT), (SHORT, SHORT),
        (np.dtype("i2"), SHORT), (np.dtype("u1"), SHORT), (np.dtype("u4"), INT), (TRUTH, SHORT),
    ],
)  # fmt: skip
def test_types_that_arithmetic_takes(dtype: Any, wanted: Any, b: Builder) -> None:
    assert b.computable(Value("x", dtype, (2,))).dtype == wanted


def test_types_without_arithmetic(b: Builder) -> None:
    with pytest.raises(RefusedError, match="there is no arithmetic for complex64"):
        b.computable(Value("x", np.dtype(np.complex64), (2,)))


@pytest.mark.parametrize(
    ("one", "other", "wanted"),
    [
        (HALF, FLOAT, FLOAT), (INT, HALF, HALF), (TRUTH, INT, INT), (SHORT, INT, INT), (BFLOAT, FLOAT, FLOAT),
        (BFLOAT, HALF, FLOAT), (BFLOAT, DOUBLE, DOUBLE), (BFLOAT, INT, BFLOAT), (BFLOAT, BFLOAT, BFLOAT),
    ],
)  # fmt: skip
def test_the_type_of_two(one: Any, other: Any, wanted: Any, b: Builder) -> None:
    x, y = Value("x", one, (2,)), Value("y", other, (2,))
    for pair in ((x, y), (y, x)):
        assert [item.dtype for item in b.promoted(*pair)] == [wanted, wanted]


@pytest.mark.parametrize(
    ("number", "dtype", "wanted"),
    [(2, TRUTH, INT), (2.5, INT, FLOAT), (2, HALF, HALF), (2.5, HALF, HALF), (True, TRUTH, TRUTH)],
)
def test_the_type_of_a_tensor_and_a_number(number: Any, dtype: Any, wanted: Any, b: Builder) -> None:
    found = b.promoted(Value("x", dtype, (2,)), number)
    assert [item.dtype for item in found] == [wanted, wanted]
