"""Reductions, norms, and running sums."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import (
    BOOL,
    INT32,
    INT64,
    axes_of,
    computable,
    element_type,
    floating,
    integer,
    integers,
    is_float,
    known_rank,
    lengths_product,
    number,
    reduced,
    result_type,
    scalar,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sharding.importers.mindir.builder import Builder


def _classic(op_type: str, name: str) -> None:
    def convert(b: Builder, node: Node, x: Value, axis: Operand = (), *, keep_dims: Operand = False) -> Value:
        wide = floating(b, x) if op_type == "ReduceMean" else computable(b, x)
        return reduced(b, op_type, wide, axes_of(b, axis, x), bool(keep_dims))

    convert.__doc__ = f"ONNX's {op_type}; no axes are all axes."
    primitive(name, settings=("keep_dims",))(convert)


_classic("ReduceMean", "ReduceMean")
_classic("ReduceMax", "ReduceMax")
_classic("ReduceMin", "ReduceMin")
_classic("ReduceProd", "ReduceProd")
_classic("ReduceL2", "EuclideanNorm")


@primitive("ReduceSum", settings=("keep_dims", "skip_mode"))
def reduce_sum(
    b: Builder,
    node: Node,
    x: Value,
    axis: Operand = (),
    *,
    keep_dims: Operand = False,
    skip_mode: Operand = False,
) -> Value:
    """The sum; no axes are all, or with ``skip_mode`` none."""
    if skip_mode and axis == ():
        return x
    return reduced(b, "ReduceSum", computable(b, x), axes_of(b, axis, x), bool(keep_dims))


def _logic(op_type: str, name: str) -> None:
    def convert(b: Builder, node: Node, x: Value, axis: Operand = (), *, keep_dims: Operand = False) -> Value:
        return _truth(b, op_type, x, axis, keep_dims)

    convert.__doc__ = f"ONNX's {op_type} of truth values; no axes are all axes."
    primitive(name, settings=("keep_dims",))(convert)


def _truth(b: Builder, op_type: str, x: Value, axis: Operand, keep: Operand) -> Value:
    flags = b.cast(b.cast(x, BOOL), INT32)
    return b.cast(reduced(b, op_type, flags, axes_of(b, axis, x), bool(keep)), BOOL)


_logic("ReduceMin", "ReduceAll")
_logic("ReduceMax", "ReduceAny")


@primitive("Any")
def any_of_all(b: Builder, node: Node, x: Value) -> Value:
    """Whether any element is true."""
    return _truth(b, "ReduceMax", x, (), False)


@primitive("AnyExt")
def any_along(b: Builder, node: Node, x: Value, dim: Operand = None, keepdim: Operand = False) -> Value:
    """Whether any element along axes is true."""
    return _truth(b, "ReduceMax", x, dim, keepdim)


def _ext(op_type: str, name: str) -> None:
    def convert(
        b: Builder,
        node: Node,
        x: Value,
        *,
        dim: Operand = None,
        keepdim: Operand = False,
        dtype: Operand = None,
    ) -> Value:
        wanted = element_type(dtype, result_type(node, x.dtype))
        wide = computable(b, b.cast(x, wanted)) if wanted != BOOL else computable(b, x)
        return reduced(b, op_type, wide, axes_of(b, dim, x), bool(keepdim))

    convert.__doc__ = f"ONNX's {op_type}, computed in the result's element type."
    primitive(name, settings=("dim", "keepdim", "dtype"))(convert)


_ext("ReduceSum", "SumExt")
_ext("ReduceMean", "MeanExt")
_ext("ReduceProd", "ProdExt")


@primitive("Nansum", settings=("dim", "keepdim", "dtype"))
def nansum(
    b: Builder, node: Node, x: Value, *, dim: Operand = None, keepdim: Operand = False, dtype: Operand = None
) -> Value:
    """The sum of what is a number."""
    wide = computable(b, b.cast(x, element_type(dtype, result_type(node, x.dtype))))
    if is_float(wide.dtype):
        wide = b.op("Where", [b.op("IsNaN", [wide]), scalar(b, 0, wide), wide])
    return reduced(b, "ReduceSum", wide, axes_of(b, dim, x), bool(keepdim))


@primitive("Max")
def max_of_all(b: Builder, node: Node, x: Value) -> Value:
    """The largest element."""
    return reduced(b, "ReduceMax", computable(b, x), None, False)


@primitive("Min")
def min_of_all(b: Builder, node: Node, x: Value) -> Value:
    """The smallest element."""
    return reduced(b, "ReduceMin", computable(b, x), None, False)


def arg_of(b: Builder, kind: str, x: Value, axis: Operand, keep: bool) -> Value:
    """Where the first largest or smallest element is; without an axis, in the flattened tensor."""
    wide = computable(b, x)
    if axis is None or x.rank == 0:
        flat = b.op(kind, [b.reshape(wide, (-1,))], {"axis": 0, "keepdims": 0})
        return b.reshape(flat, (1,) * known_rank(x)) if keep else flat
    place = b.axis(integer(b, axis, "axis"), x)
    return b.op(kind, [wide], {"axis": place, "keepdims": int(keep)})


@primitive("Argmax", settings=("axis", "output_type"))
def argmax(b: Builder, node: Node, x: Value, *, axis: Operand = -1, output_type: Operand = None) -> Value:
    """Where the largest element is."""
    return b.cast(arg_of(b, "ArgMax", x, axis, False), element_type(output_type, result_type(node, INT32)))


@primitive("Argmin", "ArgminV2", settings=("axis", "output_type"))
def argmin(b: Builder, node: Node, x: Value, *, axis: Operand = -1, output_type: Operand = None) -> Value:
    """Where the smallest element is."""
    return b.cast(arg_of(b, "ArgMin", x, axis, False), element_type(output_type, result_type(node, INT32)))


@primitive("ArgMaxExt", settings=("dim", "keepdim"))
def argmax_ext(b: Builder, node: Node, x: Value, *, dim: Operand = None, keepdim: Operand = False) -> Value:
    """Where the largest element is, as int64."""
    return arg_of(b, "ArgMax", x, dim, bool(keepdim))


@primitive("ArgMinExt", settings=("dim", "keepdim"))
def argmin_ext(b: Builder, node: Node, x: Value, *, dim: Operand = None, keepdim: Operand = False) -> Value:
    """Where the smallest element is, as int64."""
    return arg_of(b, "ArgMin", x, dim, bool(keepdim))


def _extreme(b: Builder, kind: str, x: Value, axis: Operand, keep: Operand) -> tuple[Value, Value]:
    """(place, value)"""
    wide = computable(b, x)
    place = b.axis(integer(b, axis, "axis"), x) if x.rank else None
    index = arg_of(b, f"Arg{kind}", wide, place, bool(keep))
    return index, reduced(b, f"Reduce{kind}", wide, None if place is None else [place], bool(keep))


@primitive("ArgMaxWithValue", settings=("axis", "keep_dims"))
def argmax_with_value(
    b: Builder, node: Node, x: Value, *, axis: Operand = 0, keep_dims: Operand = False
) -> Operand:
    """Where the largest element is, and the element."""
    return _extreme(b, "Max", x, axis, keep_dims)


@primitive("ArgMinWithValue", settings=("axis", "keep_dims"))
def argmin_with_value(
    b: Builder, node: Node, x: Value, *, axis: Operand = 0, keep_dims: Operand = False
) -> Operand:
    """Where the smallest element is, and the element."""
    return _extreme(b, "Min", x, axis, keep_dims)


@primitive("MaxDim", settings=("dim", "keepdim"))
def max_dim(b: Builder, node: Node, x: Value, *, dim: Operand = 0, keepdim: Operand = False) -> Operand:
    """The largest element along an axis, and where it is."""
    index, value = _extreme(b, "Max", x, dim, keepdim)
    return value, index


@primitive("MinDim", settings=("dim", "keepdim"))
def min_dim(b: Builder, node: Node, x: Value, *, dim: Operand = 0, keepdim: Operand = False) -> Operand:
    """The smallest element along an axis, and where it is."""
    index, value = _extreme(b, "Min", x, dim, keepdim)
    return value, index


def moments(
    b: Builder, x: Value, axes: Sequence[int] | None, correction: float, keep: bool
) -> tuple[Value, Value]:
    """Variance and mean along axes; the squares' sum is divided by the count less ``correction``."""
    wide = floating(b, x)
    mean = reduced(b, "ReduceMean", wide, axes, True)
    distance = b.op("Sub", [wide, mean])
    total = reduced(b, "ReduceSum", b.op("Mul", [distance, distance]), axes, keep)
    count = b.cast(lengths_product(b, wide, axes), wide.dtype)
    if correction:
        count = b.op("Max", [b.op("Sub", [count, scalar(b, correction, count)]), scalar(b, 0, count)])
    if not keep:
        mean = b.op("Squeeze", [mean, b.const(list(axes), np.int64) if axes is not None else None])
    return b.op("Div", [total, count]), mean


