"""Convolutional and recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.sharding.proof import Case, Const
from tests.sharding.rule_cases.arrays import f32, positive, runtime, unit, vector

BLOCKS = {24: (2, 3), 36: (3,), 48: (2,)}


def _conv() -> list[Case]:
    x = f32(12, 24, 7, 7)
    same: dict[str, Any] = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    return [
        Case("Conv", [x, f32(36, 24, 3, 3), f32(36)], same, block_counts=BLOCKS),
        Case("Conv", [x, f32(36, 24, 1, 1)], {"strides": [2, 2]}, 9),
        Case(
            "Conv", [f32(2, 12, 9), f32(24, 12, 3), f32(24)], {"auto_pad": "SAME_UPPER", "dilations": [1]}, 11
        ),
        Case("Conv", [f32(1, 12, 4, 5, 6), f32(24, 12, 2, 2, 2), f32(24)]),
        Case("Conv", [x, f32(24, 1, 3, 3), f32(24)], {**same, "group": 24}, block_counts=BLOCKS),
        Case("Conv", [x, f32(48, 1, 3, 3)], {**same, "group": 24}, block_counts=BLOCKS),
        Case("Conv", [x, f32(36, 2, 3, 3), f32(36)], {**same, "group": 12}),
        Case("Conv", [f32(2, 120, 5, 5), f32(60, 24, 3, 3), f32(60)], {"group": 5}),
        Case("Conv", [f32(2, 120, 5, 5), f32(60, 24, 3, 3)], {"group": 5}),
        Case("ConvTranspose", [x, f32(24, 36, 3, 3), f32(36)], {"strides": [2, 2]}, 11, block_counts=BLOCKS),
        Case("ConvTranspose", [x, f32(24, 12, 2, 2)], {"strides": [2, 2], "output_padding": [1, 1]}),
        Case("ConvTranspose", [x, f32(24, 3, 3, 3), f32(36)], {"group": 12}, block_counts={24: (2,)}),
        Case("ConvTranspose", [f32(2, 60, 5, 5), f32(60, 12, 3, 3), f32(60)], {"group": 5}),
    ]


def _pool() -> list[Case]:
    x = f32(12, 24, 8, 8)
    window: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}
    return [
        Case("MaxPool", [x], {**window, "ceil_mode": 1}, 12, block_counts=BLOCKS),
        Case("MaxPool", [x], window, 12, outputs=2),
        Case("AveragePool", [x], {**window, "count_include_pad": 1}, 11),
        Case("AveragePool", [x], window, 19),
        Case("LpPool", [x], {**window, "p": 2}, 11),
        Case("GlobalAveragePool", [x], opset=9),
        Case("GlobalMaxPool", [x]),
        Case("GlobalLpPool", [x], {"p": 2}),
    ]


def _resample() -> list[Case]:
    x = f32(12, 24, 4, 4)
    up = Const(np.asarray([1, 1, 2, 2], dtype=np.float32))
    linear = {"mode": "linear"}
    half = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    empty = Const(np.zeros(0, dtype=np.float32))
    corners = {"mode": "linear", "coordinate_transformation_mode": "align_corners"}
    crop = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    region = Const(np.asarray([0, 0, 0, 0, 1, 1, 1, 1], dtype=np.float32))
    return [
        Case("Upsample", [x], {"mode": "nearest", "scales": [1.0, 1.0, 2.0, 2.0]}, 7, block_counts=BLOCKS),
        Case("Upsample", [x, up], linear, 9),
        Case("Resize", [x, up], linear, 10),
        Case("Resize", [x, None, up], half, 13),
        Case("Resize", [x, empty, empty, vector(12, 24, 8, 9)], corners, 11),
        Case("Resize", [x, None, None, runtime([12, 24, 8, 9])], {"mode": "nearest"}, 13),
        Case(
            "Resize", [x, None, Const(np.asarray([2, 2], np.float32))], {"axes": [2, 3], "mode": "cubic"}, 18
        ),
        Case("Resize", [x, None, None, vector(24, 8)], {"axes": [1, 2]}, 18),
        Case("Resize", [x, None, Const(np.asarray([1, 1.5, 2, 2], np.float32))], {"mode": "nearest"}, 13),
        Case("Resize", [x, region, up], crop, 13),
        Case("GridSample", [x, unit(12, 5, 6, 2)], {"padding_mode": "zeros"}, 16),
        Case(
            "RoiAlign",
            [x, positive(12, 4).cumsum(axis=1), np.arange(12)],
            {"output_height": 2, "output_width": 2, "sampling_ratio": 2},
            16,
        ),
    ]


def _recurrent() -> list[Case]:
    cases = []
    for op, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for direction, count in (("forward", 1), ("bidirectional", 2)):
            hidden, rows = 5, gates * 5
            weights = [f32(count, rows, 6), f32(count, rows, hidden), f32(count, 2 * rows)]
            lengths = np.asarray([3, 4, 2, 4] * 3, dtype=np.int32)
            states = [f32(count, 12, hidden)] * (2 if op == "LSTM" else 1)
            peepholes = [f32(count, 3 * hidden)] if op == "LSTM" else []
            attributes: dict[str, Any] = {"hidden_size": hidden, "direction": direction}
            outputs = 3 if op == "LSTM" else 2
            full = [f32(4, 12, 6), *weights, lengths, *states, *peepholes]
            cases.append(Case(op, full, attributes, 14, outputs))
            cases.append(Case(op, [f32(4, 12, 6), *weights[:2]], attributes, 11, 1))
    activations = ["Relu", "Tanh", "Sigmoid", "Tanh"]
    weights = [f32(2, 15, 6), f32(2, 15, 5)]
    attributes = {"hidden_size": 5, "direction": "bidirectional", "activations": activations}
    return [*cases, Case("GRU", [f32(4, 3, 6), *weights], attributes, 14, 2)]


CASES = [*_conv(), *_pool(), *_resample(), *_recurrent()]
