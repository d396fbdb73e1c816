"""Convolutions whose windows' places move."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.image import sampled
from sharding.importers.mindir.primitives.matmul import channels_last
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder


def _line(b: Builder, windows: int | Value, size: int, step: int, gap: int, pad: int) -> Value:
    """The unmoved places of all windows along one axis, one window after the other."""
    count = [b.const(0, np.int64), b.value(windows), b.const(1, np.int64)]
    starts = b.op("Mul", [b.op("Range", count), step])
    inside = b.const(np.arange(b.bounded(size)) * gap - pad)
    return b.cast(b.reshape(b.op("Add", [b.unsqueeze(starts, [1]), inside]), (-1,)), FLOAT32)


@primitive("DeformableOffsets", rank=4)
def deformable_offsets(b: Builder, node: Node, x: Value, offsets: Value) -> Value:
    """The places of all windows beside each other, each moved by an offset of its own, between the nearest
    elements, zeros outside, times a weight. The offsets' channels are moves along the width, moves along the
    height, and weights, each for all groups and for all places of a window."""
    settings = node.attributes
    if channels_last(node):
        raise RefusedError("the channels last have no conversion")
    kernel = b.integers(settings.get("ksize"), "ksize", 2)
    strides, gaps = (
        b.integers(settings.get(name, (1,) * 4), name, 4)[2:] for name in ("strides", "dilations")
    )
    pads = b.integers(settings.get("pads", (0,) * 4), "pads", 4)  # top, bottom, left, right
    groups = b.integer(settings.get("deformable_groups", 1), "deformable_groups")
    moves = b.cast(offsets, FLOAT32)
    batch, high, wide = (b.dim(offsets, axis) for axis in (0, 2, 3))
    parts = b.reshape(moves, (batch, 3, groups, *kernel, high, wide))
    shape: Operand = (-1, _times(b, high, kernel[0]), _times(b, wide, kernel[1]))
    apart = [b.op("Gather", [parts, b.const(place, np.int64)], {"axis": 1}) for place in range(3)]
    along_width, along_height, weights = (
        b.reshape(b.transpose(item, [0, 1, 4, 2, 5, 3]), shape) for item in apart
    )
    columns = _line(b, wide, kernel[1], strides[1], gaps[1], pads[2])
    rows = b.unsqueeze(_line(b, high, kernel[0], strides[0], gaps[0], pads[0]), [1])
    found = []
    for base, moved, axis in ((columns, along_width, 3), (rows, along_height, 2)):
        place = b.op("Add", [moved, base])
        doubled = b.op("Add", [b.op("Mul", [place, 2.0]), 1.0])
        length = b.cast(b.value(b.dim(x, axis)), FLOAT32)
        found.append(b.unsqueeze(b.op("Sub", [b.op("Div", [doubled, length]), 1.0]), [3]))
    grid = b.op("Concat", found, {"axis": -1})
    channels = b.dim(x, 1)
    if isinstance(channels, int):
        own: int | Value = channels // groups
    else:
        own = b.op("Div", [channels, groups])
    images = b.reshape(b.cast(x, FLOAT32), (-1, own, b.dim(x, 2), b.dim(x, 3)))
    taken = b.op("Mul", [sampled(b, images, grid, "bilinear", "zeros", False), b.unsqueeze(weights, [1])])
    assert isinstance(shape, tuple)
    return b.reshape(taken, (b.dim(x, 0), channels, *shape[1:]))


def _times(b: Builder, length: int | Value, by: int) -> int | Value:
    return length * by if isinstance(length, int) else b.op("Mul", [length, by])
