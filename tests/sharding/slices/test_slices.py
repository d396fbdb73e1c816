"""Slices against plain ONNX Runtime on the whole model: small graphs that test one thing.

The models of the zoo are run by processes, in `tests/end_to_end/test_models.py`; of the largest the plan is
looked at here.
"""

from pathlib import Path

import numpy as np
import onnx
import pytest

import sharding
from sharding.errors import SliceError
from sharding.slices.manifest import Manifest
from tests import models
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array


def check(folder: Path, text: str, weights: dict[str, graphs.Array], **feeds: graphs.Array) -> Manifest:
    """Slices the graph for two ranks, compares their outputs with the whole model's; the manifest."""
    path = graphs.save(folder / "model.onnx", text, weights)
    manifest = sharding.slice_model(path, 2, folder / "slices")
    lockstep.assert_same(folder / "slices", path, feeds or {"x": array(3, 16, seed=5)})
    return manifest


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
@pytest.mark.parametrize("external", [False, True])
def test_mlp(tmp_path: Path, ranks: int, external: bool) -> None:
    path = graphs.mlp(tmp_path / "model.onnx", inner=48, external=external)
    manifest = sharding.slice_model(path, ranks, tmp_path / "slices")
    for batch in (1, 5):
        lockstep.assert_same(tmp_path / "slices", path, {"x": array(batch, 16)})
    if ranks > 1:
        assert [item.op for item in manifest.collectives] == ["AllReduce"]
        assert manifest.weights["w1"].placement == "split:1"
        assert manifest.weights["w2"].placement == "split:0"
        assert manifest.weights["b2"].placement == "replicated"


def test_one_reshard_serves_all_its_users(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 12] y, float[n, 12] z) {
      a = MatMul(x, w)
      s = Softmax<axis = -1>(a)
      e = Exp(a)
      y = Mul(s, e)
      z = Sub(s, a)
    }"""
    manifest = check(tmp_path, text, {"w": array(16, 12)})
    assert len(manifest.collectives) == 1


def test_one_weight_with_two_uses_is_held_once(tmp_path: Path) -> None:
    """Tied embedding: the table is looked up, and its transpose is the last product."""
    text = """g (int64[n] ids) => (float[n, 30] y) {
      e = Gather<axis = 0>(table, ids)
      h = Relu(e)
      t = Transpose<perm = [1, 0]>(table)
      y = MatMul(h, t)
    }"""
    manifest = check(tmp_path, text, {"table": array(30, 8)}, ids=np.asarray([3, 29, 0, -1]))
    assert manifest.weights["table"].placement.startswith("split:")
    assert manifest.ranks[0].weight_bytes == 30 * 8 * 4 // 2


def test_what_does_not_divide_stays_whole_and_is_counted(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 7] y) {
      a = MatMul(x, w1)
      b = Relu(a)
      c = MatMul(b, w2)
      d = Relu(c)
      y = MatMul(d, w3)
    }"""
    weights = {"w1": array(16, 32), "w2": array(32, 7), "w3": array(7, 7)}
    manifest = check(tmp_path, text, weights)
    assert manifest.whole == {"MatMul": 1}
    plan = sharding.plan_model(tmp_path / "model.onnx", 2)
    assert plan.whole_weights == ("w3",)
    assert ("whole weights", "w3") in plan.rows()
    assert plan.to_json()["whole"] == {"MatMul": 1}


def test_nothing_to_split_is_an_error_unless_allowed(tmp_path: Path) -> None:
    text = "g (float[n, 7] x) => (float[n, 5] y) { y = MatMul(x, w) }"
    path = graphs.save(tmp_path / "model.onnx", text, {"w": array(7, 5)})
    with pytest.raises(SliceError, match=r"over 2 ranks \(used by MatMul; .*'w', is float32 \[7, 5\]"):
        sharding.slice_model(path, 2, tmp_path / "slices")
    assert not (tmp_path / "slices").exists()
    manifest = sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    assert not manifest.collectives and manifest.whole == {"MatMul": 1}
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(2, 7)})


