"""Resizing of images."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sharding.importers.mindir.doubles import Number
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
    wanted = b.known_ints(size)
    columns, rows = (
        _cubic(b, b.dim(x, 2 + axis), _wanted(b, size, wanted, axis), align_corners, half_pixel_centers)
        for axis in (1, 0)
    )
    wide = b.cast(x, FLOAT32)
    along = b.op("MatMul", [wide, b.transpose(columns, [1, 0])])
    return b.op("MatMul", [rows, along])


def _wanted(b: Builder, size: Operand, known: tuple[int, ...] | None, axis: int) -> int | Value:
    if known is not None and len(known) == 2:
        return known[axis]
    return b.op("Gather", [b.ints(size), b.const(axis, np.int64)], {"axis": 0})


_MOST_WEIGHTS = 1 << 20
"""Of a cubic's matrix that is written into the model; a larger one is found by each run."""
CUBIC_STEPS = 1024
"""MindSpore, like TensorFlow, takes the cubic's weights from a table with this many places between two."""


def _cubic(b: Builder, length: int | Value, wanted: int | Value, align: bool, half: bool) -> Value:
    """The weights (wanted, length) of Keys' cubic convolution (1981): -0.5 for half pixels, else -0.75.

    Places outside have no weight for half pixels, else the edge's.
    """
    a = -0.5 if half else -0.75
    many, all_, one = b.value(length), b.value(wanted), b.const(1, np.int64)
    row, whole, parts = (
        Number(b, b.cast(item, np.float64)) for item in (_line(b, all_), many, b.op("Max", [all_, one]))
    )
    scale = whole / parts
    if align:
        scale = parts.where_below(2.0, scale, (whole - 1.0) / (parts - 1.0))
    exact = (row + 0.5) * scale - 0.5 if half else row * scale
    place = Number(b, b.cast(b.cast(exact.value, FLOAT32), np.float64))
    low = place.apply("Floor")
    step = ((place - low) * CUBIC_STEPS).apply("Round") / CUBIC_STEPS
    near = [(d * (a + 2) - (a + 3)) * d * d + 1.0 for d in (step, step.minus(1.0))]
    far = [((d * a - 5 * a) * d + 8 * a) * d - 4 * a for d in (step + 1.0, step.minus(2.0))]
    line = Number(b, b.unsqueeze(b.cast(_line(b, many), np.float64), [0]))
    last = whole - 1.0
    total: Number | None = None
    for offset, weight in zip(range(-1, 3), (far[0], near[0], near[1], far[1]), strict=True):
        index = low + offset
        index = index if half else index.least(0.0).make("Min", index.least(0.0).value, last.value)
        here = b.op("Equal", [b.unsqueeze(index.value, [1]), line.value])
        share = Number(b, b.op("Where", [here, b.unsqueeze(weight.value, [1]), weight.of(0.0)]))
        total = share if total is None else total + share
    assert total is not None
    if half:
        known = Number(b, b.op("ReduceSum", [total.value, b.ints((1,))], {"keepdims": 1}))
        total = total / known.apply("Abs").where_below(1e-3, 1.0, known)
    found = b.cast(total.value, FLOAT32)
    if isinstance(length, int) and isinstance(wanted, int) and 0 < length * wanted <= _MOST_WEIGHTS:
        # of known lengths no run need find them again
        weights = b.evaluate(found)
        found = found if weights is None else b.const(weights)
    return found


def _line(b: Builder, length: Value) -> Value:
    return b.op("Range", [b.const(0, np.int64), b.reshape(length, ()), b.const(1, np.int64)])


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
