"""Queries and keys that are normalized over all heads: one tiny sum for both, beside the attention's own."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import sharding
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

HEADS, SIZE, WIDTH = 8, 4, 32
ATTENTION = """g (float[batch, seq, 32] x) => (float[batch, seq, 32] y) {
  q0 = MatMul(x, wq) k0 = MatMul(x, wk) v0 = MatMul(x, wv)
  NORMS
  q1 = Reshape(q, split) q2 = Transpose<perm = [0, 2, 1, 3]>(q1)
  k1 = Reshape(k, split) k2 = Transpose<perm = [0, 2, 3, 1]>(k1)
  v1 = Reshape(v0, split) v2 = Transpose<perm = [0, 2, 1, 3]>(v1)
  s = MatMul(q2, k2) p = Softmax<axis = -1>(s) c = MatMul(p, v2)
  ct = Transpose<perm = [0, 2, 1, 3]>(c) cf = Reshape(ct, flat) y = MatMul(cf, wo)
}"""
NORMS = {
    "mean of a power": (
        "Ns = Pow(N0, two) Nm = ReduceMean(Ns, last) Na = Add(Nm, eps) Nr = Sqrt(Na) Nd = Div(N0, Nr) "
        "N = Mul(gN, Nd)"
    ),
    "sum of a product": (
        "Nb = Add(N0, gN) Ns = Mul(Nb, Nb) Nm = ReduceSum(Ns, last) Na = Add(Nm, eps) Nr = Sqrt(Na) "
        "N = Div(Nb, Nr)"
    ),
    "in double": (
        "Nc = Cast<to = 11>(N0) Ns = Mul(Nc, Nc) Nm = ReduceMean(Ns, last) Na = Add(Nm, deps) Nr = Sqrt(Na) "
        "Nd = Div(Nc, Nr) Ne = Cast<to = 1>(Nd) N = Mul(Ne, gN)"
    ),
    "one operator": "N = RMSNormalization<epsilon = 1e-3>(N0, gN)",
}


def _model(path: Path, norm: str, opset: int) -> Path:
    weights = {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i) / 6 for i, name in enumerate("qkvo")}
    weights |= {f"g{name}": 1 + graphs.array(WIDTH, seed=i) / 9 for i, name in enumerate("qk")}
    weights |= {"split": np.asarray([0, 0, HEADS, SIZE]), "flat": np.asarray([0, 0, WIDTH])}
    weights |= {
        "last": np.asarray([-1]),
        "two": np.float32(2),
        "eps": np.float32(1e-5),
        "deps": np.float64(1e-5),
    }
    text = ATTENTION.replace("NORMS", norm.replace("N", "q") + " " + norm.replace("N", "k"))
    text = text.replace("RMSqormalization", "RMSNormalization").replace(
        "RMSkormalization", "RMSNormalization"
    )
    return graphs.save(path, text, weights, opset=opset)


def _check(path: Path, folder: Path) -> None:
    for ranks in (2, 4):
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 2}
        assert {str(plan.weights[name][0]) for name in ("wq", "wk", "wv")} == {"split:1"}
        sharding.slice_model(path, ranks, folder / str(ranks))
        for batch, length in ((2, 5), (1, 1)):
            feeds = {"x": graphs.array(batch, length, WIDTH)}
            lockstep.assert_same(folder / str(ranks), path, feeds, tolerance=1e-5)


@pytest.mark.parametrize("name", NORMS)
def test_one_sum_for_queries_and_keys(tmp_path: Path, name: str) -> None:
    opset = 23 if name == "one operator" else 18
    _check(_model(tmp_path / "model.onnx", NORMS[name], opset), tmp_path)


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_the_operator_that_builders_write(tmp_path: Path, kind: str) -> None:
    path = _model(tmp_path / "model.onnx", NORMS["mean of a power"], 18)
    model = onnx.load(path)
    for name in "qk":
        for node in [
            node for node in model.graph.node if node.output[0] in {f"{name}{part}" for part in "smard"}
        ]:
            model.graph.node.remove(node)
        (last,) = (node for node in model.graph.node if node.output[0] == name)
        last.CopyFrom(
            helper.make_node("SimplifiedLayerNormalization", [f"{name}0", f"g{name}"], [name], epsilon=1e-5)
        )
    if kind == "float16":
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT:
                tensor.CopyFrom(
                    numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float16), tensor.name)
                )
        for info in (*model.graph.input, *model.graph.output):
            info.type.tensor_type.elem_type = TensorProto.FLOAT16
    onnx.save(model, path)
    if kind == "float":
        _check(path, tmp_path)
        return
    assert sharding.plan_model(path, 2).collective_counts() == {"AllReduce": 2}
    sharding.slice_model(path, 2, tmp_path / "slices")
    feeds = {"x": graphs.array(2, 5, WIDTH).astype(np.float16)}
    lockstep.assert_same(tmp_path / "slices", path, feeds, tolerance=2e-3)


def test_other_means_stay(tmp_path: Path) -> None:
    """Of one product, of the hidden state itself, and of what is an output."""
    text = """g (float[batch, 32] x) => (float[batch, 32] y, float[batch, 1] m) {
      s = Mul(x, x) m = ReduceMean(s, last) a = Add(m, eps) r = Sqrt(a) n = Div(x, r)
      p = MatMul(n, w) q = Mul(p, p) o = ReduceMean(q, last) b = Add(o, eps) t = Sqrt(b) u = Div(p, t)
      y = MatMul(u, v)
    }"""
    weights = {"w": graphs.array(32, 32), "v": graphs.array(32, 32, seed=1), "last": np.asarray([-1])}
    path = graphs.save(tmp_path / "model.onnx", text, weights | {"eps": np.float32(1e-5)})
    sharding.slice_model(path, 2, tmp_path / "slices")
    for rank in range(2):
        nodes = onnx.load(tmp_path / f"slices/rank_{rank}.onnx", load_external_data=False).graph.node
        assert all(node.op_type != "Concat" for node in nodes)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 32)}, tolerance=1e-5)


@pytest.mark.parametrize("kind", ["double", "scale of another type"])
def test_normalizations_of_other_types_stay_as_exact(tmp_path: Path, kind: str) -> None:
    """ONNX Runtime computes doubles in double, and gives what the scale is."""
    text = """g (double[batch, 32] x) => (double[batch, 8] y) {
      q0 = MatMul(x, wq) k0 = MatMul(x, wk)
      q = SimplifiedLayerNormalization<epsilon = 1e-5>(q0, gq)
      k = SimplifiedLayerNormalization<epsilon = 1e-5>(k0, gk)
      s = Mul(q, k) y = MatMul(s, wo)
    }"""
    wide, scale = np.float64, np.float64
    if kind != "double":
        text, wide, scale = text.replace("double", "float"), np.float32, np.float16
        text = text.replace("y = MatMul(s, wo)", "t = Cast<to = 1>(s) y = MatMul(t, wo)")
    weights = {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i).astype(wide) / 6 for i, name in enumerate("qk")}
    weights |= {
        f"g{name}": (1 + graphs.array(WIDTH, seed=i) / 9).astype(scale) for i, name in enumerate("qk")
    }
    weights |= {"wo": graphs.array(WIDTH, 8, seed=5).astype(wide)}
    model = onnx.parser.parse_model('<ir_version: 9, opset_import: ["" : 18]>\n' + text)
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in weights.items())
    path = tmp_path / "model.onnx"
    onnx.save(model, path)  # onnx does not know the operator
    sharding.slice_model(path, 2, tmp_path / "slices")
    feeds = {"x": graphs.array(3, WIDTH).astype(wide)}
    lockstep.assert_same(tmp_path / "slices", path, feeds, tolerance=1e-12 if kind == "double" else 2e-3)


def test_a_bias_that_waits_for_the_other_mean(tmp_path: Path) -> None:
    """The two cannot be computed side by side."""
    text = """g (float[batch, 32] x) => (float[batch, 32] y) {
      q0 = Gemm(x, wq) qs = Mul(q0, q0) qm = ReduceMean(qs, last) qa = Add(qm, eps) qr = Sqrt(qa)
      q = Div(q0, qr)
      k0 = Gemm(x, wk, q) ks = Mul(k0, k0) km = ReduceMean(ks, last) ka = Add(km, eps) kr = Sqrt(ka)
      k = Div(k0, kr) s = Mul(q, k) y = MatMul(s, wo)
    }"""
    weights = {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i) / 6 for i, name in enumerate("qko")}
    weights |= {"last": np.asarray([-1]), "eps": np.float32(1e-5)}
    path = graphs.save(tmp_path / "model.onnx", text, weights, opset=18)
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, WIDTH)}, tolerance=1e-5)


def test_means_without_their_axis_stay_apart(tmp_path: Path) -> None:
    """Side by side they would be longer rows."""
    text = """g (float[batch, 5, 32] x) => (float[batch, 5] y) {
      q = MatMul(x, wq) k = MatMul(x, wk)
      a = ReduceMean<keepdims = 0>(q, last) b = ReduceMean<keepdims = 0>(k, last)
      y = Add(a, b)
    }"""
    weights = {f"w{name}": graphs.array(WIDTH, WIDTH, seed=i) for i, name in enumerate("qk")}
    path = graphs.save(tmp_path / "model.onnx", text, {**weights, "last": np.asarray([-1])})
    kinds = [node.op_type for node in read_model(path).model.graph]
    assert kinds.count("ReduceMean") == 2 and "Concat" not in kinds
