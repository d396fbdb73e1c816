"""Orders, and finding places."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.indexing import END, indices_of
from sharding.importers.mindir.primitives.operands import (
    INT32,
    INT64,
    Builder,
    is_float,
    known_rank,
)

# Order


@primitive("TopK")
def top_k(b: Builder, x: Value, k: Operand, *, sorted: Operand = True) -> Operand:
    """The k largest along the last axis, and their places as int32."""
    values, places = _top(b, x, k, -1, True)
    return values, b.cast(places, INT32)


@primitive("TopkExt")
def topk_ext(
    b: Builder, x: Value, k: Operand, *, dim: Operand = -1, largest: Operand = True, sorted: Operand = True
) -> Operand:
    """The k largest or smallest along an axis, and their places."""
    return _top(b, x, k, b.integer(dim, "dim"), bool(largest))


def _top(b: Builder, x: Value, k: Operand, axis: int, largest: bool) -> tuple[Value, Value]:
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    values, places = b.ops("TopK", [b.computable(x), b.ints(k)], attributes, outputs=2)
    return values, places


def _sorted(b: Builder, x: Value, axis: Operand, descending: Operand) -> tuple[Value, Value]:
    if x.rank == 0:
        return x, b.const(0, np.int64)
    place = b.axis(b.integer(axis, "axis"), x)
    return _top(b, x, b.dim(x, place), place, bool(descending))


@primitive("Sort")
def sort(b: Builder, x: Value, *, axis: Operand = -1, descending: Operand = False) -> Operand:
    """In order along an axis, and the places as int32; equal ones keep theirs."""
    values, places = _sorted(b, x, axis, descending)
    return values, b.cast(places, INT32)


@table({"SortExt": False, "ArgSort": True})
def sort_ext(
    places_only: bool,
    b: Builder,
    x: Value,
    *,
    dim: Operand = -1,
    descending: Operand = False,
    stable: Operand = False,
) -> Operand:
    """In order along an axis, and the places; or these alone."""
    values, places = _sorted(b, x, dim, descending)
    return places if places_only else (values, places)


@primitive("Median")
def median_along(
    b: Builder,
    x: Value,
    *,
    global_median: Operand = False,
    axis: Operand = 0,
    keep_dims: Operand = False,
    ignore_nan: Operand = False,
) -> Operand:
    """The lower of the middle elements along an axis, or of all, and its place."""
    if ignore_nan:
        raise RefusedError("ignore_nan has no conversion")
    wide = b.computable(x)
    if global_median or x.rank == 0:
        wide = b.reshape(wide, (-1,))
    place = 0 if global_median or x.rank == 0 else b.axis(b.integer(axis, "axis"), wide)
    keep = bool(keep_dims) and not global_median and x.rank != 0
    return _smallest(b, wide, middle(b, wide, place), place, keep)


def middle(b: Builder, x: Value, axis: int) -> Operand:
    """The number of the lower one of the middle elements along an axis, counted from 1."""
    length = b.dim(x, axis)
    if isinstance(length, int):
        if not length:
            raise RefusedError("there is no element that is the median")
        return (length + 1) // 2
    return b.op("Div", [b.op("Add", [length, 1]), 2])


def _smallest(b: Builder, x: Value, number: Operand, axis: int, keep: bool) -> Operand:
    """The element with this number in order along an axis, and its place."""
    values, places = _top(b, x, number, axis, False)
    ends = [b.ints((-1,)), b.ints((END,)), b.ints((axis,))]
    found = [b.op("Slice", [item, *ends]) for item in (values, places)]
    return tuple(found) if keep else tuple(b.squeeze(item, [axis]) for item in found)


@primitive("MedianDim")
def median_dim(b: Builder, x: Value, *, dim: Operand = -1, keepdim: Operand = False) -> Operand:
    """The lower of the middle elements along an axis, and its place."""
    wide = b.computable(x)
    if x.rank == 0:
        return wide, b.const(0, np.int64)
    axis = b.axis(b.integer(dim, "dim"), wide)
    return _smallest(b, wide, middle(b, wide, axis), axis, bool(keepdim))


@primitive("Kthvalue")
def kth_value(
    b: Builder, x: Value, *, k: Operand = 1, dim: Operand = -1, keepdim: Operand = False
) -> Operand:
    """The k-th smallest along an axis, and its place."""
    wide = b.computable(x)
    if x.rank == 0:
        return wide, b.const(0, np.int64)
    return _smallest(b, wide, k, b.axis(b.integer(dim, "dim"), wide), bool(keepdim))


@primitive("NonZero")
def non_zero(b: Builder, x: Value) -> Value:
    """The places of what is not 0, a row for each."""
    return b.transpose(b.op("NonZero", [b.computable(x)]), [1, 0])


@primitive("NonZeroExt")
def non_zero_ext(b: Builder, x: Value) -> Operand:
    """The places of what is not 0, a vector for each axis."""
    found = b.op("NonZero", [b.computable(x)])
    return tuple(
        b.op("Gather", [found, b.const(axis, np.int64)], {"axis": 0}) for axis in range(known_rank(x))
    )


@primitive("SearchSorted")
def search_sorted(
    b: Builder,
    node: Node,
    sequence: Value,
    values: Value,
    sorter: Operand = None,
    *,
    dtype: Operand = None,
    right: Operand = False,
) -> Value:
    """How many elements of a sorted sequence lie before each value."""
    if isinstance(sorter, Value):
        sequence = b.op("GatherElements", [sequence, indices_of(b, sorter)], {"axis": -1})
    line, wanted = (b.computable(item) for item in b.promoted(sequence, values))
    last = known_rank(line)
    spread = b.unsqueeze(line, [last - 1])
    before = b.op("LessOrEqual" if right else "Less", [spread, b.unsqueeze(wanted, [known_rank(wanted)])])
    count = b.op("ReduceSum", [b.cast(before, INT64), b.ints((-1,))], {"keepdims": 0})
    return b.cast(count, b.element_type(dtype, b.result_type(node, INT64)))


@primitive("InvertPermutation")
def invert_permutation(b: Builder, x: Operand) -> Operand:
    """The order that undoes another."""
    order = b.integers(x, "the order")
    if sorted_order(order) != list(range(len(order))):
        raise RefusedError(f"{order} is no order")
    found = tuple(int(place) for place in np.argsort(order))
    return b.const(found, np.int64) if isinstance(x, Value) else found


def sorted_order(order: tuple[int, ...]) -> list[int]:
    """The numbers of an order, in order."""
    return [int(item) for item in np.sort(np.asarray(order))]


@primitive("Unique")
def unique(b: Builder, x: Value) -> Operand:
    """What occurs, in the order of the first time, and where each element is in that."""
    wide = x if is_float(x.dtype) else b.cast(x, INT64)
    values, _, inverse, _ = b.ops("Unique", [b.computable(wide)], {"sorted": 0}, outputs=4)
    return values, b.cast(inverse, INT32)


@primitive("ReverseSequence")
def reverse_sequence(
    b: Builder, x: Value, lengths: Value, *, seq_dim: Operand = 0, batch_dim: Operand = 0
) -> Value:
    """The first places along one axis reversed, for each place of another a number of its own."""
    time, batch = b.axis(b.integer(seq_dim, "seq_dim"), x), b.axis(b.integer(batch_dim, "batch_dim"), x)
    order = [time, batch, *[axis for axis in range(known_rank(x)) if axis not in {time, batch}]]
    front = b.transpose(x, order)
    # None reversed is one reversed: ONNX Runtime before 1.31 leaves such places as they were in memory.
    some = b.op("Max", [b.cast(lengths, INT64), b.const(1, np.int64)])
    found = b.op("ReverseSequence", [front, some], {"time_axis": 0, "batch_axis": 1})
    return b.transpose(found, [order.index(axis) for axis in range(len(order))])
