"""Which models round computed numbers to few bits, so that the order of a sum may show in their answers."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from sharding.planning.sums import rounds
from tests.sharding import graphs

INT8, INT16 = np.dtype(np.int8), np.dtype(np.int16)


def _rounds(body: str, weights: dict[str, Any]) -> bool:
    text = f"g (float[n, 8] x) => (float[n, m] y) {{ {body} }}"
    return rounds(ir.from_proto(graphs.model(text, weights)).graph)


@pytest.mark.parametrize(
    ("scale", "axis", "wanted"),
    [
        ((), None, True),
        ((1,), None, True),
        ((1,), 0, True),
        ((1,), 1, True),
        ((4,), 1, True),
        ((4,), -1, True),
        ((4,), None, True),
        ((8,), 0, False),
        ((8,), -2, False),
    ],
)
def test_scales_of_weights_that_become_a_product_of_few_bits(
    scale: tuple[int, ...], axis: int | None, wanted: bool
) -> None:
    """One for all, or one for each column."""
    along = "" if axis is None else f"<axis = {axis}>"
    weights = {"w": np.ones((8, 4), INT8), "s": np.full(scale, 0.5, np.float32)}
    assert _rounds(f"d = DequantizeLinear{along}(w, s) y = MatMul(x, d)", weights) is wanted


ONE = np.asarray(0.5, np.float32)


@pytest.mark.parametrize(
    ("body", "weights", "wanted"),
    [
        ("d = DequantizeLinear(w, s) y = Gemm(x, d)", {"w": np.ones((8, 4), INT8), "s": ONE}, True),
        ("d = DequantizeLinear(w, s) y = Gemm<transB = 1>(x, d)", {"w": np.ones((4, 8), INT8), "s": ONE},
         False),
        ("d = DequantizeLinear(w, s) y = MatMul(x, d)", {"w": np.ones((8, 4), INT16), "s": ONE}, False),
        ("d = DequantizeLinear(w, s) y = MatMul(x, d)", {"w": np.ones((1, 8, 4), INT8), "s": ONE}, False),
        ("d = DequantizeLinear(w, s) t = Add(x, d) y = Neg(t)", {"w": np.ones((8, 8), INT8), "s": ONE},
         False),
        ("d = DequantizeLinear(w, s) y = MatMul(d, x)", {"w": np.ones((8, 4), INT8), "s": ONE}, False),
        ("c = Cast<to = 3>(x) d = DequantizeLinear(c, s) y = MatMul(x, d)", {"s": ONE}, False),
        ("q = QuantizeLinear(x, s) y = DequantizeLinear(q, s)", {"s": ONE}, True),
        ("q = QuantizeLinear(w, s) d = DequantizeLinear(q, s) y = Add(x, d)",
         {"w": np.ones((8,), np.float32), "s": ONE}, False),
        ("a, b, c = DynamicQuantizeLinear(x) y = DequantizeLinear(a, b, c)", {}, True),
        ("y = MatMul(x, w)", {"w": np.ones((8, 4), np.float32)}, False),
    ],
)  # fmt: skip
def test_what_rounds(body: str, weights: dict[str, Any], wanted: bool) -> None:
    assert _rounds(body, weights) is wanted


@pytest.mark.parametrize(("level", "wanted"), [(None, False), (0, False), (3, False), (4, True)])
@pytest.mark.parametrize("domain", ["com.microsoft", "elsewhere"])
def test_products_of_few_bits_round_at_one_level(level: int | None, wanted: bool, domain: str) -> None:
    attributes = [ir.AttrInt64("N", 4)] + ([] if level is None else [ir.AttrInt64("accuracy_level", level)])
    x = ir.Value(name="x")
    node = ir.Node(domain, "MatMulNBits", [x], attributes)
    graph = ir.Graph([x], node.outputs, nodes=[node], name="g")
    assert rounds(graph) is (wanted and domain == "com.microsoft")
