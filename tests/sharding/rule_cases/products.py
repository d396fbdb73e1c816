"""Matrix products, reductions, normalizations."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.sharding.proof import MICROSOFT, Case, Const
from tests.sharding.rule_cases.arrays import f32, i64, positive, runtime, scalar, u8, unit, vector

BLOCKS = {24: (2, 3), 36: (3,)}


def _matmul() -> list[Case]:
    shapes = [
        ((2, 12, 24), (24, 36)),
        ((12, 24), (24, 12)),
        ((24,), (24, 12)),
        ((12, 24), (24,)),
        ((24,), (24,)),
        ((24,), (2, 24, 12)),
        ((3, 12, 24), (24,)),
        ((2, 12, 5, 24), (2, 12, 24, 7)),
        ((12, 5, 24), (2, 12, 24, 7)),
        ((2, 12, 5, 24), (2, 1, 24, 7)),
        ((12, 1, 5, 6), (1, 12, 6, 7)),
    ]
    cases = [Case("MatMul", [f32(*a), f32(*b)], block_counts=BLOCKS) for a, b in shapes]
    return [
        *cases,
        Case("MatMul", [f32(2, 3, 24), Const(f32(24, 12))], opset=9, shapes={0: ["batch", "sequence", None]}),
        Case("MatMul", [i64(3, 12), i64(12, 24)], opset=13),
        Case("FusedMatMul", [f32(2, 12, 24), f32(36, 24)], {"alpha": 0.5, "transB": 1}, 1, domain=MICROSOFT),
        Case("FusedMatMul", [f32(2, 24, 12), f32(24, 36)], {"transA": 1}, 1, domain=MICROSOFT),
        Case("FusedMatMul", [f32(2, 12, 5, 24), f32(2, 12, 7, 24)], {"transB": 1}, 1, domain=MICROSOFT),
        *_first_axis_turned(),
        Case("MatMulInteger", [u8(2, 12, 24), u8(24, 36)], opset=10),
        Case("MatMulInteger", [u8(12, 24), u8(24, 36), scalar(3, np.uint8), scalar(7, np.uint8)]),
        Case("MatMulInteger", [u8(12, 24), u8(24, 36), scalar(3, np.uint8), Const(u8(36))]),
    ]


def _first_axis_turned() -> list[Case]:
    """The first axis of an operand lies before its last one."""
    inputs: list[tuple[Any, Any, dict[str, object]]] = [
        (f32(12, 5, 24), f32(24, 12, 36), {"transBatchB": 1}),
        (f32(1, 12, 24), f32(36, 2, 24), {"transBatchB": 1, "transB": 1}),
        (f32(12, 2, 24), f32(2, 24, 36), {"transBatchA": 1, "alpha": 0.5}),
        (f32(24, 12, 5), f32(12, 24, 7), {"transBatchA": 1, "transA": 1}),
        (f32(5, 2, 12, 24), f32(36, 2, 12, 24), {"transBatchA": 1, "transBatchB": 1, "transB": 1}),
    ]
    return [Case("FusedMatMul", [a, b], turned, 1, domain=MICROSOFT) for a, b, turned in inputs]


def _gemm() -> list[Case]:
    cases = []
    biases: list[Any] = [f32(36), f32(1, 36), f32(12, 1), f32(12, 36), f32(1), np.float32(0.7)]
    for bias in biases:
        inputs = [f32(12, 24), f32(24, 36), bias]
        cases.append(Case("Gemm", inputs, {"alpha": 0.5, "beta": 2.0}, block_counts=BLOCKS))
    return [
        *cases,
        Case("Gemm", [f32(24, 12), f32(24, 36), f32(36)], {"transA": 1}, opset=13),
        Case("Gemm", [f32(12, 24), f32(36, 24), f32(36)], {"transB": 1}, opset=9, block_counts=BLOCKS),
        Case("Gemm", [f32(24, 12), f32(36, 24)], {"transA": 1, "transB": 1}, opset=11),
        Case(
            "Gemm", [f32(3, 24), Const(f32(36, 24)), Const(f32(36))], {"transB": 1}, shapes={0: ["n", None]}
        ),
    ]


def _einsum() -> list[Case]:
    return [
        Case("Einsum", [f32(2, 12, 5, 24), f32(2, 12, 7, 24)], {"equation": "bhqd,bhkd->bhqk"}),
        Case("Einsum", [f32(12, 24), f32(24, 36)], {"equation": "ij, jk"}, block_counts=BLOCKS),
        Case("Einsum", [f32(12, 24)], {"equation": "ij->ji"}),
        Case("Einsum", [f32(12, 12, 24)], {"equation": "iij->j"}),
        Case("Einsum", [f32(12, 4), f32(12, 5), f32(5, 4)], {"equation": "ai,aj,ji->a"}),
        Case("Einsum", [f32(2, 12, 5, 24), f32(2, 12, 7, 24)], {"equation": "...qd,...kd->...qk"}),
        Case("Einsum", [f32(12, 12, 12), f32(12, 12, 24)], {"equation": "...q d, ...dk"}),
        Case("Einsum", [f32(24, 1, 12), f32(24, 12, 12)], {"equation": "qij,qik->qjk"}),
        Case("Einsum", [f32(12, 12, 24)], {"equation": "...ij->...ji"}),
    ]


def _reductions() -> list[Case]:
    cases = []
    shape = (12, 5, 24)
    for op in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2"):
        cases.append(Case(op, [unit(*shape)], {"axes": [-1], "keepdims": 1}, 11, block_counts=BLOCKS))
        cases.append(Case(op, [unit(*shape)], {"axes": [0, 1], "keepdims": 0}, 9))
        cases.append(Case(op, [unit(*shape), vector(1)], {"keepdims": 0}, 18))
        cases.append(Case(op, [unit(*shape)], opset=18, rtol=1e-4))  # 1440 numbers that all but cancel out
        cases.append(Case(op, [unit(*shape), vector()], {"noop_with_empty_axes": 1}, 18))
    for op in ("ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare"):
        cases.append(Case(op, [positive(*shape)], {"axes": [2]}, 13, block_counts=BLOCKS))
        cases.append(Case(op, [positive(*shape), vector(0, 2)], {"keepdims": 0}, 18))
    return [
        *cases,
        Case("ReduceSum", [i64(12, 5), vector(-1)], {"keepdims": 0}, 13),
        Case("ReduceSum", [i64(5, 12), vector(-1)], {"keepdims": 1}, 13),
        Case("ReduceMean", [f32(2, 12, 7, 7)], {"axes": [2, 3]}, 13),
        Case("ReduceMean", [i64(12, 5)], {"axes": [1]}, 13),
        Case("ReduceMax", [i64(12, 5)], {"axes": [1]}, 12),
        *(
            Case(op, [f32(12, 5, 24)], {"axis": axis, "keepdims": keepdims}, opset, block_counts=BLOCKS)
            for op in ("ArgMax", "ArgMin")
            for axis, keepdims, opset in ((-2, 0, 13), (1, 1, 11), (2, 0, 9))
        ),
    ]


def _normalizations() -> list[Case]:
    channel = [positive(24) for _ in range(4)]
    return [
        Case("LayerNormalization", [f32(2, 12, 7), f32(7), f32(7)], {"axis": -1, "epsilon": 1e-5}),
        Case("LayerNormalization", [f32(12, 5, 7), f32(5, 7)], {"axis": 1}, outputs=3),
        Case("RMSNormalization", [f32(2, 12, 7), f32(7)], {"axis": -1}, opset=23),
        Case("BatchNormalization", [f32(2, 24, 5, 12), *channel], opset=9, block_counts=BLOCKS),
        Case("BatchNormalization", [f32(12, 24), *channel], {"epsilon": 1e-3}, 15),
        Case("BatchNormalization", [f32(2, 24, 5), *channel], opset=7),
        Case("InstanceNormalization", [f32(12, 24, 5, 5), f32(24), f32(24)], block_counts=BLOCKS),
        Case("GroupNormalization", [f32(12, 24, 5), f32(24), f32(24)], {"num_groups": 12}, 21),
        Case("GroupNormalization", [f32(12, 24), f32(24), f32(24)], {"num_groups": 12}, 21),
        Case(
            "GroupNormalization",
            [f32(12, 48, 5), f32(48), f32(48)],
            {"num_groups": 24},
            21,
            block_counts={48: (2,)},
        ),
        Case("GroupNormalization", [f32(12, 24, 5), f32(12), f32(12)], {"num_groups": 12}, 18),
        Case("LpNormalization", [f32(12, 5, 24)], {"axis": 1, "p": 2}),
        Case("MeanVarianceNormalization", [f32(3, 12, 5, 5)], {"axes": [0, 2, 3]}, 13),
        Case("MeanVarianceNormalization", [f32(3, 12, 5, 5)], opset=9),
        Case("LRN", [f32(12, 24, 5, 12)], {"size": 3}),
        Case(
            "SkipLayerNormalization",
            [f32(2, 12, 8), f32(2, 12, 8), f32(8), f32(8), f32(8)],
            {},
            1,
            4,
            MICROSOFT,
            unused_outputs=(1, 2),
        ),
        Case("SkipLayerNormalization", [f32(2, 12, 8), f32(2, 12, 8), f32(8)], {}, 1, 1, MICROSOFT),
        Case("SkipSimplifiedLayerNormalization", [f32(2, 12, 8), f32(2, 12, 8), f32(8)], {}, 1, 1, MICROSOFT),
        Case("SimplifiedLayerNormalization", [f32(2, 12, 8), f32(8)], {"axis": -1, "stash_type": 1}, 17),
    ]


def _along_axis() -> list[Case]:
    cases = []
    for op in ("Softmax", "LogSoftmax", "Hardmax"):
        for axis, opset in ((1, 9), (2, 11), (-1, 12), (0, 9), (-1, 13), (1, 13), (0, 17)):
            cases.append(Case(op, [f32(12, 24, 12)], {"axis": axis}, opset))
        cases += [Case(op, [f32(12, 24, 3)], opset=11), Case(op, [f32(12, 24, 3)], opset=13)]
    cases.append(Case("Softmax", [f32(12, 24, 4)], {"axis": -1}, block_counts=BLOCKS))
    return [
        *cases,
        Case("TopK", [f32(12, 5, 24), vector(3)], {"axis": 1}, 11, outputs=2),
        Case("TopK", [f32(12, 24), runtime([3])], {}, 10, outputs=2),
        Case("CumSum", [f32(12, 24), scalar(1, np.int64)], {"exclusive": 1}, 14),
        Case("CumSum", [i64(12, 24), scalar(-2, np.int32)], {"reverse": 1}, 11),
        Case("Trilu", [f32(12, 5, 24)], {"upper": 0}, 14),
        Case("Trilu", [f32(12, 5, 24), scalar(1, np.int64)], {"upper": 1}, 14),
    ]


def _quantized() -> list[Case]:
    per_channel = [Const(positive(12)), Const(u8(12))]
    return [
        Case(
            "QuantizeLinear", [f32(24, 12), scalar(0.1), scalar(128, np.uint8)], opset=10, block_counts=BLOCKS
        ),
        Case("QuantizeLinear", [f32(24, 12), *per_channel], {"axis": -1}, 13),
        Case("DequantizeLinear", [u8(24, 12), *per_channel], {"axis": 1}, 13),
        Case("DequantizeLinear", [u8(12, 24), *per_channel], {"axis": 0}, 19),
        Case("DequantizeLinear", [u8(24, 12), Const(positive(1))], opset=13),
    ]


CASES = [
    *_matmul(),
    *_gemm(),
    *_einsum(),
    *_reductions(),
    *_normalizations(),
    *_along_axis(),
    *_quantized(),
]
