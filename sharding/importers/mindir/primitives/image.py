"""Resizing and sampling of images, and boxes in them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.importers.mindir.primitives.base import Array, Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import (
    BOOL,
    FLOAT32,
    INT32,
    INT64,
    computable,
    integer,
    known_rank,
    number,
    scalar,
    text,
)

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder


def _resized(b: Builder, x: Value, size: Operand, attributes: dict[str, Any]) -> Value:
    """The axes behind the channels at other lengths."""
    shape = b.shape_of(x)
    assert isinstance(shape, tuple)
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


@primitive("ResizeBilinearV2", settings=("align_corners", "half_pixel_centers"))
def resize_bilinear(
    b: Builder,
    node: Node,
    x: Value,
    size: Operand,
    *,
    align_corners: Operand = False,
    half_pixel_centers: Operand = False,
) -> Value:
    """Between the four nearest places."""
    mode = _coordinates(align_corners, half_pixel_centers)
    return _resized(b, x, size, {"mode": "linear", "coordinate_transformation_mode": mode})


@primitive("ResizeBilinear", settings=("size", "align_corners", "half_pixel_centers"))
def resize_bilinear_v1(
    b: Builder,
    node: Node,
    x: Value,
    *,
    size: Operand = None,
    align_corners: Operand = False,
    half_pixel_centers: Operand = False,
) -> Value:
    """The same, its size a setting."""
    return resize_bilinear(
        b, node, x, size, align_corners=align_corners, half_pixel_centers=half_pixel_centers
    )


def _nearest(b: Builder, x: Value, size: Operand, align: Operand, half: Operand) -> Value:
    return _resized(b, x, size, {
        "mode": "nearest", "coordinate_transformation_mode": _coordinates(align, half),
        "nearest_mode": "round_prefer_ceil" if align or half else "floor",
    })  # fmt: skip


@primitive("ResizeNearestNeighbor", settings=("size", "align_corners", "half_pixel_centers"))
def resize_nearest(
    b: Builder,
    node: Node,
    x: Value,
    *,
    size: Operand = None,
    align_corners: Operand = False,
    half_pixel_centers: Operand = False,
) -> Value:
    """The nearest place, which without either setting is the one before."""
    return _nearest(b, x, size, align_corners, half_pixel_centers)


@primitive("ResizeNearestNeighborV2", settings=("align_corners", "half_pixel_centers"))
def resize_nearest_v2(
    b: Builder,
    node: Node,
    x: Value,
    size: Operand,
    *,
    align_corners: Operand = False,
    half_pixel_centers: Operand = False,
) -> Value:
    """The same, its size an operand."""
    return _nearest(b, x, size, align_corners, half_pixel_centers)


@primitive("ResizeBicubic", settings=("align_corners", "half_pixel_centers"))
def resize_bicubic(
    b: Builder,
    node: Node,
    x: Value,
    size: Operand,
    *,
    align_corners: Operand = False,
    half_pixel_centers: Operand = False,
) -> Value:
    """Between the sixteen nearest places: a product with a matrix along each axis."""
    lengths = b.known_ints(size)
    if lengths is None or len(lengths) != 2 or x.shape is None or None in x.shape[2:]:
        half = bool(half_pixel_centers)
        return _resized(b, x, size, {
            "mode": "cubic", "coordinate_transformation_mode": _coordinates(align_corners, half),
            "cubic_coeff_a": -0.5 if half else -0.75, "exclude_outside": int(half),
        })  # fmt: skip
    rows, columns = (
        _cubic(length or 0, wanted, bool(align_corners), bool(half_pixel_centers))
        for length, wanted in zip(x.shape[2:], lengths, strict=True)
    )
    wide = b.cast(x, FLOAT32)
    along = b.op("MatMul", [wide, b.const(columns.T.copy(), np.float32)])
    return b.op("MatMul", [b.const(rows, np.float32), along])


CUBIC_STEPS = 1024
"""MindSpore, like TensorFlow, takes the cubic's weights from a table with this many places between two."""


