"""Bodies of control flow with weights: planned with the graph around them, bodies again in rank models."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import ShardrunError, SliceError
from sharding.planning.plan import plan_model
from sharding.reading.read import read_model
from sharding.slices.manifest import read_manifest
from sharding.slices.mesh import Mesh
from tests.sharding import graphs, lockstep, merged_decoder

pytestmark = pytest.mark.usefixtures("read_once")

HEADER = '<ir_version: 9, opset_import: ["" : 18]>\n'
WEIGHTS = {
    "w1": graphs.array(48, 96) / 7,
    "w2": graphs.array(96, 48) / 7,
    "w3": graphs.array(48, 48) / 7,
    "w4": graphs.array(48, 48, seed=2) / 7,
    "bias": graphs.array(96),
    "scale": 1 + graphs.array(48) / 9,
    "gates": graphs.array(48, 192) / 7,
    "again": graphs.array(48, 192, seed=1) / 7,
    "level": np.array(0.1, np.float32),
    "lower": np.array(-1, np.float32),
}


def _save(path: Path, text: str, header: str = HEADER) -> Path:
    model = onnx.parser.parse_model(header + text)
    used = {name for holder in _holders(model.graph) for node in holder.node for name in node.input}
    model.graph.initializer.extend(
        numpy_helper.from_array(array, name) for name, array in WEIGHTS.items() if name in used
    )
    path.write_bytes(model.SerializeToString())
    return path


def _holders(graph: onnx.GraphProto) -> list[onnx.GraphProto]:
    bodies = [item.g for node in graph.node for item in node.attribute if item.HasField("g")]
    return [graph, *(inner for body in bodies for inner in _holders(body))]


def _operators(folder: Path) -> Counter[str]:
    model = onnx.load(folder / "rank_0.onnx", load_external_data=False)
    return Counter(node.op_type for holder in _holders(model.graph) for node in holder.node)


X = {"x": graphs.array(3, 48)}
NEGATIVE = {"x": -np.abs(graphs.array(3, 48))}

MIDDLE = """
g (float[n, 48] x) => (float[n, 48] y, float[n, 48] z) {
  a = MatMul(x, w1) b = Relu(a) p = MatMul(b, w2) s = ReduceSum<keepdims = 0>(p) c = Greater(s, level)
  d, z = If (c) <
    then_branch = t () => (float[n, 48] o, float[n, 48] o2) {
      t1 = MatMul(p, w1) t2 = Relu(t1) o = MatMul(t2, w2) o2 = Identity(p)
    },
    else_branch = e () => (float[n, 48] q, float[n, 48] q2) {
      t1 = MatMul(p, w1) t2 = Tanh(t1) u = MatMul(t2, w2) inner = Greater(s, lower)
      q = If (inner) <
        then_branch = tt () => (float[n, 48] z1) { z0 = MatMul(u, w1) z2 = Abs(z0) z1 = MatMul(z2, w2) },
        else_branch = te () => (float[n, 48] z3) { z3 = Identity(u) }
      >
      q2 = MatMul(t2, w2)
    }
  >
  y = Add(d, p)
}"""

LOOP = """
g (float[n, 48] x, int64 m) => (float[n, 48] y, float[t, n, 96] s) {
  go = Constant<value = bool {1}>() z = Mul(x, x)
  y0, s = Loop (m, go, x) <
    body = b (int64 i, bool c, float[n, 48] v) => (bool c2, float[n, 48] w, float[n, 96] e) {
    c2 = Identity(c) h = MatMul(v, w1) e = Relu(h) d = MatMul(e, w2) f = Add(d, z) k = Cast<to = 1>(i)
    r = Mul(f, k) w = Add(r, v)
  }>
  y = MatMul(y0, w3)
}"""

UNTIL = """
g (float[n, 48] x) => (float[n, 48] y) {
  go = Constant<value = bool {1}>()
  y, unused = Loop (, go, x, x) <
    body = b (int64 i, bool c, float[n, 48] v, float[n, 48] u) => (bool c2, float[n, 48] w, float[n, 48] u2) {
      h = MatMul(v, w1) e = Relu(h) d = MatMul(e, w2) w = Add(d, u) u2 = Mul(u, level)
      most = Constant<value = int64 {3}>() c2 = Less(i, most)
    }>
}"""

GROWS = """
g (float[n, 48] x, int64 m) => (float[k, 48] y) {
  go = Constant<value = bool {1}>()
  y = Loop (m, go, x) <body = b (int64 i, bool c, float[j, 48] v) => (bool c2, float[l, 48] w) {
    c2 = Identity(c) h = MatMul(v, w1) e = Relu(h) d = MatMul(e, w2) w = Concat<axis = 0>(v, d)
  }>
}"""

SCAN = """
g (float[n, t, 48] x, float[n, 48] h0) => (float[n, 48] h, float[n, 48, t] ys, float[t, n, 96] zs) {
  h, ys, zs = Scan <num_scan_inputs = 1, scan_input_axes = [1], scan_input_directions = [1],
      scan_output_axes = [2, 0], scan_output_directions = [0, 1],
      body = b (float[n, 48] hp, float[n, 48] xt) => (float[n, 48] hn, float[n, 48] yt, float[n, 96] zt) {
    a = MatMul(xt, w3) c = Add(a, hp) d = Tanh(c) u = MatMul(d, w1) zt = Relu(u) hn = MatMul(zt, w2)
    yt = Identity(hn)
  }> (h0, x)
}"""

LSTM = """
g (float[t, n, 48] x, float[n, 48] h0, float[n, 48] c0)
    => (float[n, 48] h, float[n, 48] c, float[t, n, 48] ys) {
  h, c, ys = Scan <num_scan_inputs = 1,
      body = b (float[n, 48] hp, float[n, 48] cp, float[n, 48] xt)
          => (float[n, 48] hn, float[n, 48] cn, float[n, 48] yt) {
    a = MatMul(xt, gates) r = MatMul(hp, again) s = Add(a, r) i, f, m, o = Split<axis = 1, num_outputs = 4>(s)
    si = Sigmoid(i) sf = Sigmoid(f) tm = Tanh(m) so = Sigmoid(o) kept = Mul(sf, cp) new = Mul(si, tm)
    cn = Add(kept, new) tc = Tanh(cn) hn = Mul(so, tc) yt = Identity(hn)
  }> (h0, c0, x)
}"""

LOOP_IN_BRANCH = """
g (float[n, 48] x, bool flag, int64 m) => (float[n, 48] y) {
  y = If (flag) <
    then_branch = t () => (float[n, 48] o) {
      go = Constant<value = bool {1}>()
      o = Loop (m, go, x) <body = b (int64 i, bool c, float[n, 48] v) => (bool c2, float[n, 48] w) {
        c2 = Identity(c) h = MatMul(v, w1) e = Relu(h) d = MatMul(e, w2)
        w = If (flag) <
          then_branch = tt () => (float[n, 48] p) { q = Add(d, x) p = MatMul(q, w3) },
          else_branch = te () => (float[n, 48] r) { r = Identity(d) }
        >
      }>
    },
    else_branch = e () => (float[n, 48] o2) { o2 = MatMul(x, w3) }
  >
}"""

LOOP_IN_LOOP = """
g (float[n, 48] x, int64 m, bool flag) => (float[n, 48] y) {
  go = Constant<value = bool {1}>() outside = MatMul(x, w1)
  y = Loop (m, go, x) <body = b (int64 i, bool c, float[n, 48] v) => (bool c2, float[n, 48] w) {
    c2 = Identity(c) h = MatMul(v, w1)
    w = Loop (m, c, v) <body = b2 (int64 i2, bool d, float[n, 48] v2) => (bool d2, float[n, 48] w2_) {
      d2 = Identity(d) p = Mul(h, outside)
      k = If (flag) <
        then_branch = t () => (float[n, 96] o) { o = Tanh(p) },
        else_branch = e () => (float[n, 96] o2) { q = MatMul(v2, w1) o2 = Relu(q) }
      >
      r = MatMul(k, w2) w2_ = Add(r, v2)
    }>
  }>
}"""


def _flag(value: bool) -> np.ndarray[Any, Any]:
    return np.array(value)


CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, int]]] = {
    "in the middle, nested": (MIDDLE, [X, NEGATIVE, {"x": X["x"] / 9}], {"If": 2}),
    "loop": (LOOP, [{**X, "m": np.array(turns)} for turns in (3, 1, 0)], {"Loop": 1}),
    "until a condition fails": (UNTIL, [X], {"Loop": 1}),
    "what is carried grows": (GROWS, [{**X, "m": np.array(2)}], {"Loop": 1}),
    "scan along other axes, backwards": (
        SCAN,
        [{"x": graphs.array(2, 4, 48), "h0": graphs.array(2, 48)}],
        {"Scan": 1},
    ),
    "a recurrent cell": (
        LSTM,
        [{"x": graphs.array(4, 2, 48), "h0": graphs.array(2, 48), "c0": graphs.array(2, 48, seed=2)}],
        {"Scan": 1},
    ),
    "loop in a branch, branch in the loop": (
        LOOP_IN_BRANCH,
        [{**X, "m": np.array(2), "flag": _flag(flag)} for flag in (True, False)],
        {"If": 2, "Loop": 1},
    ),
    "branch in a loop in a loop": (
        LOOP_IN_LOOP,
        [{**X, "m": np.array(turns), "flag": _flag(turns > 1)} for turns in (3, 2, 1, 0)],
        {"If": 1, "Loop": 2},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_weights_in_bodies_are_cut(name: str, tmp_path: Path) -> None:
    text, feeds, control = CASES[name]
    path = _save(tmp_path / "model.onnx", text)
    for world in (2, 3, 4):
        manifest = sharding.slice_model(path, world, tmp_path / "out")
        assert not manifest.whole
        cut = [entry for entry in manifest.weights.values() if len(entry.shape) == 2]
        assert cut and all(entry.placement.startswith("split:") for entry in cut)
        found = _operators(tmp_path / "out")
        assert {op_type: found[op_type] for op_type in control} == control
        assert not any(entry.op in {"Enter", "Leave", "Ran"} for entry in manifest.collectives)
        for feed in feeds:
            lockstep.assert_same(tmp_path / "out", path, feed)


def test_a_value_that_a_body_gives_twice(tmp_path: Path) -> None:
    """Under one name, of which ONNX Runtime by itself gives only one."""
    apart = """g (float[n, 48] x, bool flag) => (float[n, 48] y) {
      a, b = If (flag) <
        then_branch = t () => (float[n, 96] p, float[n, 96] q) { p = MatMul(x, w1) q = Identity(p) },
        else_branch = e () => (float[n, 96] r, float[n, 96] s) { r = MatMul(x, w1) s = Neg(r) }
      >
      c = Mul(a, b) y = MatMul(c, w2)
    }"""
    twice = apart.replace(" q = Identity(p)", "").replace("float[n, 96] q", "float[n, 96] p")
    sharding.slice_model(_save(tmp_path / "model.onnx", twice), 2, tmp_path / "out")
    path = _save(tmp_path / "apart.onnx", apart)
    for flag in (True, False):
        lockstep.assert_same(tmp_path / "out", path, {**X, "flag": _flag(flag)})


@pytest.mark.parametrize(
    ("form", "worlds"),
    [({}, (2, 3)), ({"copies": True}, (4,)), ({"tied": True}, (2,))],
    ids=["shared", "copied", "tied"],
)
def test_a_merged_decoder_is_cut_like_one_graph(
    form: dict[str, bool], worlds: tuple[int, ...], tmp_path: Path
) -> None:
    """Every weight once, and no more exchanges than the two branches as models of their own."""
    path = merged_decoder.build(tmp_path / "model.onnx", **form)
    alone = [_alone(path, tmp_path / f"{flag}.onnx", flag=flag) for flag in (True, False)]
    for world in worlds:
        manifest = sharding.slice_model(path, world, tmp_path / "out")
        large = {name: entry for name, entry in manifest.weights.items() if entry.bytes > 1024}
        assert len(large) == 2 - form.get("tied", False) + 10 * merged_decoder.LAYERS
        assert not manifest.whole
        total = sum(entry.bytes for entry in large.values())
        assert manifest.ranks[0].weight_bytes <= total / world + 1024
        apart = [sum(plan_model(branch, world).collective_counts().values()) for branch in alone]
        assert len(manifest.collectives) <= sum(apart)
        for past in (False, True):
            lockstep.assert_same(tmp_path / "out", path, merged_decoder.feeds(past=past))


def _alone(merged: Path, path: Path, *, flag: bool) -> Path:
    """The model of one branch: the condition is a constant."""
    model = onnx.load(merged)
    (given,) = [item for item in model.graph.input if item.name == "use_cache_branch"]
    model.graph.input.remove(given)
    model.graph.initializer.append(numpy_helper.from_array(np.array([flag]), given.name))
    path.write_bytes(model.SerializeToString())
    return path


def test_rank_models_of_one_rank_need_nothing_but_onnxruntime(tmp_path: Path) -> None:
    """Without collectives the bodies are ordinary ones."""
    path = merged_decoder.build(tmp_path / "model.onnx")
    sharding.slice_model(path, 1, tmp_path / "out")
    onnx.checker.check_model(tmp_path / "out" / "rank_0.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "out" / "rank_0.onnx")
    feeds = merged_decoder.feeds(past=True)
    names = merged_decoder.outputs()
    for name, found in zip(names, session.run(names, feeds), strict=True):
        assert lockstep.relative_error(found, lockstep.reference(path, feeds)[name]) <= 1e-5


def test_a_body_without_weights_stays_closed(tmp_path: Path) -> None:
    text = """
    g (float[n, 48] x, bool flag) => (float[n, 48] y) {
      a = MatMul(x, w3)
      y = If (flag) <
        then_branch = t () => (float[n, 48] o) { o = Relu(a) },
        else_branch = e () => (float[n, 48] q) { q = Add(a, level) }
      >
    }"""
    source = read_model(_save(tmp_path / "model.onnx", text))
    assert [node.op_type for node in source.model.graph] == ["MatMul", "If"]


BETWEEN = """
g (float[n, 48] x, bool flag) => (float[n, 48] y) {
  a = MatMul(x, w1)
  b = If (flag) <
    then_branch = t () => (float[n, 96] o) { o = Relu(a) },
    else_branch = e () => (float[n, 96] q) { p = Add(a, bias) q = Tanh(p) }
  >
  y = MatMul(b, w2)
}"""


@pytest.mark.parametrize("width", [48, 6])
def test_branches_between_two_products_hand_on_what_is_split(width: int, tmp_path: Path) -> None:
    path = _save(tmp_path / "model.onnx", BETWEEN.replace("[n, 48] y", f"[n, {width}] y"))
    model = onnx.load(path)
    (second,) = [tensor for tensor in model.graph.initializer if tensor.name == "w2"]
    second.CopyFrom(numpy_helper.from_array(WEIGHTS["w2"][:, :width].copy(), "w2"))
    onnx.save(model, path)
    for world in (2, 3):
        sharding.slice_model(path, world, tmp_path / "out")
        assert lockstep.collectives(tmp_path / "out") == ["AllReduce"]
        for flag in (True, False):
            lockstep.assert_same(tmp_path / "out", path, {**X, "flag": _flag(flag)})


def test_branches_that_compute_a_shape_between_two_products_stay_closed(tmp_path: Path) -> None:
    text = """
    g (float[n, 48] x, bool flag) => (float[n, 48] y) {
      a = MatMul(x, w1) lengths = Shape(a)
      s = If (flag) <
        then_branch = t () => (int64[2] o) { o = Identity(lengths) },
        else_branch = e () => (int64[2] q) { q = Abs(lengths) }
      >
      b = Reshape(a, s) y = MatMul(b, w2)
    }"""
    source = read_model(_save(tmp_path / "model.onnx", text))
    assert "If" in [node.op_type for node in source.model.graph]


def test_a_branch_that_draws_from_nothing_stays_closed(tmp_path: Path) -> None:
    """In a loop each turn draws anew, so such a node must stay in its body."""
    text = """
    g (float[3, 48] x, int64 m) => (float[3, 48] y) {
      go = Constant<value = bool {1}>()
      y = Loop (m, go, x) <body = b (int64 i, bool c, float[3, 48] v) => (bool c2, float[3, 48] w) {
        c2 = Identity(c) n = RandomNormal<shape = [3, 48], seed = 1.0>() d = MatMul(v, w3) w = Add(d, n)
      }>
    }"""
    source = read_model(_save(tmp_path / "model.onnx", text))
    assert [node.op_type for node in source.model.graph] == ["Loop"]


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("scan_input_axes = [7]", "scan_input_axes = [1]"),
        ("num_scan_inputs = 9", "num_scan_inputs = 1"),
        ("num_scan_inputs = 2", "num_scan_inputs = 1"),
        ("scan_output_axes = [9, -9]", "scan_output_axes = [2, 0]"),
        ("body = b (float[n, 48] hp)", "body = b (float[n, 48] hp, float[n, 48] xt)"),
    ],
)
def test_a_damaged_loop_gives_a_sentence_or_stays_closed(wrong: str, right: str, tmp_path: Path) -> None:
    assert right in SCAN
    path = _save(tmp_path / "model.onnx", SCAN.replace(right, wrong))
    try:
        sharding.slice_model(path, 2, tmp_path / "out", allow_replicated=True)
    except ShardrunError as error:
        assert str(path) in str(error)
        assert not (tmp_path / "out").exists()
    else:
        assert _operators(tmp_path / "out")["Scan"] == 1


def test_stages_do_not_cut_through_control_flow(tmp_path: Path) -> None:
    """A stage runs control flow as a whole; a model that is one such node has one stage."""
    layers = " ".join(
        f"a{n} = MatMul(r{n}, w1) b{n} = Relu(a{n}) r{n + 1} = MatMul(b{n}, w2)" for n in range(4)
    )
    text = LOOP.replace("go = Constant", f"r0 = Neg(x) {layers} go = Constant").replace(
        "Loop (m, go, x)", "Loop (m, go, r4)"
    )
    path = _save(tmp_path / "model.onnx", text)
    options = SliceOptions(mesh=Mesh.of(pipeline=2))
    sharding.slice_model(path, 2, tmp_path / "out", options=options)
    lockstep.assert_same(tmp_path / "out", path, {**X, "m": np.array(2)})
    whole = merged_decoder.build(tmp_path / "whole.onnx")
    with pytest.raises(SliceError, match="a stage runs the control flow 'If_0' as a whole"):
        sharding.slice_model(whole, 2, tmp_path / "no", options=options)
    assert not (tmp_path / "no").exists()


def test_the_manifest_says_in_which_body_a_collective_lies(tmp_path: Path) -> None:
    path = _save(tmp_path / "model.onnx", MIDDLE)
    manifest = sharding.slice_model(path, 2, tmp_path / "out")
    written = json.loads((tmp_path / "out" / "manifest.json").read_text())
    model = onnx.load(tmp_path / "out" / "rank_0.onnx", load_external_data=False)
    places = _places(model.graph.node, "")
    assert "" in places and "If_0 (else), If_1 (then)" in places
    assert [entry.get("within", "") for entry in written["collectives"]] == places
    assert read_manifest(tmp_path / "out") == manifest
    rows = dict(plan_model(path, 2).rows())
    assert "; in If_0 (else), If_1 (then): 1 AllReduce" in rows["collectives"]


def _places(nodes: Any, within: str) -> list[str]:
    found = []
    for node in nodes:
        if node.op_type == "AllReduce":
            found.append(within)
        for item in node.attribute:
            if item.HasField("g"):
                place = f"{node.name} ({item.name.split('_')[0]})"
                found += _places(item.g.node, f"{within}, {place}" if within else place)
    return found


HEADS = """
g (float[b, n, 48] x, float[b, 12, p, 4] past, bool c) => (float[b, n, 48] y) {
  y = If (c) <
    then_branch = attend () => (float[b, n, 48] o) {
      rows = Shape <start = 0, end = 1> (past)
      length = Shape <start = 1, end = 2> (x)
      rest = Constant <value_ints = [-1]> ()
      size = Constant <value_ints = [4]> ()
      apart = Concat <axis = 0> (rows, length, rest, size)
      merged = Concat <axis = 0> (rows, length, rest)
      q0 = MatMul (x, w3)
      q1 = Reshape (q0, apart)
      q = Transpose <perm = [0, 2, 1, 3]> (q1)
      turned = Transpose <perm = [0, 1, 3, 2]> (past)
      s = MatMul (q, turned)
      a = Softmax <axis = -1> (s)
      m = MatMul (a, past)
      back = Transpose <perm = [0, 2, 1, 3]> (m)
      r = Reshape (back, merged)
      o = MatMul (r, w4)
    },
    else_branch = pass () => (float[b, n, 48] o2) { o2 = Neg (x) }
  >
}"""


@pytest.mark.parametrize("take", [True, False])
def test_heads_that_are_what_a_reshape_leaves_over(tmp_path: Path, take: bool) -> None:
    """The rows are said by another input: that both have as many is known of numbers alone."""
    path = _save(tmp_path / "model.onnx", HEADS)
    feeds = {"x": graphs.array(2, 3, 48), "past": graphs.array(2, 12, 5, 4), "c": np.array(take)}
    plan = plan_model(path, 2)
    assert dict(plan.collective_counts()) == {"AllReduce": 1} and set(plan.split_weights) == {"w3", "w4"}
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, feeds)


WINDOW = """
g (float[b, n, 48] x, float[b, m] like, bool c) => (float[b, k, 48] y) {
  y = If (c) <
    then_branch = last () => (float[b, k, 48] o) {
      begin = Constant <value_ints = [-4]> ()
      end = Constant <value_ints = [1000]> ()
      axis = Constant <value_ints = [1]> ()
      rows = Shape <start = 0, end = 1> (like)
      rest = Constant <value_ints = [-1, 48]> ()
      to = Concat <axis = 0> (rows, rest)
      few = Slice (x, begin, end, axis)
      h = Reshape (few, to)
      u = MatMul (h, w1)
      r = Relu (u)
      o = MatMul (r, w2)
    },
    else_branch = pass () => (float[b, k, 48] o2) { o2 = Neg (x) }
  >
}"""


@pytest.mark.parametrize("length", [2, 4, 9])
def test_a_window_may_be_shorter_than_it_is_wide(tmp_path: Path, length: int) -> None:
    path = _save(tmp_path / "model.onnx", WINDOW)
    source = read_model(path)
    (value,) = [v for node in source.model.graph for v in node.outputs if v.name == "h"]
    assert value.shape is None or value.shape[1] != 4
    sharding.slice_model(path, 2, tmp_path / "slices")
    feeds = {"x": graphs.array(2, length, 48), "like": graphs.array(2, 3), "c": np.array(True)}
    lockstep.assert_same(tmp_path / "slices", path, feeds)


CONTRIB = """
  u = com.microsoft.FusedMatMul (h0, w1)
  v = com.microsoft.BiasGelu (u, bias)
  e = com.microsoft.FusedMatMul (v, w2)
  d, n1, n2, n3 = com.microsoft.SkipSimplifiedLayerNormalization <epsilon = 0.00001> (e, h0, scale)
