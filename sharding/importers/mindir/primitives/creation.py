"""Tensors made of numbers: filled, ranges, triangles, diagonals, one-hot."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharding.common.arrays import Array
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import (
    FLOAT32,
    INT64,
    Builder,
    is_float,
    joined_length,
    known_rank,
)


@primitive("FillV2", "FillScalar", "FillTensor")
def fill(b: Builder, node: Node, shape: Operand, value: Operand, dtype: Operand = None) -> Value:
    """One number in a shape."""
    default = value.dtype if isinstance(value, Value) else FLOAT32
    wanted = b.element_type(dtype, b.result_type(node, default))
    amount = value if isinstance(value, Value) else b.number(value, "the number to fill with")
    return b.filled(shape, amount, wanted)


# The same in another order, and with a tensor in front whose element type the result has by default.
primitive("Fill")(lambda b, node, dtype, shape, value: fill(b, node, shape, value, dtype))
primitive("NewFull")(lambda b, node, like, shape, value, dtype=None: fill(b, node, shape, value, dtype))
table({"Zeros": 0, "Ones": 1})(lambda one, b, node, shape, dtype=None: fill(b, node, shape, one, dtype))
table({"NewZeros": 0, "NewOnes": 1})(
    lambda one, b, node, like, shape, dtype=None: fill(b, node, shape, one, dtype)
)
# What MindSpore leaves as it was in memory: zeros.
primitive("Empty")(lambda b, node, shape, dtype=None, *rest: fill(b, node, shape, 0, dtype))


@primitive("EmptyLike", "NewEmpty")
def empty_like(b: Builder, node: Node, like: Value, *rest: Operand) -> Value:
    """The same in the shape of another tensor, or in a given one."""
    shape = rest[0] if node.op_type == "NewEmpty" else b.shape_of(like)
    return b.filled(shape, 0, b.result_type(node, like.dtype))


@primitive("Arange")
def arange(
    b: Builder, node: Node, start: Operand, end: Operand, step: Operand = 1, dtype: Operand = None
) -> Value:
    """From start by step until before end."""
    flat = []
    for item in b.promoted(start, end, step):
        wide = b.computable(item)
        flat.append(wide if wide.rank == 0 else b.op("Reshape", [wide, b.const([], np.int64)]))
    wanted = b.element_type(dtype, b.result_type(node, flat[0].dtype))
    return b.cast(b.op("Range", flat), wanted)


primitive("Range", "RangeV2")(
    lambda b, node, start, end, step, *, maxlen=None: arange(b, node, start, end, step, None)
)


@primitive("LinSpace", "LinSpaceExt")
def lin_space(
    b: Builder, node: Node, start: Operand, stop: Operand, num: Operand, dtype: Operand = None
) -> Value:
    """This many numbers at equal distances, both ends included."""
    known = b.known_ints(num)
    first, last = b.single(start, FLOAT32), b.single(stop, FLOAT32)
    if known is None and isinstance(num, Value):
        count = b.reshape(b.ints(num), ())
        line = b.op("Range", [b.const(0, np.int64), count, b.const(1, np.int64)])
        steps_ = b.cast(b.op("Max", [b.op("Sub", [count, 1]), 1]), FLOAT32)
        places = b.op("Div", [b.cast(line, FLOAT32), steps_])
    else:
        length = b.integer(num, "num")
        if length < 1:
            raise RefusedError(f"num must be positive, found {length}")
        b.bounded(length)
        places = b.const(np.arange(length) / max(length - 1, 1), np.float32)
    steps = b.op("Mul", [b.op("Sub", [last, first]), places])
    found = b.op("Add", [steps, first])
    return b.cast(found, b.element_type(dtype, b.result_type(node, FLOAT32)))


@primitive("LogSpace")
def log_space(
    b: Builder,
    node: Node,
    start: Operand,
    stop: Operand,
    *,
    steps: Operand = 10,
    base: int = 10,
    dtype: Operand = None,
) -> Value:
    """Powers of a base with this many exponents at equal distances."""
    exponents = b.cast(lin_space(b, node, start, stop, steps, None), FLOAT32)
    found = b.op("Pow", [b.const(np.float32(base)), exponents])
    return b.cast(found, b.element_type(dtype, b.result_type(node, FLOAT32)))


@primitive("Eye")
def eye(b: Builder, node: Node, rows: Operand, columns: Operand, dtype: Operand = None) -> Value:
    """Ones along the diagonal."""
    wanted = b.element_type(dtype, b.result_type(node, FLOAT32))
    if b.known_ints(rows) is None or b.known_ints(columns) is None:
        blank = b.filled((rows, columns), 0, FLOAT32)
        return b.cast(b.op("EyeLike", [blank]), wanted)
    lengths = b.integer(rows, "n"), b.integer(columns, "m")
    b.bounded(*lengths)
    return b.const(np.eye(*lengths, dtype=wanted))


@table({"Triu": 1, ("Tril", "TrilExt"): 0})
def triangle(upper: int, b: Builder, x: Value, *, diagonal: int = 0) -> Value:
    """What is on and above a diagonal, or on and below it."""
    wide = x if x.dtype in {FLOAT32, INT64} else b.cast(x, FLOAT32 if is_float(x.dtype) else INT64)
    place = b.const(diagonal, np.int64)
    return b.op("Trilu", [wide, place], {"upper": upper})


@primitive("MatrixBandPart")
def matrix_band_part(b: Builder, x: Value, lower: int, upper: int) -> Value:
    """This many diagonals below and above the main one; negative numbers are all of them."""
    if upper >= 0:
        x = triangle(0, b, x, diagonal=upper)
    return triangle(1, b, x, diagonal=-lower) if lower >= 0 else x


@primitive("Diag")
def diag(b: Builder, x: Value) -> Value:
    """A tensor along the diagonal of one with its axes twice."""
    if known_rank(x) == 1:
        return _diagonal_matrix(b, x, 0)
    shape = b.lengths(x)
    return b.reshape(_diagonal_matrix(b, b.reshape(x, (joined_length(x, range(len(shape))),)), 0), shape * 2)


@primitive("DiagExt")
def diag_ext(b: Builder, x: Value, *, diagonal: int = 0) -> Value:
    """A matrix with a vector along a diagonal; of a matrix, its diagonal."""
    return _diagonal_matrix(b, x, diagonal) if known_rank(x) == 1 else diagonal_of(b, x, diagonal, 0, 1)


def _diagonal_matrix(b: Builder, x: Value, place: int) -> Value:
    length = b.dim(x, 0)
    if isinstance(length, int):
        mask = b.const(np.eye(length, dtype=bool))
    else:
        line = b.op("Range", [b.const(0, np.int64), length, b.const(1, np.int64)])
        mask = b.op("Equal", [b.unsqueeze(line, [1]), line])
    square = b.op("Where", [mask, b.unsqueeze(x, [1]), b.scalar(0, x)])
    if not place:
        return square
    below, right = max(-place, 0), max(place, 0)
    return b.op("Pad", [square, b.const([below, right, right, below], np.int64)])


@primitive("DiagPart")
def diag_part(b: Builder, x: Value) -> Value:
    """The diagonal of a matrix, or of a tensor that has each of its first axes twice."""
    half = known_rank(x) // 2
    if known_rank(x) != 2 * half or not half:
        raise RefusedError(f"a tensor with {x.rank} axes has not each of them twice")
    if half == 1:
        return diagonal_of(b, x, 0, 0, 1)
    shape = b.lengths(x)
    length = joined_length(x, range(half))
    if length < 0:
        raise RefusedError("its lengths must be known")
    return b.reshape(diagonal_of(b, b.reshape(x, (length, length)), 0, 0, 1), shape[:half])


@table({"TrilIndices": np.tril, "TriuIndices": np.triu})
def triangle_places(
    half: Callable[..., Array],
    b: Builder,
    node: Node,
    *,
    row: Operand = 0,
    col: Operand = 0,
    offset: Operand = 0,
    dtype: Operand = None,
) -> Value:
    """The places of a matrix's lower or upper triangle: rows, then columns."""
    rows, columns, by = (b.integer(item, "row, col and offset") for item in (row, col, offset))
    b.bounded(rows, columns)
    found = np.stack(np.nonzero(half(np.ones((rows, columns), bool), by)))
    return b.const(found, b.element_type(dtype, b.result_type(node, INT64)))