_MOMENTS = ("dim", "correction", "keepdim")


def _both(
    b: Builder, x: Value, dim: Operand, correction: Operand, keep: Operand, root: bool
) -> tuple[Value, Value]:
    variance, mean = moments(b, x, axes_of(b, dim, x), number(correction, "correction"), bool(keep))
    return (b.op("Sqrt", [variance]) if root else variance), mean


@primitive("Var", settings=_MOMENTS)
def var(
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = None,
    correction: Operand = 1,
    keepdim: Operand = False,
) -> Value:
    """The variance."""
    return _both(b, x, dim, correction, keepdim, False)[0]


@primitive("Std", settings=_MOMENTS)
def std(
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = None,
    correction: Operand = 1,
    keepdim: Operand = False,
) -> Value:
    """The standard deviation."""
    return _both(b, x, dim, correction, keepdim, True)[0]


@primitive("VarMean", settings=_MOMENTS)
def var_mean(
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = None,
    correction: Operand = 1,
    keepdim: Operand = False,
) -> Operand:
    """Variance and mean."""
    return _both(b, x, dim, correction, keepdim, False)


@primitive("StdMean", settings=_MOMENTS)
def std_mean(
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = None,
    correction: Operand = 1,
    keepdim: Operand = False,
) -> Operand:
    """Standard deviation and mean."""
    return _both(b, x, dim, correction, keepdim, True)


