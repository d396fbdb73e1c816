"""Attention operators in the forms that exporters and ONNX Runtime's optimizer write."""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np
from onnx import TensorProto

from tests.sharding.proof import MICROSOFT, Case
from tests.sharding.rule_cases.arrays import boolean, f32, i64, u8

HEADS, SIZE, BATCH, LENGTH = 12, 4, 2, 5
WIDTH = HEADS * SIZE


def _i32(*values: int) -> np.ndarray[Any, Any]:
    return np.asarray(values, dtype=np.int32)


def _ms(op: str, inputs: list[Any], attributes: dict[str, Any], outputs: int = 1, **more: Any) -> Case:
    return Case(op, inputs, attributes, 1, outputs, MICROSOFT, **more)


def _standard() -> list[Case]:
    q4, k4, v4 = f32(BATCH, HEADS, LENGTH, SIZE), f32(BATCH, HEADS, 7, SIZE), f32(BATCH, HEADS, 7, 6)
    q3, k3, v3 = f32(BATCH, LENGTH, WIDTH), f32(BATCH, 7, WIDTH), f32(BATCH, 7, HEADS * 6)
    merged = {"q_num_heads": HEADS, "kv_num_heads": HEADS}
    grouped = f32(BATCH, 24, LENGTH, SIZE)
    past = [f32(BATCH, HEADS, 3, SIZE), f32(BATCH, HEADS, 3, 6)]
    rows = f32(12, 3, LENGTH, SIZE)
    long = [f32(1, 2, 12, SIZE), f32(1, 2, 7, SIZE), f32(1, 2, 7, SIZE)]
    even, before = f32(1, 2, 12, SIZE), [f32(1, 2, 6, SIZE)] * 2
    cases = []
    for opset in (23, 24):
        cases += [
            Case("Attention", [q4, k4, v4], opset=opset),
            Case("Attention", [q3, k3, v3], {**merged, "scale": 0.3}, opset),
            Case("Attention", [grouped, k4, v4], {"softcap": 2.0, "is_causal": 1}, opset),
            Case("Attention", [q4, k4, v4, f32(LENGTH, 7)], opset=opset),
            Case("Attention", [q4, k4, v4, f32(BATCH, HEADS, LENGTH, 7)], opset=opset),
            Case("Attention", [q4, k4, v4, f32(1, 1, LENGTH, 7)], opset=opset),
            Case("Attention", [q4, k4, v4, boolean(BATCH, 1, LENGTH, 7) | True], opset=opset),
            Case("Attention", [q4, k4, v4, f32(LENGTH, 10), *past], {"is_causal": 1}, opset, 3),
            Case("Attention", [q4, k4, v4, None, *past], {"qk_matmul_output_mode": 1}, opset, 4),
            Case(
                "Attention",
                [q3, k3, v3, f32(3 + HEADS - 3, LENGTH, 10), *past],
                merged,
                opset,
                3,
            ),
            Case("Attention", [rows, rows, rows, f32(12, 1, LENGTH, LENGTH)], opset=opset),
            Case("Attention", [rows, rows, rows], {"is_causal": 1}, opset),
            Case("Attention", [*long, f32(12, 7)], opset=opset),
            Case("Attention", [*long, f32(1, 2, 1, 7) * np.ones((1, 2, 12, 7), np.float32)], opset=opset),
            Case("Attention", [f32(1, 12, WIDTH), f32(1, 7, WIDTH), f32(1, 7, WIDTH)], merged, opset),
            # Groups of ranks share a key/value head, or all ranks the only one.
            Case("Attention", [q4, k4[:, :2], v4[:, :2]], opset=opset),
            Case("Attention", [q3, k3[:, :, :SIZE], v3[:, :, :6]], {**merged, "kv_num_heads": 1}, opset),
            # As many queries as could be cut, were they not causal, or the last ones of what a cache holds.
            Case("Attention", [even, even, even], {"is_causal": 1}, opset),
            Case("Attention", [f32(1, 12, WIDTH)] * 3, {**merged, "is_causal": 1}, opset),
            Case("Attention", [even, even, even, f32(12, 12)], {"is_causal": 1}, opset),
            Case("Attention", [even, even, even, None, *before], {"is_causal": 1}, opset, 3),
            Case("Attention", [even, even, even, None, *before], opset=opset, outputs=3),
        ]
    lengths = np.asarray([3, 7] * 6, dtype=np.int64)
    padded = [f32(12, 3, LENGTH, SIZE), f32(12, 3, 7, SIZE), f32(12, 3, 7, SIZE)]
    return [
        *cases,
        Case("Attention", [q4, k4, v4, None, None, None, lengths[:2]], opset=24),
        Case("Attention", [*padded, None, None, None, lengths], opset=24),
        # The mask's lengths are not known: only what does not cut it is offered.
        Case("Attention", [q4, k4, v4, f32(BATCH, HEADS, LENGTH, 7)], opset=23, shapes={3: None}),
    ]


