"""Operators, and forms of them, that ONNX Runtime has for GPUs only.

Here they are run as functions of standard operators, written from their documentation
(https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md).
"""

from __future__ import annotations

from collections.abc import Set
from typing import Any

import numpy as np

from tests.sharding.proof import MICROSOFT, Case
from tests.sharding.rule_cases.arrays import f32

HEAD = '<domain: "reference", opset_import: ["" : 23]>\n'

PACKED_QKV = (
    HEAD
    + """MultiHeadAttention <num_heads> (qkv, k0, v0) => (y) {
  heads_first = Transpose<perm = [3, 0, 2, 1, 4]>(qkv)
  q, k, v = Split<axis = 0, num_outputs = 3>(heads_first)
  zero = Constant<value_ints = [0]>()
  q4 = Squeeze(q, zero)
  k4 = Squeeze(k, zero)
  v4 = Squeeze(v, zero)
  a = Attention(q4, k4, v4)
  t = Transpose<perm = [0, 2, 1, 3]>(a)
  merged = Constant<value_ints = [0, 0, -1]>()
  y = Reshape(t, merged)
}"""
)

PACKED_KV = (
    HEAD
    + """MultiHeadAttention <num_heads> (query, kv, v0) => (y) {
  heads_first = Transpose<perm = [3, 0, 2, 1, 4]>(kv)
  k, v = Split<axis = 0, num_outputs = 2>(heads_first)
  zero = Constant<value_ints = [0]>()
  k4 = Squeeze(k, zero)
  v4 = Squeeze(v, zero)
  count = Constant<value_int: int = @num_heads>()
  one = Constant<value_ints = [1]>()
  counts = Reshape(count, one)
  rest = Constant<value_ints = [-1]>()
  zeros = Constant<value_ints = [0, 0]>()
  heads = Concat<axis = 0>(zeros, counts, rest)
  q_by_head = Reshape(query, heads)
  q4 = Transpose<perm = [0, 2, 1, 3]>(q_by_head)
  a = Attention(q4, k4, v4)
  t = Transpose<perm = [0, 2, 1, 3]>(a)
  merged = Constant<value_ints = [0, 0, -1]>()
  y = Reshape(t, merged)
}"""
)

_SAME_SEQUENCE = """
  size = Shape<start = 0, end = 1>(tokens)
  zero = Constant<value_int = 0>()
  one = Constant<value_int = 1>()
  first = Constant<value_ints = [0]>()
  count = Squeeze(size, first)
  places = Range(zero, count, one)
  ends = Cast<to = 7>(ends32)
  second = Constant<value_ints = [1]>()
  column = Unsqueeze(ends, second)
  begun = LessOrEqual(column, places)
  begun_numbers = Cast<to = 7>(begun)
  sequence = ReduceSum<keepdims = 0>(begun_numbers, first)
  sequence_column = Unsqueeze(sequence, second)
  mask = Equal(sequence_column, sequence)
"""

_ATTEND = """
  q3 = Unsqueeze(q, first)
  k3 = Unsqueeze(k, first)
  v3 = Unsqueeze(v, first)
  a = Attention<q_num_heads: int = @num_heads, kv_num_heads: int = @num_heads>(q3, k3, v3, mask)
  y = Squeeze(a, first)
}"""

PACKED_ATTENTION = (
    HEAD
    + "PackedAttention <num_heads> (tokens, weights, bias, offsets, ends32) => (y) {"
    + _SAME_SEQUENCE
    + """
  product = MatMul(tokens, weights)
  projected = Add(product, bias)
  q, k, v = Split<axis = 1, num_outputs = 3>(projected)
"""
    + _ATTEND
)

PACKED_MULTI_HEAD = (
    HEAD
    + "PackedMultiHeadAttention <num_heads> (tokens, k0, v0, bias, offsets, ends32) => (y) {"
    + _SAME_SEQUENCE
    + """
  bq, bk, bv = Split<axis = 0, num_outputs = 3>(bias)
  q = Add(tokens, bq)
  k = Add(k0, bk)
  v = Add(v0, bv)
"""
    + _ATTEND
)

BIAS_ADD = HEAD + "BiasAdd (x, bias, skip) => (y) { s = Add(x, bias)  y = Add(s, skip) }"

BIAS_SPLIT_GELU = (
    HEAD
    + """BiasSplitGelu (x, bias) => (y) {
  s = Add(x, bias)
  a, b = Split<axis = -1, num_outputs = 2>(s)
  g = Gelu(b)
  y = Mul(a, g)
}"""
)

BIAS_SOFTMAX = (
    HEAD
    + """BiasSoftmax <axis, is_inner_broadcast> (x, bias) => (y) {
  s = Add(x, bias)
  y = Softmax<axis = -1>(s)
}"""
)

GEMM_FAST_GELU = (
    HEAD
    + """GemmFastGelu (x, w, bias) => (y) {
  m = MatMul(x, w)
  s = Add(m, bias)
  y = Gelu<approximate = "tanh">(s)
}"""
)

MATMUL_TANH = HEAD + "FusedMatMulActivation <activation> (a, b) => (y) { m = MatMul(a, b)  y = Tanh(m) }"

GROUP_NORM = (
    HEAD
    + """GroupNorm <groups, channels_last> (x, gamma, beta) => (y) {
  t = Transpose<perm = [0, 3, 1, 2]>(x)
  n = GroupNormalization<num_groups: int = @groups>(t, gamma, beta)
  y = Transpose<perm = [0, 2, 3, 1]>(n)
}"""
)

