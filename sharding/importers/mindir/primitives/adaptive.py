"""Adaptive pooling: window i of m along a length n goes from floor(i n / m) to ceil((i + 1) n / m)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, table
from sharding.importers.mindir.primitives.operands import Builder, known_rank

_MOST_PARTS = 1 << 12
"""Windows that are written into the graph one by one; more are found by a run."""


def _wanted(b: Builder, x: Value, setting: Operand, count: int) -> list[int | Value | None]:
    """The result's lengths along the last axes; None keeps one."""
    if not isinstance(setting, (tuple, Value)):
        setting = (setting,)
    items = list(setting) if isinstance(setting, tuple) else list(b.integers(setting, "output_size"))
    items = items * count if len(items) == 1 else items
    found: list[int | Value | None] = []
    for item in items:
        if isinstance(item, Value) and item.constant is None:
            found.append(item)  # a length of the operand, as a rule
            continue
        length = None if item is None else b.integers(item, "output_size")[0]
        found.append(None if length is None or length < 0 else length)
    if len(found) != count:
        raise RefusedError(f"output_size must have {count} numbers, found {len(found)}")
    return found


def _adaptive(b: Builder, x: Value, lengths: Sequence[int | Value | None], largest: bool) -> Value:
    wide = b.floating(x) if not largest else b.computable(x)
    first = (x.rank or 0) - len(lengths)
    for axis, wanted in enumerate(lengths, first):
        if wanted is not None:
            wide = _adapted(b, wide, axis, wanted, largest)
    return wide


