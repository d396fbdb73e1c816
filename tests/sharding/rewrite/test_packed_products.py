"""A product whose result is cut into unequal pieces becomes a product for each, of parts of its weight."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sharding
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

INTS = {
    f"i{n}".replace("-", "m"): np.asarray([n]) for n in (-3, -2, -1, 0, 1, 2, 3, 4, 8, 10, 16, 24, 32, 40, 48)
}
WEIGHTS = {
    **INTS,
    "w": graphs.array(16, 64),
    "wt": graphs.array(64, 16),
    "b": graphs.array(64),
    "b3": graphs.array(1, 1, 64),
    "sizes": np.asarray([32, 16, 16]),
    "heads": np.asarray([0, 0, 8, 8]),
    "v": graphs.array(32, 16),
    "w8": (graphs.array(16, 64) * 40).astype(np.int8),
    "by_column": np.abs(graphs.array(64)) / 40,
    "by_row": np.abs(graphs.array(16)) / 40,
    "one_scale": np.asarray(0.025, np.float32),
    "points": (graphs.array(64, seed=2) * 9).astype(np.int8),
    "last": np.asarray([[7]]),
    "third": np.asarray([[-2]]),
}
SLICES = "q = Slice(p, i0, i32, im1) k = Slice(p, i32, i48, i2, i1) v_ = Slice(p, i48, i64, i2, i1)"
USES = "kv = Add(k, v_) two = Concat<axis = 2>(kv, kv) s = Add(q, two) y = MatMul(s, v)"
PRODUCTS = {
    "slices": "p = MatMul(x, w) " + SLICES,
    "split": "p = MatMul(x, w) q, k, v_ = Split<axis = -1>(p, sizes)",
    "bias": "m = MatMul(x, w) p = Add(b, m) q, k, v_ = Split<axis = 2>(p, sizes)",
    "bias_of_three_axes": "m = MatMul(x, w) p = Add(m, b3) q, k, v_ = Split<axis = 2>(p, sizes)",
    "transposed": "t = Transpose<perm = [1, 0]>(wt) p = MatMul(x, t) " + SLICES,
    "by_column": "d = DequantizeLinear<axis = -1>(w8, by_column, points) p = MatMul(x, d) " + SLICES,
    "by_row": "d = DequantizeLinear<axis = 0>(w8, by_row) p = MatMul(x, d) " + SLICES,
    "one_scale": "d = DequantizeLinear(w8, one_scale) p = MatMul(x, d) " + SLICES,
    "unsqueezed": "m = MatMul(x, w) p = Unsqueeze(m, i0) a, c, d = Split<axis = -1>(p, sizes)"
    " q = Squeeze(a, i0) k = Squeeze(c, i0) v_ = Squeeze(d, i0)",
}


def _graph(body: str, more: str = "") -> str:
    return f"g (float[batch, seq, 16] x) => (float[batch, seq, 16] y{more}) {{ {body} {USES} }}".replace(
        " q", "\n q"
    )


def _save(path: Path, text: str, **weights: Any) -> Path:
    known = {**WEIGHTS, "i64": np.asarray([64]), **weights}
    read = set(text.replace(",", " ").replace("(", " ").replace(")", " ").split())
    graphs.save(path, text, {name: value for name, value in known.items() if name in read})
    model = onnx.load(path)
    onnx.save(model, path, save_as_external_data=True, location="model.data", size_threshold=1024)
    return path


def _products(path: Path) -> list[str]:
    weights = [node.inputs[1] for node in read_model(path).model.graph if node.op_type == "MatMul"]
    return [str(value.name) for value in weights if value is not None]


def _check(path: Path, tmp_path: Path, ranks: int = 2, whole: int = 0) -> None:
    feeds = {"x": graphs.array(3, 5, 16)}
    manifest = sharding.slice_model(path, ranks, tmp_path / f"slices_{ranks}")
    assert sum(str(weight.placement) == "replicated" for weight in manifest.weights.values()) == whole
    lockstep.assert_same(tmp_path / f"slices_{ranks}", path, feeds)


@pytest.mark.parametrize("name", PRODUCTS)
def test_unequal_pieces(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lockstep.without_rounding(monkeypatch)
    path = _save(tmp_path / "model.onnx", _graph(PRODUCTS[name]))
    source = read_model(path)
    assert len([node for node in source.model.graph if node.op_type == "MatMul"]) == 4
    assert not {"w", "w8", "wt", "b", "by_column", "points"} & set(source.weights)
    for ranks in (2, 4):
        sharding.slice_model(path, ranks, tmp_path / f"{ranks}")
        lockstep.assert_same(tmp_path / f"{ranks}", path, {"x": graphs.array(3, 5, 16)})
        assert lockstep.collectives(tmp_path / f"{ranks}") == ["AllReduce"]


@pytest.mark.parametrize(
    "body",
    [
        # Equal pieces: blocks of one weight.
        "p = MatMul(x, w) q, r = Split<axis = -1>(p, half)"
        " k = Slice(r, i0, i16, i2) v_ = Slice(r, i16, i32, i2)",
        # The whole is seen, directly, as an output or by another slice that overlaps.
        "p = MatMul(x, w) " + SLICES + " z = Relu(p)",
        "p = MatMul(x, w) " + SLICES.replace("i32, i48", "i24, i40"),
        # Not the last axis; with a step; a weight used twice.
        "p = MatMul(x, w) " + SLICES.replace("i48, i64, i2, i1", "i32, i64, i2, i2"),
        "p = MatMul(x, w) n = MatMul(x, w) " + SLICES.replace("v_ = Slice(p", "v_ = Slice(n"),
    ],
)
def test_other_uses_keep_the_product(tmp_path: Path, body: str) -> None:
    more = ", float[batch, seq, 64] z" if " z = " in body else ""
    path = _save(tmp_path / "model.onnx", _graph(body, more), half=np.asarray([32, 32]))
    assert "w" in _products(path)
    _check(path, tmp_path)


def test_narrow_products_stay_one(tmp_path: Path) -> None:
    """Fewer columns than rows: the product is summed over the ranks, at once for all its pieces."""
    text = """g (float[batch, 64] x) => (float[batch, 8] y, float[batch, 4] z) {
      p = MatMul(x, narrow)
      y, z = Split<axis = 1>(p, unequal)
    }"""
    path = _save(tmp_path / "model.onnx", text, narrow=graphs.array(64, 12), unequal=np.asarray([8, 4]))
    assert _products(path) == ["narrow"]


@pytest.mark.parametrize("ranks", [2, 3])
def test_one_key_and_value_head(tmp_path: Path, ranks: int) -> None:
    """Heads beside one key and one value head, looked up as exporters write it, or sliced."""
    text = """g (float[batch, seq, 18] x) => (float[batch, seq, 6, 8] y) {
      p = MatMul(x, packed)
      h = Reshape(p, heads)
      q = Slice(h, i0, im2, i2, i1)
      first = Transpose<perm = [2, 0, 1, 3]>(h)
      k0 = GatherND(first, third)
      v0 = GatherND(first, last)
      k = Transpose<perm = [1, 2, 0, 3]>(k0)
      v_ = Transpose<perm = [1, 2, 0, 3]>(v0)
      s = Mul(q, k)
      y = Add(s, v_)
    }"""
    path = _save(tmp_path / "model.onnx", text, packed=graphs.array(18, 64))
    columns = [name.rsplit("_", 1)[1] for name in _products(path)]
    assert columns == ["0", "48", "56"]
    sharding.slice_model(path, ranks, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 5, 18)})


@pytest.mark.parametrize("zero_points", [False, True])
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("hidden", [64, 192])
def test_packed_attention_of_a_quantized_product(
    tmp_path: Path, hidden: int, zero_points: bool, flat: bool
) -> None:
    """4-bit weights of packed queries, keys and values: scales and zero points of several blocks a column.
    With 192 rows the product has fewer columns than rows, and still each rank needs its own heads alone."""
    random = np.random.default_rng(5)
    heads, pairs, size, block = 4, 2, 16, 32
    columns, blocks = (heads + 2 * pairs) * size, hidden // block
    scales = graphs.array(columns, blocks) * 0.05
    points = random.integers(0, 256, (columns, (blocks + 1) // 2), dtype=np.uint8)
    weights: dict[str, Any] = {
        "packed": random.integers(0, 256, (columns, blocks, block // 2), dtype=np.uint8),
        "scales": scales.reshape(-1) if flat else scales,
        "points": points.reshape(-1) if flat else points,
        "total": np.asarray(5, np.int32),
        "lengths": np.full((2,), 4, np.int32),
        "out": graphs.array(heads * size, hidden),
    }
    more = ", points" if zero_points else ""
    if not zero_points:
        del weights["points"]
    text = f"""<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
    g (float[2, 5, {hidden}] x) => (float[2, 5, {hidden}] y) {{
      p = com.microsoft.MatMulNBits<K = {hidden}, N = {columns}, bits = 4, block_size = {block}>(
        x, packed, scales{more})
      a, key, value = com.microsoft.GroupQueryAttention<num_heads = {heads}, kv_num_heads = {pairs}>(
        p, , , , , lengths, total)
      y = MatMul(a, out)
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(item, name) for name, item in weights.items())
    path = tmp_path / "model.onnx"
    onnx.save(model, path)
    attention = next(n for n in read_model(path).model.graph if n.op_type == "GroupQueryAttention")
    assert all(value is not None for value in attention.inputs[:3])
    sharding.slice_model(path, 2, tmp_path / "slices")
    assert "AllGather" not in lockstep.collectives(tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 5, hidden)})