_ROUTED = """
  probabilities = Softmax<axis = -1>(scores)
  first = Constant<value_ints = [0]>()
  number = Constant<value_int: int = @k>()
  count = Unsqueeze(number, first)
  best, places = TopK(probabilities, count)
  second = Constant<value_ints = [1]>()
  least = ReduceMin(best, second)
  chosen = GreaterOrEqual(probabilities, least)
  zero = Constant<value_float = 0.0>()
  shares = Where(chosen, probabilities, zero)
  by_expert = Transpose<perm = [1, 0]>(shares)
  last = Constant<value_ints = [2]>()
  weights = Unsqueeze(by_expert, last)
  b1e = Unsqueeze(b1, second)
  h1 = Einsum<equation = "th,eih->eti">(x, w1)
  a1 = Add(h1, b1e)
"""

_MIXED = """
  h2 = Einsum<equation = "eti,ehi->eth">(inner, w2)
  weighted = Mul(h2, weights)
  y = ReduceSum<keepdims = 0>(weighted, first)
}"""

THREE_WEIGHTS = (
    HEAD
    + "MoE <k, activation_type> (x, scores, w1, b1, w2, b2, w3, b3) => (y) {"
    + _ROUTED
    + """
  s = Sigmoid(a1)
  g = Mul(a1, s)
  h3 = Einsum<equation = "th,eih->eti">(x, w3)
  b3e = Unsqueeze(b3, second)
  a3 = Add(h3, b3e)
  inner = Mul(g, a3)
"""
    + _MIXED
)

GATE_THEN_VALUE = (
    HEAD
    + "MoE <k, activation_type, swiglu_fusion> (x, scores, w1, b1, w2, b2) => (y) {"
    + _ROUTED
    + """
  gate, value = Split<axis = -1, num_outputs = 2>(a1)
  g = Sigmoid(gate)
  swish = Mul(gate, g)
  inner = Mul(swish, value)
"""
    + _MIXED
)


def _case(op: str, body: str, inputs: list[Any], attributes: dict[str, Any] | None = None) -> Case:
    return Case(op, inputs, attributes or {}, 1, 1, MICROSOFT, body=body)


def _cases() -> list[Case]:
    heads, few = {"num_heads": 12}, {"num_heads": 2}
    offsets = np.arange(10, dtype=np.int32).reshape(2, 5)
    ends = np.asarray([0, 3, 8], dtype=np.int32)
    tokens = f32(8, 48)
    routed = [f32(12, 8), f32(12, 4)]
    fc1, b1 = [f32(4, 24, 8) for _ in range(2)], [f32(4, 24) for _ in range(2)]
    three = [*routed, fc1[0], b1[0], f32(4, 8, 24), None, fc1[1], b1[1]]
    doubled = [*routed, f32(4, 48, 8), f32(4, 48), f32(4, 8, 24), None]
    swiglu = {"k": 2, "activation_type": "swiglu", "swiglu_fusion": 2}
    return [
        _case("FusedMatMulActivation", MATMUL_TANH, [f32(2, 12, 8), f32(8, 24)], {"activation": "Tanh"}),
        _case(
            "GemmFastGelu",
            GEMM_FAST_GELU.replace("s = Add(m, bias)", "s = Identity(m)"),
            [f32(12, 8), f32(8, 24), None],
        ),
        _case("MoE", THREE_WEIGHTS, three, {"k": 2, "activation_type": "silu"}),
        _case("MoE", GATE_THEN_VALUE, doubled, swiglu),
        _case("MultiHeadAttention", PACKED_QKV, [f32(2, 5, 12, 3, 4), None, None], heads),
        _case("MultiHeadAttention", PACKED_QKV, [f32(12, 5, 2, 3, 4), None, None], few),
        _case("MultiHeadAttention", PACKED_KV, [f32(2, 5, 48), f32(2, 7, 12, 2, 4), None], heads),
        _case("MultiHeadAttention", PACKED_KV, [f32(1, 12, 8), f32(1, 7, 2, 2, 4), None], few),
        _case("PackedAttention", PACKED_ATTENTION, [tokens, f32(48, 144), f32(144), offsets, ends], heads),
        _case(
            "PackedMultiHeadAttention",
            PACKED_MULTI_HEAD,
            [tokens, f32(8, 48), f32(8, 48), f32(144), offsets, ends],
            heads,
        ),
        _case("BiasAdd", BIAS_ADD, [f32(2, 12, 24), f32(24), f32(2, 12, 24)]),
        _case("BiasSplitGelu", BIAS_SPLIT_GELU, [f32(2, 12, 24), f32(24)]),
        _case(
            "BiasSoftmax",
            BIAS_SOFTMAX,
            [f32(2, 12, 6, 8), f32(2, 1, 1, 8)],
            {"axis": 3, "is_inner_broadcast": 0},
        ),
        _case(
            "BiasSoftmax",
            BIAS_SOFTMAX,
            [f32(12, 2, 6, 8), f32(12, 1, 1, 8)],
            {"axis": 3, "is_inner_broadcast": 1},
        ),
        _case("GemmFastGelu", GEMM_FAST_GELU, [f32(2, 12, 8), f32(8, 24), f32(24)]),
        _case(
            "GroupNorm", GROUP_NORM, [f32(12, 3, 2, 24), f32(24), f32(24)], {"groups": 12, "channels_last": 1}
        ),
    ]


CASES = _cases()
EXTRA: dict[tuple[str, str], Set[str]] = {
    (MICROSOFT, op): {"blocks->split"}
    for op in ("PackedAttention", "PackedMultiHeadAttention", "BiasSplitGelu")
}
