"""Loops that algorithms on matrices are written as, and what these share: places in a matrix, lengths that a
run tells, batches of any number of axes. ONNX has no operator that decomposes a matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Shape, Value
from sharding.importers.mindir.primitives.operands import BOOL, INT64, Builder

FLOAT64 = np.dtype(np.float64)
Length = int | Value
Step = Callable[[Value, Sequence[Value]], tuple[Sequence[Value], "Value | None"]]
"""From the number of the turn and what is carried to what is carried on, and whether to go on (None: until
all turns are done)."""


def repeated(b: Builder, turns: Length, start: Sequence[Value], step: Step) -> list[Value]:
    """What a step gives that is done again and again, ``turns`` times at most. Shapes stay as they start."""
    turn, going = Value(b.fresh("turn"), INT64, ()), Value(b.fresh("going"), BOOL, ())
    inside = [Value(b.fresh("carried"), item.dtype, item.shape) for item in start]
    with b.body() as nodes:
        found, on = step(turn, inside)
    found = [replace(item, shape=first.shape) for item, first in zip(found, start, strict=True)]
    body = b.graph(nodes, b.fresh("step"), [turn, going, *inside], [on or going, *found])
    results = [Value(b.fresh("Loop"), item.dtype, item.shape) for item in start]
    b.add("Loop", [b.value(turns), b.const(True), *start], results, {"body": body})
    return results


def wide(b: Builder, x: Value) -> Value:
    """Matrices in float64, in which all algorithms here compute: what rounding costs is then far below
    float32. Raises `RefusedError` for what is no matrix."""
    if x.rank is not None and x.rank < 2:
        raise RefusedError(f"a tensor with {x.rank} axes is no matrix")
    return b.cast(x, FLOAT64)


def turned(b: Builder, x: Value) -> Value:
    """The last two axes exchanged, whatever the number of axes."""
    if x.rank is None:
        return b.op("Einsum", [x], {"equation": "...ij->...ji"})
    return b.transpose(x, [*range(x.rank - 2), x.rank - 1, x.rank - 2])


def batch_of(b: Builder, x: Value) -> tuple[Length, ...] | Value:
    """The lengths before the last two."""
    if x.rank is not None:
        return tuple(b.dim(x, axis) for axis in range(x.rank - 2))
    return b.op("Slice", [b.op("Shape", [x]), b.ints((0,)), b.ints((-2,))])


def full(b: Builder, like: Value, rows: Length, columns: Length, amount: float) -> Value:
    """Matrices of one number, as many as another value's."""
    batch = batch_of(b, like)
    if isinstance(batch, tuple):
        return b.filled((*batch, rows, columns), amount, FLOAT64)
    shape = b.op("Concat", [batch, b.ints((rows, columns))], {"axis": 0})
    return b.filled(shape, amount, FLOAT64)


def least(b: Builder, first: Length, second: Length) -> Length:
    """The smaller length."""
    if isinstance(first, int) and isinstance(second, int):
        return min(first, second)
    return b.op("Min", [b.value(first), b.value(second)])


def across(b: Builder, length: Length) -> Value:
    """The numbers of columns."""
    return b.op("Range", [b.value(0), b.value(length), b.value(1)])


def down(b: Builder, length: Length) -> Value:
    """The numbers of rows, as a column."""
    return b.unsqueeze(across(b, length), [1])


def identity(b: Builder, like: Value, rows: Length, columns: Length) -> Value:
    """Identity matrices, as many as another value's, their further rows or columns 0."""
    one = b.cast(b.op("Equal", [down(b, rows), across(b, columns)]), FLOAT64)
    return b.op("Add", [full(b, like, rows, columns, 0.0), one])


def column(b: Builder, x: Value, place: Value) -> Value:
    """The column of that number, as a matrix of one."""
    return b.op("Gather", [x, b.reshape(place, (1,))], {"axis": -1})


def kept(b: Builder, where: Value, x: Operand, other: Operand = 0.0) -> Value:
    """``x`` where it holds, else something else."""
    return b.op("Where", [where, b.value(x, FLOAT64), b.value(other, FLOAT64)])


def total(b: Builder, x: Value, axis: int = -2) -> Value:
    """The sum of each column, as a row (of each row, as a column)."""
    return b.op("ReduceSum", [x, b.ints((axis,))], {"keepdims": 1})


def part(b: Builder, x: Value, start: Length, end: Length, axis: int) -> Value:
    """From one place to before another, along an axis counted from behind."""
    found = b.op("Slice", [x, b.ints(start), b.ints(end), b.ints((axis,))])
    length = end - start if isinstance(start, int) and isinstance(end, int) and 0 <= start <= end else None
    if length is not None and found.shape is not None and found.shape[axis] is None:
        lengths: Shape = (*found.shape[:axis], length, *(found.shape[axis:][1:]))
        found.shape = lengths
    return found
