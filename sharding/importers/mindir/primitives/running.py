"""Running sums, products and extremes along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sharding.importers.mindir.primitives.arithmetic import log_add
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import FLOAT32, Axis, Builder, is_float, known_rank
from sharding.importers.mindir.primitives.steps import repeated


@primitive("CumSum")
def cumsum(b: Builder, x: Value, axis: int = 0, *, exclusive: bool = False, reverse: bool = False) -> Value:
    """The running sum along an axis."""
    place = b.const(axis, np.int64)
    attributes = {"exclusive": int(exclusive), "reverse": int(reverse)}
    return b.op("CumSum", [b.computable(x), place], attributes)


@primitive("CumsumExt")
def cumsum_ext(b: Builder, node: Node, x: Value, *, dim: int = 0, dtype: Operand = None) -> Value:
    """The running sum along an axis, in the result's element type."""
    if x.rank == 0:
        return x
    wide = b.computable(b.cast(x, b.element_type(dtype, b.result_type(node, x.dtype))))
    return b.op("CumSum", [wide, b.const(dim, np.int64)])


_Fold = Callable[[Value, Value], Value]


def _running(b: Builder, x: Value, axis: int, fold: str | _Fold, neutral: float) -> Value:
    """A running fold along an axis, by doubling: log2(n) folds of the tensor with itself moved along."""
    wide = b.computable(x)
    place = b.axis(axis, wide)
    length = wide.shape[place] if wide.shape is not None else None
    rank = known_rank(wide)
    if length is None:
        return _in_a_loop(b, wide, place, fold, neutral)
    step = 1
    while step < length:
        before = [0] * (2 * rank)
        before[place] = step
        kept = b.op("Slice", [wide, b.ints((0,)), b.ints((length - step,)), b.ints((place,))])
        moved = b.op("Pad", [kept, b.const(before, np.int64), b.scalar(neutral, wide)])
        wide = b.op(fold, [wide, moved]) if isinstance(fold, str) else fold(wide, moved)
        step *= 2
    return wide


def _in_a_loop(b: Builder, x: Value, axis: int, fold: str | _Fold, neutral: float) -> Value:
    """The same along an axis whose length only a run tells. (ONNX's Scan does it in as many steps as it has
    places; ONNX Runtime's ends the process where another axis has no places.)"""
    shape = b.lengths(x)
    length = b.value(b.dim(x, axis))

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], Value]:
        so_far, far = carried
        kept = b.op("Slice", [so_far, b.ints((0,)), b.ints(b.op("Sub", [length, far])), b.ints((axis,))])
        before = b.filled((*shape[:axis], far, *shape[axis + 1 :]), neutral, x.dtype)
        moved = b.op("Concat", [before, kept], {"axis": axis})
        found = b.op(fold, [so_far, moved]) if isinstance(fold, str) else fold(so_far, moved)
        twice = b.op("Add", [far, far])
        return [found, twice], b.op("Less", [twice, length])

    return repeated(b, 63, [x, b.const(1, np.int64)], step)[0]


@primitive("CumProd")
def cumprod(b: Builder, x: Value, axis: Axis = 0, *, exclusive: bool = False, reverse: bool = False) -> Value:
    """The running product along an axis."""
    found = flipped(b, x, [axis]) if reverse else x
    if exclusive:
        rank = known_rank(x)
        before = [0] * (2 * rank)
        before[axis], before[axis + rank] = 1, -1
        wide = b.computable(found)
        found = b.op("Pad", [wide, b.const(before, np.int64), b.scalar(1, wide)])
    found = _running(b, found, axis, "Mul", 1)
    return flipped(b, found, [axis]) if reverse else found


def flipped(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """Axes in reverse."""
    count = len(axes)
    return b.op("Slice", [
        x, b.ints((-1,) * count), b.ints((-(2**62),) * count), b.ints(tuple(axes)), b.ints((-1,) * count)
    ])  # fmt: skip


@primitive("CumulativeLogsumexp")
def cumulative_logsumexp(
    b: Builder, x: Value, axis: int = 0, *, exclusive: bool = False, reverse: bool = False
) -> Value:
    """The logarithm of the running sum of the exponentials along an axis."""
    wide = b.floating(x)
    place = b.axis(axis, wide)
    if exclusive:
        raise RefusedError("it has no conversion for exclusive")
    found = flipped(b, wide, [place]) if reverse else wide
    lowest = float(np.finfo(wide.dtype).min)
    found = _running(b, found, place, lambda one, other: log_add(b, one, other, np.e), lowest)
    return flipped(b, found, [place]) if reverse else found


@table({"Cummax": "Max", ("Cummin", "CumminExt"): "Min"})
def running_extreme(fold: str, b: Builder, x: Value, *, axis: int = 0) -> tuple[Value, Value]:
    """The running extreme along an axis, and where it was found last, as MindSpore counts equal ones."""
    # Half precision in float32, all of it: ONNX Runtime leaves out some roundings on the way and not others,
    # and what is equal to the running extreme would be less.
    wide = b.cast(x, FLOAT32) if x.dtype == np.float16 else b.computable(x)
    place = b.axis(axis, wide)
    if is_float(wide.dtype):
        neutral: float = -np.inf if fold == "Max" else np.inf
    else:
        limits = np.iinfo(wide.dtype)
        neutral = int(limits.min if fold == "Max" else limits.max)
    values = _running(b, wide, place, fold, neutral)
    shape = tuple(-1 if item == place else 1 for item in range(known_rank(wide)))
    length = b.dim(wide, place)
    if isinstance(length, int):
        line = b.const(np.arange(b.bounded(length)).reshape(shape), np.int64)
    else:
        line = b.reshape(b.op("Range", [b.const(0, np.int64), length, b.const(1, np.int64)]), shape)
    here = b.op("Where", [b.op("Equal", [wide, values]), line, b.const(-1, np.int64)])
    return values, _running(b, here, place, "Max", -1)