def _fused() -> list[Case]:
    x, w, b = f32(BATCH, LENGTH, 8), f32(8, 3 * WIDTH), f32(3 * WIDTH)
    heads = {"num_heads": HEADS}
    rows, small, bias = f32(12, LENGTH, 8), f32(8, 24), f32(24)
    few = {"num_heads": 2}
    past = f32(2, BATCH, HEADS, 3, SIZE)
    return [
        _ms("Attention", [x, w, b], heads),
        _ms("Attention", [x, w, b], {**heads, "qkv_hidden_sizes": [WIDTH] * 3, "scale": 0.4}),
        _ms("Attention", [x, w, b, _i32(3, 5)], heads),
        _ms("Attention", [x, w, b, _i32(3, 5, 0, 1)], heads),
        _ms("Attention", [x, w, b, _i32(1, 1, 1, 0, 0, 1, 1, 1, 1, 1).reshape(2, 5)], heads),
        _ms("Attention", [x, w, b, None, None, f32(1, HEADS, LENGTH, LENGTH)], heads),
        _ms("Attention", [x, w, b, None, None, f32(1, 1, LENGTH, LENGTH)], heads),
        _ms("Attention", [x, w, b, None, past], {**heads, "unidirectional": 1}, 2),
        _ms("Attention", [rows, small, bias], few),
        _ms("Attention", [f32(1, 12, 8), small, bias], {**few, "unidirectional": 1}),
        _ms("Attention", [rows, small, bias, _i32(*[3, 5] * 6)], few),
        _ms("Attention", [rows, small, bias, _i32(*[3, 5] * 6, *[0, 1] * 6)], few),
        _ms("Attention", [rows, small, bias, boolean(12, LENGTH, LENGTH).astype(np.int32)], few),
        _ms("Attention", [rows, small, bias, None, None, f32(12, 2, LENGTH, LENGTH)], few),
        _ms("Attention", [rows, small, bias, None, f32(2, 12, 2, 3, SIZE)], {**few, "unidirectional": 1}, 2),
        # Values of another width than keys: three equal blocks they are not.
        _ms("Attention", [x, f32(8, 120), f32(120)], {**heads, "qkv_hidden_sizes": [24, 24, 72]}),
    ]


def _quantized() -> list[Case]:
    x, w = u8(BATCH, LENGTH, 8), u8(8, 3 * WIDTH).astype(np.int8)
    b, heads = f32(3 * WIDTH), {"num_heads": HEADS}
    one, zero = np.float32(0.02), np.uint8(120)
    per_column = np.abs(f32(3 * WIDTH)) / 50
    rows = u8(12, LENGTH, 8)
    return [
        _ms("QAttention", [x, w, b, one, np.float32(0.01), None, zero], heads),
        _ms("QAttention", [x, w, b, one, per_column, None, zero, np.zeros(3 * WIDTH, np.int8)], heads),
        _ms("QAttention", [x, w, b, one, per_column, _i32(3, 5), zero], heads),
        _ms("QAttention", [rows, w[:, :24], b[:24], one, np.float32(0.01), None, zero], {"num_heads": 2}),
    ]


