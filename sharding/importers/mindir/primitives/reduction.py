"""Sums, products and other reductions."""

from __future__ import annotations

from sharding.importers.mindir.primitives.base import Node, Operand, Value, alike, primitive, table
from sharding.importers.mindir.primitives.operands import BOOL, INT32, INT64, Builder, is_float


@table(alike("ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd") | {"EuclideanNorm": "ReduceL2"})
def reduction(op_type: str, b: Builder, x: Value, axis: Operand = (), *, keep_dims: bool = False) -> Value:
    """ONNX's reduction; no axes are all axes."""
    wide = b.floating(x) if op_type == "ReduceMean" else b.computable(x)
    return b.reduced(op_type, wide, b.axes_of(axis, x), keep_dims)


@primitive("ReduceSum")
def reduce_sum(
    b: Builder, x: Value, axis: Operand = (), *, keep_dims: bool = False, skip_mode: bool = False
) -> Value:
    """The sum; no axes are all, or with ``skip_mode`` none."""
    return x if skip_mode and axis == () else reduction("ReduceSum", b, x, axis, keep_dims=keep_dims)


def truth(op_type: str, b: Builder, x: Value, axis: Operand = (), *, keep_dims: bool = False) -> Value:
    """Whether all elements along axes are true, or any; no axes are all axes."""
    flags = b.cast(b.cast(x, BOOL), INT32)
    return b.cast(b.reduced(op_type, flags, b.axes_of(axis, x), keep_dims), BOOL)


table({"ReduceAll": "ReduceMin", ("ReduceAny", "Any"): "ReduceMax"})(truth)
table({"AnyExt": "ReduceMax"}, settings="keepdim=keep_dims")(truth)


@table({"SumExt": "ReduceSum", "MeanExt": "ReduceMean", "ProdExt": "ReduceProd", "Nansum": "ReduceSum"})
def typed_reduction(
    op_type: str,
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = None,
    keepdim: bool = False,
    dtype: Operand = None,
) -> Value:
    """ONNX's reduction, computed in the result's element type; Nansum leaves out what is no number."""
    wanted = b.element_type(dtype, b.result_type(node, x.dtype))
    wide = b.computable(b.cast(x, wanted)) if wanted != BOOL else b.computable(x)
    if node.op_type == "Nansum" and is_float(wide.dtype):
        wide = b.op("Where", [b.op("IsNaN", [wide]), b.scalar(0, wide), wide])
    return b.reduced(op_type, wide, b.axes_of(dim, x), keepdim)


@primitive("CountNonZero")
def count_nonzero(b: Builder, x: Value, *, dim: Operand = None) -> Value:
    """How many elements are not 0."""
    return b.reduced("ReduceSum", b.cast(b.cast(x, BOOL), INT64), b.axes_of(dim, x), False)
