"""Slices."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.indexing import END, REST
from sharding.importers.mindir.primitives.operands import INT64, Axis, Builder, known_rank

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


_MASKS = "begin_mask end_mask ellipsis_mask new_axis_mask shrink_axis_mask"


@primitive("StridedSlice", settings=_MASKS)
def strided_slice(
    b: Builder, x: Value, begin: Operand, end: Operand, strides: Operand, **masks: Operand
) -> Value:
    """Python's slices, one entry for each axis; bits of the masks leave a bound open, stand for as many whole
    axes as there are left, make a new axis, or take one place and drop the axis."""
    if isinstance(strides, tuple) and REST in strides:
        place = strides.index(REST)
        begin, end, strides = (
            tuple(0 if item == REST else item for item in (bounds if isinstance(bounds, tuple) else ()))
            for bounds in (begin, end, (*strides[:place], 1, *strides[place + 1 :]))
        )
        masks["ellipsis_mask"] = 1 << place
    starts, stops = _items(b, begin, "begin"), _items(b, end, "end")
    steps = b.integers(strides, "strides")
    count = len(starts)
    if len(stops) != count or len(steps) != count:
        raise RefusedError(f"begin, end and strides have {count}, {len(stops)} and {len(steps)} numbers")
    open_first, open_last, ellipsis_, new, shrink = (
        b.integer(masks.get(name, 0), name) for name in _MASKS.split()
    )
    first_ellipsis = next((i for i in range(count) if ellipsis_ >> i & 1), None)
    taken = sum(1 for i in range(count) if i != first_ellipsis and not new >> i & 1)
    axis, added, dropped = 0, [], []
    place = 0  # among the result's axes
    ranges: list[tuple[int, Operand, Operand, int]] = []
    picks: list[tuple[int, Operand]] = []
    for i in range(count):
        if i == first_ellipsis:
            if x.rank is None and not new and not shrink:
                axis = i + 1 - count  # from the last one
                continue
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
        found = b.op("Gather", [found, b.single(item, INT64)], {"axis": where})
    return b.unsqueeze(found, added)


def _sliced(b: Builder, x: Value, ranges: list[tuple[int, Operand, Operand, int]]) -> Value:
    if not ranges:
        return x
    axes, lows, highs, steps = zip(*ranges, strict=True)
    return b.op("Slice", [
        x, b.ints(tuple(lows)), b.ints(tuple(highs)), b.ints(tuple(axes)), b.ints(tuple(steps))
    ])  # fmt: skip


@primitive("Slice")
def slice_(b: Builder, x: Value, begin: Operand, size: Operand) -> Value:
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
            high = b.op("Add", [b.single(low, INT64), b.single(length, INT64)])
        ranges.append((axis, low, high, 1))
    return _sliced(b, x, ranges)


@primitive("SliceExt", "SliceExtView")
def slice_ext(b: Builder, x: Value, dim: Axis, start: Operand, end: Operand, step: int = 1) -> Value:
    """A slice along one axis."""
    return _sliced(b, x, [(dim, _one(b, start), _one(b, end), step)])


def _one(b: Builder, operand: Operand) -> Operand:
    known = b.known_ints(operand)
    return known[0] if known is not None and len(known) == 1 else b.single(operand, INT64)


@primitive("Narrow", "NarrowView")
def narrow(b: Builder, x: Value, dim: Axis, start: Operand, length: Operand) -> Value:
    """This many places along one axis."""
    axis, low, count = dim, _one(b, start), _one(b, length)
    if isinstance(low, int) and isinstance(count, int):
        high: Operand = low + count if low >= 0 or low + count < 0 else END
    else:
        high = b.op("Add", [b.single(low, INT64), b.single(count, INT64)])
    return _sliced(b, x, [(axis, low, high, 1)])


@primitive("SelectExtView", "SelectExt")
def select_place(b: Builder, x: Value, dim: Axis, index: Operand) -> Value:
    """One place along an axis, which goes."""
    place = _one(b, index)
    where = b.const(place, np.int64) if isinstance(place, int) else b.value(place)
    return b.op("Gather", [x, where], {"axis": dim})