def _multi_head() -> list[Case]:
    q, k, v = f32(BATCH, LENGTH, WIDTH), f32(BATCH, 7, WIDTH), f32(BATCH, 7, WIDTH)
    op, heads = "MultiHeadAttention", {"num_heads": HEADS}
    bias = f32(3 * WIDTH)
    four = [f32(BATCH, HEADS, 7, SIZE), f32(BATCH, HEADS, 7, SIZE)]
    past = [f32(BATCH, HEADS, 3, SIZE), f32(BATCH, HEADS, 3, SIZE)]
    rows, few = f32(12, LENGTH, 8), {"num_heads": 2}
    queries, keys = f32(1, 12, 8), f32(1, 7, 8)
    return [
        _ms(op, [q, k, v], heads),
        _ms(op, [q, k, v, bias], {**heads, "scale": 0.2}),
        _ms(op, [q, k, v, bias, _i32(3, 7)], heads),
        _ms(op, [q, k, v, None, boolean(BATCH, 7).astype(np.int32), f32(1, HEADS, LENGTH, 7)], heads),
        _ms(op, [q, k, v, None, None, f32(BATCH, 1, LENGTH, 7)], heads),
        _ms(op, [q, k, f32(BATCH, 7, 2 * WIDTH)], heads),
        # A bias for values of another width than keys is not made of equal blocks.
        _ms(op, [q, k, f32(BATCH, 7, 2 * WIDTH), f32(4 * WIDTH)], heads),
        _ms(op, [q, *four], heads),
        _ms(op, [q, q, q, None, None, None, *past], {**heads, "unidirectional": 1}, 3),
        _ms(op, [q, q, q, bias, None, None, *past], heads, 3),
        _ms(op, [q, k, v], heads, 4, declared={3: TensorProto.FLOAT}),
        _ms(op, [rows, rows, rows, f32(24), _i32(*[3, 5] * 6)], few),
        _ms(op, [rows, rows, rows, None, boolean(12, LENGTH).astype(np.int32)], few),
        _ms(op, [rows, rows, rows, None, None, f32(12, 2, LENGTH, LENGTH)], few),
        _ms(op, [rows, rows, rows, None, None, None, f32(12, 2, 3, 4), f32(12, 2, 3, 4)], few, 3),
        _ms(op, [queries, keys, keys], few),
        _ms(op, [queries, queries, queries], {**few, "unidirectional": 1}),
        _ms(op, [queries, queries, queries, None, None, None, *[f32(1, 2, 6, 4)] * 2], few, 3),
        _ms(op, [queries, keys, keys, f32(24), boolean(1, 7).astype(np.int32)], few),
        _ms(op, [queries, keys, keys, None, boolean(1, 12, 7).astype(np.int32) | 1], few),
        _ms(op, [queries, keys, keys, None, None, f32(1, 2, 12, 7)], few, 4, declared={3: TensorProto.FLOAT}),
        _ms(op, [queries, keys, keys, None, _i32(6)], few),
    ]


def _decoder() -> list[Case]:
    op = "DecoderMaskedMultiHeadAttention"
    heads = {"num_heads": HEADS, "past_present_share_buffer": 1}
    cases = []
    for batch, count in ((BATCH, HEADS), (12, 2)):
        token = f32(batch, 1, count * SIZE)
        cache = [f32(batch, count, 9, SIZE), f32(batch, count, 9, SIZE)]
        mask = boolean(batch, 5).astype(np.int32) | 1
        attributes = {**heads, "num_heads": count}
        step = [*cache, _i32(4)]
        cases += [
            _ms(op, [token, token, token, mask, None, *step], attributes, 3, unused_outputs=()),
            _ms(op, [token, token, token, None, f32(1, count, 1, 5), *step], attributes, 3),
            _ms(op, [token, *cache], {"num_heads": count}),
        ]
        bias = f32(3 * count * SIZE)
        cases.append(_ms(op, [token, token, token, mask, None, *step, None, None, bias], attributes, 3))
    return cases


