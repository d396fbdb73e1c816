"""Bodies and functions: known branches, weights inside bodies, inlined functions."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import sharding
from sharding.errors import ModelError
from sharding.onnx_files.functions import MAX_NODES
from sharding.reading.read import read_model
from tests.sharding import graphs, lockstep

HEADER = '<ir_version: 9, opset_import: ["" : 18, "own" : 1]>\n'


def _saved(path: Path, text: str, weights: dict[str, graphs.Array]) -> tuple[Path, onnx.ModelProto]:
    """A model whose initializers of these names, wherever they stand (in bodies too), get these values."""
    model = onnx.parser.parse_model(HEADER + text)
    for holder in (model.graph, *_bodies(model.graph), *(g for f in model.functions for g in _bodies(f))):
        names = {name for node in holder.node for name in node.input}
        if isinstance(holder, onnx.GraphProto):
            made = {name for node in holder.node for name in node.output}
            for name, value in weights.items():
                own = name if holder is model.graph else f"{holder.name}_{name}"
                if own in names and own not in made:
                    holder.initializer.append(numpy_helper.from_array(value, own))
    path.write_bytes(model.SerializeToString())
    return path, model


def _bodies(holder: Any) -> list[onnx.GraphProto]:
    found = []
    for node in holder.node:
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found += [attribute.g, *_bodies(attribute.g)]
    return found


def _check(path: Path, folder: Path, feeds: dict[str, Any], worlds: tuple[int, ...] = (2, 4)) -> Any:
    for world in worlds:
        manifest = sharding.slice_model(path, world, folder, allow_replicated=True)
        lockstep.assert_same(folder, path, feeds)
    return manifest


def _operators(path: Path) -> list[str]:
    return [node.op_type for node in read_model(path).model.graph]


KNOWN_IF = """
g (float[n, 16] x) => (float[n, 8] y, float[16, 32] kept) {
  flag = Constant<value = bool {1}>()
  t = Relu(x)
  d, kept = If (flag) <
    then_branch = a () => (float[n, 32] p, float[16, 32] pk) {
      t1 = MatMul(t, a_w1) p = Relu(t1) pk = Identity(a_w1)
    },
    else_branch = b () => (float[n, 32] q, float[16, 32] qk) {
      t1 = MatMul(t, b_w1) q = Abs(t1) qk = Identity(b_w1)
    }
  >
  n = Constant<value = int64 {2}>()
  e = Loop (n, flag, d) <body = c (int64 i, bool go, float[n, 32] v) => (bool stay, float[n, 32] r) {
      stay = Identity(go) t1 = Relu(v) r = Neg(t1)
  }>
  y = MatMul(e, w2)
}
"""


def test_a_branch_of_known_condition_becomes_part_of_the_graph(tmp_path: Path) -> None:
    """Its weight is split; its names may occur in bodies elsewhere."""
    path, _ = _saved(tmp_path / "model.onnx", KNOWN_IF, graphs.mlp_weights())
    assert "If" not in _operators(path)
    assert "b_w1" not in read_model(path).weights
    _check(path, tmp_path / "out", {"x": graphs.array(3, 16)})


def test_conditions_that_shapes_decide_are_known(tmp_path: Path) -> None:
    text = """
    g (float[n, 16] x) => (float[n, 32] y) {
      shape = Shape(x)
      one = Constant<value = int64 {1}>()
      axis = Gather(shape, one)
      sixteen = Constant<value = int64 {16}>()
      same = Equal(axis, sixteen)
      y = If (same) <
        then_branch = a () => (float[n, 32] p) {
          p = If (same) <
            then_branch = aa () => (float[n, 32] pp) { pp = MatMul(x, aa_w1) },
            else_branch = ab () => (float[n, 32] pq) { pq = MatMul(x, ab_w1) }
          >
        },
        else_branch = b () => (float[n, 32] q) { q = MatMul(x, b_w1) }
      >
    }"""
    path, _ = _saved(tmp_path / "model.onnx", text, graphs.mlp_weights())
    assert _operators(path) == ["MatMul"]
    manifest = _check(path, tmp_path / "out", {"x": graphs.array(3, 16)})
    assert manifest.weights["aa_w1"].placement == "split:1" and not manifest.whole


def test_the_number_of_axes_decides_a_branch(tmp_path: Path) -> None:
    """So torch exports ``x.tile(2)`` for a tensor whose lengths are open: the branches have other ranks."""
    text = """
    g (float[n, 16] x) => (float[n, 64] y) {
      f = Flatten<axis = 1>(x) shape = Shape(f) axes = Size(shape)
      one = Constant<value = int64 {1}>() more = Sub(axes, one)
      zero = Constant<value = int64[1] {0}>() few = Less(more, zero)
      t = If (few) <
        then_branch = a () => (float[o, n, 16] p) { p = Unsqueeze(f, zero) },
        else_branch = b () => (float[n, 16] q) { q = Identity(f) }
      >
      u = MatMul(t, w1) v = Relu(u) twice = Constant<value = int64[2] {1, 2}>() y = Tile(v, twice)
    }"""
    path, _ = _saved(tmp_path / "model.onnx", text, {"w1": graphs.array(16, 32)})
    assert "If" not in _operators(path)
    _check(path, tmp_path / "out", {"x": graphs.array(3, 16)})


UNKNOWN_IF = """
g (float[n, 48] x, bool flag) => (float[n, 48] y) {
  t = MatMul(x, w)
  d = If (flag) <
    then_branch = a () => (float[n, 48] p) { p = MatMul(t, a_w) },
    else_branch = b () => (float[n, 48] q) { u = Constant<value = float[1] {0.0}>() q = MatMul(t, u) }
  >
  two = Constant<value = int64 {2}>()
  e = Loop (two, , d) <body = c (int64 i, bool go, float[n, 48] v) => (bool stay, float[n, 48] r) {
      stay = Identity(go) r = MatMul(v, c_w)
  }>
  y = Relu(e)
}
"""


def test_weights_in_bodies_are_counted_and_reported(tmp_path: Path) -> None:
    weights = {"w": graphs.array(48, 48) / 7}
    path, model = _saved(tmp_path / "model.onnx", UNKNOWN_IF, weights)
    u = numpy_helper.from_array(weights["w"] * 2)
    model.graph.node[1].attribute[1].g.node[0].attribute[0].t.CopyFrom(u)
    path.write_bytes(model.SerializeToString())
    for flag in (True, False):
        manifest = _check(path, tmp_path / "out", {"x": graphs.array(3, 48), "flag": np.asarray(flag)})
    assert set(manifest.weights) == {"w", "a_w", "u", "c_w"}
    assert not manifest.whole
    assert {entry.placement for entry in manifest.weights.values()} <= {"split:0", "split:1"}
    assert manifest.ranks[0].weight_bytes == 48 * 48 * 4 + 8  # a quarter of each of four; the number of turns


def test_external_weights_in_bodies_are_not_loaded(tmp_path: Path) -> None:
    path, model = _saved(tmp_path / "model.onnx", UNKNOWN_IF, {"w": graphs.array(48, 48) / 7})
    branch = model.graph.node[1].attribute[1].g.node[0].attribute[0].t
    (tmp_path / "u.data").write_bytes((graphs.array(48, 48) / 9).tobytes())
    branch.CopyFrom(onnx.TensorProto(data_type=1, dims=[48, 48], data_location=onnx.TensorProto.EXTERNAL))
    branch.external_data.add(key="location", value="u.data")
    path.write_bytes(model.SerializeToString())
    weight = read_model(path).weights["u"]
    assert weight.extent is not None and weight.extent.path.name == "u.data"
    _check(path, tmp_path / "out", {"x": graphs.array(3, 48), "flag": np.asarray(False)})


def test_weights_that_a_body_returns_stay_in_it(tmp_path: Path) -> None:
    text = """
    g (float[48, 48] x, bool flag) => (float[48, 48] y) {
      y = If (flag) <
        then_branch = a () => (float[48, 48] p) { p = MatMul(x, a_w) },
        else_branch = b () => (float[48, 48] b_w) { k = Identity(b_w) }
      >
    }"""
    path, _ = _saved(tmp_path / "model.onnx", text, {"w": graphs.array(48, 48)})
    for flag in (True, False):
        _check(path, tmp_path / "out", {"x": graphs.array(48, 48), "flag": np.asarray(flag)})


NESTED = """
g (float[n, 16] x, bool flag) => (float[n, 16] y, float[n, 16] z) {
  t = Relu(x)
  [first] c = own.outer<alpha: float = 2.0>(t)
  [second] c2 = own.outer(c)
  d = If (flag) <
    then_branch = a () => (float[n, 16] p) { u = Relu(c2) p = own.inner<a: float = 0.5>(u) },
    else_branch = b () => (float[n, 16] q) { v__1 = Relu(c2) q = own.inner<a: float = 0.3>(v__1) }
  >
  y, z = own.twice(d)
}
<domain: "own", opset_import: ["" : 18, "own": 1]>
outer <alpha: float = 3.0>(x) => (z) { t = Relu(x) z = own.inner<a: float = @alpha>(t) }
<domain: "own", opset_import: ["" : 18]>
inner <a>(x) => (z) {
  v = LeakyRelu<alpha: float = @a>(x)
  w = Constant<value = float[1] {0.0}>()
  m = MatMul(v, w)
  c = Constant<value = bool {1}>()
  z = If(c) <then_branch = t1 () => (p) { v2 = Abs(m) p = Sin(v2) }, else_branch = t2 () => (q) { q = Abs(v)}>
}
<domain: "own", opset_import: ["" : 18]>
twice (x) => (a, b) { a = Relu(x) b = Identity(a) }
"""


@pytest.mark.parametrize("opset", [18, 17])
def test_functions_are_inlined(tmp_path: Path, opset: int) -> None:
    """Nested, with defaults and references of attributes, with names that occur outside; from another opset,
    where the operators are the same."""
    path, model = _saved(tmp_path / "model.onnx", NESTED, {})
    for function in model.functions:
        for item in function.opset_import:
            item.version = item.version if item.domain else opset
        for node in function.node:
            if node.op_type == "Constant" and node.attribute[0].t.data_type == 1:
                node.attribute[0].t.CopyFrom(numpy_helper.from_array(graphs.array(16, 16)))
    path.write_bytes(model.SerializeToString())
    source = read_model(path)
    assert not source.model.functions
    assert not {node.domain for node in source.model.graph} - {""}
    for flag in (True, False):
        manifest = _check(path, tmp_path / "out", {"x": graphs.array(3, 16), "flag": np.asarray(flag)})
    split = [name for name, item in manifest.weights.items() if item.placement.startswith("split")]
    assert len(split) == 2


def test_a_function_may_return_what_it_is_given(tmp_path: Path) -> None:
    """ONNX allows it, ONNX Runtime 1.31 does not."""
    text = """
    g (float[n, 16] x) => (float[n, 16] y, float[n, 8] z, float[n, 16] same) {
      y, h, same = own.pass(x)
      z = MatMul(h, w)
    }
    <domain: "own", opset_import: []>
    pass (x) => (x, x, x) { }"""
    path, _ = _saved(tmp_path / "model.onnx", text, {"w": graphs.array(16, 8)})
    sharding.slice_model(path, 2, tmp_path / "out")
    x = graphs.array(3, 16)
    for outputs in lockstep.run_slices(tmp_path / "out", {"x": x}):
        np.testing.assert_array_equal(outputs["y"], x)
        np.testing.assert_array_equal(outputs["same"], x)
        assert lockstep.relative_error(outputs["z"], x @ graphs.array(16, 8)) <= 1e-4


def test_a_default_that_is_handed_on_stays_in_its_function(tmp_path: Path) -> None:
    """Whether the inner default counts shows only where the outer one is called."""
    text = """
    g (float[n, 16] x) => (float[n, 8] y) { h = own.outer(x) y = MatMul(h, w) }
    <domain: "own", opset_import: ["" : 18, "own": 1]>
    outer <alpha>(x) => (z) { z = own.inner<a: float = @alpha>(x) }
    <domain: "own", opset_import: ["" : 18]>
    inner <a: float = 0.25>(x) => (z) { z = LeakyRelu<alpha: float = @a>(x) }"""
    path, _ = _saved(tmp_path / "model.onnx", text, {"w": graphs.array(16, 8)})
    assert _operators(path) == ["outer", "MatMul"]
    _check(path, tmp_path / "out", {"x": -np.abs(graphs.array(3, 16))})


def test_a_function_of_other_operator_versions_stays_whole(tmp_path: Path) -> None:
    text = """
    g (float[n, 16] x) => (float[n, 8] y) { h = own.rows(x) y = MatMul(h, w) }
    <domain: "own", opset_import: ["" : 12]>
    rows (x) => (z) { z = Softmax(x) }"""
    path, model = _saved(tmp_path / "model.onnx", text, {"w": graphs.array(16, 8)})
    assert "rows" in _operators(path)
    assert len(model.functions) == 1
    _check(path, tmp_path / "out", {"x": graphs.array(3, 16)})
    rank = onnx.load(tmp_path / "out/rank_0.onnx")
    assert [function.name for function in rank.functions] == ["rows"]


def test_a_function_that_calls_itself_is_refused(tmp_path: Path) -> None:
    text = """
    g (float[n, 16] x) => (float[n, 16] y) { y = own.one(x) }
    <domain: "own", opset_import: ["" : 18, "own": 1]> one (x) => (z) { z = own.two(x) }
    <domain: "own", opset_import: ["" : 18, "own": 1]> two (x) => (z) { z = own.one(x) }"""
    path, model = _saved(tmp_path / "model.onnx", text, {})
    with pytest.raises(ModelError, match=r"its function '(one|two)' calls itself"):
        read_model(path)
    model.functions[1].name = "one"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ModelError, match="it has two functions named 'one'"):
        read_model(path)


def test_functions_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    """Forty functions that each call the next one twice are a million million nodes."""
    function = '<domain: "own", opset_import: ["" : 18, "own": 1]> f{} (x) => (z) {{ y = {}(x) z = {}(y) }}\n'
    text = "g (float[n, 16] x) => (float[n, 16] y) { y = own.f0(x) }\n"
    text += "".join(function.format(i, f"own.f{i + 1}", f"own.f{i + 1}") for i in range(40))
    path, _ = _saved(tmp_path / "model.onnx", text + function.format(40, "Relu", "Neg"), {})
    with pytest.raises(ModelError, match=f"it would have {2**41} nodes; at most {MAX_NODES}"):
        read_model(path)


def test_an_input_with_a_default_stays_one(tmp_path: Path) -> None:
    """Where some initializers are inputs too; where all are, it is the way of old exporters."""
    model = onnx.load(graphs.mlp(tmp_path / "model.onnx"))
    listed = onnx.helper.make_tensor_value_info("b2", 1, [8])
    model.graph.input.append(listed)
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    manifest = _check(path, tmp_path / "out", {"x": graphs.array(3, 16)})
    assert [item.name for item in manifest.inputs] == ["x"]
    assert "b2" not in manifest.weights and manifest.weights["w1"].placement == "split:1"
    rank = onnx.load(tmp_path / "out/rank_0.onnx")
    assert [item.name for item in rank.graph.input] == ["x", "b2"]
    default = next(item for item in rank.graph.initializer if item.name == "b2")
    np.testing.assert_array_equal(numpy_helper.to_array(default), graphs.mlp_weights()["b2"])
    for item in model.graph.initializer:
        if item.name != "b2":
            model.graph.input.append(onnx.helper.make_tensor_value_info(item.name, item.data_type, item.dims))
    path.write_bytes(model.SerializeToString())
    assert [item.name for item in read_model(path).model.graph.inputs] == ["x"]