def _cubic(length: int, wanted: int, align: bool, half: bool) -> Array:
    """The weights (wanted, length) of Keys' cubic convolution (1981), with -0.5 for half pixels and -0.75 else.

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


@primitive("ResizeLinear1D", settings=("coordinate_transformation_mode",))
def resize_linear(
    b: Builder,
    node: Node,
    x: Value,
    size: Operand,
    *,
    coordinate_transformation_mode: Operand = "align_corners",
) -> Value:
    """Between the two nearest places of one axis."""
    modes = ("asymmetric", "align_corners", "half_pixel")
    mode = text(coordinate_transformation_mode, "coordinate_transformation_mode", modes)
    return _resized(b, x, size, {"mode": "linear", "coordinate_transformation_mode": mode})


def _upsampled(b: Builder, x: Value, size: Operand, scales: Operand, attributes: dict[str, Any]) -> Value:
    if size is not None:
        return _resized(b, x, size, attributes)
    if not isinstance(scales, tuple):
        raise RefusedError("it has neither a size nor scales")
    factors = [float(number(item, "scales")) for item in scales]
    wide = b.cast(x, FLOAT32)
    whole = b.const([1.0, 1.0, *factors], np.float32)
    return b.op("Resize", [wide, None, whole], attributes)


@primitive("UpsampleNearest1D", "UpsampleNearest2D", "UpsampleNearest3D")
def upsample_nearest(b: Builder, node: Node, x: Value, size: Operand = None, scales: Operand = None) -> Value:
    """The place before."""
    attributes = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    return _upsampled(b, x, size, scales, attributes)


@primitive("UpsampleLinear1D", "UpsampleBilinear2D", "UpsampleTrilinear3D", settings=("align_corners",))
def upsample_linear(
    b: Builder,
    node: Node,
    x: Value,
    size: Operand = None,
    scales: Operand = None,
    *,
    align_corners: Operand = False,
) -> Value:
    """Between the nearest places."""
    mode = _coordinates(align_corners, True)
    return _upsampled(b, x, size, scales, {"mode": "linear", "coordinate_transformation_mode": mode})


@primitive("UpsampleBicubic2D", settings=("align_corners",))
def upsample_bicubic(
    b: Builder,
    node: Node,
    x: Value,
    size: Operand = None,
    scales: Operand = None,
    *,
    align_corners: Operand = False,
) -> Value:
    """Between the sixteen nearest places, by Keys' cubic with -0.75."""
    mode = _coordinates(align_corners, True)
    attributes = {"mode": "cubic", "coordinate_transformation_mode": mode, "cubic_coeff_a": -0.75}
    return _upsampled(b, x, size, scales, attributes)


@primitive("GridSampler2D", settings=("interpolation_mode", "padding_mode", "align_corners"))
def grid_sampler(
    b: Builder,
    node: Node,
    x: Value,
    grid: Value,
    *,
    interpolation_mode: Operand = "bilinear",
    padding_mode: Operand = "zeros",
    align_corners: Operand = False,
) -> Value:
    """Sampled at places from -1 to 1."""
    return b.op("GridSample", [b.cast(x, FLOAT32), b.cast(grid, FLOAT32)], {
        "mode": text(interpolation_mode, "interpolation_mode", ("bilinear", "nearest", "bicubic")),
        "padding_mode": text(padding_mode, "padding_mode", ("zeros", "border", "reflection")),
        "align_corners": int(bool(align_corners)),
    })  # fmt: skip


