"""Fused products, normalizations, embeddings and mixtures of experts."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from tests.sharding.proof import MICROSOFT, Case
from tests.sharding.rule_cases.arrays import f32, positive, u8, unit

BLOCKS = {24: (2, 3)}


def _ms(op: str, inputs: list[Any], attributes: dict[str, Any], outputs: int = 1, **more: Any) -> Case:
    return Case(op, inputs, attributes, 1, outputs, MICROSOFT, **more)


def _n_bits() -> list[Case]:
    cases = []
    columns, size, count = 24, 16, 24
    inner = size * count
    for bits, rows, flat in ((4, 2, False), (4, 2, True), (8, 3, False), (8, 3, True)):
        shape = {"K": inner, "N": columns, "bits": bits, "block_size": size}
        weights = u8(columns, count, size * bits // 8)
        scales = positive(columns, count) / 8
        zeros = u8(columns, count * bits // 8)
        if flat:
            scales, zeros = scales.reshape(-1), zeros.reshape(-1)
        x, bias = f32(rows, 12, inner), f32(columns)
        more = {"block_counts": BLOCKS, "rtol": 1e-4}
        cases += [
            _ms("MatMulNBits", [x, weights, scales], shape, **more),
            _ms("MatMulNBits", [x, weights, scales, zeros], shape, **more),
            _ms("MatMulNBits", [x, weights, scales, zeros, None, bias], shape, **more),
        ]
    shape = {"K": inner, "N": columns, "bits": 4, "block_size": size}
    weights, scales = u8(columns, count, 8), positive(columns, count) / 8
    order = np.random.default_rng(0).permutation(np.arange(inner) // size).astype(np.int32)
    # An odd number of 4-bit zero points: bytes that two ranks would share.
    odd = {"K": 12 * size, "N": columns, "bits": 4, "block_size": size}
    zeros = u8(columns, 6)
    few = {**odd, "K": 6 * size}
    cases += [
        _ms("MatMulNBits", [f32(5, 96), weights[:, :6], scales[:, :6], points], few, rtol=1e-4)
        for points in (u8(columns, 3), u8(columns * 3))
    ]
    return [
        *cases,
        _ms("MatMulNBits", [f32(12, inner), weights, scales, u8(columns, 12), order], shape, rtol=1e-4),
        _ms("MatMulNBits", [f32(5, inner), weights, scales], {**shape, "accuracy_level": 4}, rtol=1e-4),
        _ms("MatMulNBits", [f32(5, inner), weights, scales, f32(columns, count)], shape, rtol=1e-4),
        _ms("MatMulNBits", [f32(5, 192), weights[:, :12], scales[:, :12], zeros], odd, rtol=1e-4),
        _ms(
            "MatMulNBits",
            [f32(5, 192), weights[:, :12], scales[:, :12].copy(), zeros.reshape(-1)],
            odd,
            rtol=1e-4,
        ),
    ]


def _bnb4() -> list[Case]:
    cases = []
    for kind in (0, 1):
        shape = {"K": 384, "N": 12, "block_size": 32, "quant_type": kind}
        inputs = [f32(12, 384), u8(12 * 192), positive(12 * 12)]
        cases.append(_ms("MatMulBnb4", inputs, shape, rtol=1e-4))
    return cases


def _integers() -> list[Case]:
    x, a, w = f32(2, 12, 24), u8(2, 12, 24), u8(24, 36)
    one, zero = np.float32(0.02), np.uint8(120)
    columns, points, bias = positive(36) / 30, u8(36), f32(36)
    blocks = {"block_counts": {36: (3,), 24: (2,)}}
    dynamic, to_float = "DynamicQuantizeMatMul", "MatMulIntegerToFloat"
    return [
        _ms(dynamic, [x, w, np.asarray([0.03], np.float32)], {}, **blocks),
        _ms(dynamic, [x, w, columns, points, bias], {}, **blocks),
        _ms(dynamic, [x, w, columns, None, bias], {}),
        _ms(to_float, [a, w, one, one], {}, **blocks),
        _ms(to_float, [a, w, one, columns, zero, points, bias], {}, **blocks),
        _ms(to_float, [a, w, np.asarray([0.02], np.float32), columns, zero], {}),
    ]


def _activated() -> list[Case]:
    a, b = f32(12, 24), f32(24, 36)
    return [
        _ms("FusedGemm", [a, b, f32(36)], {"activation": "Relu"}),
        _ms("FusedGemm", [a, b], {"activation": "Tanh", "alpha": 0.5}),
        _ms("FusedGemm", [a, f32(36, 24), f32(12, 36)], {"activation": "Sigmoid", "transB": 1}),
    ]


def _normalized() -> list[Case]:
    gamma, ids = f32(8), np.random.default_rng(1).integers(0, 20, (12, 5)).astype(np.int32)
    tables = [f32(20, 8), f32(9, 8), f32(2, 8)]
    segments = (ids % 2).astype(np.int32)
    mask = (ids > 3).astype(np.int32)
    op = "SkipLayerNormalization"
    return [
        _ms(op, [f32(2, 12, 8), f32(12, 8), gamma], {}),
        _ms(op, [f32(12, 3, 8), f32(1, 3, 8), gamma, gamma], {}),
        _ms(op, [f32(12, 8), f32(12, 8), gamma], {}),
        _ms("SkipSimplifiedLayerNormalization", [f32(12, 3, 8), f32(3, 8), gamma], {}),
        _ms("EmbedLayerNormalization", [ids, segments, *tables, gamma, gamma, mask], {}, 2),
        _ms("EmbedLayerNormalization", [ids, None, *tables[:2], None, gamma, gamma], {}, 2),
        _ms(
            "EmbedLayerNormalization",
            [ids, segments, *tables, gamma, gamma, mask, np.arange(5, dtype=np.int32)[None]],
            {"epsilon": 1e-6},
            3,
        ),
        _ms("EmbedLayerNormalization", [ids, segments, *tables, gamma, gamma, None, ids % 9], {}, 2),
    ]


def _experts() -> list[Case]:
    tokens, hidden, inner, experts = 12, 8, 24, 4
    x, scores = f32(tokens, hidden), f32(tokens, experts)
    fc1, fc2 = unit(experts, inner, hidden), unit(experts, hidden, inner)
    b1, b2 = unit(experts, inner), unit(experts, hidden)
    two = {"k": 2, "activation_type": "relu"}
    cases = [
        _ms("MoE", [x, scores, fc1, None, fc2], two),
        _ms("MoE", [x, scores, fc1, b1, fc2, b2], {**two, "normalize_routing_weights": 1}),
        _ms("MoE", [f32(2, 6, hidden), scores, fc1, b1, fc2, b2], {"k": 1, "activation_type": "gelu"}),
    ]
    attributes = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 1}
    doubled = [unit(experts, 2 * inner, hidden), unit(experts, 2 * inner)]
    return [*cases, _ms("MoE", [x, scores, *doubled, fc2, b2], attributes), *_whole_experts()]


def _whole_experts() -> list[Case]:
    """Neither tokens nor the inner axis divide: only experts do. More of them are chosen than a rank has,
    scores are equal, and tokens are sent to one rank alone."""
    tokens, hidden, inner, experts = 13, 8, 7, 12
    x, scores = f32(tokens, hidden), f32(tokens, experts)
    scores[:3] = 0
    scores[3, :2], scores[4, -2:] = 40, 40
    fc1, fc2 = unit(experts, inner, hidden), unit(experts, hidden, inner)
    b1, b2 = unit(experts, inner), unit(experts, hidden)
    cases = [
        _ms("MoE", [x, scores, fc1, b1, fc2, b2], {"k": k, "normalize_routing_weights": norm, **kind})
        for k in (1, 2, 5)
        for norm in (0, 1)
        for kind in ({"activation_type": "relu"}, {"activation_type": "silu"})
    ]
    long = f32(13, 1, hidden)
    return [*cases, _ms("MoE", [long, scores, fc1, None, fc2], {"k": 3, "activation_type": "gelu"})]


def _quantized_experts() -> list[Case]:
    tokens, hidden, inner, experts = 12, 32, 192, 4
    x, scores = f32(tokens, hidden), f32(tokens, experts)
    relu = "1.24"  # before, every activation was swiglu
    cases = []
    for bits in (4, 8):
        pack = 8 // bits
        fc1, fc2 = u8(experts, inner, hidden // pack), u8(experts, hidden, inner // pack)
        s1, s2 = positive(experts, inner) / 50, positive(experts, hidden) / 50
        plain = {"k": 2, "activation_type": "relu", "expert_weight_bits": bits}
        cases += [
            _ms("QMoE", [x, scores, fc1, s1, None, fc2, s2], plain, rtol=1e-4, needs=relu),
            _ms(
                "QMoE",
                [x, scores, fc1, s1, unit(experts, inner), fc2, s2, unit(experts, hidden)],
                plain,
                rtol=1e-4,
                needs=relu,
            ),
        ]
        blocks = {**plain, "block_size": 16}
        by_block = [positive(experts, inner, hidden // 16) / 50, positive(experts, hidden, inner // 16) / 50]
        cases.append(
            _ms("QMoE", [x, scores, fc1, by_block[0], None, fc2, by_block[1]], blocks, rtol=1e-4, needs=relu)
        )
        swiglu = {**plain, "activation_type": "swiglu", "swiglu_fusion": 1}
        doubled = [u8(experts, 2 * inner, hidden // pack), positive(experts, 2 * inner) / 50]
        needs = "1.24" if bits == 4 else ""  # before, its sums were not those of the weights
        cases.append(_ms("QMoE", [x, scores, *doubled, None, fc2, s2], swiglu, rtol=1e-4, needs=needs))
        points = [u8(experts, inner // pack), u8(experts, hidden // pack)]
        by_row = [x, scores, fc1, s1, None, fc2, s2, *[None] * 4, *points]
        weighted = [x, scores, fc1, s1, None, fc2, s2, *[None] * 7, positive(*scores.shape)]
        cases += [
            _ms("QMoE", by_row, plain, rtol=1e-4, needs="1.31"),
            _ms("QMoE", weighted, plain, rtol=1e-4, needs="1.31"),
        ]
    # Only the experts divide.
    tokens, inner, experts = 13, 50, 12
    x, scores = f32(tokens, hidden), f32(tokens, experts)
    scores[:3] = 0
    fc1, fc2 = u8(experts, inner, hidden), u8(experts, hidden, inner)
    s1, s2 = positive(experts, inner) / 50, positive(experts, hidden) / 50
    for k, normalized in ((1, 0), (2, 1), (5, 0)):
        whole = {"k": k, "activation_type": "relu", "expert_weight_bits": 8}
        whole |= {"normalize_routing_weights": normalized}
        cases.append(_ms("QMoE", [x, scores, fc1, s1, None, fc2, s2], whole, rtol=1e-4, needs=relu))
    return cases


CASES = [
    *_n_bits(),
    *_bnb4(),
    *_integers(),
    *_activated(),
    *_normalized(),
    *_experts(),
    *_quantized_experts(),
]
SUMS = frozenset({"split->partial", "blocks->partial"})
EXTRA: dict[tuple[str, str], Set[str]] = {
    **{(MICROSOFT, op): SUMS for op in ("MatMulNBits", "MatMulIntegerToFloat", "MoE")},
    (MICROSOFT, "MatMulBnb4"): {"blocks->partial"},
    (MICROSOFT, "QMoE"): {"split->partial"},
}
