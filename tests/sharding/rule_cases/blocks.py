"""Operators that pass an axis made of several blocks on, for the block counts of their graph."""

from __future__ import annotations

import numpy as np

from tests.sharding.proof import Case, Const, TensorProto
from tests.sharding.rule_cases.arrays import f32, positive, vector

BLOCKS = {12: (2, 3), 24: (2, 3)}

CASES = [
    *(Case(op, [positive(24, 12)], opset=13, block_counts=BLOCKS) for op in ("Reciprocal", "Sqrt")),
    Case("Cast", [f32(24, 5)], {"to": int(TensorProto.DOUBLE)}, opset=13, block_counts=BLOCKS),
    Case("Cast", [f32(24, 5)], {"to": int(TensorProto.BOOL)}, opset=13, block_counts=BLOCKS),
    Case("CastLike", [f32(5, 24), Const(np.zeros(1, np.float64))], opset=15, block_counts=BLOCKS),
    Case("ReduceMean", [f32(2, 24, 5)], {"axes": [2], "keepdims": 1}, opset=13, block_counts=BLOCKS),
    Case("ReduceMean", [f32(2, 24, 5), vector(-1)], {"keepdims": 0}, opset=18, block_counts=BLOCKS),
    Case("Expand", [f32(24, 1), vector(2, 24, 5)], opset=13, block_counts=BLOCKS),
]