@primitive("Diagonal", "DiagonalView")
def diagonal(b: Builder, x: Value, *, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    """A diagonal of the matrices that two axes span, as the last axis."""
    return diagonal_of(b, x, offset, dim1, dim2)


def diagonal_of(b: Builder, x: Value, offset: int, first: int, second: int) -> Value:
    """The diagonal above (below for negative offsets) the main one of the matrices that two axes span."""
    rank = known_rank(x)
    one, other = b.axis(first, x), b.axis(second, x)
    rest = [axis for axis in range(rank) if axis not in {one, other}]
    front = b.transpose(x, [one, other, *rest])
    rows, columns = b.dim(x, one), b.dim(x, other)
    starts = [max(-offset, 0), max(offset, 0)]
    if isinstance(rows, int) and isinstance(columns, int):
        count = max(min(rows - starts[0], columns - starts[1]), 0)
        places = b.const(np.arange(b.bounded(count))[:, None] + starts, np.int64)
    else:
        ends = [
            b.op("Sub", [b.value(item), start]) for item, start in zip((rows, columns), starts, strict=True)
        ]
        most = b.op("Max", [b.op("Min", ends), 0])
        steps = b.op("Range", [b.const(0, np.int64), most, b.const(1, np.int64)])
        places = b.op("Add", [b.unsqueeze(steps, [1]), b.const(starts, np.int64)])
    found = b.op("GatherND", [front, places])
    return b.transpose(found, [*range(1, rank - 1), 0])


@primitive("OneHot", "OneHotExt")
def one_hot(
    b: Builder,
    node: Node,
    indices: Value,
    depth: Operand,
    on_value: Operand,
    off_value: Operand,
    *,
    axis: int = -1,
) -> Value:
    """A new axis with one number where an index points and another elsewhere; indices outside have none."""
    known = b.known_ints(depth)
    count = b.integer(depth, "depth") if known is not None or not isinstance(depth, Value) else None
    if count is not None and count < 0:
        raise RefusedError(f"depth must not be negative, found {count}")
    b.bounded(count or 0)
    wanted = b.result_type(node, FLOAT32)
    wide = b.cast(indices, INT64)
    spread = b.unsqueeze(wide, [axis])
    if count is not None:
        line = b.const(np.arange(count), np.int64)
    else:
        ends = [b.const(0, np.int64), b.reshape(b.ints(depth), ()), b.const(1, np.int64)]
        line = b.op("Range", ends)
    if axis not in {-1, wide.rank}:
        if count is not None and wide.rank is not None:
            line = b.const(np.arange(count).reshape([-1] + [1] * (wide.rank - axis)), np.int64)
        else:
            line = b.behind(spread, line, axis)
    hit = b.op("Equal", [spread, line])
    on, off = (b.single(item, wanted) for item in (on_value, off_value))
    return b.op("Where", [hit, on, off])
