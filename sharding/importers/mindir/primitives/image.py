"""Sampling of images, and colours."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.boxes import _column
from sharding.importers.mindir.primitives.operands import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    Builder,
    Number,
    known_rank,
)


@primitive("GridSampler2D")
def grid_sampler(
    b: Builder,
    x: Value,
    grid: Value,
    *,
    interpolation_mode: Operand = "bilinear",
    padding_mode: Operand = "zeros",
    align_corners: bool = False,
) -> Value:
    """Sampled at places from -1 to 1."""
    mode = b.text(interpolation_mode, "interpolation_mode", ("bilinear", "nearest", "bicubic"))
    outside = b.text(padding_mode, "padding_mode", ("zeros", "border", "reflection"))
    return sampled(b, b.cast(x, FLOAT32), b.cast(grid, FLOAT32), mode, outside, align_corners)


def sampled(b: Builder, x: Value, grid: Value, mode: str, outside: str, align_corners: bool) -> Value:
    """ONNX's GridSample, whose modes have other names since version 20."""
    name = mode.removeprefix("bi") if b.opset >= 20 else mode
    attributes = {"mode": name, "padding_mode": outside, "align_corners": int(align_corners)}
    return b.op("GridSample", [x, grid], attributes)


@primitive("CropAndResize")
def crop_and_resize(
    b: Builder,
    x: Value,
    boxes: Value,
    owner: Value,
    crop_size: Operand,
    *,
    method: Operand = "bilinear",
    extrapolation_value: Number = 0.0,
) -> Value:
    """Boxes (y0, x0, y1, x1), in parts of the image, of images with the channels last, all at one size.

    Place i of n lies at y0 + i (y1 - y0) / (n - 1), the middle where n is 1; what lies outside is one number.
    """
    kind = b.text(method, "method", ("bilinear", "nearest"))
    known = b.known_ints(crop_size)
    if known is None or len(known) != 2:
        raise RefusedError("crop_size must be two integers that are known before a run")
    corners = b.cast(boxes, FLOAT32)
    b.bounded(*known)
    lines = []
    for axis, count in enumerate(known):
        low = b.op("Gather", [corners, b.const([axis], np.int64)], {"axis": 1})
        high = b.op("Gather", [corners, b.const([axis + 2], np.int64)], {"axis": 1})
        steps = np.arange(count) / (count - 1) if count > 1 else np.array([0.5])
        span = b.op("Mul", [b.op("Sub", [high, low]), b.const(steps, np.float32)])
        lines.append(b.op("Add", [span, low]))
    shape = b.op("Concat", [b.ints(b.dim(corners, 0)), b.ints((*known, 1))], {"axis": 0})
    # (box, height, width, (y, x)), in parts of the image
    parts = b.op("Concat", [
        b.op("Expand", [b.unsqueeze(lines[0], [2, 3]), shape]),
        b.op("Expand", [b.unsqueeze(lines[1], [1, 3]), shape]),
    ], {"axis": 3})  # fmt: skip
    images, owners = b.cast(x, FLOAT32), b.cast(owner, INT64)
    if kind == "nearest":
        ends = [
            b.op("Sub", [b.cast(b.ints(b.dim(images, axis)), FLOAT32), b.const(1, np.float32)])
            for axis in (1, 2)
        ]
        last = b.op("Concat", ends, {"axis": 0})
        places = b.op("Floor", [b.op("Add", [b.op("Mul", [parts, last]), b.const(0.5, np.float32)])])
        places = b.op("Max", [b.op("Min", [places, last]), b.const(0, np.float32)])
        which = b.op("Expand", [b.unsqueeze(owners, [1, 2, 3]), shape])
        found = b.op("GatherND", [images, b.op("Concat", [which, b.cast(places, INT64)], {"axis": 3})])
    else:
        chosen = b.op("Gather", [b.transpose(images, [0, 3, 1, 2]), owners], {"axis": 0})
        turned = b.op("Gather", [parts, b.const([1, 0], np.int64)], {"axis": 3})  # ONNX has x first
        grid = b.op("Sub", [b.op("Add", [turned, turned]), b.scalar(1, turned)])
        found = b.transpose(sampled(b, chosen, grid, "bilinear", "border", True), [0, 2, 3, 1])
    beyond = b.op("Or", [
        b.op("Less", [parts, b.scalar(0, parts)]), b.op("Greater", [parts, b.scalar(1, parts)])
    ])  # fmt: skip
    outside = b.op("ReduceMax", [b.cast(beyond, INT32), b.ints((3,))], {"keepdims": 1})
    filler = b.scalar(extrapolation_value, found)
    return b.op("Where", [b.cast(outside, BOOL), filler, found])


@primitive("ROIAlign")
def roi_align(
    b: Builder,
    x: Value,
    rois: Value,
    *,
    pooled_height: int = 1,
    pooled_width: int = 1,
    spatial_scale: float = 1.0,
    sample_num: int = 2,
    roi_end_mode: int = 1,
) -> Value:
    """Boxes (image, x0, y0, x1, y1), each at one size; with roi_end_mode 1 both ends are a box's."""
    if sample_num < 1:
        raise RefusedError(f"sample_num {sample_num}, whose samples depend on each box, has no conversion")
    found = b.cast(rois, FLOAT32)
    first = b.op("Slice", [found, b.ints((0,)), b.ints((1,)), b.ints((1,))])
    corners = b.op("Slice", [found, b.ints((1,)), b.ints((5,)), b.ints((1,))])
    mode = "output_half_pixel"  # which makes every box at least one place wide
    if roi_end_mode:
        mode, half = "half_pixel", 0.5 / spatial_scale  # which does not, but takes half a place away
        corners = b.op("Add", [corners, b.const([half, half, 1 + half, 1 + half], np.float32)])
    owner = b.cast(b.squeeze(first, [1]), INT64)
    return b.op("RoiAlign", [b.cast(x, FLOAT32), corners, owner], {
        "output_height": pooled_height,
        "output_width": pooled_width,
        "sampling_ratio": sample_num,
        "spatial_scale": spatial_scale, "coordinate_transformation_mode": mode,
    })  # fmt: skip


@primitive("HSVToRGB")
def hsv_to_rgb(b: Builder, x: Value) -> Value:
    """Hue, saturation and value from 0 to 1 along the last axis, as red, green and blue."""
    wide = b.computable(x)
    hue, saturation, value = (b.unsqueeze(_column(b, wide, i), [known_rank(x) - 1]) for i in range(3))
    shift = b.const(np.array([0, 4, 2]) / 6, wide.dtype)  # red, green, blue lie at 0, 2/6 and 4/6
    turned = b.op("Mod", [b.op("Add", [hue, shift]), b.scalar(1, wide)], {"fmod": 1})
    slope = b.op("Sub", [b.op("Mul", [turned, b.scalar(6, wide)]), b.scalar(3, wide)])
    level = b.op("Sub", [b.op("Abs", [slope]), b.scalar(1, wide)])
    level = b.op("Clip", [level, b.scalar(0, wide), b.scalar(1, wide)])
    rest = b.op("Sub", [b.scalar(1, wide), level])
    return b.op("Mul", [value, b.op("Sub", [b.scalar(1, wide), b.op("Mul", [saturation, rest])])])
