"""Axes moved, added, dropped, repeated, padded; pieces joined and cut."""

from __future__ import annotations

import numpy as np

from tests.sharding.proof import Case, Const
from tests.sharding.rule_cases.arrays import boolean, f32, i64, runtime, scalar, vector

BLOCKS = {24: (2, 3), 36: (3,), 72: (3, 6)}
MAX = np.iinfo(np.int64).max


def _axes() -> list[Case]:
    return [
        Case("Transpose", [f32(12, 24)], shapes={0: None}),
        Case("Transpose", [f32(2, 12, 24, 4)], {"perm": [0, 2, 1, 3]}, block_counts=BLOCKS),
        Case("Transpose", [f32(12, 24, 4)], opset=9),
        Case("Squeeze", [f32(1, 12, 1, 24)], {"axes": [0, -2]}, 11),
        Case("Squeeze", [f32(1, 12, 1, 24), vector(0)], opset=13, block_counts=BLOCKS),
        Case("Squeeze", [f32(1, 12, 1, 24)], opset=13),
        Case("Squeeze", [f32(1, 2, 3, 4)], opset=13),
        Case("Unsqueeze", [f32(12, 24)], {"axes": [0, 2]}, 11, block_counts=BLOCKS),
        Case("Unsqueeze", [f32(12, 24), vector(-1)], opset=13),
        Case("Unsqueeze", [f32(12, 24), runtime([1])], opset=13),
        Case("Tile", [f32(12, 24), vector(2, 1)], block_counts={24: (2,)}),
        Case("Pad", [f32(12, 5, 24), vector(0, 1, 0, 0, 2, 0), scalar(0.0)], opset=13),
        Case("Pad", [f32(12, 5, 24), vector(0, 1, 0, 0, 2, 0), scalar(1.0)], opset=11),
        Case("Pad", [f32(12, 5, 24), vector(0, 1, 0, 0, 2, 0)], {"mode": "reflect"}, 13),
        Case("Pad", [f32(12, 5, 24), vector(1, -1), None, vector(-2)], {"mode": "constant"}, 18),
        Case("Pad", [f32(12, 5), np.asarray([0, 1, 0, 2]), np.float32(0)], opset=13),
        Case("Pad", [f32(12, 5, 24)], {"pads": [0, 1, 0, 0, 0, 0], "mode": "edge"}, 9),
        Case("Pad", [f32(12, 5, 24)], {"pads": [0, 1, 0, 0, 0, 0], "value": 0.5}, 9),
        Case("DepthToSpace", [f32(12, 48, 3, 5)], {"blocksize": 2}, 13),
        Case("DepthToSpace", [f32(12, 48, 3, 5)], {"blocksize": 2, "mode": "CRD"}, 13),
        Case("SpaceToDepth", [f32(12, 12, 4, 6)], {"blocksize": 2}, 13),
    ]


def _expand() -> list[Case]:
    return [
        Case("Expand", [f32(1, 12), vector(24, 12)], block_counts=BLOCKS),
        Case("Expand", [f32(12, 1), vector(1, 24)]),
        Case("Expand", [f32(12), vector(2, 24, 1)]),
        Case("Expand", [f32(5, 12, 1), vector(24)]),
        Case("Expand", [f32(5, 12, 1), runtime([24])]),
        Case("Expand", [f32(1, 12), runtime([24, 1])]),
        Case("Expand", [f32(1, 12), runtime([7, 12])], output_shapes={0: ["batch", 12]}),
        Case("Expand", [boolean(1, 1, 1, 12), runtime([2, 12, 4, 12])], shapes={0: [1, 1, 1, "keys"]}),
    ]


def _concat() -> list[Case]:
    return [
        Case("Concat", [f32(12, 5), f32(12, 3)], {"axis": 1}),
        Case("Concat", [f32(24, 12), f32(24, 12), f32(24, 12)], {"axis": -1}, 11, block_counts=BLOCKS),
        Case("Concat", [f32(2, 48), f32(2, 24)], {"axis": 1}, 9),
        Case("Concat", [i64(12), i64(24), i64(12)], {"axis": 0}, 13),
        Case("Concat", [f32(12, 5)], {"axis": 0}),
        Case("Concat", [boolean(12, 5), boolean(12, 5)], {"axis": 0}),
        Case("Concat", [f32(12, 5), f32(12, 3)], {"axis": 1}, shapes={0: [None, 5]}),
    ]