@primitive("ReduceStd", settings=("axis", "unbiased", "keep_dims"))
def reduce_std(
    b: Builder,
    node: Node,
    x: Value,
    *,
    axis: Operand = (),
    unbiased: Operand = True,
    keep_dims: Operand = False,
) -> Operand:
    """Standard deviation and mean."""
    return _both(b, x, axis, 1 if unbiased else 0, keep_dims, True)


@primitive("LogSumExp", "ReduceLogSumExp", settings=("dim", "keepdim"))
def log_sum_exp(b: Builder, node: Node, x: Value, *, dim: Operand = (), keepdim: Operand = False) -> Value:
    """log(sum of exp(x))"""
    return reduced(b, "ReduceLogSumExp", floating(b, x), axes_of(b, dim, x), bool(keepdim))


def norm(b: Builder, x: Value, p: float, axes: Sequence[int] | None, keep: bool) -> Value:
    """The p-norm along axes; infinite p are the largest and smallest magnitude, 0 counts what is not 0."""
    wide = floating(b, x)
    if p == 2:
        return reduced(b, "ReduceL2", wide, axes, keep)
    if p == 1:
        return reduced(b, "ReduceL1", wide, axes, keep)
    size = b.op("Abs", [wide])
    if np.isinf(p):
        return reduced(b, "ReduceMax" if p > 0 else "ReduceMin", size, axes, keep)
    if p == 0:
        flags = b.cast(b.op("Greater", [size, scalar(b, 0, size)]), size.dtype)
        return reduced(b, "ReduceSum", flags, axes, keep)
    total = reduced(b, "ReduceSum", b.op("Pow", [size, scalar(b, p, size)]), axes, keep)
    return b.op("Pow", [total, scalar(b, 1 / p, total)])


@primitive("Norm", "LinalgVectorNorm", settings=("p", "dim", "keepdim", "dtype"))
def vector_norm(
    b: Builder,
    node: Node,
    x: Value,
    *,
    p: Operand = 2.0,
    dim: Operand = None,
    keepdim: Operand = False,
    dtype: Operand = None,
) -> Value:
    """The p-norm."""
    wide = b.cast(x, element_type(dtype, result_type(node, x.dtype)))
    return norm(b, wide, float(number(p, "p")), axes_of(b, dim, x), bool(keepdim))