@primitive("CropAndResize", settings=("method", "extrapolation_value"))
def crop_and_resize(
    b: Builder,
    node: Node,
    x: Value,
    boxes: Value,
    owner: Value,
    crop_size: Operand,
    *,
    method: Operand = "bilinear",
    extrapolation_value: Operand = 0.0,
) -> Value:
    """Boxes (y0, x0, y1, x1), in parts of the image, of images with the channels last, all at one size.

    Place i of n lies at y0 + i (y1 - y0) / (n - 1), the middle where n is 1; what lies outside is one number.
    """
    kind = text(method, "method", ("bilinear", "nearest"))
    known = b.known_ints(crop_size)
    if known is None or len(known) != 2:
        raise RefusedError("crop_size must be two integers that are known before a run")
    corners = b.cast(boxes, FLOAT32)
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
        grid = b.op("Sub", [b.op("Add", [turned, turned]), scalar(b, 1, turned)])
        sampled = b.op("GridSample", [chosen, grid], {"padding_mode": "border", "align_corners": 1})
        found = b.transpose(sampled, [0, 2, 3, 1])
    beyond = b.op("Or", [
        b.op("Less", [parts, scalar(b, 0, parts)]), b.op("Greater", [parts, scalar(b, 1, parts)])
    ])  # fmt: skip
    outside = b.op("ReduceMax", [b.cast(beyond, INT32), b.ints((3,))], {"keepdims": 1})
    filler = scalar(b, number(extrapolation_value, "extrapolation_value"), found)
    return b.op("Where", [b.cast(outside, BOOL), filler, found])


_ROI = ("pooled_height", "pooled_width", "spatial_scale", "sample_num", "roi_end_mode")


@primitive("ROIAlign", settings=_ROI)
def roi_align(
    b: Builder,
    node: Node,
    x: Value,
    rois: Value,
    *,
    pooled_height: Operand = 1,
    pooled_width: Operand = 1,
    spatial_scale: Operand = 1.0,
    sample_num: Operand = 2,
    roi_end_mode: Operand = 1,
) -> Value:
    """Boxes (image, x0, y0, x1, y1), each at one size; with roi_end_mode 1 the last place belongs to a box."""
    found = b.cast(rois, FLOAT32)
    first = b.op("Slice", [found, b.ints((0,)), b.ints((1,)), b.ints((1,))])
    corners = b.op("Slice", [found, b.ints((1,)), b.ints((5,)), b.ints((1,))])
    scale = float(number(spatial_scale, "spatial_scale"))
    mode = "output_half_pixel"  # which makes every box at least one place wide
    if integer(b, roi_end_mode, "roi_end_mode"):
        mode, half = "half_pixel", 0.5 / scale  # which does not, but takes half a place away
        corners = b.op("Add", [corners, b.const([half, half, 1 + half, 1 + half], np.float32)])
    owner = b.cast(b.squeeze(first, [1]), INT64)
    return b.op("RoiAlign", [b.cast(x, FLOAT32), corners, owner], {
        "output_height": integer(b, pooled_height, "pooled_height"),
        "output_width": integer(b, pooled_width, "pooled_width"),
        "sampling_ratio": integer(b, sample_num, "sample_num"),
        "spatial_scale": scale, "coordinate_transformation_mode": mode,
    })  # fmt: skip


# Boxes


def _column(b: Builder, boxes: Value, place: int) -> Value:
    return b.op("Gather", [boxes, b.const(place, np.int64)], {"axis": -1})


@primitive("IOU", settings=("mode",))
def iou(b: Builder, node: Node, anchors: Value, truths: Value, *, mode: Operand = "iou") -> Value:
    """For each box of the second operand and each of the first, how much of both (iou) or of the
    second alone (iof) they share. Both ends belong to a box."""
    kind = text(mode, "mode", ("iou", "iof"))
    first, second = (b.cast(item, FLOAT32) for item in (anchors, truths))
    one = [b.unsqueeze(_column(b, first, i), [0]) for i in range(4)]
    other = [b.unsqueeze(_column(b, second, i), [1]) for i in range(4)]
    return _overlap(b, one, other, kind)


def _overlap(b: Builder, one: list[Value], other: list[Value], kind: str) -> Value:
    zero, unit = b.const(0, np.float32), b.const(1, np.float32)

    def length(low: Value, high: Value) -> Value:
        return b.op("Add", [b.op("Sub", [high, low]), unit])

    def sides(box: list[Value]) -> Value:
        return b.op("Mul", [length(box[0], box[2]), length(box[1], box[3])])

    shared = []
    for low, high in ((0, 2), (1, 3)):
        start, end = b.op("Max", [one[low], other[low]]), b.op("Min", [one[high], other[high]])
        shared.append(b.op("Max", [length(start, end), zero]))
    common = b.op("Mul", shared)
    whole = sides(other) if kind == "iof" else b.op("Sub", [b.op("Add", [sides(one), sides(other)]), common])
    return b.op("Div", [common, whole])


