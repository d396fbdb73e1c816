"""Taking elements by place, putting them by place, and finding places."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import (
    INT32,
    INT64,
    computable,
    element_type,
    integer,
    integers,
    is_float,
    known_rank,
    moved,
    promoted,
    result_type,
    scalar,
    tensors,
)

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder

END = 2**62
"""Beyond any length; ONNX's Slice stops at the end of the axis."""


def _index(b: Builder, x: Operand) -> Value:
    """Indices in a type that every operator takes."""
    value = b.value(x)
    return value if value.dtype in {INT32, INT64} else b.cast(value, INT64)


def _gather(b: Builder, x: Value, indices: Operand, axis: int) -> Value:
    return b.op("Gather", [x, _index(b, indices)], {"axis": b.axis(axis, x)})


@primitive("Gather", "GatherV2", "SparseGatherV2", settings=("batch_dims",))
def gather(
    b: Builder, node: Node, x: Value, indices: Operand, axis: Operand = 0, *, batch_dims: Operand = 0
) -> Value:
    """Places along an axis, the same for all or, with batch axes, for each batch entry its own."""
    place = b.axis(integer(b, axis, "axis"), x)
    places = _index(b, indices)
    batch = integer(b, batch_dims, "batch_dims")
    if batch < 0:
        batch += known_rank(places)
    if not batch:
        return b.op("Gather", [x, places], {"axis": place})
    if not batch <= place:
        raise RefusedError(f"batch_dims {batch} lies behind axis {place}")
    front = moved(b, x, place, batch)
    found = b.op("GatherND", [front, b.cast(b.unsqueeze(places, [known_rank(places)]), INT64)],
                 {"batch_dims": batch})  # fmt: skip
    # batch axes, the indices' own, then what was between the batch axes and the axis: that goes first.
    own, between = known_rank(places) - batch, place - batch
    rank = known_rank(found)
    middle = list(range(batch + own, batch + own + between))
    order = [*range(batch), *middle, *range(batch, batch + own), *range(batch + own + between, rank)]
    return b.transpose(found, order)


@primitive("Embedding")
def embedding(b: Builder, node: Node, indices: Value, table: Value, *rest: Operand) -> Value:
    """Rows of a table."""
    if len(rest) > 1 and rest[1] is not None:
        raise RefusedError("it renormalizes rows (max_norm), which changes its own table")
    return _gather(b, table, indices, 0)


@primitive("EmbeddingLookup")
def embedding_lookup(b: Builder, node: Node, table: Value, indices: Value, offset: Operand = 0) -> Value:
    """Rows of a table by index less an offset; zeros for indices outside of it."""
    start = integer(b, offset, "offset")
    places = _index(b, indices)
    places = b.op("Sub", [places, scalar(b, start, places)]) if start else places
    rows = b.cast(b.value(b.dim(table, 0)), places.dtype)
    outside = b.op(
        "Or", [b.op("Less", [places, scalar(b, 0, places)]), b.op("GreaterOrEqual", [places, rows])]
    )
    safe = b.op("Where", [outside, scalar(b, 0, places), places])
    found = b.op("Gather", [table, safe], {"axis": 0})
    return b.op("Where", [b.unsqueeze(outside, [known_rank(places)]), scalar(b, 0, found), found])


@primitive("GatherD", "GatherDExt")
def gather_d(b: Builder, node: Node, x: Value, dim: Operand, index: Value) -> Value:
    """For each element the place along one axis."""
    return b.op("GatherElements", [x, _index(b, index)], {"axis": b.axis(integer(b, dim, "dim"), x)})


@primitive("GatherNd", "GatherNdExt")
def gather_nd(b: Builder, node: Node, x: Value, indices: Value) -> Value:
    """By index vectors along the first axes."""
    return b.op("GatherND", [x, b.cast(indices, INT64)])


@primitive("IndexSelect")
def index_select(b: Builder, node: Node, x: Value, dim: Operand, index: Value) -> Value:
    """Places along an axis."""
    return _gather(b, x, index, integer(b, dim, "dim"))


@primitive("Take")
def take(b: Builder, node: Node, x: Value, index: Value) -> Value:
    """Places in the flattened tensor."""
    return _gather(b, b.reshape(x, (-1,)), index, 0)