def _group_query() -> list[Case]:
    op = "GroupQueryAttention"
    size, half = 16, 8  # rotary embedding wants multiples of 16
    caches = [f32(16, half), f32(16, half)]
    cases = []
    # Heads split, heads with a packed input split, a batch split; a key/value head for some ranks, for all.
    for batch, heads, pairs in ((BATCH, 24, 12), (BATCH, 12, 12), (12, 2, 1), (BATCH, 12, 2), (BATCH, 12, 1)):
        counts = {"num_heads": heads, "kv_num_heads": pairs}
        q, k = f32(batch, LENGTH, heads * size), f32(batch, LENGTH, pairs * size)
        v = f32(batch, LENGTH, pairs * size)
        packed = np.concatenate([q, k, v], axis=2)
        first = [_i32(*[LENGTH - 1] * batch), np.asarray(LENGTH, np.int32)]
        empty = [np.zeros((batch, pairs, 0, size), np.float32)] * 2
        cases += [
            _ms(op, [q, k, v, *empty, *first], counts, 3),
            # One output: until 1.26 the caches' new values had to be given too.
            _ms(
                op,
                [q, k, v, None, None, *first],
                {**counts, "softcap": 3.0, "local_window_size": 2},
                needs="1.27",
            ),
            _ms(op, [q, k, v, None, None, *first, *caches], {**counts, "do_rotary": 1}, 3),
            _ms(op, [packed, None, None, *empty, *first, *caches], {**counts, "do_rotary": 1}, 3),
        ]
        token = [f32(batch, 1, n * size) for n in (heads, pairs, pairs)]
        past = [f32(batch, pairs, 6, size), f32(batch, pairs, 6, size)]
        lengths = [_i32(*[6] * batch), np.asarray(7, np.int32)]
        shorter = [_i32(*[6, 4] * (batch // 2)), np.asarray(7, np.int32)]
        one = {**counts, "do_rotary": 1, "rotary_interleaved": 1, "scale": 0.3}
        positions = i64(batch, 1, low=0, high=9)
        cases += [
            _ms(op, [*token, *past, *lengths, *caches], one, 3),
            _ms(op, [*token, *past, *shorter, *caches], {**counts, "do_rotary": 1}, 3),
            _ms(op, [*token, *past, *lengths, *caches, positions], one, 3),
            _ms(op, [*token, *past, *lengths, None, None, None, f32(batch, heads, 1, 7)], counts, 3),
            _ms(op, [*token, *past, *lengths, None, None, None, f32(1, 1, 1, 7), f32(heads)], counts, 3),
        ]
        together = [np.concatenate(token, axis=2), None, None]
        smooth = {**counts, "do_rotary": 1, "smooth_softmax": 1, "local_window_size": 3, "softcap": 2.0}
        cases += [
            _ms(op, [*together, *past, *lengths, *caches], smooth, 3),
            _ms(op, [*together, *past, *lengths, *caches, None, None, f32(heads)], one, 3),
        ]
        eight, four = ({"kv_cache_bit_width": bits, "do_rotary": 1, **counts} for bits in (8, 4))
        bytes_ = [u8(batch, pairs, 6, size) for _ in past]
        halves = [u8(batch, pairs, 6, size // 2) for _ in past]
        scales = np.abs(f32(pairs, 1, size)) / 50
        for attributes, old in ((eight, [cache.astype(np.int8) for cache in bytes_]), (four, halves)):
            for kind, scale in (("PER_CHANNEL", scales), ("PER_TENSOR", scales.reshape(-1)[:1])):
                types = {"k_quant_type": kind, "v_quant_type": kind}
                inputs = [*token, *old, *lengths, *caches, None, None, None, scale, scale]
                cases.append(_ms(op, inputs, {**attributes, **types}, 3, needs="1.31", rtol=1e-4))
    return cases


def _sparse() -> list[Case]:
    """Buffers of fixed length that the operator fills, and blocks of 16 positions that heads may see."""
    op, size, room, cases = "SparseAttention", 16, 32, []
    for batch, heads, pairs in ((BATCH, 24, 12), (12, 2, 1), (BATCH, 12, 2)):
        counts = {"num_heads": heads, "kv_num_heads": pairs, "sparse_block_size": 16}
        for layouts in (1, heads):
            first = [[0, 1, 3] if number % 2 else [0, 1, 2] for number in range(layouts)]
            seen = [[0, 0, 1] if number % 2 else [0, 1, -1] for number in range(layouts)]
            blocks = [np.array(first, np.int32), np.array(seen, np.int32)]
            past = [f32(batch, pairs, room, size) for _ in range(2)]
            for length, filled in ((20, 0), (1, 17)):
                new = [f32(batch, length, n * size) for n in (heads, pairs, pairs)]
                total = filled + length
                lengths = [_i32(total), _i32(*[total] * batch)]
                for given in (new, [np.concatenate(new, axis=2), None, None]):
                    inputs = [*given, *past, *blocks, *lengths]
                    cases.append(_ms(op, inputs, counts, 3, in_place={1: 3, 2: 4}))
    return cases


def _rotary() -> list[Case]:
    cases = []
    caches, per_element = [f32(24, 2), f32(24, 2)], [f32(BATCH, LENGTH, 2), f32(BATCH, LENGTH, 2)]
    four, three = f32(BATCH, HEADS, LENGTH, SIZE), f32(BATCH, LENGTH, WIDTH)
    where = i64(BATCH, LENGTH, low=0, high=24)
    heads = {"num_heads": HEADS}
    for interleaved in (0, 1):
        flag = {"interleaved": interleaved}
        cases += [
            Case("RotaryEmbedding", [four, *caches, where], flag, 23),
            Case("RotaryEmbedding", [three, *caches, where], {**flag, **heads}, 23),
            Case("RotaryEmbedding", [four, *per_element], flag, 23),
            Case(
                "RotaryEmbedding",
                [four, *[a[..., :1] for a in caches], where],
                {"rotary_embedding_dim": 2},
                23,
                needs="1.24",  # before, a part of an embedding was for packed heads only
            ),
            Case("RotaryEmbedding", [f32(12, 2, 12, 4), f32(12, 12, 2), f32(12, 12, 2)], flag, 23),
            Case(
                "RotaryEmbedding",
                [f32(12, 12, 8), *caches, i64(12, 12, low=0, high=24)],
                {**flag, "num_heads": 2},
                23,
            ),
            _ms("RotaryEmbedding", [four, where, *caches], flag),
            _ms("RotaryEmbedding", [three, where, *caches], flag),
            _ms("RotaryEmbedding", [three, np.asarray([2]), *caches], {**flag, **heads}),
            _ms("RotaryEmbedding", [f32(12, 12, 8), i64(12, 12, low=0, high=24), *caches], flag),
            _ms("RotaryEmbedding", [f32(12, 2, 12, 4), np.asarray([3]), *caches], flag),
        ]
    new: dict[str, Any] = {"needs": "1.31"}
    half, part = {"mrope_section": [1, 1, 0]}, {"rotary_embedding_dim": 2, "mrope_section": [1, 0, 0]}
    thirds = i64(3, BATCH, LENGTH, low=0, high=24)
    short = [a[:, :1] for a in caches]
    cases += [
        _ms("MRotaryEmbedding", [four, thirds, *caches], half, **new),
        _ms("MRotaryEmbedding", [three, thirds, *caches], {**half, **heads, "mrope_layout": 1}, **new),
        _ms("MRotaryEmbedding", [three, thirds, *short], {**part, **heads}, **new),
        _ms(
            "MRotaryEmbedding",
            [f32(12, 12, 8), i64(3, 12, 12, low=0, high=24), *caches],
            {**half, "num_heads": 2},
            **new,
        ),
        _ms("MRotaryEmbedding", [f32(12, 2, 12, 4), i64(3, 12, 12, low=0, high=24), *caches], half, **new),
    ]
    return cases


def _scatter() -> list[Case]:
    cache, places = f32(12, 24, 8, 4), i64(12, low=0, high=6)
    return [
        Case(
            "TensorScatter",
            [cache, f32(12, 24, 2, 4), places],
            opset=24,
            block_counts={24: (2,)},
            needs="1.25",
        ),
        Case("TensorScatter", [cache, f32(12, 24, 3, 4), places], {"mode": "circular"}, 24, needs="1.25"),
        Case("TensorScatter", [f32(12, 6, 24), f32(12, 2, 24)], {"axis": 1}, 24, needs="1.25"),
        Case("TensorScatter", [f32(3, 12, 24), f32(3, 12, 12)], {"axis": -1}, 24, needs="1.25"),
    ]


def _recurrent() -> list[Case]:
    """Linear attention and the convolutions before it, which keep a state."""
    op, cases = "CausalConvWithState", []
    for batch, channels in ((BATCH, 24), (12, 5)):
        x, kernel, bias = f32(batch, channels, 6), f32(channels, 1, 3), f32(channels)
        turned = [f32(batch, 6, channels), kernel, None, f32(batch, 2, channels)]
        apart = [f32(batch, 6, channels, 2), f32(2 * channels, 1, 3), None, f32(batch, 2, channels, 2)]
        new: dict[str, Any] = {"needs": "1.31", "block_counts": {24: (2,)}}
        cases += [
            _ms(op, [x, kernel, bias, f32(batch, channels, 2)], {"activation": "silu"}, 2, **new),
            _ms(op, [x, kernel], {"dilation": 2}, 2, **new),
            _ms(op, turned, {"channels_last": 1}, 2, **new),
            _ms(op, apart, {"channels_last": 1}, 2, **new),
        ]
    op, exact = "LinearAttention", {"rtol": 1e-4, "needs": "1.31"}
    for batch, heads, pairs in ((BATCH, 24, 12), (BATCH, 12, 24), (12, 2, 1)):
        counts: dict[str, Any] = {"q_num_heads": heads, "kv_num_heads": pairs}
        q, k, v = f32(batch, 5, heads * 4), f32(batch, 5, pairs * 4) / 4, f32(batch, 5, pairs * 6)
        state, decay, rate = (
            f32(batch, pairs, 4, 6),
            -np.abs(f32(batch, 5, pairs)),
            np.abs(f32(batch, 5, pairs)),
        )
        gated = {**counts, "update_rule": "gated"}
        cases += [
            _ms(op, [q, k, v], {**counts, "update_rule": "linear"}, 2, **exact),
            _ms(op, [q, k, v, state, -np.abs(f32(batch, 5, pairs * 4))], gated, 2, **exact),
            _ms(op, [q, k, v, state, decay, rate], counts, 2, **exact),
            _ms(op, [q, k, v, state, decay, rate[:, :, :1]], {**counts, "scale": 0.3}, 2, **exact),
        ]
    gate: dict[str, Any] = {"rtol": 1e-4, "needs": "1.31", "block_counts": {24: (2,)}}
    for batch, length, pairs in ((BATCH, 5, 24), (12, 12, 5)):
        a, b, bias, scale = (
            f32(batch, length, pairs),
            f32(batch, length, pairs),
            f32(pairs),
            -np.abs(f32(pairs)),
        )
        cases += [
            _ms("LinearAttentionGate", [a, bias, scale, b], {}, 2, **gate),
            _ms("LinearAttentionGate", [a, bias, scale], {}, **gate),
        ]
    for shape, size in (((BATCH, 5, 48), 4), ((12, 12, 6), 6), ((24, 24), 2)):
        for activation in ("silu", "sigmoid"):
            cases.append(
                _ms("GatedRMSNorm", [f32(*shape), f32(size), f32(*shape)], {"activation": activation}, **gate)
            )
    return cases


CASES = [
    *_standard(),
    *_fused(),
    *_quantized(),
    *_multi_head(),
    *_decoder(),
    *_group_query(),
    *_sparse(),
    *_rotary(),
    *_scatter(),
    *_recurrent(),
]
HEADS_AND_BATCH = frozenset({"blocks->split"})
LINEAR = frozenset({"partial->partial"})
EXTRA: dict[tuple[str, str], Set[str]] = {
    **{(MICROSOFT, op): HEADS_AND_BATCH for op in ("Attention", "QAttention", "MultiHeadAttention")},
    # Each rank takes its own heads out of packed ones.
    (MICROSOFT, "GroupQueryAttention"): HEADS_AND_BATCH | {"whole->split"},
    (MICROSOFT, "SparseAttention"): {"whole->split"},
    (MICROSOFT, "DecoderMaskedMultiHeadAttention"): HEADS_AND_BATCH,
    ("", "RotaryEmbedding"): LINEAR,
    (MICROSOFT, "RotaryEmbedding"): LINEAR,
    (MICROSOFT, "MRotaryEmbedding"): LINEAR,
    (MICROSOFT, "CausalConvWithState"): {"blocks->blocks"},
    ("", "TensorScatter"): LINEAR | {"blocks->blocks"},
}