@primitive("BoundingBoxDecode", settings=("max_shape", "means", "stds", "wh_ratio_clip"))
def box_decode(
    b: Builder,
    node: Node,
    anchors: Value,
    deltas: Value,
    *,
    max_shape: Operand = None,
    means: Operand = (0.0, 0.0, 0.0, 0.0),
    stds: Operand = (1.0, 1.0, 1.0, 1.0),
    wh_ratio_clip: Operand = 0.016,
) -> Value:
    """Boxes (x0, y0, x1, y1), both ends included, moved and stretched by deltas, held within an image."""
    boxes, change = (b.cast(item, FLOAT32) for item in (anchors, deltas))
    means_, stds_ = (np.array([number(v, "means") for v in item], np.float32)
                     for item in (means, stds) if isinstance(item, tuple))  # fmt: skip
    change = b.op("Add", [b.op("Mul", [change, b.const(stds_)]), b.const(means_)])
    ratio = abs(float(np.log(number(wh_ratio_clip, "wh_ratio_clip"))))
    height, width = (number(v, "max_shape") for v in max_shape) if isinstance(max_shape, tuple) else (0, 0)
    one, half = b.const(1, np.float32), b.const(0.5, np.float32)
    found: list[Value] = [boxes] * 4
    for axis, limit in ((0, width), (1, height)):
        low, high = _column(b, boxes, axis), _column(b, boxes, axis + 2)
        length = b.op("Add", [b.op("Sub", [high, low]), one])
        centre = b.op("Mul", [b.op("Add", [low, high]), half])
        stretch = b.op(
            "Clip", [_column(b, change, axis + 2), b.const(-ratio, np.float32), b.const(ratio, np.float32)]
        )
        longer = b.op("Mul", [length, b.op("Exp", [stretch])])
        moved = b.op("Add", [centre, b.op("Mul", [length, _column(b, change, axis)])])
        reach = b.op("Sub", [b.op("Mul", [longer, half]), half])
        for place, op_type in ((axis, "Sub"), (axis + 2, "Add")):
            corner = b.op(op_type, [moved, reach])
            corner = b.op("Clip", [corner, b.const(0, np.float32), b.const(limit, np.float32)])
            found[place] = b.unsqueeze(corner, [1])
    return b.op("Concat", found, {"axis": 1})


@primitive("BoundingBoxEncode", settings=("means", "stds"))
def box_encode(
    b: Builder,
    node: Node,
    anchors: Value,
    truths: Value,
    *,
    means: Operand = (0.0, 0.0, 0.0, 0.0),
    stds: Operand = (1.0, 1.0, 1.0, 1.0),
) -> Value:
    """What moves and stretches boxes into others."""
    first, second = (b.cast(item, FLOAT32) for item in (anchors, truths))
    one, half = b.const(1, np.float32), b.const(0.5, np.float32)
    found: list[Value] = [first] * 4
    for axis in (0, 1):
        lengths, centres = [], []
        for boxes in (first, second):
            low, high = _column(b, boxes, axis), _column(b, boxes, axis + 2)
            lengths.append(b.op("Add", [b.op("Sub", [high, low]), one]))
            centres.append(b.op("Mul", [b.op("Add", [low, high]), half]))
        move = b.op("Div", [b.op("Sub", [centres[1], centres[0]]), lengths[0]])
        stretch = b.op("Log", [b.op("Div", [lengths[1], lengths[0]])])
        found[axis], found[axis + 2] = b.unsqueeze(move, [1]), b.unsqueeze(stretch, [1])
    change = b.op("Concat", found, {"axis": 1})
    means_, stds_ = (np.array([number(v, "means") for v in item], np.float32)
                     for item in (means, stds) if isinstance(item, tuple))  # fmt: skip
    return b.op("Div", [b.op("Sub", [change, b.const(means_)]), b.const(stds_)])


