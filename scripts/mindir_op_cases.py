"""The networks of `scripts/mindir_cases.py`, from the table beside this file.

A line is a name, what makes the primitive (``-`` for none), its use as ``op`` on ``x0``, ``x1``, ..., and the
inputs: calls of the functions below.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

TABLE = Path(__file__).with_suffix(".txt")
Array = Any
Make = Callable[[np.random.RandomState], Array]


@dataclass(frozen=True)
class Case:
    """One network."""

    name: str
    op: str
    call: str
    inputs: tuple[Make, ...]

    def arrays(self) -> list[Array]:
        """The inputs, the same each time."""
        random = np.random.RandomState(zlib.crc32(self.name.encode()))
        return [make(random) for make in self.inputs]


def f(*shape: int, low: float = -2.0, high: float = 2.0, dtype: str = "float32") -> Make:
    """Numbers between two bounds."""
    return lambda random: random.uniform(low, high, shape).astype(dtype)


def i(*shape: int, low: int = -5, high: int = 6, dtype: str = "int32") -> Make:
    """Integers from low up to before high."""
    return lambda random: random.randint(low, high, shape).astype(dtype)


def nz(*shape: int, dtype: str = "int32") -> Make:
    """Integers that are not 0."""
    return lambda random: (random.randint(1, 5, shape) * random.choice([-1, 1], shape)).astype(dtype)


def flag(*shape: int) -> Make:
    """Truth values."""
    return lambda random: random.rand(*shape) > 0.5


def lit(data: Any, dtype: str = "float32") -> Make:
    """These."""
    return lambda random: np.asarray(data, dtype)


def distinct(*shape: int, dtype: str = "float32") -> Make:
    """Different numbers, in no order."""
    return lambda random: random.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


def positive(rows: int, *batch: int) -> Make:
    """Positive definite matrices."""

    def make(random: np.random.RandomState) -> Array:
        half = random.uniform(-1, 1, (*batch, rows, rows))
        return (half @ np.swapaxes(half, -1, -2) + rows * np.eye(rows)).astype(np.float32)

    return make


def waves(*shape: int) -> Make:
    """Complex numbers."""
    return lambda random: (random.uniform(-2, 2, shape) + 1j * random.uniform(-2, 2, shape)).astype(
        np.complex64
    )


MAKERS = {
    "f": f,
    "i": i,
    "nz": nz,
    "flag": flag,
    "lit": lit,
    "distinct": distinct,
    "positive": positive,
    "waves": waves,
    "nan": np.nan,
    "inf": np.inf,
}


def cases() -> list[Case]:
    """All of the table. Raises ValueError for a line that is none, or a name that is there twice."""
    found: dict[str, Case] = {}
    for line in TABLE.read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        name, op, call, inputs = line.split(" | ")
        if name in found:
            raise ValueError(f"{name} is there twice")
        made = tuple(eval(item, dict(MAKERS)) for item in inputs.split("; "))
        found[name] = Case(name, "" if op == "-" else op, call, made)
    return list(found.values())


CASES = cases()
