"""Boxes in images."""

from __future__ import annotations

import numpy as np

from sharding.common.arrays import DType
from sharding.importers.mindir.primitives.base import Operand, Value, primitive
from sharding.importers.mindir.primitives.operands import BOOL, FLOAT32, INT32, INT64, Builder, Number

# Boxes


def _column(b: Builder, boxes: Value, place: int) -> Value:
    return b.op("Gather", [boxes, b.const(place, np.int64)], {"axis": -1})


@primitive("IOU")
def iou(b: Builder, anchors: Value, truths: Value, *, mode: Operand = "iou") -> Value:
    """For each box of the second operand and each of the first, how much of both (iou) or of the
    second alone (iof) they share. Both ends belong to a box."""
    kind = b.text(mode, "mode", ("iou", "iof"))
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


@primitive("BoundingBoxDecode")
def box_decode(
    b: Builder,
    anchors: Value,
    deltas: Value,
    *,
    max_shape: Operand = None,
    means: Operand = (0.0, 0.0, 0.0, 0.0),
    stds: Operand = (1.0, 1.0, 1.0, 1.0),
    wh_ratio_clip: Number = 0.016,
) -> Value:
    """Boxes (x0, y0, x1, y1), both ends included, moved and stretched by deltas, held within an image."""
    boxes, change = (b.cast(item, FLOAT32) for item in (anchors, deltas))
    means_, stds_ = (np.array([b.number(v, "means") for v in item], np.float32)
                     for item in (means, stds) if isinstance(item, tuple))  # fmt: skip
    change = b.op("Add", [b.op("Mul", [change, b.const(stds_)]), b.const(means_)])
    ratio = abs(float(np.log(wh_ratio_clip)))
    height, width = (b.number(v, "max_shape") for v in max_shape) if isinstance(max_shape, tuple) else (0, 0)
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


@primitive("BoundingBoxEncode")
def box_encode(
    b: Builder,
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
    means_, stds_ = (np.array([b.number(v, "means") for v in item], np.float32)
                     for item in (means, stds) if isinstance(item, tuple))  # fmt: skip
    return b.op("Div", [b.op("Sub", [change, b.const(means_)]), b.const(stds_)])


@primitive("NMSWithMask")
def nms_with_mask(b: Builder, boxes: Value, *, iou_threshold: Number = 0.5) -> Operand:
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
        b.const([iou_threshold], np.float32), b.const([-np.inf], np.float32),
    ])  # fmt: skip
    rows = _column(b, kept, 2)
    nothing = b.op("Expand", [b.const(0, np.int32), b.ints(count)])
    marks = b.op("Expand", [b.const(1, np.int32), b.op("Shape", [rows])])
    mask = b.op("ScatterElements", [nothing, rows, marks], {"axis": 0})
    return ranked, b.cast(places, INT32), b.cast(mask, BOOL)


@primitive("NonMaxSuppressionV3")
def non_max_suppression(
    b: Builder, boxes: Value, scores: Value, limit: Operand, iou_threshold: Operand, score_threshold: Operand
) -> Value:
    """The places of the boxes that are kept, by falling score, as int32."""

    def one(item: Operand, kind: DType) -> Value:
        value = b.cast(b.value(item), kind)
        return b.op("Reshape", [value, b.ints((1,))])

    kept = b.op("NonMaxSuppression", [
        b.unsqueeze(b.cast(boxes, FLOAT32), [0]), b.unsqueeze(b.cast(scores, FLOAT32), [0, 1]),
        one(limit, INT64),
        one(iou_threshold, FLOAT32), one(score_threshold, FLOAT32),
    ])  # fmt: skip
    return b.cast(_column(b, kept, 2), INT32)