@primitive("LpNorm", settings=("axis", "p", "keep_dims", "epsilon"))
def lp_norm(
    b: Builder,
    node: Node,
    x: Value,
    *,
    axis: Operand = (),
    p: Operand = 2,
    keep_dims: Operand = False,
    epsilon: Operand = 1e-12,
) -> Value:
    """The p-norm, at least epsilon."""
    return _bounded_norm(b, x, p, axis, keep_dims, epsilon)


@primitive("LpNormV2", settings=("p", "dim", "keepdim", "epsilon"))
def lp_norm_v2(
    b: Builder,
    node: Node,
    x: Value,
    *,
    p: Operand = 2,
    dim: Operand = None,
    keepdim: Operand = False,
    epsilon: Operand = 1e-12,
) -> Value:
    """The p-norm, at least epsilon."""
    return _bounded_norm(b, x, p, dim, keepdim, epsilon)


def _bounded_norm(b: Builder, x: Value, p: Operand, axis: Operand, keep: Operand, epsilon: Operand) -> Value:
    found = norm(b, x, float(number(p, "p")), axes_of(b, axis, x), bool(keep))
    return b.op("Max", [found, scalar(b, number(epsilon, "epsilon"), found)])


@primitive("SquareSumAll")
def square_sum_all(b: Builder, node: Node, x: Value, y: Value) -> Operand:
    """The sums of the squares of each."""
    return tuple(b.op("ReduceSumSquare", [floating(b, item)], {"keepdims": 0}) for item in (x, y))


@primitive("L2Loss")
def l2_loss(b: Builder, node: Node, x: Value) -> Value:
    """Half of the sum of the squares."""
    total = b.op("ReduceSumSquare", [floating(b, x)], {"keepdims": 0})
    return b.op("Mul", [total, scalar(b, 0.5, total)])


@primitive("CountNonZero", settings=("dim",))
def count_nonzero(b: Builder, node: Node, x: Value, *, dim: Operand = None) -> Value:
    """How many elements are not 0."""
    return reduced(b, "ReduceSum", b.cast(b.cast(x, BOOL), INT64), axes_of(b, dim, x), False)


@primitive("CumSum", settings=("exclusive", "reverse"))
def cumsum(
    b: Builder,
    node: Node,
    x: Value,
    axis: Operand = 0,
    *,
    exclusive: Operand = False,
    reverse: Operand = False,
) -> Value:
    """The running sum along an axis."""
    place = b.const(integer(b, axis, "axis"), np.int64)
    attributes = {"exclusive": int(bool(exclusive)), "reverse": int(bool(reverse))}
    return b.op("CumSum", [computable(b, x), place], attributes)


@primitive("CumsumExt", settings=("dim", "dtype"))
def cumsum_ext(b: Builder, node: Node, x: Value, *, dim: Operand = 0, dtype: Operand = None) -> Value:
    """The running sum along an axis, in the result's element type."""
    if x.rank == 0:
        return x
    wide = computable(b, b.cast(x, element_type(dtype, result_type(node, x.dtype))))
    return b.op("CumSum", [wide, b.const(integer(b, dim, "dim"), np.int64)])


def _running(b: Builder, x: Value, axis: int, fold: str, neutral: float) -> Value:
    """A running fold along an axis, by doubling: log2(n) folds of the tensor with itself moved along."""
    wide = computable(b, x)
    place = b.axis(axis, wide)
    length = wide.shape[place] if wide.shape is not None else None
    if length is None:
        raise RefusedError(f"the length along axis {axis} must be known")
    rank = known_rank(wide)
    step = 1
    while step < length:
        before = [0] * (2 * rank)
        before[place] = step
        kept = b.op("Slice", [wide, b.ints((0,)), b.ints((length - step,)), b.ints((place,))])
        moved = b.op("Pad", [kept, b.const(before, np.int64), scalar(b, neutral, wide)])
        wide = b.op(fold, [wide, moved])
        step *= 2
    return wide


