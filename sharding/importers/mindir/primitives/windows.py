"""The last windows of a pooling that rounds its number of windows up."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import RefusedError, Value
from sharding.importers.mindir.primitives.operands import Builder


def _missing(
    lengths: Sequence[int],
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int] | None,
) -> list[int]:
    """For each axis, what the last window lacks; or, negative, what lies behind the last window, where the
    next one would start behind the tensor's end: that is none for MindSpore."""
    found = []
    for axis, (length, size, step) in enumerate(zip(lengths, kernel, strides, strict=True)):
        reach = (size - 1) * (dilations[axis] if dilations else 1) + 1
        span = length + pads[axis] + pads[axis + len(kernel)] - reach
        behind = span % step
        starts = span - behind + step
        complete = span < 0 or not behind
        found.append(0 if complete else step - behind if starts < length + pads[axis] else -behind)
    return found


def _lengths(x: Value, count: int) -> list[int] | None:
    known = [] if x.shape is None else [length for length in x.shape[-count:] if length is not None]
    return known if len(known) == count else None


def last_windows(
    b: Builder,
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    dilations: Sequence[int] | None,
    largest: bool,
) -> tuple[Value, list[int], bool]:
    """The operand, pads in ONNX's order, and ceil_mode, that have MindSpore's windows: ONNX's rules of shapes
    count one that starts behind the end, too. Pads never are the largest: they may complete a window. In a
    mean they may count, so there what lies behind the last window is cut off."""
    spatial, around = len(kernel), list(pads)
    lengths = _lengths(x, spatial)
    if lengths is None:
        return x, around, True
    missing = _missing(lengths, kernel, strides, pads, dilations)
    if largest:
        ends = [pads[axis + spatial] + max(missing[axis], 0) for axis in range(spatial)]
        if any(end >= size for end, size in zip(ends, kernel, strict=True)):
            return x, around, True  # ONNX Runtime takes no such pads
        return x, [*around[:spatial], *ends], False
    cut: list[tuple[int, int]] = []
    for axis, behind in enumerate(-min(count, 0) for count in missing):
        less = min(behind, around[axis + spatial])
        around[axis + spatial] -= less
        if behind > less:
            cut.append((axis - spatial, lengths[axis] - (behind - less)))
    if cut:
        axes, stops = zip(*cut, strict=True)
        x = b.op("Slice", [x, b.ints((0,) * len(cut)), b.ints(stops), b.ints(axes)])
    return x, around, True


def completed(
    b: Builder, x: Value, kernel: Sequence[int], strides: Sequence[int], pads: Sequence[int]
) -> Value:
    """The operand among zeros that complete every window: a mean of one counts all of its places."""
    lengths, spatial = _lengths(x, len(kernel)), len(kernel)
    if lengths is None or x.shape is None:
        raise RefusedError("a divisor of its own together with ceil_mode needs lengths that are known")
    rank = len(x.shape)
    missing = _missing(lengths, kernel, strides, pads, None)
    added = [0] * (2 * rank)
    added[rank - spatial : rank] = pads[:spatial]
    added[2 * rank - spatial :] = [
        end + max(more, 0) for end, more in zip(pads[spatial:], missing, strict=True)
    ]
    return b.op("Pad", [x, b.const(added, np.int64), b.scalar(0, x)])