def test_the_number_of_ranks_is_not_blamed_where_it_divides(tmp_path: Path) -> None:
    odd = "g (float[n, 7] x) => (float[n, 5] y) { y = MatMul(x, w) }"
    path = graphs.save(tmp_path / "odd.onnx", odd, {"w": array(7, 5)})
    with pytest.raises(SliceError, match=r"choose a number of ranks that divides .*allow_replicated=True"):
        sharding.plan_model(path, 2)
    vectors = "g (float[n, 8] x) => (float[n, 8] y) { a = Mul(x, scale) y = Add(a, bias) }"
    path = graphs.save(tmp_path / "vectors.onnx", vectors, {"scale": array(8), "bias": array(8, seed=1)})
    with pytest.raises(SliceError, match=r"all of them are vectors, or too small") as caught:
        sharding.plan_model(path, 2)
    assert "number of ranks" not in str(caught.value) and "--allow-replicated" in str(caught.value)


def test_a_model_without_weights_is_an_error(tmp_path: Path) -> None:
    path = graphs.save(tmp_path / "model.onnx", "g (float[n] x) => (float[n] y) { y = Relu(x) }", {})
    with pytest.raises(SliceError, match="has no weights"):
        sharding.plan_model(path, 2)


def test_a_rank_model_is_not_sliced_again(tmp_path: Path) -> None:
    sharding.slice_model(graphs.mlp(tmp_path / "model.onnx"), 2, tmp_path / "slices")
    with pytest.raises(SliceError, match="holds the collective AllReduce"):
        sharding.plan_model(tmp_path / "slices/rank_0.onnx", 2)


def test_control_flow_is_kept_whole_and_sees_outer_values(tmp_path: Path) -> None:
    """Both branches use values from outside: a split activation, and a weight that is split elsewhere too."""
    text = """g (float[n, 16] x, bool flag) => (float[n, 8] y) {
      a = MatMul(x, w1)
      b = Relu(a)
      c = If (flag) <
        then_branch = then () => (float[n, 8] t) { t = MatMul(b, w2) },
        else_branch = other () => (float[n, 8] o) { m = MatMul(b, w2) o = Neg(m) }
      >
      d = MatMul(b, w2)
      y = Add(c, d)
    }"""
    weights = {"w1": array(16, 32), "w2": array(32, 8)}
    x = array(3, 16)
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "slices")
    for flag in (True, False):
        lockstep.assert_same(tmp_path / "slices", path, {"x": x, "flag": np.asarray(flag)})


def test_loop_bodies_see_outer_values(tmp_path: Path) -> None:
    text = """g (float[2, 16] x) => (float[2, 8] y) {
      a = MatMul(x, w1)
      count = Constant<value = int64 {3}>()
      go = Constant<value = bool {1}>()
      start = MatMul(a, w2)
      y = Loop (count, go, start) <
        body = body (int64 i, bool more, float[2, 8] s) => (bool again, float[2, 8] n) {
          again = Identity(more)
          m = MatMul(a, w2)
          n = Add(s, m)
        }
      >
    }"""
    check(tmp_path, text, {"w1": array(16, 32), "w2": array(32, 8)}, x=array(2, 16))


def test_operators_without_rules_are_kept_whole(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 32] y) {
      a = MatMul(x, w1)
      b = CumSum(a, axis)
      y = Relu(b)
    }"""
    check(tmp_path, text, {"w1": array(16, 32), "axis": np.asarray(1)})


def test_added_names_never_clash(tmp_path: Path) -> None:
    """The model already uses every name that slicing would choose."""
    path = graphs.mlp(tmp_path / "first.onnx")
    sharding.slice_model(path, 2, tmp_path / "first")
    model = onnx.load(path)
    rank = onnx.load(tmp_path / "first/rank_0.onnx")
    known = {name for node in model.graph.node for name in (*node.input, *node.output)}
    added = sorted({name for node in rank.graph.node for name in node.output} - known)
    assert added
    for number, name in enumerate(added):
        model.graph.node.append(onnx.helper.make_node("Relu", ["x"], [name], name=f"taken{number}"))
        model.graph.output.append(onnx.helper.make_tensor_value_info(name, 1, None))
    onnx.save(model, tmp_path / "second.onnx")
    sharding.slice_model(tmp_path / "second.onnx", 2, tmp_path / "second")
    lockstep.assert_same(tmp_path / "second", tmp_path / "second.onnx", {"x": array(2, 16)})


def test_outputs_that_are_inputs_weights_or_used_inside(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 32] a, float[n, 32] b, float[n, 8] y) {
      a = MatMul(x, w1)
      b = Relu(a)
      y = MatMul(b, w2)
    }"""
    manifest = check(tmp_path, text, {"w1": array(16, 32), "w2": array(32, 8)})
    assert [item.name for item in manifest.outputs] == ["a", "b", "y"]
    assert [item.shape for item in manifest.outputs] == [("n", 32), ("n", 32), ("n", 8)]