@primitive("CumProd", settings=("exclusive", "reverse"))
def cumprod(
    b: Builder,
    node: Node,
    x: Value,
    axis: Operand = 0,
    *,
    exclusive: Operand = False,
    reverse: Operand = False,
) -> Value:
    """The running product along an axis."""
    place = b.axis(integer(b, axis, "axis"), x)
    found = flipped(b, x, [place]) if reverse else x
    if exclusive:
        rank = known_rank(x)
        before = [0] * (2 * rank)
        before[place], before[place + rank] = 1, -1
        wide = computable(b, found)
        found = b.op("Pad", [wide, b.const(before, np.int64), scalar(b, 1, wide)])
    found = _running(b, found, place, "Mul", 1)
    return flipped(b, found, [place]) if reverse else found


def flipped(b: Builder, x: Value, axes: Sequence[int]) -> Value:
    """Axes in reverse."""
    count = len(axes)
    return b.op("Slice", [
        x, b.ints((-1,) * count), b.ints((-(2**62),) * count), b.ints(tuple(axes)), b.ints((-1,) * count)
    ])  # fmt: skip


def _running_extreme(b: Builder, x: Value, axis: Operand, larger: bool) -> tuple[Value, Value]:
    """The running extreme and where it was found last, as MindSpore counts equal ones."""
    wide = computable(b, x)
    place = b.axis(integer(b, axis, "axis"), wide)
    if is_float(wide.dtype):
        neutral: float = -np.inf if larger else np.inf
    else:
        limits = np.iinfo(wide.dtype)
        neutral = int(limits.min if larger else limits.max)
    values = _running(b, wide, place, "Max" if larger else "Min", neutral)
    length = wide.shape[place] if wide.shape is not None else 0
    rank = known_rank(wide)
    line = np.arange(length or 0).reshape([-1 if axis_ == place else 1 for axis_ in range(rank)])
    here = b.op("Where", [b.op("Equal", [wide, values]), b.const(line, np.int64), b.const(-1, np.int64)])
    return values, _running(b, here, place, "Max", -1)


@primitive("Cummax", settings=("axis",))
def cummax(b: Builder, node: Node, x: Value, *, axis: Operand = 0) -> Operand:
    """The running maximum along an axis, and where it is."""
    return _running_extreme(b, x, axis, True)


@primitive("Cummin", "CumminExt", settings=("axis",))
def cummin(b: Builder, node: Node, x: Value, *, axis: Operand = 0) -> Operand:
    """The running minimum along an axis, and where it is."""
    return _running_extreme(b, x, axis, False)


@primitive("Trace", "TraceExt")
def trace(b: Builder, node: Node, x: Value) -> Value:
    """The sum of a matrix's diagonal."""
    wide = computable(b, b.cast(x, result_type(node, x.dtype)))
    rows, columns = (b.dim(x, axis) for axis in (0, 1))
    if not isinstance(rows, int) or not isinstance(columns, int):
        raise RefusedError("the matrix's lengths must be known")
    count = min(rows, columns)
    places = np.arange(count)[:, None].repeat(2, 1)
    return b.op("ReduceSum", [b.op("GatherND", [wide, b.const(places, np.int64)])], {"keepdims": 0})


@primitive("MedianExt")
def median(b: Builder, node: Node, x: Value) -> Value:
    """The lower of the middle elements."""
    flat = b.reshape(computable(b, x), (-1,))
    length = flat.shape[0] if flat.shape else None
    if not length:
        raise RefusedError("the number of elements must be known and not 0")
    count = b.const([length // 2 + 1 if length % 2 else length // 2], np.int64)
    values = b.ops("TopK", [flat, count], {"largest": 0, "sorted": 1, "axis": 0}, outputs=2)[0]
    return b.reshape(b.op("Slice", [values, b.ints((-1,)), b.ints((2**62,)), b.ints((0,))]), ())


@primitive("L2Normalize", settings=("axis", "epsilon"))
def l2_normalize(b: Builder, node: Node, x: Value, *, axis: Operand = 0, epsilon: Operand = 1e-4) -> Value:
    """x / sqrt(max(sum of x x along axes, epsilon))"""
    wide = floating(b, x)
    axes = [b.axis(item, x) for item in integers(b, axis, "axis")]
    total = reduced(b, "ReduceSum", b.op("Mul", [wide, wide]), axes, True)
    bound = b.op("Max", [total, scalar(b, number(epsilon, "epsilon"), total)])
    return b.op("Div", [wide, b.op("Sqrt", [bound])])
