"""Random arrays for the cases; lengths are multiples of 12, so that 2, 3 and 4 ranks divide them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.sharding.proof import Const

_random = np.random.default_rng(20240607)


def f32(*shape: int) -> np.ndarray[Any, Any]:
    return _random.standard_normal(shape).astype(np.float32)


def positive(*shape: int) -> np.ndarray[Any, Any]:
    return _random.uniform(0.2, 1.8, shape).astype(np.float32)


def unit(*shape: int) -> np.ndarray[Any, Any]:
    """Between -1 and 1, ends excluded."""
    return _random.uniform(-0.9, 0.9, shape).astype(np.float32)


def i64(*shape: int, low: int = -9, high: int = 9) -> np.ndarray[Any, Any]:
    return _random.integers(low, high, shape).astype(np.int64)


def u8(*shape: int) -> np.ndarray[Any, Any]:
    return _random.integers(0, 255, shape).astype(np.uint8)


def boolean(*shape: int) -> np.ndarray[Any, Any]:
    return _random.integers(0, 2, shape).astype(np.bool_)


def vector(*values: int) -> Const:
    """A constant int64 vector: axes, a shape."""
    return Const(np.asarray(values, dtype=np.int64))


def runtime(values: Sequence[int]) -> np.ndarray[Any, Any]:
    """The same, computed by the model and so not known when it is sliced."""
    return np.asarray(values, dtype=np.int64)


def scalar(value: float, dtype: Any = np.float32) -> Const:
    return Const(np.asarray(value, dtype=dtype))
