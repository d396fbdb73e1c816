"""Products and distances of vectors."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import INT64, Builder, known_rank
from sharding.importers.mindir.primitives.statistics import norm

_ANY_AXIS = -65530
"""The axis that MindSpore writes for the first one of length 3."""


@primitive("Cross")
def cross(b: Builder, x: Value, y: Value, *, dim: int = _ANY_AXIS) -> Value:
    """The vector product along an axis of length 3."""
    first, second = (b.computable(item) for item in b.promoted(x, y))
    if dim == _ANY_AXIS:
        lengths = first.shape or ()
        if 3 not in lengths:
            raise RefusedError("no axis is known to have the length 3")
        dim = lengths.index(3)
    place = b.axis(dim, first)

    def turned(item: Value, by: int) -> Value:
        order = b.const(np.roll(np.arange(3), -by))
        return b.op("Gather", [item, order], {"axis": place})

    one = b.op("Mul", [turned(first, 1), turned(second, 2)])
    return b.op("Sub", [one, b.op("Mul", [turned(first, 2), turned(second, 1)])])


@primitive("MatrixDeterminant")
def determinant(b: Builder, x: Value) -> Value:
    """The determinant of each matrix."""
    return b.op("Det", [b.floating(x)])


@primitive("Cdist")
def cdist(b: Builder, x: Value, y: Value, *, p: float = 2.0) -> Value:
    """The p-norm of the distance of each row of one to each row of the other."""
    first, second = (b.floating(item) for item in b.promoted(x, y))
    rows = b.unsqueeze(first, [known_rank(first) - 1])
    columns = b.unsqueeze(second, [known_rank(second) - 2])
    return _length(b, b.op("Sub", [rows, columns]), p)


def _length(b: Builder, x: Value, p: float) -> Value:
    """The p-norm along the last axis."""
    if p < 0 or np.isnan(p):
        raise RefusedError(f"p {p} is negative" if p < 0 else "p is no number")
    return norm(b, x, p, [-1], False)


@primitive("Pdist")
def pdist(b: Builder, x: Value, *, p: float = 2.0) -> Value:
    """The p-norm of the distance of each row to each later one."""
    wide = b.floating(x)
    axis = known_rank(wide) - 2
    rows = b.value(b.dim(wide, axis))
    square = b.filled((rows, rows), 1, INT64)
    above = b.op("NonZero", [b.op("Trilu", [square, b.const(1, np.int64)])])
    sides = (b.op("Gather", [above, b.const(side, np.int64)], {"axis": 0}) for side in (0, 1))
    pairs = [b.op("Gather", [wide, side], {"axis": axis}) for side in sides]
    return _length(b, b.op("Sub", pairs), p)


@primitive("Renorm")
def renorm(b: Builder, x: Value, *, p: float, dim: int, maxnorm: float) -> Value:
    """Parts along an axis whose p-norm is too large, made as large as may be."""
    wide = b.floating(x)
    axes = [axis for axis in range(known_rank(wide)) if axis != b.axis(dim, wide)]
    size = norm(b, wide, p, axes, True)
    limit = b.scalar(maxnorm, size)
    less = b.op("Div", [limit, b.op("Add", [size, b.scalar(1e-7, size)])])
    factor = b.op("Where", [b.op("Greater", [size, limit]), less, b.scalar(1, size)])
    return b.cast(b.op("Mul", [wide, factor]), x.dtype)