def _split() -> list[Case]:
    return [
        Case("Split", [f32(2, 72)], {"axis": 1}, 11, outputs=3),
        Case("Split", [f32(12, 72)], {"axis": -1}, 13, outputs=3, block_counts=BLOCKS),
        Case("Split", [f32(2, 96)], {"axis": 1}, 13, outputs=2, block_counts={48: (2, 4)}),
        Case("Split", [f32(2, 72), vector(24, 48)], {"axis": 1}, 13, outputs=2),
        Case("Split", [f32(72, 2)], {"axis": 0, "split": [24, 24, 24]}, 9, outputs=3),
        Case("Split", [f32(2, 72)], {"axis": 1, "num_outputs": 3}, 18, outputs=3),
        Case("Split", [f32(12, 7)], {"axis": 1, "num_outputs": 2}, 18, outputs=2),
        Case("Split", [f32(12, 72), runtime([24, 48])], {"axis": 1}, 13, outputs=2),
        Case("Split", [boolean(12, 4)], {"axis": 0}, 13, outputs=2),
    ]


def _slice() -> list[Case]:
    x = f32(12, 24, 5)
    return [
        Case("Slice", [x], {"starts": [1], "ends": [3], "axes": [2]}, 9, block_counts=BLOCKS),
        Case("Slice", [x], {"starts": [0, 0], "ends": [MAX, 8]}, 9),
        Case("Slice", [x], {"starts": [12], "ends": [24], "axes": [1]}, 9),
        Case("Slice", [x, vector(-3), vector(-1), vector(-1)], opset=13),
        Case("Slice", [x, vector(0), vector(MAX), vector(0), vector(1)], opset=10),
        Case("Slice", [x, vector(-24, 1), vector(24, 4), vector(1, 2)], opset=11),
        Case("Slice", [x, vector(12), vector(24), vector(-2)], opset=13),
        Case("Slice", [f32(2, 72), vector(24), vector(48), vector(1), vector(1)], opset=13),
        Case(
            "Slice",
            [f32(2, 72), Const(np.asarray([0], np.int32)), Const(np.asarray([36], np.int32))],
            opset=13,
        ),
        Case("Slice", [f32(12, 72), vector(0, 36), vector(MAX, MAX), vector(0, 1)], opset=13),
        Case("Slice", [x, runtime([1]), runtime([4]), vector(2)], opset=13),
        Case("Slice", [x, runtime([1, 2]), runtime([4, 5])], opset=13),
        Case("Slice", [x, vector(MAX), vector(-25), vector(1), vector(-1)], opset=13),
        Case("Slice", [x, vector(0), vector(24), vector(1), vector(2)], opset=13),
        Case("Slice", [x, vector(9), vector(9), vector(1)], opset=13),
        # Every second or third: from within the first group to the last one, or some groups left out.
        Case("Slice", [x, vector(1), vector(MAX), vector(1), vector(2)], opset=13),
        Case("Slice", [x, vector(0, 1), vector(MAX, 4), vector(1, 2), vector(2, 1)], opset=13),
        Case("Slice", [f32(2, 96), vector(0), vector(95), vector(1), vector(2)], block_counts=BLOCKS),
        Case("Slice", [f32(2, 72), vector(2), vector(MAX), vector(-1), vector(3)], opset=13),
        Case("Slice", [f32(2, 72), vector(0), vector(70), vector(1), vector(3)], opset=13),
        Case("Slice", [f32(2, 72), vector(3), vector(MAX), vector(1), vector(3)], opset=13),
        Case("Slice", [f32(2, 72), vector(0), vector(69), vector(1), vector(3)], opset=13),
        Case("Slice", [f32(2, 28), vector(0), vector(MAX), vector(1), vector(3)], opset=13),
    ]


CASES = [*_axes(), *_expand(), *_concat(), *_split(), *_slice()]
