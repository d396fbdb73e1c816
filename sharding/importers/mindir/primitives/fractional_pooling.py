"""Pooling whose windows start at places that random numbers tell, which are given (B. Graham)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import FLOAT32, INT64, Builder, is_float


def _starts(b: Builder, sample: Value, length: int | Value, size: int, count: int) -> Value:
    """Where the windows along an axis start, for each plane: the last at the end, those before it at equal
    steps from a random one, rounded. In the samples' own type, so that they are rounded as MindSpore does."""
    dtype = sample.dtype
    last = b.op("Sub", [b.value(length), b.value(size)])
    end = b.op("Expand", [b.reshape(last, (1,)), b.op("Shape", [sample])])
    if count == 1:
        return end
    step = b.op("Div", [b.cast(last, dtype), b.scalar(count - 1, sample)])
    places = b.const(np.arange(count - 1).astype(dtype))
    far = b.op("Mul", [b.op("Add", [places, sample]), step])
    first = b.op("Mul", [sample, step])
    before = b.op("Sub", [b.cast(far, INT64), b.cast(first, INT64)])
    return b.op("Concat", [before, end], {"axis": -1})


def _places(
    b: Builder, x: Value, samples: Sequence[Value], sizes: Sequence[int], counts: Sequence[int]
) -> Value:
    """The places in a plane of all windows' elements: (batch, channels, windows, elements)."""
    axes = len(sizes)
    found: Value | None = None
    for axis, (sample, size, count) in enumerate(zip(samples, sizes, counts, strict=True)):
        length = b.dim(x, 2 + axis)
        starts = _starts(b, sample, length, size, count)
        line = b.op("Add", [b.unsqueeze(starts, [3]), b.const(np.arange(size))])
        # (batch, channels, 1, .., count, .., 1, 1, .., size, .., 1)
        shape = [0, 0, *(count if place == axis else 1 for place in range(axes)),
                 *(size if place == axis else 1 for place in range(axes))]  # fmt: skip
        line = b.op("Reshape", [line, b.const(shape, np.int64)])
        found = line if found is None else b.op("Add", [b.op("Mul", [found, b.value(length)]), line])
    assert found is not None
    windows, elements = math.prod(counts), math.prod(sizes)
    return b.op("Reshape", [found, b.const([0, 0, windows, elements], np.int64)])


def _pooled(
    b: Builder, x: Value, samples: Sequence[Value], sizes: Sequence[int], counts: Sequence[int], spreads: bool
) -> tuple[Value, Value]:
    """The largest of each window, and where it is in its plane. ``spreads``: no number is larger than all;
    else it is none of the window's."""
    wide = b.computable(x)
    places = _places(b, x, samples, sizes, counts)
    flat = b.op("Reshape", [wide, b.const([0, 0, -1], np.int64)])
    several = b.op("Reshape", [places, b.const([0, 0, -1], np.int64)])
    apart = b.op("Reshape", [b.op("GatherElements", [flat, several], {"axis": 2}), b.op("Shape", [places])])
    if is_float(wide.dtype):
        none = b.op("IsNaN", [apart])
        shown = b.op("Where", [none, b.scalar(-np.inf, apart), apart])
    else:
        none, shown = None, apart
    chosen = b.op("ArgMax", [shown], {"axis": 3, "keepdims": 1})
    if none is not None and spreads:
        mask = b.cast(none, FLOAT32)
        lost = b.op("ReduceMax", [mask, b.ints((3,))], {"keepdims": 1})
        last = b.op("ArgMax", [mask], {"axis": 3, "keepdims": 1, "select_last_index": 1})
        chosen = b.op("Where", [b.op("Greater", [lost, b.scalar(0, lost)]), last, chosen])
        shown = apart
    shape = b.const([0, 0, *counts], np.int64)
    value, place = (
        b.op("Reshape", [b.op("GatherElements", [item, chosen], {"axis": 3}), shape])
        for item in (shown, places)
    )
    return value, place


def _settings(b: Builder, x: Value, count: int, ksize: Operand, output: Operand) -> list[tuple[int, ...]]:
    """How long the windows along each of the last axes are, and how many: as many as start at places of
    their own, as MindSpore demands."""
    named = {"ksize": ksize, "output_shape": output}
    found = [b.integers(item, what, count)[-count:] for what, item in named.items()]
    for what, numbers in zip(named, found, strict=True):
        if min(numbers) < 1:
            raise RefusedError(f"{what} must be positive, found {list(numbers)}")
    for axis, (size, wanted) in enumerate(zip(*found, strict=True)):
        length = b.dim(x, axis - count)
        if isinstance(length, int) and size + wanted - 1 > length:
            raise RefusedError(f"{wanted} windows of {size} do not fit into a length of {length}")
    for numbers in found:
        b.bounded(*numbers)
    return found


def _sample(b: Builder, samples: Value, place: int) -> Value:
    """One of each plane's numbers: (batch, channels, 1)."""
    return b.op("Gather", [samples, b.const([place], np.int64)], {"axis": 2})


@primitive("FractionalMaxPoolWithFixedKsize", settings="ksize output_shape format", rank=4)
def fractional(
    b: Builder, x: Value, samples: Value, *, ksize: Operand, output_shape: Operand, format: Operand = "NCHW"
) -> tuple[Value, Value]:
    """Of two axes: the first of a plane's samples is for the last one."""
    b.text(format, "data_format", ("nchw",))
    sizes, counts = _settings(b, x, 2, ksize, output_shape)
    return _pooled(b, x, [_sample(b, samples, place) for place in (1, 0)], sizes, counts, spreads=False)


@primitive("FractionalMaxPool3DWithFixedKsize", settings="ksize output_shape format")
def fractional_of_three(
    b: Builder, x: Value, samples: Value, *, ksize: Operand, output_shape: Operand, format: Operand = "NCDHW"
) -> tuple[Value, Value]:
    """Of three axes, of a batch or of one entry. MindSpore's kernels take the other layout for this one."""
    b.text(format, "data_format", ("ncdhw",))
    if x.rank not in {4, 5}:
        raise RefusedError("it needs an operand with four or five axes")
    sizes, counts = _settings(b, x, 3, ksize, output_shape)
    wide = b.unsqueeze(x, [0]) if x.rank == 4 else x
    # Of one entry MindSpore wants (channels, 1, 3).
    numbers = b.cast(b.reshape(samples, (1, -1, 3)) if x.rank == 4 else samples, FLOAT32)
    found = _pooled(b, wide, [_sample(b, numbers, place) for place in range(3)], sizes, counts, spreads=True)
    return (b.squeeze(found[0], [0]), b.squeeze(found[1], [0])) if x.rank == 4 else found