def _adapted(b: Builder, x: Value, axis: int, wanted: int | Value, largest: bool) -> Value:
    """One axis in windows from floor(i n / m) to ceil((i + 1) n / m)."""
    kind = "ReduceMax" if largest else "ReduceMean"
    if isinstance(wanted, Value):
        return _adapted_later(b, x, axis, wanted, b.dim(x, axis), largest)
    if wanted == 1:
        return b.op(kind, [x, b.ints((axis,))], {"keepdims": 1})
    length = b.dim(x, axis)
    if not isinstance(length, int):
        return _adapted_later(b, x, axis, wanted, length, largest)
    if length == wanted:
        return x
    if length % wanted == 0:
        shape = b.lengths(x)
        cut = b.reshape(x, (*shape[:axis], wanted, length // wanted, *shape[axis + 1 :]))
        return b.op(kind, [cut, b.ints((axis + 1,))], {"keepdims": 0})
    if wanted > _MOST_PARTS:
        return _adapted_later(b, x, axis, wanted, length, largest)
    bounds = [(i * length // wanted, -(-(i + 1) * length // wanted)) for i in range(wanted)]
    if not largest and axis == known_rank(x) - 1:
        b.bounded(length, wanted)
        weights = np.zeros((length, wanted))
        for place, (low, high) in enumerate(bounds):
            weights[low:high, place] = 1 / (high - low)
        return b.op("MatMul", [x, b.const(weights.astype(x.dtype))])
    parts = []
    for low, high in bounds:
        window = b.op("Slice", [x, b.ints((low,)), b.ints((high,)), b.ints((axis,))])
        parts.append(b.op(kind, [window, b.ints((axis,))], {"keepdims": 1}))
    return b.op("Concat", parts, {"axis": axis})


def _windows(b: Builder, length: Operand, wanted: Operand) -> tuple[Value, Value, Value]:
    """For each window of an axis the places in it, as many for each, how many of them are its own, and which
    of them those are: what a shorter one lacks is its last place again."""
    count, whole = (b.reshape(b.ints(item), ()) for item in (wanted, length))
    one, zero = b.const(1, np.int64), b.const(0, np.int64)
    number = b.op("Range", [zero, count, one])
    low = b.op("Div", [b.op("Mul", [number, whole]), count])
    above = b.op("Mul", [b.op("Add", [number, one]), whole])
    high = b.op("Div", [b.op("Sub", [b.op("Add", [above, count]), one]), count])
    size = b.op("Sub", [high, low])
    offsets = b.op("Range", [zero, b.op("ReduceMax", [size], {"keepdims": 0}), one])
    places = b.op("Add", [b.unsqueeze(low, [1]), offsets])
    own = b.op("Less", [offsets, b.unsqueeze(size, [1])])
    last = b.op("Sub", [b.unsqueeze(high, [1]), one])
    return b.op("Min", [places, last]), size, own


def _adapted_later(
    b: Builder, x: Value, axis: int, wanted: int | Value, length: int | Value, largest: bool
) -> Value:
    """The same for a length that only a run tells: each window's places are taken apart."""
    places, size, own = _windows(b, length, wanted)
    apart = b.op("Gather", [x, places], {"axis": axis})
    behind = (x.rank if x.rank is not None and axis >= 0 else 0) - axis - 1
    if largest:
        found = b.op("ReduceMax", [apart, b.ints((-behind - 1,))], {"keepdims": 0})
    else:
        mask = b.unsqueeze(own, range(2, 2 + behind))
        kept = b.op("Where", [mask, apart, b.scalar(0, apart)])
        total = b.op("ReduceSum", [kept, b.ints((-behind - 1,))], {"keepdims": 0})
        found = b.op("Div", [total, b.unsqueeze(b.cast(size, x.dtype), range(1, 1 + behind))])
    if x.shape is not None:
        count = wanted if isinstance(wanted, int) else None
        found.shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return found


def _places_of_largest(b: Builder, x: Value, wanted: Sequence[int | Value | None]) -> Value:
    """Where the largest of each window is, counted over the last axes."""
    shape = b.lengths(x)
    front, lengths = shape[: -len(wanted)], shape[-len(wanted) :]
    counts = tuple(length if count is None else count for length, count in zip(lengths, wanted, strict=True))
    # The places of the windows of all axes so far, a row for each window.
    rows = b.const(np.zeros((1, 1), np.int64))
    for length, count in zip(lengths, counts, strict=True):
        line, _, _ = _windows(b, length, count)
        wide = b.op("Mul", [rows, b.value(length)])
        joined = b.op("Add", [b.unsqueeze(wide, [1, 3]), b.unsqueeze(line, [0, 2])])
        ends = b.op("Shape", [joined])
        halves = (b.op("Slice", [ends, b.ints((low,)), b.ints((low + 2,))]) for low in (0, 2))
        products = [b.op("ReduceProd", [half], {"keepdims": 1}) for half in halves]
        rows = b.op("Reshape", [joined, b.op("Concat", products, {"axis": 0})])
    flat = b.reshape(x, (*front, -1))
    first = b.op("ArgMax", [b.op("Gather", [flat, rows], {"axis": len(front)})],
                 {"axis": len(front) + 1, "keepdims": 0})  # fmt: skip
    most = b.op("Gather", [b.op("Shape", [rows]), b.const(1, np.int64)], {"axis": 0})
    windows = b.op("Gather", [b.op("Shape", [rows]), b.const(0, np.int64)], {"axis": 0})
    starts = b.op("Mul", [b.op("Range", [b.const(0, np.int64), windows, b.const(1, np.int64)]), most])
    found = b.op("Gather", [b.reshape(rows, (-1,)), b.op("Add", [first, starts])])
    return b.reshape(found, (*front, *counts))


@table({
    "AdaptiveAvgPool1D": (1, False), ("AdaptiveAvgPool2D", "AdaptiveAvgPool2DExt"): (2, False),
    ("AdaptiveAvgPool3D", "AdaptiveAvgPool3DExt"): (3, False), "AdaptiveMaxPool1D": (1, True),
    "AdaptiveMaxPool2D": (2, True), "AdaptiveMaxPool3D": (3, True),
})  # fmt: skip
def adaptive(row: tuple[int, bool], b: Builder, node: Node, x: Value, *, output_size: Operand = 1) -> Operand:
    """The mean, or the largest, of as many windows as the result has places, along the last axes."""
    count, largest = row
    wanted = _wanted(b, x, output_size, count)
    found = _adaptive(b, x, wanted, largest)
    return found if len(node.result_types) < 2 else (found, _places_of_largest(b, b.computable(x), wanted))