@primitive("NMSWithMask", settings=("iou_threshold",))
def nms_with_mask(b: Builder, node: Node, boxes: Value, *, iou_threshold: Operand = 0.5) -> Operand:
    """Boxes (x0, y0, x1, y1, score) by falling score, the numbers 0, 1, ..., and which are kept: those that
    overlap none of a higher score that is kept by more than a threshold."""
    found = b.cast(boxes, FLOAT32)
    count = b.dim(found, 0)
    scores = _column(b, found, 4)
    order = b.ops("TopK", [scores, b.ints(count)], {"largest": 1, "sorted": 1}, outputs=2)[1]
    ranked = b.op("Gather", [found, order], {"axis": 0})
    corners = b.op("Slice", [ranked, b.ints((0,)), b.ints((4,)), b.ints((1,))])
    places = b.op("Range", [b.const(0, np.int64), b.value(count), b.const(1, np.int64)])
    falling = b.op("Neg", [b.cast(places, FLOAT32)])  # equal scores keep their order
    kept = b.op("NonMaxSuppression", [
        b.unsqueeze(corners, [0]), b.unsqueeze(falling, [0, 1]), b.ints(count),
        b.const([number(iou_threshold, "iou_threshold")], np.float32), b.const([-np.inf], np.float32),
    ])  # fmt: skip
    rows = _column(b, kept, 2)
    nothing = b.op("Expand", [b.const(0, np.int32), b.ints(count)])
    marks = b.op("Expand", [b.const(1, np.int32), b.op("Shape", [rows])])
    mask = b.op("ScatterElements", [nothing, rows, marks], {"axis": 0})
    return ranked, b.cast(places, INT32), b.cast(mask, BOOL)


@primitive("NonMaxSuppressionV3")
def non_max_suppression(
    b: Builder,
    node: Node,
    boxes: Value,
    scores: Value,
    limit: Operand,
    iou_threshold: Operand,
    score_threshold: Operand,
) -> Value:
    """The places of the boxes that are kept, by falling score, as int32."""

    def one(item: Operand, kind: Any) -> Value:
        value = b.cast(b.value(item), kind)
        return b.op("Reshape", [value, b.ints((1,))])

    kept = b.op("NonMaxSuppression", [
        b.unsqueeze(b.cast(boxes, FLOAT32), [0]), b.unsqueeze(b.cast(scores, FLOAT32), [0, 1]), one(limit, INT64),
        one(iou_threshold, FLOAT32), one(score_threshold, FLOAT32),
    ])  # fmt: skip
    return b.cast(_column(b, kept, 2), INT32)


@primitive("HSVToRGB")
def hsv_to_rgb(b: Builder, node: Node, x: Value) -> Value:
    """Hue, saturation and value from 0 to 1 along the last axis, as red, green and blue."""
    wide = computable(b, x)
    hue, saturation, value = (b.unsqueeze(_column(b, wide, i), [known_rank(x) - 1]) for i in range(3))
    shift = b.const(np.array([0, 4, 2]) / 6, wide.dtype)  # red, green, blue lie at 0, 2/6 and 4/6
    turned = b.op("Mod", [b.op("Add", [hue, shift]), scalar(b, 1, wide)], {"fmod": 1})
    slope = b.op("Sub", [b.op("Mul", [turned, scalar(b, 6, wide)]), scalar(b, 3, wide)])
    level = b.op("Sub", [b.op("Abs", [slope]), scalar(b, 1, wide)])
    level = b.op("Clip", [level, scalar(b, 0, wide), scalar(b, 1, wide)])
    rest = b.op("Sub", [scalar(b, 1, wide), level])
    return b.op("Mul", [value, b.op("Sub", [scalar(b, 1, wide), b.op("Mul", [saturation, rest])])])
