"""What outputs look like: a short table, or the same as plain JSON values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ranks.common.tensors import is_extended
from sharding.common.arrays import Array
from sharding.common.text import one_line, shortened

FIRST_VALUES = 4
_LONGEST_TEXT = 20  # characters of a text that is shown


@dataclass(frozen=True)
class Summary:
    """One output: its first values and, of numbers, the least and the most of the finite ones."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    bytes: int
    first: tuple[object, ...]
    least: float | int | None
    most: float | int | None
    nan: int
    infinite: int

    def row(self) -> list[str]:
        """For a table: name, shape, type, first values, range."""
        size = math.prod(self.shape)
        values = " ".join(map(_shown, self.first)) + (" ..." if size > len(self.first) else "")
        parts = [] if self.least is None else [f"{_shown(self.least)} to {_shown(self.most)}"]
        parts += [f"{self.nan} NaN"] if self.nan else []
        parts += [f"{self.infinite} infinite"] if self.infinite else []
        return [self.name, str(list(self.shape)), self.dtype, values if size else "(empty)", ", ".join(parts)]

    def to_json(self) -> dict[str, object]:
        """All of it as plain JSON values; numbers that JSON does not have are text."""
        return {
            "name": self.name, "dtype": self.dtype, "shape": list(self.shape), "bytes": self.bytes,
            "first": [_plain(value) for value in self.first], "min": self.least, "max": self.most,
            "nan": self.nan, "infinite": self.infinite,
        }  # fmt: skip


COLUMNS = ["output", "shape", "type", "first values", "range"]
ALIGN = "lllll"


def summarize(outputs: Mapping[str, object]) -> list[Summary]:
    """Every output, in order."""
    return [_summary(name, np.asarray(array)) for name, array in outputs.items()]


def _summary(name: str, array: Array) -> Summary:
    dtype = "string" if array.dtype.kind in "OUS" else array.dtype.name
    numbers = array.astype(np.float32) if is_extended(array.dtype) else array
    first = tuple(numbers.reshape(-1)[:FIRST_VALUES].tolist())
    least = most = None
    nan = infinite = 0
    if numbers.dtype.kind in "biuf" and numbers.size:
        kept = numbers
        if numbers.dtype.kind == "f":
            finite = np.isfinite(numbers)
            nan = int(np.isnan(numbers).sum())
            infinite = int(numbers.size - finite.sum()) - nan
            kept = numbers if finite.all() else numbers[finite]
        if kept.size and numbers.dtype.kind != "b":
            least, most = kept.min().item(), kept.max().item()
    return Summary(name, dtype, array.shape, array.nbytes, first, least, most, nan, infinite)


def _shown(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.5g}"
    if isinstance(value, complex):
        return f"{value.real:.5g}{value.imag:+.5g}j"
    if isinstance(value, str | bytes):
        text = value.decode(errors="replace") if isinstance(value, bytes) else value
        return repr(shortened(one_line(text), _LONGEST_TEXT))
    return str(value)


def _plain(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, complex):
        return [_plain(value.real), _plain(value.imag)]
    return value.decode(errors="replace") if isinstance(value, bytes) else value