"""
FORMS = {
    "If": f"""
g (float[b, n, 48] h0, bool c) => (float[b, n, 48] y) {{
  y = If (c) <
    then_branch = t () => (float[b, n, 48] o) {{ {CONTRIB} o = Add (d, h0) }},
    else_branch = e () => (float[b, n, 48] o2) {{ o2 = Neg (h0) }}
  >
}}""",
    "Loop": f"""
g (float[b, n, 48] x, int64 times) => (float[b, n, 48] y) {{
  yes = Constant <value = bool {{1}}> ()
  y = Loop (times, yes, x) <
    body = l (int64 i, bool cin, float[b, n, 48] h0) => (bool cout, float[b, n, 48] o) {{
      cout = Identity (cin) {CONTRIB} o = Add (d, h0)
    }}
  >
}}""",
    "Scan": f"""
g (float[b, n, 48] x, float[t, b, n, 48] s) => (float[b, n, 48] y, float[t, b, n, 48] z) {{
  y, z = Scan <num_scan_inputs = 1,
    body = l (float[b, n, 48] h, float[b, n, 48] s1) => (float[b, n, 48] o, float[b, n, 48] o2) {{
      h0 = Add (h, s1) {CONTRIB} o = Add (d, h0) o2 = Identity (d)
    }}
  > (x, s)
}}""",
}


@pytest.mark.parametrize("form", FORMS)
def test_operators_of_onnx_runtime_in_bodies(tmp_path: Path, form: str) -> None:
    path = _save(
        tmp_path / "model.onnx", FORMS[form], '<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>'
    )
    feeds: dict[str, Any] = {("h0" if form == "If" else "x"): graphs.array(2, 3, 48)}
    feeds |= {
        "If": {"c": np.array(True)},
        "Loop": {"times": np.array(3)},
        "Scan": {"s": graphs.array(4, 2, 3, 48)},
    }[form]
    plan = plan_model(path, 2)
    assert dict(plan.collective_counts()) == {"AllReduce": 1}
    assert {"w1", "w2"} <= set(plan.split_weights)
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, feeds)
