"""Weights that a graph computes from weights alone become one weight, which is cut like any other."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sharding
from sharding.demands.options import SliceOptions
from sharding.rewrite import built_weights, folded_weights
from sharding.slices.manifest import read_manifest
from tests.sharding import graphs, lockstep

CONVOLUTIONS = """g (float[batch, 16, time] x) => (float[batch, 16, time] y) {
  FIRST
  c = Conv<pads = [1, 1]>(x, w_0)
  r = Relu(c)
  SECOND
  y = Conv<pads = [1, 1]>(r, w_1)
}"""
NORMS = {
    "of each output": "n = ReduceL2<keepdims = 1>(v, axes) d = Div(g, n) w = Mul(v, d)",
    "of each tap": "n = ReduceL2<keepdims = 1>(v, taps) d = Div(g, n) w = Mul(v, d)",
    "of each input": "n = ReduceL2<keepdims = 1>(v, inputs) u = Div(v, n) w = Mul(u, g)",
    "of all": "n = ReduceL2<keepdims = 1>(v, every) d = Div(g, n) w = Mul(v, d)",
    "by parts": "s = Mul(v, v) q = ReduceSum<keepdims = 1>(s, axes) z = Add(q, tiny) n = Sqrt(z) "
    "u = Div(v, n) w = Mul(g, u)",
    "by powers": "s = Pow(v, two) q = ReduceSum<keepdims = 1>(s, axes) n = Sqrt(q) c = Max(n, tiny) "
    "e = Expand(c, shape) u = Div(v, e) w = Mul(u, g)",
    "spectral": "f = Reshape(v, matrix) t = MatMul(f, right) n = MatMul(left, t) w = Div(v, n)",
    "spectral, transposed": "p = Transpose<perm = [1, 0, 2]>(v) f = Reshape(p, matrix) t = MatMul(f, right) "
    "m = Mul(left, t) n = ReduceSum<keepdims = 0>(m) w = Div(v, n)",
    "standardised": "m = ReduceMean<keepdims = 1>(v, axes) a = Sub(v, m) s = Mul(a, a) "
    "q = ReduceMean<keepdims = 1>(s, axes) z = Add(q, tiny) n = Sqrt(z) u = Div(a, n) w = Mul(u, g)",
}
SCALES = {"of each tap": (1, 1, 3), "of each input": (1, 16, 1), "of all": (1, 1, 1)}


def _weights(form: str) -> dict[str, graphs.Array]:
    found: dict[str, graphs.Array] = {"axes": np.asarray([1, 2]), "taps": np.asarray([0, 1])}
    found |= {"inputs": np.asarray([0, 2]), "every": np.asarray([0, 1, 2]), "shape": np.asarray([16, 16, 3])}
    found |= {"matrix": np.asarray([16, -1]), "tiny": np.float32(1e-6), "two": np.float32(2)}
    found |= {"left": graphs.array(16), "right": graphs.array(48)}
    for layer in range(2):
        found |= {f"v_{layer}": graphs.array(16, 16, 3, seed=layer)}
        found |= {f"g_{layer}": graphs.array(*SCALES.get(form, (16, 1, 1)), seed=layer)}
    return found


def _layer(form: str, layer: int) -> str:
    return re.sub(r"\b([a-z])\b", rf"\1_{layer}", form)


@pytest.mark.parametrize("pattern", ["v_1", "g_1", "w_1"])
def test_steering_by_the_names_of_the_file(tmp_path: Path, pattern: str) -> None:
    """What is asked of a weight that was folded is asked of what it became."""
    form = NORMS["of each output"]
    text = CONVOLUTIONS.replace("FIRST", _layer(form, 0)).replace("SECOND", _layer(form, 1))
    path = graphs.save(tmp_path / "model.onnx", text, _weights("of each output"))
    (tmp_path / "steering.yaml").write_text(f"{pattern}: split:0\n")
    options = SliceOptions(steering=tmp_path / "steering.yaml")
    plan = sharding.plan_model(path, 2, options=options)
    assert {name: str(plan.weights[name][0]) for name in ("w_0", "w_1")}["w_1"] == "split:0"
    assert str(sharding.plan_model(path, 2).weights["w_1"][0]) == "split:1"
    sharding.slice_model(path, 2, tmp_path / "slices", options=options)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 16, 7)}, tolerance=1e-5)
    weights = read_manifest(tmp_path / "slices").weights
    assert set(weights["w_1"].made_of) == {"v_1", "g_1"}


@pytest.mark.parametrize("form", NORMS)
def test_normalised_weights(tmp_path: Path, form: str) -> None:
    """Column and row of the two convolutions, one sum, whatever the norm goes over."""
    text = CONVOLUTIONS.replace("FIRST", _layer(NORMS[form], 0)).replace("SECOND", _layer(NORMS[form], 1))
    path = graphs.save(tmp_path / "model.onnx", text, _weights(form))
    for ranks in (2, 4, 8):
        plan = sharding.plan_model(path, ranks)
        assert plan.collective_counts() == {"AllReduce": 1}
        assert {name: str(plan.weights[name][0]) for name in ("w_0", "w_1")} == {
            "w_0": "split:0",
            "w_1": "split:1",
        }
        assert not {"v_0", "v_1", "g_0", "g_1"}.intersection(plan.weights)
    sharding.slice_model(path, 4, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 16, 7)}, tolerance=1e-5)


MATRICES = """g (TYPE[batch, 64] x) => (TYPE[batch, 64] y) {
  BODY
  a = MatMul(x, w)
  r = Relu(a)
  y = MatMul(r, last)
}"""


def _matrices(path: Path, body: str, kind: str = "float", **weights: Any) -> Path:
    weights = {"last": graphs.array(64, 64, seed=9), **weights}
    dtype = np.float16 if kind == "float16" else np.float32
    cast = {
        name: value.astype(dtype) if value.dtype.kind == "f" else value for name, value in weights.items()
    }
    return graphs.save(path, MATRICES.replace("BODY", body).replace("TYPE", kind), cast)


def _operators(path: Path) -> set[str]:
    return {step.node.op_type for step in sharding.plan_model(path, 2, allow_replicated=True).steps}


@pytest.mark.parametrize("kind", ["float", "float16"])
def test_an_adapter_is_merged(tmp_path: Path, kind: str) -> None:
    body = "p = MatMul(down, up) s = Mul(p, scale) w = Add(base, s)"
    arrays = {"base": graphs.array(64, 64), "down": graphs.array(64, 2), "up": graphs.array(2, 64)}
    path = _matrices(tmp_path / "m.onnx", body, kind, **arrays, scale=np.float32(0.5))
    assert _operators(path) == {"MatMul", "Relu"}
    assert sharding.plan_model(path, 4).collective_counts() == {"AllReduce": 1}
    sharding.slice_model(path, 2, tmp_path / "slices")
    feeds = {"x": (graphs.array(3, 64) / 8).astype(np.float16 if kind == "float16" else np.float32)}
    tolerance = 1e-2 if kind == "float16" else 1e-5
    lockstep.assert_same(tmp_path / "slices", path, feeds, tolerance)


@pytest.mark.parametrize(
    ("body", "weights", "more"),
    [
        # Larger than what it is made of: two narrow matrices stay two.
        ("w = MatMul(down, up)", {"down": graphs.array(64, 2), "up": graphs.array(2, 64)}, ""),
        # A bare transposition and a scale: cut with their use, under the weight's own name.
        ("t = Transpose(v) w = Mul(t, one)", {"v": graphs.array(64, 64), "one": np.float32(2)}, ""),
        # The weight is used as it is too: a second copy would be held.
        (
            "n = ReduceL2(v) w = Div(v, n)",
            {"v": graphs.array(64, 64)},
            "z = MatMul(x, v)",
        ),
    ],
    ids=["grows", "moves", "shared"],
)
def test_what_stays_in_the_graph(
    tmp_path: Path, body: str, weights: dict[str, graphs.Array], more: str
) -> None:
    path = _matrices(tmp_path / "m.onnx", body, **weights)
    if more:
        text = MATRICES.replace("BODY", body + " " + more).replace("TYPE", "float")
        text = text.replace("float[batch, 64] y)", "float[batch, 64] y, float[batch, 64] z)")
        path = graphs.save(tmp_path / "more.onnx", text, weights | {"last": graphs.array(64, 64)})
    plan = sharding.plan_model(path, 2, allow_replicated=True)
    assert set(weights) - {"one"} <= set(plan.weights)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 64)})


def test_too_large_to_compute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _matrices(tmp_path / "m.onnx", "n = ReduceL2(v) w = Div(v, n)", v=graphs.array(64, 64))
    assert "ReduceL2" not in _operators(path)
    monkeypatch.setattr(folded_weights, "WORKING_BYTES", 64 * 64 * 4)
    assert "ReduceL2" in _operators(path)


def test_only_a_transposition_of_the_result_stays(tmp_path: Path) -> None:
    """Weights in a file of their own, too: they are read when the result is written."""
    weights = {"v": graphs.array(64, 64), "last": graphs.array(64, 64)}
    text = MATRICES.replace("BODY", "n = ReduceL2(v) d = Div(v, n) w = Transpose(d)").replace("TYPE", "float")
    path = graphs.save(tmp_path / "m.onnx", text, weights, external=True)
    assert set(sharding.plan_model(path, 2).weights) == {"d", "last"}
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 64)})
    held = onnx.load(tmp_path / "slices" / "rank_1.onnx")
    (own,) = [numpy_helper.to_array(item) for item in held.graph.initializer if item.name == "d"]
    whole = weights["v"] / np.linalg.norm(weights["v"])
    np.testing.assert_allclose(own, whole[32:], rtol=1e-6)


def test_a_softmax_of_before_opset_13(tmp_path: Path) -> None:
    """All axes from the given one on are one, of which onnx's reference implementation knows nothing."""
    text = "g (float[n, 16] x) => (float[n, 8] y) { s = Softmax<axis = 0>(v) y = MatMul(x, s) }"
    path = graphs.save(tmp_path / "model.onnx", text, {"v": graphs.array(16, 8)}, opset=12)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(3, 16)})


def test_a_weight_that_is_an_output_too_is_kept(tmp_path: Path) -> None:
    """Though nothing else uses it any more."""
    import onnx_ir as ir

    text = """g (float[n, 16] x) => (float[n, 16] y, float[16, 16] scale) {
      w = Mul(v, scale)
      y = MatMul(x, w)
    }"""
    weights = {"v": graphs.array(16, 16), "scale": graphs.array(16, 16, seed=1)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    model = ir.load(path)
    product = model.graph[0].outputs[0]
    product.dtype, product.shape = ir.DataType.FLOAT, ir.Shape([16, 16])
    assert built_weights.build(model, product, [model.graph[0]], path) == ("v",)
    assert set(model.graph.initializers) == {"scale", "w"}
