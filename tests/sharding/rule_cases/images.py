"""Further operators of convolutional networks, other opsets, and forms in ONNX Runtime's domain."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from tests.sharding.proof import MICROSOFT, Case, Const
from tests.sharding.rule_cases.arrays import f32, positive, runtime, scalar, unit, vector

BLOCKS = {24: (2, 3), 36: (3,), 48: (2,)}

EXTRA: dict[str, Set[str]] = {
    "Col2Im": {"partial->partial"},
    "CenterCropPad": {"partial->partial"},
    "ConvTransposeWithDynamicPads": {"split->partial"},
    "FusedConv": {"split->partial"},
    "DeformConv": set(),
}


def _conv() -> list[Case]:
    x, w, b = f32(12, 24, 7, 7), f32(36, 24, 3, 3), f32(36)
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    relu = {**same, "activation": "Relu"}
    fused: dict[str, Any] = {"opset": 1, "domain": MICROSOFT}
    pads = Const(np.asarray([1, 1, 1, 1], np.int64))
    return [
        *(Case("Conv", [x, w, b], same, opset) for opset in (9, 11, 22)),
        Case("FusedConv", [x, w, b], relu, block_counts=BLOCKS, **fused),
        Case("FusedConv", [x, w, b, f32(12, 36, 7, 7)], relu, **fused),
        Case("FusedConv", [x, w, b], same, **fused),
        Case("FusedConv", [x, f32(24, 1, 3, 3), f32(24)], {**relu, "group": 24}, **fused),
        Case("ConvTransposeWithDynamicPads", [x, f32(24, 36, 3, 3), pads, b], {"strides": [2, 2]}, **fused),
        Case("ConvTranspose", [x, f32(24, 36, 3, 3), b], {"strides": [2, 2], "output_shape": [14, 14]}, 22),
        Case(
            "ConvTranspose",
            [f32(2, 12, 9), f32(12, 24, 4), f32(24)],
            {"strides": [2], "auto_pad": "SAME_UPPER"},
            11,
        ),
        Case("DeformConv", [x, w, unit(12, 18, 7, 7), b, positive(12, 9, 7, 7)], same, 19, needs="1.25"),
        Case("DeformConv", [x, w, unit(12, 36, 7, 7), b], {**same, "offset_group": 2}, 22, needs="1.25"),
        Case(
            "DeformConv", [x, f32(36, 2, 3, 3), unit(12, 18, 7, 7)], {**same, "group": 12}, 19, needs="1.25"
        ),
    ]


def _pool() -> list[Case]:
    x = f32(12, 24, 8, 8)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    return [
        *(Case("MaxPool", [x], window, opset) for opset in (9, 10, 22)),
        *(Case("AveragePool", [x], window, opset) for opset in (9, 10, 22)),
        *(Case("LpPool", [x], window, opset) for opset in (9, 18, 22)),
        *(Case(op, [x], opset=22) for op in ("GlobalAveragePool", "GlobalMaxPool")),
        Case("MaxPool", [f32(12, 24, 9)], {"kernel_shape": [2], "auto_pad": "SAME_LOWER"}, 12),
        Case("AveragePool", [f32(12, 24, 4, 4, 4)], {"kernel_shape": [2, 2, 2], "dilations": [1, 1, 2]}, 19),
    ]


def _resample() -> list[Case]:
    x = f32(12, 24, 4, 4)
    up = Const(np.asarray([1, 1, 2, 2], dtype=np.float32))
    down = Const(np.asarray([1, 1, 0.5, 0.6], dtype=np.float32))
    cases = []
    for mode, opset in (("nearest", 13), ("linear", 13), ("cubic", 13), ("nearest", 18), ("linear", 19)):
        cases.append(Case("Resize", [x, None, up], {"mode": mode}, opset))
    for transform in ("half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"):
        attributes = {"mode": "linear", "coordinate_transformation_mode": transform}
        cases.append(Case("Resize", [x, None, down], attributes, 13))
    symmetric = {"mode": "linear", "coordinate_transformation_mode": "half_pixel_symmetric"}
    policy = {"axes": [2, 3], "keep_aspect_ratio_policy": "not_larger"}
    return [
        *cases,
        Case("Resize", [x, Const(np.zeros(0, np.float32)), up], {"mode": "cubic"}, 11),
        Case("Resize", [x, None, down], {"mode": "linear", "antialias": 1}, 18),
        Case("Resize", [x, None, up], symmetric, 19),
        Case("Resize", [x, None, None, vector(7, 9)], policy, 18),
        Case(
            "Resize", [x, None, None, vector(12, 24, 7, 9)], {"keep_aspect_ratio_policy": "not_smaller"}, 18
        ),
        Case(
            "Resize", [f32(12, 24, 4), None, Const(np.asarray([1, 1, 2], np.float32))], {"mode": "linear"}, 13
        ),
        Case("GridSample", [x, unit(12, 5, 6, 2)], {"mode": "linear", "align_corners": 1}, 20),
        Case("GridSample", [x, unit(12, 5, 6, 2)], {"mode": "nearest"}, 22),
        Case("GridSample", [x, unit(12, 5, 6, 2)], {"mode": "bicubic"}, 1, domain=MICROSOFT),
        Case("AffineGrid", [unit(12, 2, 3), vector(12, 4, 5, 6)], {"align_corners": 1}, 20),
        Case("AffineGrid", [unit(12, 2, 3), runtime([12, 4, 5, 6])], {}, 20),
        Case("Col2Im", [f32(12, 24 * 4, 9), vector(4, 4), vector(2, 2)], {}, 18, block_counts=BLOCKS),
        Case("Col2Im", [f32(12, 24 * 9, 16), vector(4, 4), vector(3, 3)], {"pads": [1, 1, 1, 1]}, 18),
    ]


def _regions() -> list[Case]:
    x = f32(2, 24, 8, 8)
    regions = positive(12, 4).cumsum(axis=1)
    numbers = np.asarray([0, 1] * 6)
    indexed = np.concatenate([numbers[:, None].astype(np.float32), regions], axis=1)
    size: dict[str, Any] = {"output_height": 2, "output_width": 3}
    return [
        Case("RoiAlign", [x, regions, numbers], {**size, "mode": "avg"}, 10, block_counts=BLOCKS),
        Case("RoiAlign", [x, regions, numbers], {**size, "sampling_ratio": 1}, 16),
        Case("MaxRoiPool", [x, indexed], {"pooled_shape": [2, 2]}, 13, block_counts=BLOCKS),
        Case(
            "CropAndResize",
            [x, positive(12, 4) / 2, numbers.astype(np.int32), Const(np.asarray([3, 3], np.int32))],
            {},
            1,
            domain=MICROSOFT,
        ),
    ]


def _layout() -> list[Case]:
    x = f32(12, 24, 5)
    pads = vector(0, 0, 1, 0, 0, 2)
    return [
        *(
            Case("Pad", [x, pads], {"mode": mode}, opset)
            for mode, opset in (("edge", 13), ("constant", 18), ("wrap", 19), ("reflect", 21), ("edge", 23))
        ),
        Case("Pad", [f32(12, 24, 5), vector(0, 0, -1, 0, 0, 2), scalar(0.0)], {}, 11),
        Case("Pad", [x, pads], {"mode": "constant"}, 1, domain=MICROSOFT),
        Case("Pad", [x, pads, scalar(0.5)], {"mode": "constant"}, 1, domain=MICROSOFT),
        Case("CenterCropPad", [x, vector(7)], {"axes": [2]}, 18, block_counts=BLOCKS),
        Case("CenterCropPad", [x, vector(3, 7, 4)], {}, 18),
        Case("DepthToSpace", [f32(12, 48, 3, 5)], {"blocksize": 2}, 9),
        Case("DepthToSpace", [f32(12, 48, 3, 5)], {"blocksize": 2, "mode": "CRD"}, 11),
        Case("SpaceToDepth", [f32(12, 12, 4, 6)], {"blocksize": 2}, 9),
    ]


CASES = [*_conv(), *_pool(), *_resample(), *_regions(), *_layout()]
