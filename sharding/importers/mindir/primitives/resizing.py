"""Resizing of images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sharding.common.arrays import Array
from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder, ranked


def _resized(b: Builder, x: Value, size: Operand, attributes: Mapping[str, object]) -> Value:
    """The axes behind the channels at other lengths."""
    shape = b.lengths(x)
    lengths = b.ints(size)
    whole = b.op("Concat", [b.ints(shape[:2]), lengths], {"axis": 0})
    wide = x if x.dtype == FLOAT32 else b.cast(x, FLOAT32)
    found = b.op("Resize", [wide, None, None, whole], attributes)
    known = b.known_ints(lengths)
    if known is not None and x.shape is not None:
        found.shape = (*x.shape[:2], *known)
    return found


def _coordinates(align: Operand, half: Operand) -> str:
    return "align_corners" if align else "half_pixel" if half else "asymmetric"


@table({
    ("ResizeBilinear", "ResizeBilinearV2"): "linear",
    ("ResizeNearestNeighbor", "ResizeNearestNeighborV2"): "nearest",
}, rank=4)  # fmt: skip
def resize(
    mode: str,
    b: Builder,
    x: Value,
    *,
    size: Operand = None,
    align_corners: bool = False,
    half_pixel_centers: bool = False,
) -> Value:
    """Between the four nearest places, or the nearest, which without either setting is the one before."""
    rounded = "round_prefer_ceil" if align_corners or half_pixel_centers else "floor"
    return _resized(b, x, size, {
        "mode": mode, "coordinate_transformation_mode": _coordinates(align_corners, half_pixel_centers),
        "nearest_mode": rounded if mode == "nearest" else None,
    })  # fmt: skip


@primitive("ResizeBicubic", rank=4)
def resize_bicubic(
    b: Builder, x: Value, size: Operand, *, align_corners: bool = False, half_pixel_centers: bool = False
) -> Value:
    """Between the sixteen nearest places: a product with a matrix along each axis."""
    lengths = b.known_ints(size)
    if lengths is None or len(lengths) != 2 or x.shape is None or None in x.shape[2:]:
        return _resized(b, x, size, {
            "mode": "cubic", "cubic_coeff_a": -0.5 if half_pixel_centers else -0.75,
            "coordinate_transformation_mode": _coordinates(align_corners, half_pixel_centers),
            "exclude_outside": int(half_pixel_centers),
        })  # fmt: skip
    rows, columns = (
        _cubic(length or 0, wanted, align_corners, half_pixel_centers)
        for length, wanted in zip(x.shape[2:], lengths, strict=True)
    )
    wide = b.cast(x, FLOAT32)
    along = b.op("MatMul", [wide, b.const(columns.T.copy(), np.float32)])
    return b.op("MatMul", [b.const(rows, np.float32), along])


CUBIC_STEPS = 1024
"""MindSpore, like TensorFlow, takes the cubic's weights from a table with this many places between two."""


def _cubic(length: int, wanted: int, align: bool, half: bool) -> Array:
    """The weights (wanted, length) of Keys' cubic convolution (1981): -0.5 for half pixels, else -0.75.

    Places outside have no weight for half pixels, else the edge's.
    """
    a = -0.5 if half else -0.75
    weights = np.zeros((wanted, length))
    scale = (length - 1) / (wanted - 1) if align and wanted > 1 else length / wanted
    for row in range(wanted):
        place = np.float32((row + 0.5) * scale - 0.5 if half else row * scale)
        low = int(np.floor(place))
        step = int(np.rint((place - low) * CUBIC_STEPS)) / CUBIC_STEPS
        near = [((a + 2) * d - (a + 3)) * d * d + 1 for d in (step, 1 - step)]
        far = [((a * d - 5 * a) * d + 8 * a) * d - 4 * a for d in (step + 1, 2 - step)]
        total = 0.0
        for index, weight in zip(range(low - 1, low + 3), (far[0], near[0], near[1], far[1]), strict=True):
            if half and not 0 <= index < length:
                continue
            weights[row, min(max(index, 0), length - 1)] += weight
            total += weight
        if half and abs(total) > 1e-3:
            weights[row] /= total
    return weights


@primitive("ResizeLinear1D", rank=3)
def resize_linear(
    b: Builder, x: Value, size: Operand, *, coordinate_transformation_mode: Operand = "align_corners"
) -> Value:
    """Between the two nearest places of one axis."""
    modes = ("asymmetric", "align_corners", "half_pixel")
    mode = b.text(coordinate_transformation_mode, "coordinate_transformation_mode", modes)
    return _resized(b, x, size, {"mode": "linear", "coordinate_transformation_mode": mode})


def _upsampled(
    b: Builder, node: Node, x: Value, size: Operand, scales: Operand, attributes: Mapping[str, object]
) -> Value:
    x = ranked(x, 2 + int(node.op_type[-2]))  # such as UpsampleNearest2D
    if size is not None:
        return _resized(b, x, size, attributes)
    if not isinstance(scales, tuple):
        raise RefusedError("it has neither a size nor scales")
    factors = [float(b.number(item, "scales")) for item in scales]
    wide = b.cast(x, FLOAT32)
    whole = b.const([1.0, 1.0, *factors], np.float32)
    return b.op("Resize", [wide, None, whole], attributes)


@primitive("UpsampleNearest1D", "UpsampleNearest2D", "UpsampleNearest3D")
def upsample_nearest(b: Builder, node: Node, x: Value, size: Operand = None, scales: Operand = None) -> Value:
    """The place before."""
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _upsampled(b, node, x, size, scales, attributes)


@table({("UpsampleLinear1D", "UpsampleBilinear2D", "UpsampleTrilinear3D"): None, "UpsampleBicubic2D": -0.75})
def upsample(
    cubic: float | None,
    b: Builder,
    node: Node,
    x: Value,
    size: Operand = None,
    scales: Operand = None,
    *,
    align_corners: Operand = False,
) -> Value:
    """Between the nearest places, or between the sixteen nearest by Keys' cubic with a coefficient."""
    return _upsampled(b, node, x, size, scales, {
        "mode": "linear" if cubic is None else "cubic",
        "coordinate_transformation_mode": _coordinates(align_corners, True), "cubic_coeff_a": cubic,
    })  # fmt: skip
