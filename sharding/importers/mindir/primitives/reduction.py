"""Sums, products and other reductions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.importers.mindir.primitives.base import Node, Operand, Value, primitive
from sharding.importers.mindir.primitives.operands import (
    BOOL,
    INT32,
    INT64,
    axes_of,
    computable,
    element_type,
    floating,
    is_float,
    reduced,
    result_type,
    scalar,
)

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder


def _classic(op_type: str, name: str) -> None:
    def convert(b: Builder, x: Value, axis: Operand = (), *, keep_dims: Operand = False) -> Value:
        wide = floating(b, x) if op_type == "ReduceMean" else computable(b, x)
        return reduced(b, op_type, wide, axes_of(b, axis, x), bool(keep_dims))

    convert.__doc__ = f"ONNX's {op_type}; no axes are all axes."
    primitive(name)(convert)


_classic("ReduceMean", "ReduceMean")
_classic("ReduceMax", "ReduceMax")
_classic("ReduceMin", "ReduceMin")
_classic("ReduceProd", "ReduceProd")
_classic("ReduceL2", "EuclideanNorm")


@primitive("ReduceSum")
def reduce_sum(
    b: Builder, x: Value, axis: Operand = (), *, keep_dims: Operand = False, skip_mode: Operand = False
) -> Value:
    """The sum; no axes are all, or with ``skip_mode`` none."""
    if skip_mode and axis == ():
        return x
    return reduced(b, "ReduceSum", computable(b, x), axes_of(b, axis, x), bool(keep_dims))


def _logic(op_type: str, name: str) -> None:
    def convert(b: Builder, x: Value, axis: Operand = (), *, keep_dims: Operand = False) -> Value:
        return _truth(b, op_type, x, axis, keep_dims)

    convert.__doc__ = f"ONNX's {op_type} of truth values; no axes are all axes."
    primitive(name)(convert)


def _truth(b: Builder, op_type: str, x: Value, axis: Operand, keep: Operand) -> Value:
    flags = b.cast(b.cast(x, BOOL), INT32)
    return b.cast(reduced(b, op_type, flags, axes_of(b, axis, x), bool(keep)), BOOL)


_logic("ReduceMin", "ReduceAll")
_logic("ReduceMax", "ReduceAny")


@primitive("Any")
def any_of_all(b: Builder, x: Value) -> Value:
    """Whether any element is true."""
    return _truth(b, "ReduceMax", x, (), False)


@primitive("AnyExt")
def any_along(b: Builder, x: Value, dim: Operand = None, keepdim: Operand = False) -> Value:
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
    primitive(name)(convert)


_ext("ReduceSum", "SumExt")
_ext("ReduceMean", "MeanExt")
_ext("ReduceProd", "ProdExt")


@primitive("Nansum")
def nansum(
    b: Builder, node: Node, x: Value, *, dim: Operand = None, keepdim: Operand = False, dtype: Operand = None
) -> Value:
    """The sum of what is a number."""
    wide = computable(b, b.cast(x, element_type(dtype, result_type(node, x.dtype))))
    if is_float(wide.dtype):
        wide = b.op("Where", [b.op("IsNaN", [wide]), scalar(b, 0, wide), wide])
    return reduced(b, "ReduceSum", wide, axes_of(b, dim, x), bool(keepdim))


@primitive("CountNonZero")
def count_nonzero(b: Builder, x: Value, *, dim: Operand = None) -> Value:
    """How many elements are not 0."""
    return reduced(b, "ReduceSum", b.cast(b.cast(x, BOOL), INT64), axes_of(b, dim, x), False)
