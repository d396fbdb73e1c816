"""Options that exchange something inside a node: exact to the bit, proved by running all ranks of each."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.rules.base import NodeView
from sharding.search.cost import ELEMENTS_PER_SECOND
from sharding.search.exchanges import exchanging_options
from sharding.slices.placement import Partial
from tests.sharding import graphs, lockstep
from tests.sharding.proof import Case, Const, prove
from tests.sharding.rule_cases.arrays import f32, scalar, u8
from tests.sharding.rule_cases.quantized import i8

Z = scalar(117, np.uint8)


def _product(a: Sequence[int], b: Sequence[int], columns: bool, seed: int, opset: int = 10) -> Case:
    random = np.random.default_rng(seed)
    wide = (b[-1],) if columns else ()
    scales = [Const(np.float32(random.uniform(0.001, 0.1, shape))) for shape in ((), wide, (1,))]
    scales[2] = Const(scales[2].value * np.float32(20))
    zero = Const(np.zeros(wide, np.int8))
    points = [Z, zero, Const(np.asarray([90], np.uint8))]
    return Case(
        "QLinearMatMul",
        [u8(*a), scales[0], points[0], i8(*b), scales[1], points[1], scales[2], points[2]],
        opset=opset,
        rtol=0.0,
    )


RANGES = [
    Case("DynamicQuantizeLinear", [f32(2, 12, 24)], opset=11, outputs=3, rtol=0.0),
    Case("DynamicQuantizeLinear", [f32(24) * 1e-3], opset=11, outputs=3, rtol=0.0),
    Case("DynamicQuantizeLinear", [np.abs(f32(12, 24, 3, 3)) + 5], opset=18, outputs=3, rtol=0.0),
    Case("DynamicQuantizeLinear", [np.zeros((12, 5), np.float32)], opset=21, outputs=3, rtol=0.0),
]
PRODUCTS = [
    *(_product((2, 12, 24), (24, 36), columns, seed) for columns in (False, True) for seed in range(4)),
    _product((48, 240), (240, 60), True, 9, 21),
    _product((3, 2, 12, 24), (3, 2, 24, 6), False, 5, 13),
]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("case", [*RANGES, *PRODUCTS], ids=str)
def test_options_are_exact_to_the_bit(case: Case, world: int) -> None:
    options = prove(case, world, exchanging_options)
    assert options and all(option.seconds > 0 for option in options)
    assert all(not isinstance(place, Partial) for option in options for place in option.outputs)


def test_nothing_is_offered_where_it_would_not_be_exact() -> None:
    plain = PRODUCTS[0]
    per_row: list[Any] = [*plain.inputs]
    per_row[1:3] = [Const(np.ones(12, np.float32)), Const(np.zeros(12, np.uint8))]
    float16: list[Any] = [*plain.inputs]
    float16[1] = Const(np.asarray(0.5, np.float16))
    for inputs in (per_row, float16):
        shapes = [list(np.shape(getattr(item, "value", item))) for item in inputs]
        dtypes = [np.asarray(getattr(item, "value", item)).dtype for item in inputs]
        view = NodeView("QLinearMatMul", "", 21, 2, {}, shapes, dtypes, [None] * 8, [True] * 8, [[2, 12, 36]])
        assert exchanging_options(view) == []


DYNAMIC = """g (float[n, 24] x) => (float[n, 24] y) {
  q, s, z = DynamicQuantizeLinear(x)
  i = MatMulInteger(q, w1, z, zero)
  f = Cast<to = 1>(i)
  k = Mul(s, s1)
  h = Mul(f, k)
  r = Relu(h)
  q2, s2, z2 = DynamicQuantizeLinear(r)
  i2 = MatMulInteger(q2, w2, z2, zero)
  f2 = Cast<to = 1>(i2)
  k2 = Mul(s2, s1)
  y = Mul(f2, k2)
}"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_dynamically_quantized_pair_needs_one_sum_and_one_range(tmp_path: Path, ranks: int) -> None:
    weights: dict[str, Any] = {"w1": i8(24, 48), "w2": i8(48, 24), "zero": np.int8(0), "s1": np.float32(0.01)}
    path = graphs.save(tmp_path / "model.onnx", DYNAMIC, weights)
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices")
    assert [(item.op, item.dtype) for item in manifest.collectives] == [
        ("AllGather", "float32"),
        ("AllReduce", "int32"),
    ]
    assert manifest.weights["w1"].placement == "split:1"
    assert manifest.weights["w2"].placement == "split:0"
    for rows in (1, 7):
        lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(rows, 24, seed=rows)}, 1e-6)


