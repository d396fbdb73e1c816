"""The last windows of a pooling that rounds its number of windows up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sharding.importers.mindir.primitives.base import RefusedError, Value
from sharding.importers.mindir.primitives.operands import Builder


@dataclass(frozen=True)
class Windows:
    """``pads`` are in ONNX's order; ``ceil``: the last window may be a part; ``counted``: whether padding
    counts in a mean."""

    kernel: Sequence[int]
    strides: Sequence[int]
    pads: Sequence[int] = ()
    ceil: bool = False
    counted: bool | None = None
    dilations: Sequence[int] | None = None

    @property
    def attributes(self) -> dict[str, object]:
        """Those of a pooling, but for the padding."""
        return {
            "kernel_shape": list(self.kernel),
            "strides": list(self.strides),
            "count_include_pad": None if self.counted is None else int(self.counted),
        }


def _missing(lengths: Sequence[int], windows: Windows) -> list[int]:
    """For each axis, what the last window lacks; or, negative, what lies behind the last window, where the
    next one would start behind the tensor's end: that is none for MindSpore."""
    found, pads = [], windows.pads
    for axis, (length, size, step) in enumerate(zip(lengths, windows.kernel, windows.strides, strict=True)):
        reach = (size - 1) * (windows.dilations[axis] if windows.dilations else 1) + 1
        span = length + pads[axis] + pads[axis + len(windows.kernel)] - reach
        behind = span % step
        starts = span - behind + step
        complete = span < 0 or not behind
        found.append(0 if complete else step - behind if starts < length + pads[axis] else -behind)
    return found


def _lengths(x: Value, count: int) -> list[int] | None:
    known = [] if x.shape is None else [length for length in x.shape[-count:] if length is not None]
    return known if len(known) == count else None


def last_windows(b: Builder, x: Value, windows: Windows, largest: bool) -> tuple[Value, Windows]:
    """The operand and the windows that have MindSpore's windows: ONNX's rules of shapes
    count one that starts behind the end, too. Pads never are the largest: they may complete a window. In a
    mean they may count, so there what lies behind the last window is cut off."""
    spatial, around = len(windows.kernel), list(windows.pads)
    lengths = _lengths(x, spatial)
    if lengths is None:
        return x, windows
    missing = _missing(lengths, windows)
    if largest:
        ends = [around[axis + spatial] + max(missing[axis], 0) for axis in range(spatial)]
        if any(end >= size for end, size in zip(ends, windows.kernel, strict=True)):
            return x, windows  # ONNX Runtime takes no such pads
        return x, replace(windows, pads=[*around[:spatial], *ends], ceil=False)
    cut: list[tuple[int, int]] = []
    for axis, behind in enumerate(-min(count, 0) for count in missing):
        less = min(behind, around[axis + spatial])
        around[axis + spatial] -= less
        if behind > less:
            cut.append((axis - spatial, lengths[axis] - (behind - less)))
    if cut:
        axes, stops = zip(*cut, strict=True)
        x = b.op("Slice", [x, b.ints((0,) * len(cut)), b.ints(stops), b.ints(axes)])
    return x, replace(windows, pads=around)


def completed(b: Builder, x: Value, windows: Windows) -> tuple[Value, Windows]:
    """The operand among zeros that complete every window: a mean of one counts all of its places."""
    spatial, pads = len(windows.kernel), windows.pads
    lengths = _lengths(x, spatial)
    if lengths is None or x.shape is None:
        raise RefusedError("a divisor of its own together with ceil_mode needs lengths that are known")
    rank = len(x.shape)
    missing = _missing(lengths, windows)
    added = [0] * (2 * rank)
    added[rank - spatial : rank] = pads[:spatial]
    added[2 * rank - spatial :] = [
        end + max(more, 0) for end, more in zip(pads[spatial:], missing, strict=True)
    ]
    wide = b.op("Pad", [x, b.const(added, np.int64), b.scalar(0, x)])
    return wide, replace(windows, pads=[0] * (2 * spatial), ceil=False)