@primitive("Index")
def index_tensors(b: Builder, node: Node, x: Value, indices: Operand) -> Value:
    """One index tensor for each of the first axes, broadcast against one another; a mask counts its axes."""
    found = tensors(indices, "the indices")
    places: list[Value] = []
    for item in found:
        if item.dtype == np.bool_:
            rows = b.op("NonZero", [item])
            count = known_rank(item)
            places += [b.reshape(b.op("Gather", [rows, b.const([k], np.int64)], {"axis": 0}), (-1,))
                       for k in range(count)]  # fmt: skip
        else:
            places.append(b.cast(item, INT64))
    shape = b.op("Shape", [places[0]])
    if len(places) > 1:
        total = places[0]
        for item in places[1:]:
            total = b.op("Add", [total, item])
        shape = b.op("Shape", [total])
    spread = [b.op("Expand", [item, shape]) for item in places]
    vectors = b.op("Concat", [b.op("Unsqueeze", [item, b.ints((-1,))]) for item in spread], {"axis": -1})
    return b.op("GatherND", [x, vectors])


# Slices


def _items(b: Builder, operand: Operand, what: str) -> list[Operand]:
    """The single integers of a tuple or a vector, known or not."""
    known = b.known_ints(operand)
    if known is not None:
        return list(known)
    if isinstance(operand, tuple):
        return list(operand)
    if isinstance(operand, Value) and operand.rank == 1 and operand.shape and operand.shape[0] is not None:
        return [b.op("Gather", [operand, b.const(place, np.int64)], {"axis": 0})
                for place in range(operand.shape[0])]  # fmt: skip
    raise RefusedError(f"the number of integers in {what} must be known")


_MASKS = ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask")


@primitive("StridedSlice", settings=_MASKS)
def strided_slice(
    b: Builder,
    node: Node,
    x: Value,
    begin: Operand,
    end: Operand,
    strides: Operand,
    *,
    begin_mask: Operand = 0,
    end_mask: Operand = 0,
    ellipsis_mask: Operand = 0,
    new_axis_mask: Operand = 0,
    shrink_axis_mask: Operand = 0,
) -> Value:
    """Python's slices, one entry for each axis; bits of the masks leave a bound open, stand for as many whole
    axes as there are left, make a new axis, or take one place and drop the axis."""
    starts, stops = _items(b, begin, "begin"), _items(b, end, "end")
    steps = integers(b, strides, "strides")
    count = len(starts)
    if len(stops) != count or len(steps) != count:
        raise RefusedError(f"begin, end and strides have {count}, {len(stops)} and {len(steps)} numbers")
    open_first, open_last, ellipsis_, new, shrink = (
        integer(b, mask, name)
        for mask, name in zip(
            (begin_mask, end_mask, ellipsis_mask, new_axis_mask, shrink_axis_mask), _MASKS, strict=True
        )
    )
    first_ellipsis = next((i for i in range(count) if ellipsis_ >> i & 1), None)
    taken = sum(1 for i in range(count) if i != first_ellipsis and not new >> i & 1)
    axis, added, dropped = 0, [], []
    place = 0  # among the result's axes
    ranges: list[tuple[int, Operand, Operand, int]] = []
    picks: list[tuple[int, Operand]] = []
    for i in range(count):
        if i == first_ellipsis:
            skipped = known_rank(x) - taken
            axis, place = axis + skipped, place + skipped
        elif new >> i & 1:
            added.append(place)
            place += 1
        elif shrink >> i & 1:
            picks.append((axis, starts[i]))
            dropped.append(axis)
            axis += 1
        else:
            step = steps[i]
            low: Operand = (0 if step > 0 else -1) if open_first >> i & 1 else starts[i]
            high: Operand = (END if step > 0 else -END) if open_last >> i & 1 else stops[i]
            if not (step == 1 and low == 0 and high == END):
                ranges.append((axis, low, high, step))
            axis, place = axis + 1, place + 1
    if x.rank is not None and axis > x.rank:
        raise RefusedError(f"it slices {axis} axes of a tensor with {x.rank}")
    found = _sliced(b, x, ranges)
    for where, item in sorted(picks, key=lambda pick: -pick[0]):
        found = b.op("Gather", [found, b.const(item, np.int64) if isinstance(item, int) else _whole(b, item)],
                     {"axis": where})  # fmt: skip
    return b.unsqueeze(found, added)


