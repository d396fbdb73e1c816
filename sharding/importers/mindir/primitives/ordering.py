"""Orders, and finding places."""

from __future__ import annotations

import numpy as np

from sharding.common.arrays import DType
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.indexing import END, indices_of
from sharding.importers.mindir.primitives.operands import INT32, INT64, Axis, Builder, is_float, known_rank

# Order


def top_k(
    places_as: DType,
    b: Builder,
    x: Value,
    k: Operand,
    *,
    dim: int = -1,
    largest: bool = True,
    sorted: Operand = True,
) -> Operand:
    """The k largest or smallest along an axis, by default the last, and their places."""
    values, places = _top(b, x, k, dim, largest)
    return values, b.cast(places, places_as)


table({"TopK": INT32}, settings="sorted")(top_k)
table({"TopkExt": INT64})(top_k)


def _top(b: Builder, x: Value, k: Operand, axis: int, largest: bool, least: int = 0) -> tuple[Value, Value]:
    """So many elements and their places; ``least``: how many it may be."""
    known = None if k is None else b.known_ints(k)
    length = b.dim(x, axis) if x.shape is not None else None
    if known is not None and len(known) == 1:
        most = length if isinstance(length, int) else known[0]
        if not least <= known[0] <= most:  # a negative one ends the process in ONNX Runtime
            upper = f" to {length}" if isinstance(length, int) else " on"
            raise RefusedError(f"k must be from {least}{upper}, found {known[0]}")
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    values, places = b.ops("TopK", [b.computable(x), b.ints(k)], attributes, outputs=2)
    return values, places


def sort(
    row: tuple[DType, bool],
    b: Builder,
    x: Value,
    *,
    dim: int = -1,
    descending: bool = False,
    stable: Operand = False,
) -> Operand:
    """In order along an axis, and the places, or these alone; equal ones keep theirs."""
    if x.rank == 0:
        values, places = x, b.const(0, np.int64)
    else:
        place = b.axis(dim, x)
        values, places = _top(b, x, b.dim(x, place), place, descending)
    places_as, places_only = row
    return b.cast(places, places_as) if places_only else (values, b.cast(places, places_as))


table({"Sort": (INT32, False)}, settings="axis=dim descending")(sort)
table({"SortExt": (INT64, False), "ArgSort": (INT64, True)})(sort)


@primitive("Median")
def median_along(
    b: Builder,
    x: Value,
    *,
    global_median: bool = False,
    axis: int = 0,
    keep_dims: bool = False,
    ignore_nan: bool = False,
) -> Operand:
    """The lower of the middle elements along an axis, or of all, and its place."""
    if ignore_nan:
        raise RefusedError("ignore_nan has no conversion")
    wide = b.computable(x)
    if global_median or x.rank == 0:
        wide = b.reshape(wide, (-1,))
    place = 0 if global_median or x.rank == 0 else b.axis(axis, wide)
    keep = keep_dims and not global_median and x.rank != 0
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
    values, places = _top(b, x, number, axis, False, 1)
    ends = [b.ints((-1,)), b.ints((END,)), b.ints((axis,))]
    found = [b.op("Slice", [item, *ends]) for item in (values, places)]
    return tuple(found) if keep else tuple(b.squeeze(item, [axis]) for item in found)


def kth_value(
    middle_one: bool, b: Builder, x: Value, *, k: Operand = 1, dim: int = -1, keepdim: bool = False
) -> Operand:
    """The k-th smallest along an axis, or the lower of the middle elements, and its place."""
    wide = b.computable(x)
    if x.rank == 0:
        return wide, b.const(0, np.int64)
    axis = b.axis(dim, wide)
    return _smallest(b, wide, middle(b, wide, axis) if middle_one else k, axis, keepdim)


table({"Kthvalue": False})(kth_value)
table({"MedianDim": True}, settings="dim keepdim")(kth_value)


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
    right: bool = False,
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
    b: Builder, x: Value, lengths: Value, *, seq_dim: Axis = 0, batch_dim: Axis = 0
) -> Value:
    """The first places along one axis reversed, for each place of another a number of its own."""
    order = [seq_dim, batch_dim, *[axis for axis in range(known_rank(x)) if axis not in {seq_dim, batch_dim}]]
    front = b.transpose(x, order)
    # None reversed is one reversed: ONNX Runtime before 1.31 leaves such places as they were in memory.
    some = b.op("Max", [b.cast(lengths, INT64), b.const(1, np.int64)])
    found = b.op("ReverseSequence", [front, some], {"time_axis": 0, "batch_axis": 1})
    return b.transpose(found, [order.index(axis) for axis in range(len(order))])
