"""Largest and smallest elements, and where they are."""

from __future__ import annotations

from sharding.importers.mindir.primitives.base import Node, Operand, Value, table
from sharding.importers.mindir.primitives.operands import INT32, Builder, known_rank


@table({"Max": "ReduceMax", "Min": "ReduceMin"})
def extreme_of_all(op_type: str, b: Builder, x: Value) -> Value:
    """The largest or the smallest element."""
    return b.reduced(op_type, b.computable(x), None, False)


def arg_of(b: Builder, kind: str, x: Value, axis: Operand, keep: bool) -> Value:
    """Where the first largest or smallest element is; without an axis, in the flattened tensor."""
    wide = b.computable(x)
    if axis is None or x.rank == 0:
        flat = b.op(kind, [b.reshape(wide, (-1,))], {"axis": 0, "keepdims": 0})
        return b.reshape(flat, (1,) * known_rank(x)) if keep else flat
    place = b.axis(b.integer(axis, "axis"), x)
    found = b.op(kind, [wide], {"axis": place, "keepdims": int(keep)})
    return _of_empty(b, found, wide, place, keep) if x.rank is None and place < 0 else found


def _of_empty(b: Builder, found: Value, x: Value, axis: int, keep: bool) -> Value:
    """In the shape without an axis that is counted from behind, or with 1 there: of a tensor without elements
    ONNX Runtime keeps the axis, and the operator takes no axis from a run."""
    whole = b.op("Shape", [x])
    parts = [b.op("Slice", [whole, b.ints((0,)), b.ints((axis,)), b.ints((0,))])]
    if keep:
        parts.append(b.ints((1,)))
    if axis < -1:
        parts.append(b.op("Slice", [whole, b.ints((axis + 1,)), b.ints((2**62,)), b.ints((0,))]))
    wanted = b.op("Concat", parts, {"axis": 0}) if len(parts) > 1 else parts[0]
    return b.op("Reshape", [found, wanted], {"allowzero": 1})


@table({"Argmax": "ArgMax", ("Argmin", "ArgminV2"): "ArgMin"})
def place_of_extreme(
    op_type: str, b: Builder, node: Node, x: Value, *, axis: Operand = -1, output_type: Operand = None
) -> Value:
    """Where the largest or the smallest element is."""
    return b.cast(arg_of(b, op_type, x, axis, False), b.element_type(output_type, b.result_type(node, INT32)))


@table({"ArgMaxExt": "ArgMax", "ArgMinExt": "ArgMin"})
def place_of_extreme_ext(
    op_type: str, b: Builder, x: Value, *, dim: Operand = None, keepdim: bool = False
) -> Value:
    """Where the largest or the smallest element is, as int64."""
    return arg_of(b, op_type, x, dim, keepdim)


@table({"ArgMaxWithValue": "Max", "ArgMinWithValue": "Min"})
def extreme_with_place(
    kind: str, b: Builder, x: Value, *, axis: int = 0, keep_dims: bool = False
) -> tuple[Value, Value]:
    """Where the largest or the smallest element along an axis is, and the element."""
    wide = b.computable(x)
    place = None if x.rank == 0 else b.axis(axis, x)
    index = arg_of(b, f"Arg{kind}", wide, place, keep_dims)
    return index, b.reduced(f"Reduce{kind}", wide, None if place is None else [place], keep_dims)


@table({"MaxDim": "Max", "MinDim": "Min"})
def extreme_along(kind: str, b: Builder, x: Value, *, dim: int = 0, keepdim: bool = False) -> Operand:
    """The same the other way round: the element, and where it is."""
    return extreme_with_place(kind, b, x, axis=dim, keep_dims=keepdim)[::-1]