def _whole(b: Builder, operand: Operand) -> Value:
    value = b.cast(b.value(operand), INT64)
    return value if not value.rank else b.op("Reshape", [value, b.const([], np.int64)])


def _sliced(b: Builder, x: Value, ranges: list[tuple[int, Operand, Operand, int]]) -> Value:
    if not ranges:
        return x
    axes, lows, highs, steps = zip(*ranges, strict=True)
    return b.op("Slice", [
        x, b.ints(tuple(lows)), b.ints(tuple(highs)), b.ints(tuple(axes)), b.ints(tuple(steps))
    ])  # fmt: skip


@primitive("Slice")
def slice_(b: Builder, node: Node, x: Value, begin: Operand, size: Operand) -> Value:
    """A block from its first places and lengths; -1 is what is left."""
    lows, lengths = _items(b, begin, "begin"), _items(b, size, "size")
    ranges: list[tuple[int, Operand, Operand, int]] = []
    for axis, (low, length) in enumerate(zip(lows, lengths, strict=True)):
        high: Operand
        if isinstance(length, int) and length == -1:
            high = END
        elif isinstance(low, int) and isinstance(length, int):
            high = low + length
        else:
            high = b.op("Add", [_whole(b, low), _whole(b, length)])
        ranges.append((axis, low, high, 1))
    return _sliced(b, x, ranges)


@primitive("SliceExt", "SliceExtView")
def slice_ext(
    b: Builder, node: Node, x: Value, dim: Operand, start: Operand, end: Operand, step: Operand = 1
) -> Value:
    """A slice along one axis."""
    axis = b.axis(integer(b, dim, "dim"), x)
    return _sliced(b, x, [(axis, _one(b, start), _one(b, end), integer(b, step, "step"))])


def _one(b: Builder, operand: Operand) -> Operand:
    known = b.known_ints(operand)
    return known[0] if known is not None and len(known) == 1 else _whole(b, operand)


@primitive("Narrow", "NarrowView")
def narrow(b: Builder, node: Node, x: Value, dim: Operand, start: Operand, length: Operand) -> Value:
    """This many places along one axis."""
    axis, low, count = b.axis(integer(b, dim, "dim"), x), _one(b, start), _one(b, length)
    if isinstance(low, int) and isinstance(count, int):
        high: Operand = low + count if low >= 0 or low + count < 0 else END
    else:
        high = b.op("Add", [_whole(b, low), _whole(b, count)])
    return _sliced(b, x, [(axis, low, high, 1)])


@primitive("SelectExtView", "SelectExt")
def select_place(b: Builder, node: Node, x: Value, dim: Operand, index: Operand) -> Value:
    """One place along an axis, which goes."""
    place = _one(b, index)
    where = b.const(place, np.int64) if isinstance(place, int) else b.value(place)
    return b.op("Gather", [x, where], {"axis": b.axis(integer(b, dim, "dim"), x)})


# Order


@primitive("TopK", settings=("sorted",))
def top_k(b: Builder, node: Node, x: Value, k: Operand, *, sorted: Operand = True) -> Operand:
    """The k largest along the last axis, and their places as int32."""
    values, places = _top(b, x, k, -1, True)
    return values, b.cast(places, INT32)


@primitive("TopkExt", settings=("dim", "largest", "sorted"))
def topk_ext(
    b: Builder,
    node: Node,
    x: Value,
    k: Operand,
    *,
    dim: Operand = -1,
    largest: Operand = True,
    sorted: Operand = True,
) -> Operand:
    """The k largest or smallest along an axis, and their places."""
    return _top(b, x, k, integer(b, dim, "dim"), bool(largest))


def _top(b: Builder, x: Value, k: Operand, axis: int, largest: bool) -> tuple[Value, Value]:
    attributes = {"axis": axis, "largest": int(largest), "sorted": 1}
    values, places = b.ops("TopK", [computable(b, x), b.ints(k)], attributes, outputs=2)
    return values, places