def test_empty_batches_pass(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    sharding.slice_model(path, 2, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(0, 16)})


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_float_types(tmp_path: Path, dtype: type) -> None:
    name = {np.float16: "float16", np.float64: "double"}[dtype]
    text = graphs.MLP.replace("float[", f"{name}[")
    weights = {key: (value / 8).astype(dtype) for key, value in graphs.mlp_weights().items()}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    manifest = sharding.slice_model(path, 2, tmp_path / "slices")
    assert manifest.weights["w1"].dtype == np.dtype(dtype).name
    tolerance = 5e-3 if dtype == np.float16 else 1e-12
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 16).astype(dtype)}, tolerance)


@pytest.mark.parametrize("ranks", [3, 4])
def test_bert_base_has_two_all_reduces_a_layer(ranks: int) -> None:
    plan = sharding.plan_model(models.get("bert_base").path, ranks)
    assert plan.collective_counts() == {"AllReduce": 24, "AllGather": 1}
    table = next(name for name in plan.weights if plan.source.weights[name].shape == (30522, 768))
    assert [str(where) for where in plan.weights[table]] == ["split:1"]
    assert plan.whole == {}
    assert plan.split_share() <= 1 / ranks + 0.02
    total = sum(weight.nbytes for weight in plan.source.weights.values())
    assert plan.rank_weight_bytes() <= (1 / ranks + 0.02) * total


@pytest.mark.parametrize("ranks", [2, 3])
def test_gpt2_has_two_all_reduces_a_layer(ranks: int) -> None:
    plan = sharding.plan_model(models.get("gpt2").path, ranks)
    assert plan.collective_counts() == {"AllReduce": 24, "AllGather": 1}
    fused = [held for name, held in plan.weights.items() if plan.source.weights[name].shape == (768, 2304)]
    assert len(fused) == 12 and all(str(where) == "split:1/3" for held in fused for where in held)


def test_gpt2_with_a_tied_head_holds_the_table_once() -> None:
    """50257 words divide over no two ranks, so the head sums over the hidden axis: one AllReduce more."""
    plan = sharding.plan_model(models.get("gpt2_lm").path, 2)
    assert plan.collective_counts() == {"AllReduce": 25, "AllGather": 1}
    assert plan.split_share() <= 0.52


def test_paddle_recognition_model_is_split_almost_whole() -> None:
    plan = sharding.plan_model(models.get("ppocr_rec").path, 2)
    assert plan.whole == {}
    assert plan.rank_weight_bytes() <= 0.52 * sum(weight.nbytes for weight in plan.source.weights.values())


NOISE = [
    "r = RandomNormalLike(x)",
    "r = RandomUniform<shape = [3, 16], low = -1.0, high = 1.0>()",
    "r = Bernoulli(half)",
    "r = Dropout(x, ratio, yes)",
    "r = If (yes) <then_branch = a () => (float[3, 16] t) { t = RandomNormalLike(x) }, "
    "else_branch = b () => (float[3, 16] o) { o = Identity(x) }>",
    "i = Multinomial<sample_size = 16>(half) r = Cast<to = 1>(i)",
    "r = own.noise(x)",
]


