"""Moments and norms."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, Value, primitive, table
from sharding.importers.mindir.primitives.creation import diagonal_of
from sharding.importers.mindir.primitives.operands import Axes, Builder, Ints, Number
from sharding.importers.mindir.primitives.ordering import middle


def moments(b: Builder, x: Value, axes: Axes, correction: float, keep: bool) -> tuple[Value, Value]:
    """Variance and mean along axes; the squares' sum is divided by the count less ``correction``."""
    wide = b.floating(x)
    mean = b.reduced("ReduceMean", wide, axes, True)
    distance = b.op("Sub", [wide, mean])
    total = b.reduced("ReduceSum", b.op("Mul", [distance, distance]), axes, keep)
    count = b.cast(b.lengths_product(wide, axes), wide.dtype)
    if correction:
        count = b.op("Max", [b.op("Sub", [count, b.scalar(correction, count)]), b.scalar(0, count)])
    if not keep:
        known = axes if axes is None or isinstance(axes, Value) else b.const(list(axes), np.int64)
        mean = b.op("Squeeze", [mean, known])
    return b.op("Div", [total, count]), mean


def spread(
    row: tuple[bool, bool],
    b: Builder,
    x: Value,
    *,
    dim: Operand = None,
    correction: Number = 1,
    keepdim: bool = False,
) -> Operand:
    """Variance or, as the row says, standard deviation; then, as it says, the mean."""
    root, both = row
    found, mean = moments(b, x, b.axes_of(dim, x), correction, keepdim)
    found = b.op("Sqrt", [found]) if root else found
    return (found, mean) if both else found


table({
    "Var": (False, False), "Std": (True, False), "VarMean": (False, True), "StdMean": (True, True),
})(spread)  # fmt: skip
table({"ReduceStd": (True, True)}, settings="axis=dim unbiased=correction keep_dims=keepdim")(spread)


@primitive("LogSumExp", "ReduceLogSumExp")
def log_sum_exp(b: Builder, x: Value, *, dim: Operand = (), keepdim: bool = False) -> Value:
    """log(sum of exp(x))"""
    return b.reduced("ReduceLogSumExp", b.floating(x), b.axes_of(dim, x), keepdim)


def norm(b: Builder, x: Value, p: float, axes: Axes, keep: bool) -> Value:
    """The p-norm along axes; infinite p are the largest and smallest magnitude, 0 counts what is not 0."""
    wide = b.floating(x)
    if p == 2:
        return b.reduced("ReduceL2", wide, axes, keep)
    if p == 1:
        return b.reduced("ReduceL1", wide, axes, keep)
    size = b.op("Abs", [wide])
    if np.isinf(p):
        return b.reduced("ReduceMax" if p > 0 else "ReduceMin", size, axes, keep)
    if p == 0:
        flags = b.cast(b.op("Greater", [size, b.scalar(0, size)]), size.dtype)
        return b.reduced("ReduceSum", flags, axes, keep)
    total = b.reduced("ReduceSum", b.op("Pow", [size, b.scalar(p, size)]), axes, keep)
    return b.op("Pow", [total, b.scalar(1 / p, total)])


@primitive("Norm", "LinalgVectorNorm")
def vector_norm(
    b: Builder,
    node: Node,
    x: Value,
    *,
    p: float = 2.0,
    dim: Operand = None,
    keepdim: bool = False,
    dtype: Operand = None,
) -> Value:
    """The p-norm."""
    wide = b.cast(x, b.element_type(dtype, b.result_type(node, x.dtype)))
    return norm(b, wide, p, b.axes_of(dim, x), keepdim)


@primitive("LpNormV2")
@primitive("LpNorm", settings="axis=dim p keep_dims=keepdim epsilon")
def lp_norm(
    b: Builder, x: Value, *, p: float = 2, dim: Operand = None, keepdim: bool = False, epsilon: Number = 1e-12
) -> Value:
    """The p-norm, at least epsilon."""
    found = norm(b, x, p, b.axes_of(dim, x), keepdim)
    return b.op("Max", [found, b.scalar(epsilon, found)])


@primitive("SquareSumAll")
def square_sum_all(b: Builder, x: Value, y: Value) -> Operand:
    """The sums of the squares of each."""
    return tuple(b.op("ReduceSumSquare", [b.floating(item)], {"keepdims": 0}) for item in (x, y))


@primitive("L2Loss")
def l2_loss(b: Builder, x: Value) -> Value:
    """Half of the sum of the squares."""
    total = b.op("ReduceSumSquare", [b.floating(x)], {"keepdims": 0})
    return b.op("Mul", [total, b.scalar(0.5, total)])


@primitive("Trace", "TraceExt")
def trace(b: Builder, node: Node, x: Value) -> Value:
    """The sum of a matrix's diagonal."""
    wide = b.computable(b.cast(x, b.result_type(node, x.dtype)))
    return b.op("ReduceSum", [diagonal_of(b, wide, 0, 0, 1)], {"keepdims": 0})


@primitive("MedianExt")
def median(b: Builder, x: Value) -> Value:
    """The lower of the middle elements."""
    flat = b.reshape(b.computable(x), (-1,))
    count = b.ints(middle(b, flat, 0))
    values = b.ops("TopK", [flat, count], {"largest": 0, "sorted": 1, "axis": 0}, outputs=2)[0]
    return b.reshape(b.op("Slice", [values, b.ints((-1,)), b.ints((2**62,)), b.ints((0,))]), ())


@primitive("L2Normalize")
def l2_normalize(b: Builder, x: Value, *, axis: Ints = (0,), epsilon: Number = 1e-4) -> Value:
    """x / sqrt(max(sum of x x along axes, epsilon))"""
    wide = b.floating(x)
    axes = [b.axis(item, x) for item in axis]
    total = b.reduced("ReduceSum", b.op("Mul", [wide, wide]), axes, True)
    bound = b.op("Max", [total, b.scalar(epsilon, total)])
    return b.op("Div", [wide, b.op("Sqrt", [bound])])
