"""Largest and smallest elements, and where they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.importers.mindir.primitives.base import Node, Operand, Value, primitive
from sharding.importers.mindir.primitives.operands import (
    INT32,
    computable,
    element_type,
    integer,
    known_rank,
    reduced,
    result_type,
)

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder


@primitive("Max")
def max_of_all(b: Builder, x: Value) -> Value:
    """The largest element."""
    return reduced(b, "ReduceMax", computable(b, x), None, False)


@primitive("Min")
def min_of_all(b: Builder, x: Value) -> Value:
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


@primitive("Argmax")
def argmax(b: Builder, node: Node, x: Value, *, axis: Operand = -1, output_type: Operand = None) -> Value:
    """Where the largest element is."""
    return b.cast(arg_of(b, "ArgMax", x, axis, False), element_type(output_type, result_type(node, INT32)))


@primitive("Argmin", "ArgminV2")
def argmin(b: Builder, node: Node, x: Value, *, axis: Operand = -1, output_type: Operand = None) -> Value:
    """Where the smallest element is."""
    return b.cast(arg_of(b, "ArgMin", x, axis, False), element_type(output_type, result_type(node, INT32)))


@primitive("ArgMaxExt")
def argmax_ext(b: Builder, x: Value, *, dim: Operand = None, keepdim: Operand = False) -> Value:
    """Where the largest element is, as int64."""
    return arg_of(b, "ArgMax", x, dim, bool(keepdim))


@primitive("ArgMinExt")
def argmin_ext(b: Builder, x: Value, *, dim: Operand = None, keepdim: Operand = False) -> Value:
    """Where the smallest element is, as int64."""
    return arg_of(b, "ArgMin", x, dim, bool(keepdim))


def _extreme(b: Builder, kind: str, x: Value, axis: Operand, keep: Operand) -> tuple[Value, Value]:
    """(place, value)"""
    wide = computable(b, x)
    place = b.axis(integer(b, axis, "axis"), x) if x.rank else None
    index = arg_of(b, f"Arg{kind}", wide, place, bool(keep))
    return index, reduced(b, f"Reduce{kind}", wide, None if place is None else [place], bool(keep))


@primitive("ArgMaxWithValue")
def argmax_with_value(b: Builder, x: Value, *, axis: Operand = 0, keep_dims: Operand = False) -> Operand:
    """Where the largest element is, and the element."""
    return _extreme(b, "Max", x, axis, keep_dims)


@primitive("ArgMinWithValue")
def argmin_with_value(b: Builder, x: Value, *, axis: Operand = 0, keep_dims: Operand = False) -> Operand:
    """Where the smallest element is, and the element."""
    return _extreme(b, "Min", x, axis, keep_dims)


@primitive("MaxDim")
def max_dim(b: Builder, x: Value, *, dim: Operand = 0, keepdim: Operand = False) -> Operand:
    """The largest element along an axis, and where it is."""
    index, value = _extreme(b, "Max", x, dim, keepdim)
    return value, index


@primitive("MinDim")
def min_dim(b: Builder, x: Value, *, dim: Operand = 0, keepdim: Operand = False) -> Operand:
    """The smallest element along an axis, and where it is."""
    index, value = _extreme(b, "Min", x, dim, keepdim)
    return value, index