@pytest.mark.parametrize("noise", NOISE, ids=[item.split(" = ")[1].split("(")[0] for item in NOISE])
def test_all_ranks_draw_the_same_random_numbers(tmp_path: Path, noise: str) -> None:
    """Without a seed every session draws others; what comes out must belong to one draw."""
    text = f"""<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[3, 16] x) => (float[3, 8] y, float[3, 16] r) {{
      {noise}
      n = Add(x, r)
      a = MatMul(n, w1)
      h = Relu(a)
      y = MatMul(h, w2)
    }}
    <domain: "own", opset_import: ["" : 18]> noise (x) => (r) {{ r = RandomUniformLike(x) }}"""
    weights = {"w1": array(16, 32), "w2": array(32, 8), "half": np.full((3, 16), 0.5, np.float32)}
    weights |= {"ratio": np.asarray(0.5, np.float32), "yes": np.asarray(True)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "slices")
    x = array(3, 16)
    first, second = lockstep.run_slices(tmp_path / "slices", {"x": x})
    np.testing.assert_array_equal(first["r"], second["r"])
    assert len(np.unique(first["r"])) > 1
    for outputs in (first, second):
        expected = np.maximum((x + outputs["r"]) @ weights["w1"], 0) @ weights["w2"]
        assert lockstep.relative_error(outputs["y"], expected) <= 1e-4


def test_random_numbers_that_cannot_be_shared_are_refused(tmp_path: Path) -> None:
    text = """g (float[3, 16] x) => (float[3, 8] y, bool[3, 16] m) {
      r, m = Dropout(x, ratio, yes)
      y = MatMul(r, w)
    }"""
    weights = {"w": array(16, 8), "ratio": np.asarray(0.5, np.float32), "yes": np.asarray(True)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    with pytest.raises(SliceError, match=r"Dropout '.*' draws random numbers without a seed"):
        sharding.slice_model(path, 2, tmp_path / "slices")
    seeded = text.replace("Dropout(", "Dropout<seed = 3>(")
    path = graphs.save(tmp_path / "model.onnx", seeded, weights)
    sharding.slice_model(path, 2, tmp_path / "slices")
    first, second = lockstep.run_slices(tmp_path / "slices", {"x": array(3, 16)})
    np.testing.assert_array_equal(first["m"], second["m"])


OPSETS = [
    ("float[n, 7] y", "y = Gather(table, i)"),
    ("float[1, 1] y", "e = Gather(wide, i) y = ReduceMean<axes = [0, 1]>(e)"),
    (
        "float[n, 9] y",
        "e = Gather(wide, i) l, r = Split<axis = 1, split = [8, 8]>(e) m = Mul(l, r) y = MatMul(m, w)",
    ),
    ("float[n, 9] y", "e = Gather(wide, i) s = Shape(e) f = Expand(v, s) l = Mul(e, f) y = Gemm(l, w2, b)"),
]


@pytest.mark.parametrize("opset", [8, 9, 10, 11, 12])
@pytest.mark.parametrize(("result", "body"), OPSETS, ids=["gather", "mean", "split", "expand"])
def test_old_opsets(tmp_path: Path, opset: int, result: str, body: str) -> None:
    """What slicing adds must be there in the model's opset, for the types it is used on."""
    weights = {
        "table": array(8, 7),
        "wide": array(9, 16),
        "w": array(8, 9),
        "w2": array(16, 9),
        "b": array(9),
    }
    weights["v"] = array(1, 16)
    text = f'<ir_version: 4, opset_import: ["" : {opset}]> g (int64[n] i) => ({result}) {{ {body} }}'
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    lockstep.assert_same(tmp_path / "slices", path, {"i": np.asarray([7, 0, 3])})


@pytest.mark.parametrize("limit", [1, 3, 96])
def test_more_branches_than_the_solver_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    monkeypatch.setattr("sharding.search.solve.MAX_HELD", limit)
    branches = " ".join(f"a{i} = MatMul(x, w{i}) b{i} = Relu(a{i})" for i in range(6))
    joined = ", ".join(f"b{i}" for i in range(6))
    text = f"g (float[n, 16] x) => (float[n, 12] y, float[n, 12] b0) {{ {branches} y = Sum({joined}) }}"
    check(tmp_path, text, {f"w{i}": array(16, 12, seed=i) for i in range(6)})
