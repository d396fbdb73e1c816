"""Reshape, Flatten, Shape and Size: constant and computed shapes, 0 and -1, symbolic lengths, blocks."""

from __future__ import annotations

import numpy as np

from tests.sharding.proof import Case
from tests.sharding.rule_cases.arrays import boolean, f32, i64, runtime, vector

BLOCKS = {24: (2, 3), 72: (3,), 96: (2,), 288: (3,)}
BATCH = ["batch", "sequence"]


def _reshape() -> list[Case]:
    constant = [
        ((2, 5, 96), (2, 5, 12, 8)),
        ((2, 5, 96), (0, 0, 12, 8)),
        ((2, 5, 96), (0, -1, 12, 8)),
        ((2, 5, 96), (2, 5, -1, 8)),
        ((2, 5, 12, 8), (0, 0, -1)),
        ((2, 5, 12, 8), (-1, 96)),
        ((2, 12, 5, 5), (2, -1)),
        ((2, 24, 12), (2, 24, 0)),
        ((2, 12, 12), (2, 0, 12)),
        ((12, 12), (1, 0, 12)),
        ((2, 288), (2, 3, 12, 8)),
        ((2, 3, 12, 8), (2, 288)),
        ((24, 12), (288,)),
        ((288,), (24, 12)),
        ((288,), (-1,)),
        ((2, 24, 5, 5), (2, 2, 12, 5, 5)),
        ((2, 2, 12, 5), (2, 24, 5)),
        ((1, 12), (12,)),
        ((12,), (1, 12, 1)),
        ((12, 6), (8, 9)),
    ]
    cases = [Case("Reshape", [f32(*a), vector(*b)], opset=13, block_counts=BLOCKS) for a, b in constant]
    cases += [Case("Reshape", [f32(*a), runtime(b)], opset=14, block_counts=BLOCKS) for a, b in constant]
    return [
        *cases,
        Case("Reshape", [f32(2, 12), vector(2, 3, 4)], opset=5),
        Case("Reshape", [f32(12, 12), vector(12, 12)], {"allowzero": 1}, 14),
        Case("Reshape", [f32(12, 0), vector(0, 12)], {"allowzero": 1}, 14),
        Case("Reshape", [i64(12, 4), vector(48)], opset=13),
        Case("Reshape", [boolean(12, 4), vector(48)], opset=13),
    ]


def _symbolic() -> list[Case]:
    x, y = f32(2, 5, 96), f32(2, 5, 12, 8)
    split = {"shapes": {0: [*BATCH, 96]}, "output_shapes": {0: [*BATCH, 12, 8]}}
    merge = {"shapes": {0: [*BATCH, 12, 8]}, "output_shapes": {0: [*BATCH, 96]}}
    unknown = {"shapes": {0: [None, None, 96]}, "output_shapes": {0: [None, None, 12, 8]}}
    heads = {"shapes": {0: ["batch", 12, None, 8]}, "output_shapes": {0: [None, None, 8]}}
    rows = {"shapes": {0: ["batch·length", 12, 4]}, "output_shapes": {0: ["batch", "length", 48]}}
    undeclared = {"shapes": {0: [None, None, 96]}, "output_shapes": {0: None}}
    return [
        Case("Reshape", [x, runtime([2, 5, 12, 8])], **split),
        Case("Reshape", [x, runtime([2, -1, 12, 8])], **split),
        Case("Reshape", [x, runtime([0, 0, -1, 8])], **split),
        Case("Reshape", [x, vector(0, -1, 12, 8)], **split),
        Case("Reshape", [y, runtime([2, 5, 96])], **merge),
        Case("Reshape", [y, runtime([2, 5, -1])], **merge),
        Case("Reshape", [y, vector(0, 0, -1)], **merge),
        Case("Reshape", [x, runtime([2, 5, 12, 8])], **unknown),
        Case("Reshape", [x, vector(0, 0, 12, 8)], **undeclared),
        Case("Reshape", [x, runtime([2, 5, 12, 8])], **undeclared),
        Case("Reshape", [f32(2, 12, 5, 8), runtime([-1, 5, 8])], **heads),
        # Heads go to another axis, and what has their place is of open length.
        Case("Reshape", [f32(10, 12, 4), runtime([2, -1, 48])], **rows),
        Case("Reshape", [f32(10, 12, 4), runtime([2, 5, 48])], **rows),
        Case(
            "Reshape", [f32(2, 12, 8), vector(-1, 8)], shapes={0: ["n", 12, 8]}, output_shapes={0: [None, 8]}
        ),
        Case(
            "Reshape",
            [f32(2, 5, 12), runtime([10, 12])],
            shapes={0: [*BATCH, 12]},
            output_shapes={0: [None, 12]},
        ),
        # The computed shape copies (0) the very axis that is split, into an unknown length: refused.
        Case("Reshape", [f32(12, 12), runtime([12, 0])], output_shapes={0: [12, None]}),
    ]


def _others() -> list[Case]:
    return [
        Case("Flatten", [f32(2, 12, 5, 5)], {"axis": 1}, 13),
        Case("Flatten", [f32(12, 24, 4)], {"axis": -1}, 13, block_counts={24: (2,), 288: (12,)}),
        Case("Flatten", [f32(12, 2)], {"axis": 0}, 9),
        Case(
            "Flatten", [f32(2, 12, 1, 1)], shapes={0: ["batch", 12, 1, 1]}, output_shapes={0: ["batch", 12]}
        ),
        Case("Shape", [f32(2, 12, 24)], opset=13, block_counts=BLOCKS),
        Case("Shape", [f32(2, 12, 24)], {"start": 1}, 15),
        Case("Shape", [f32(12, 24, 2)], {"start": 0, "end": -1}, 15),
        Case("Shape", [f32(12, 24, 2)], {"start": -1, "end": 9}, 15),
        Case("Shape", [boolean(2, 12)], opset=13),
        Case("Size", [f32(12, 24)], opset=13),
        Case("Size", [np.zeros((12, 2), np.int32)], opset=13),
    ]


CASES = [*_reshape(), *_symbolic(), *_others()]