NORMS = [
    Case("LayerNormalization", [f32(2, 5, 24), f32(24), f32(24)], opset=17, rtol=1e-5),
    Case(
        "LayerNormalization", [f32(7, 24) + 1000, f32(24)], {"axis": 1, "epsilon": 1e-2}, opset=18, rtol=1e-4
    ),
    Case("LayerNormalization", [np.zeros((3, 12), np.float32), f32(12), f32(12)], opset=21, rtol=1e-5),
]


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("case", NORMS, ids=str)
def test_parts_of_a_normalized_axis(case: Case, world: int) -> None:
    options = prove(case, world, exchanging_options)
    assert options and all(option.seconds > 0 for option in options)


HEADS = """g (float[b, n, 256] x) => (float[b, n, 256] y)
  <int64[4] heads = {0, 0, 8, 32}, int64[3] flat = {0, 0, 256}> {
  q0 = MatMul(x, wq) q1 = LayerNormalization(q0, gq, bq) q2 = Reshape(q1, heads)
  k0 = MatMul(x, wk) k1 = LayerNormalization(k0, gk) k2 = Reshape(k1, heads)
  v0 = MatMul(x, wv) v2 = Reshape(v0, heads)
  q = Transpose<perm = [0, 2, 1, 3]>(q2) k = Transpose<perm = [0, 2, 3, 1]>(k2)
  v = Transpose<perm = [0, 2, 1, 3]>(v2)
  s = MatMul(q, k) p = Softmax(s) a = MatMul(p, v) t = Transpose<perm = [0, 2, 1, 3]>(a)
  o = Reshape(t, flat) y = MatMul(o, wo) }"""


@pytest.mark.parametrize("ranks", [2, 4])
def test_heads_are_cut_where_all_are_normalized_together(tmp_path: Path, ranks: int) -> None:
    weights = {name: graphs.array(256, 256, seed=at) / 16 for at, name in enumerate(("wq", "wk", "wv", "wo"))}
    weights |= {name: graphs.array(256, seed=at) for at, name in enumerate(("gq", "bq", "gk"))}
    path = graphs.save(tmp_path / "model.onnx", HEADS, weights)
    # Few rows are gathered sooner than each is taken apart.
    options = SliceOptions(dims={"n": 512})
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices", options=options)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 9, 256)})
    found = [(item.op, item.shape[-1]) for item in manifest.collectives]
    assert found == [("AllGather", 2), ("AllGather", 2), ("AllReduce", 256)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_few_rows_are_gathered_sooner_than_taken_apart(tmp_path: Path, ranks: int) -> None:
    weights = {name: graphs.array(256, 256, seed=at) / 16 for at, name in enumerate(("wq", "wk", "wv", "wo"))}
    weights |= {name: graphs.array(256, seed=at) for at, name in enumerate(("gq", "bq", "gk"))}
    path = graphs.save(tmp_path / "model.onnx", HEADS, weights)
    options = SliceOptions(dims={"n": 16})
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices", options=options)
    assert not [item for item in manifest.collectives if item.shape[-1] == 2]


@pytest.mark.parametrize(("world", "least", "most"), [(2, 1.3, 2.0), (8, 0.3, 1.0)])
def test_a_part_of_a_normalization_takes_several_passes(world: int, least: float, most: float) -> None:
    """ONNX Runtime normalizes a whole value in one; half of it, taken apart, takes 1.3 to 2 times as long."""
    shape = [8192, 512]
    view = NodeView(
        "LayerNormalization", "", 17, world, {}, [shape, [512]], [np.dtype(np.float32)] * 2, [None] * 2,
        [True] * 2, [shape],
    )  # fmt: skip
    (option,) = exchanging_options(view)
    whole = 8192 * 512 / ELEMENTS_PER_SECOND
    assert least < 1 / world + option.seconds / whole < most
