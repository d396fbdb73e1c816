"""Gather and Scatter in their forms."""

from __future__ import annotations

import numpy as np

from tests.sharding.proof import Case, Const
from tests.sharding.rule_cases.arrays import boolean, f32, i64, scalar

BLOCKS = {24: (2, 3)}


def _tuples(count: tuple[int, ...], *limits: int) -> np.ndarray:
    return np.stack([i64(*count, low=0, high=limit) for limit in limits], axis=-1)


CASES = [
    Case("Gather", [Const(f32(36, 24)), i64(2, 5, low=0, high=36)], {"axis": 0}, block_counts=BLOCKS),
    Case("Gather", [Const(f32(36, 24)), i64(12, 5, low=-36, high=36)], opset=11),
    Case("Gather", [Const(f32(36, 24)), i64(12, low=0, high=36).astype(np.int32)], opset=13),
    Case("Gather", [f32(4, 36, 12), i64(5, 12, low=0, high=36)], {"axis": 1}, 9),
    Case("Gather", [f32(12, 5, 24), scalar(0, np.int64)], {"axis": 1}, block_counts=BLOCKS),
    Case("Gather", [f32(2, 12), i64(3, low=0, high=12)], {"axis": -1}, 12),
    Case("Gather", [boolean(12, 4), i64(3, low=0, high=12)]),
    Case("Gather", [f32(12), i64(12, low=0, high=12)]),
    Case("Gather", [f32(24, 12).astype(np.float16), i64(3, low=0, high=24)], rtol=4e-3),
    Case("Gather", [i64(24, 12), i64(3, low=0, high=24)]),
    Case("Gather", [i64(12), i64(3, low=0, high=12)]),
    Case("Gather", [f32(5, 12), i64(2, 3, low=0, high=5)], shapes={1: ["batch", "sequence"]}),
    Case(
        "GatherElements", [f32(12, 24), i64(12, 24, low=-12, high=12)], {"axis": 0}, 13, block_counts=BLOCKS
    ),
    Case("GatherElements", [f32(24, 5, 12), i64(24, 12, 6, low=0, high=5)], {"axis": 1}, 11),
    Case("GatherND", [f32(3, 5, 24), _tuples((12, 2), 3, 5)], opset=13, block_counts=BLOCKS),
    Case("GatherND", [f32(12, 5, 24), _tuples((12, 12), 5)], {"batch_dims": 1}, 13),
    Case("ScatterElements", [f32(12, 24), i64(12, 5, low=0, high=24), f32(12, 5)], {"axis": 1}, 13),
    Case(
        "ScatterElements",
        [f32(24, 5), i64(24, 2, low=0, high=5), f32(24, 2)],
        {"axis": -1},
        11,
        block_counts=BLOCKS,
    ),
    Case(
        "ScatterND", [f32(5, 24, 12), np.asarray([[1], [3]]), f32(2, 24, 12)], opset=13, block_counts=BLOCKS
    ),
    Case("OneHot", [i64(12, 24, low=0, high=5), scalar(5, np.int64), Const(f32(2))], {"axis": 1}, 11),
    Case(
        "OneHot", [i64(24, low=0, high=5), scalar(5, np.int64), Const(f32(2))], opset=9, block_counts=BLOCKS
    ),
]