def test_gemm_with_a_bias(tmp_path: Path) -> None:
    text = """g (float[batch, 16] x) => (float[batch, 16] y) {
      p = Gemm<transB = 1, alpha = 0.5>(x, wt, b)
      q, k, v_ = Split<axis = 1>(p, sizes)
      kv = Mul(k, v_)
      two = Concat<axis = 1>(kv, kv)
      s = Add(q, two)
      y = MatMul(s, v)
    }"""
    path = _save(tmp_path / "model.onnx", text)
    sharding.slice_model(path, 4, tmp_path / "slices")
    assert sum(node.op_type == "Gemm" for node in read_model(path).model.graph) == 3
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 16)})


@pytest.mark.parametrize(
    "weight",
    [
        "scales = Mul(by_column, one_scale) d = DequantizeLinear<axis = 1>(w8, scales)",
        "scales = Exp(by_column) d = DequantizeLinear<axis = 1>(w8, scales)",
        "m = Identity(w8) n = Neg(m) d = DequantizeLinear<axis = 1>(n, by_column)",
    ],
)
def test_a_weight_whose_scales_are_computed_stays_whole(
    tmp_path: Path, weight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    lockstep.without_rounding(monkeypatch)
    path = _save(tmp_path / "model.onnx", _graph(f"{weight} p = MatMul(x, d) " + SLICES))
    source = read_model(path)
    assert len([node for node in source.model.graph if node.op_type == "MatMul"]) == 2
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 5, 16)})
