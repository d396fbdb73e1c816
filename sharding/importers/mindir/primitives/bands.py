"""Diagonals of matrices: taken out as rows, written into matrices."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sharding.common.arrays import Array
from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import Builder, known_rank

_ALIGNMENTS = ("right_left", "left_right", "left_left", "right_right")


@dataclass(frozen=True)
class _Band:
    """Diagonals ``low`` to ``high`` of a matrix, the highest first, each in a row of ``length``."""

    rows: int
    columns: int
    low: int
    high: int
    align: str

    @property
    def length(self) -> int:
        """Of the longest diagonal."""
        return min(self.rows + min(self.high, 0), self.columns - max(self.low, 0))

    def shift(self, offset: int) -> int:
        """By how much a diagonal is moved to the right in its row."""
        above, _, below = self.align.partition("_")
        if (above if offset >= 0 else below) == "left":
            return 0
        return self.length - min(self.rows + min(offset, 0), self.columns - max(offset, 0))

    def places(self) -> Array:
        """For each element of the matrix its place among the rows, -1 where it is on no diagonal."""
        found = np.full((self.rows, self.columns), -1, np.int64)
        for offset in range(self.low, self.high + 1):
            row, column = max(-offset, 0), max(offset, 0)
            for along in range(min(self.rows - row, self.columns - column)):
                place = (self.high - offset) * self.length + along + self.shift(offset)
                found[row + along, column + along] = place
        return found

    def elements(self) -> Array:
        """For each place of the rows its element of the matrix, -1 where there is none."""
        found = np.full((self.high - self.low + 1) * self.length, -1, np.int64)
        places = self.places().reshape(-1)
        found[places[places >= 0]] = np.flatnonzero(places >= 0)
        return found.reshape(-1, self.length)


def _offsets(b: Builder, k: Operand) -> tuple[int, int]:
    found = b.integers(k, "k")
    if not 1 <= len(found) <= 2 or found[0] > found[-1]:
        raise RefusedError(f"k must be one diagonal or the lowest and the highest, found {found}")
    return found[0], found[-1]


def _band(b: Builder, rows: int, columns: int, offsets: tuple[int, int], align: Operand) -> _Band:
    if offsets[0] <= -rows or offsets[1] >= columns:
        raise RefusedError(f"a matrix of {rows} x {columns} has no diagonals {offsets[0]} to {offsets[1]}")
    b.bounded(rows, columns)
    return _Band(rows, columns, *offsets, Builder.text(align, "align", _ALIGNMENTS))


def _known(x: Value, count: int) -> tuple[int, ...]:
    """The last lengths."""
    known_rank(x)
    found = tuple(length for length in (x.shape or ())[-count:] if length is not None)
    if len(found) != count:
        raise RefusedError(f"the last {'length' if count == 1 else 'two lengths'} must be known before a run")
    return found


def _chosen(b: Builder, x: Value, axes: int, table: Array, other: Value) -> Value:
    """Elements of the last axes taken as one, by a table of places; ``other`` where the place is -1."""
    if axes == 2:
        shape = b.lengths(x)
        lengths = _known(x, 2)
        x = b.reshape(x, (*shape[:-2], lengths[0] * lengths[1]))
    taken = b.op("Gather", [x, b.const(np.maximum(table, 0))], {"axis": -1})
    return b.op("Where", [b.const(table >= 0), taken, other])


@primitive("MatrixDiagPartV3")
def matrix_diag_part(
    b: Builder, x: Value, k: Operand, padding: Operand, *, align: Operand = "RIGHT_LEFT"
) -> Value:
    """Diagonals as rows; a single one without the axis of rows."""
    offsets = _offsets(b, k)
    rows, columns = _known(x, 2)
    table = _band(b, rows, columns, offsets, align).elements()
    if offsets[0] == offsets[1]:
        table = table[0]
    return _chosen(b, x, 2, table, b.single(padding, x.dtype))


@primitive("MatrixDiagV3", declared=False)
def matrix_diag(
    b: Builder,
    x: Value,
    k: Operand,
    rows: Operand,
    columns: Operand,
    padding: Operand,
    *,
    align: Operand = "RIGHT_LEFT",
) -> Value:
    """Matrices with these diagonals, and one number elsewhere."""
    low, high = offsets = _offsets(b, k)
    (longest,) = _known(x, 1)
    height, width = longest - min(high, 0), longest + max(low, 0)
    given = b.integer(rows, "num_rows"), b.integer(columns, "num_cols")
    if given == (-1, -1):
        height = width = max(height, width)
    else:
        height, width = (
            own if item == -1 else item for own, item in zip((height, width), given, strict=True)
        )
    table = _band(b, height, width, offsets, align).places()
    return _chosen(b, x, 1 if low == high else 2, table, b.single(padding, x.dtype))


@primitive("MatrixSetDiagV3")
def matrix_set_diag(
    b: Builder, x: Value, diagonal: Value, k: Operand, *, align: Operand = "RIGHT_LEFT"
) -> Value:
    """The matrices with other diagonals."""
    offsets = _offsets(b, k)
    rows, columns = _known(x, 2)
    table = _band(b, rows, columns, offsets, align).places()
    _known(diagonal, 1 if offsets[0] == offsets[1] else 2)
    return _chosen(b, diagonal, 1 if offsets[0] == offsets[1] else 2, table, x)