def _sorted(b: Builder, x: Value, axis: Operand, descending: Operand) -> tuple[Value, Value]:
    if x.rank == 0:
        return x, b.const(0, np.int64)
    place = b.axis(integer(b, axis, "axis"), x)
    return _top(b, x, b.dim(x, place), place, bool(descending))


@primitive("Sort", settings=("axis", "descending"))
def sort(b: Builder, node: Node, x: Value, *, axis: Operand = -1, descending: Operand = False) -> Operand:
    """In order along an axis, and the places as int32; equal ones keep theirs."""
    values, places = _sorted(b, x, axis, descending)
    return values, b.cast(places, INT32)


@primitive("SortExt", settings=("dim", "descending", "stable"))
def sort_ext(
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = -1,
    descending: Operand = False,
    stable: Operand = False,
) -> Operand:
    """In order along an axis, and the places."""
    return _sorted(b, x, dim, descending)


@primitive("ArgSort", settings=("dim", "descending", "stable"))
def arg_sort(
    b: Builder,
    node: Node,
    x: Value,
    *,
    dim: Operand = -1,
    descending: Operand = False,
    stable: Operand = False,
) -> Value:
    """The places in order along an axis."""
    return _sorted(b, x, dim, descending)[1]


@primitive("NonZero")
def non_zero(b: Builder, node: Node, x: Value) -> Value:
    """The places of what is not 0, a row for each."""
    return b.transpose(b.op("NonZero", [computable(b, x)]), [1, 0])


@primitive("NonZeroExt")
def non_zero_ext(b: Builder, node: Node, x: Value) -> Operand:
    """The places of what is not 0, a vector for each axis."""
    found = b.op("NonZero", [computable(b, x)])
    return tuple(
        b.op("Gather", [found, b.const(axis, np.int64)], {"axis": 0}) for axis in range(known_rank(x))
    )


@primitive("SearchSorted", settings=("dtype", "right"))
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
        sequence = b.op("GatherElements", [sequence, _index(b, sorter)], {"axis": -1})
    line, wanted = (computable(b, item) for item in promoted(b, sequence, values))
    last = known_rank(line)
    spread = b.unsqueeze(line, [last - 1])
    before = b.op("LessOrEqual" if right else "Less", [spread, b.unsqueeze(wanted, [known_rank(wanted)])])
    count = b.op("ReduceSum", [b.cast(before, INT64), b.ints((-1,))], {"keepdims": 0})
    return b.cast(count, element_type(dtype, result_type(node, INT64)))


@primitive("InvertPermutation")
def invert_permutation(b: Builder, node: Node, x: Operand) -> Operand:
    """The order that undoes another."""
    order = integers(b, x, "the order")
    if sorted_order(order) != list(range(len(order))):
        raise RefusedError(f"{order} is no order")
    found = tuple(int(place) for place in np.argsort(order))
    return b.const(found, np.int64) if isinstance(x, Value) else found


def sorted_order(order: tuple[int, ...]) -> list[int]:
    """The numbers of an order, in order."""
    return [int(item) for item in np.sort(np.asarray(order))]


@primitive("Unique")
def unique(b: Builder, node: Node, x: Value) -> Operand:
    """What occurs, in the order of the first time, and where each element is in that."""
    wide = x if is_float(x.dtype) else b.cast(x, INT64)
    values, _, inverse, _ = b.ops("Unique", [computable(b, wide)], {"sorted": 0}, outputs=4)
    return values, b.cast(inverse, INT32)


@primitive("ReverseSequence", settings=("seq_dim", "batch_dim"))
def reverse_sequence(
    b: Builder, node: Node, x: Value, lengths: Value, *, seq_dim: Operand = 0, batch_dim: Operand = 0
) -> Value:
    """The first places along one axis reversed, for each place of another a number of its own."""
    time, batch = b.axis(integer(b, seq_dim, "seq_dim"), x), b.axis(integer(b, batch_dim, "batch_dim"), x)
    order = [time, batch, *[axis for axis in range(known_rank(x)) if axis not in {time, batch}]]
    front = b.transpose(x, order)
    found = b.op("ReverseSequence", [front, b.cast(lengths, INT64)], {"time_axis": 0, "batch_axis": 1})
    return b.transpose(found, [order.index(axis) for axis in range(len(order))])
