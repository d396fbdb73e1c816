"""Which models round computed numbers to few bits, so that the order of sums shows."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from sharding.planning.sums import rounds
from tests.sharding import graphs

WEIGHTS = {
    "w": np.ones((16, 8), np.int8),
    "w3": np.ones((2, 16, 8), np.int8),
    "w16": np.ones((16, 8), np.int16),
    "one": np.asarray(0.5, np.float32),
    "ones": np.full((1, 1), 0.5, np.float32),
    "columns": np.full(8, 0.5, np.float32),
    "rows": np.full(16, 0.5, np.float32),
    "blocks": np.full((2, 8), 0.5, np.float32),
    "point": np.asarray(0, np.int8),
    "f": graphs.array(16, 8),
    "b": np.ones((8, 1, 8), np.uint8),
    "s": np.ones(8, np.float32),
}


@pytest.mark.parametrize(
    ("nodes", "found"),
    [
        ("y = MatMul(x, f)", False),
        ("q, z, p = DynamicQuantizeLinear(x) y = DequantizeLinear(q, z, p)", True),
        ("q = QuantizeLinear(x, one, point) y = DequantizeLinear(q, one)", True),
        ("q = QuantizeLinear(f, one, point) d = DequantizeLinear(q, one) y = Add(x, one)", False),
        ("d = DequantizeLinear(w, one) y = MatMul(x, d)", True),
        ("d = DequantizeLinear(w, ones) y = MatMul(x, d)", True),
        ("d = DequantizeLinear(w, columns) y = MatMul(x, d)", True),
        ("d = DequantizeLinear<axis = -1>(w, columns) y = MatMul(x, d)", True),
        ("d = DequantizeLinear<axis = 0>(w, rows) y = MatMul(x, d)", False),
        ("d = DequantizeLinear<axis = -2>(w, rows) y = MatMul(x, d)", False),
        ("d = DequantizeLinear<axis = 0>(w, one) y = MatMul(x, d)", True),
        ("d = DequantizeLinear<axis = 0, block_size = 8>(w, blocks) y = MatMul(x, d)", True),
        ("d = DequantizeLinear(w, columns) y = Gemm(x, d)", True),
        ("d = DequantizeLinear(w, columns) t = Transpose(d) y = MatMul(x, t)", False),
        ("d = DequantizeLinear(w, columns) y = Gemm<transB = 1>(x, d)", False),
        ("d = DequantizeLinear(w, columns) y = Gemm<transB = 0>(x, d)", True),
        ("d = DequantizeLinear(w, columns) y = MatMul(d, x)", False),
        ("d = DequantizeLinear(w, columns) y = Add(x, d)", False),
        ("d = DequantizeLinear(w16, columns) y = MatMul(x, d)", False),
        ("d = DequantizeLinear(w3, one) y = MatMul(x, d)", False),
        ("v = Identity(w) d = DequantizeLinear(v, one) y = MatMul(x, d)", False),
        ("y = com.microsoft.MatMulNBits<K = 16, N = 8, accuracy_level = 4>(x, b, s)", True),
        ("y = com.microsoft.MatMulNBits<K = 16, N = 8, accuracy_level = 1>(x, b, s)", False),
        ("y = com.microsoft.MatMulNBits<K = 16, N = 8>(x, b, s)", False),
    ],
)  # fmt: skip
def test_what_rounds(nodes: str, found: bool) -> None:
    text = f"g (float[n, 16] x) => (float[n, 8] y) {{ {nodes} }}"
    model = graphs.model(text, WEIGHTS, 21)
    assert rounds(ir.serde.deserialize_model(model).graph) is found
