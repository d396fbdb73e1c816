"""State stays on its ranks: how it is held, what is exchanged all the same, and the answers of several steps.

Each model is run step by step, whole and in slices, and each is fed its own state: what plain ONNX Runtime
gives for the unsliced model must come out.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import OptionError, SliceError
from sharding.planning.plan import Plan, plan_model
from sharding.slices.mesh import parse_mesh
from sharding.slices.state import LOGITS_FROM
from sharding.writing.annotate import annotate
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array
from tests.sharding.llama import Llama, sized

pytestmark = pytest.mark.usefixtures("read_once")

Feeds = Mapping[str, np.ndarray[Any, Any]]

STACKED = """
stacked (float[b, s, 16] x, float[2, b, 4, past, 4] past_0)
  => (float[b, s, 16] y, float[2, b, 4, all, 4] present_0) {
  qkv = MatMul(x, w)
  q, k, v = Split <axis = -1, num_outputs = 3> (qkv)
  q3 = Reshape(q, heads)
  k3 = Reshape(k, heads)
  v3 = Reshape(v, heads)
  qt = Transpose <perm = [0, 2, 1, 3]> (q3)
  kt = Transpose <perm = [0, 2, 1, 3]> (k3)
  vt = Transpose <perm = [0, 2, 1, 3]> (v3)
  pk = Gather <axis = 0> (past_0, zero)
  pv = Gather <axis = 0> (past_0, one)
  ka = Concat <axis = 2> (pk, kt)
  va = Concat <axis = 2> (pv, vt)
  k1 = Unsqueeze(ka, zeros)
  v1 = Unsqueeze(va, zeros)
  present_0 = Concat <axis = 0> (k1, v1)
  kk = Transpose <perm = [0, 1, 3, 2]> (ka)
  scores = MatMul(qt, kk)
  weights = Softmax(scores)
  mixed = MatMul(weights, va)
  back = Transpose <perm = [0, 2, 1, 3]> (mixed)
  flat = Reshape(back, hidden)
  y = MatMul(flat, o)
}
"""
HALF = """
half (float[b, s, 16] x, float16[b, 4, past, 4] past_0)
  => (float[b, s, 16] y, float16[b, 4, all, 4] present_0) {
  lengths = Shape(past_0)
  kept = Cast <to = 1> (past_0)
  k = MatMul(x, w)
  k3 = Reshape(k, heads)
  kt = Transpose <perm = [0, 2, 1, 3]> (k3)
  ka = Concat <axis = 2> (kept, kt)
  present_0 = Cast <to = 10> (ka)
  kk = Transpose <perm = [0, 1, 3, 2]> (ka)
  scores = MatMul(kt, kk)
  weights = Softmax(scores)
  mixed = MatMul(weights, ka)
  back = Transpose <perm = [0, 2, 1, 3]> (mixed)
  flat = Reshape(back, hidden)
  z = MatMul(flat, o)
  count = Gather(lengths, two)
  number = Cast <to = 1> (count)
  y = Add(z, number)
}
"""
MAMBA = """
mamba (float[b, 16] x, float[b, 32, 3] conv_state, float[b, 32, 4] ssm_state)
  => (float[b, 16] y, float[b, 32, 3] conv_state_out, float[b, 32, 4] ssm_state_out) {
  wide = MatMul(x, w)
  one = Unsqueeze(wide, last)
  window = Concat <axis = 2> (conv_state, one)
  conv_state_out = Slice(window, ones, far, last)
  weighted = Mul(window, taps)
  u = ReduceSum <keepdims = 1> (weighted, last)
  decayed = Mul(ssm_state, a)
  added = Mul(u, gain)
  ssm_state_out = Add(decayed, added)
  c = ReduceSum <keepdims = 0> (ssm_state_out, last)
  y = MatMul(c, o)
}
"""
CROSS = """
cross (float[b, s, 16] x, float[b, 4, e, 4] past_key_cross_0, float[b, 4, e, 4] past_value_cross_0)
  => (float[b, s, 16] y, float[b, 4, e, 4] present_key_cross_0, float[b, 4, e, 4] present_value_cross_0) {
  q = MatMul(x, w)
  q3 = Reshape(q, heads)
  qt = Transpose <perm = [0, 2, 1, 3]> (q3)
  present_key_cross_0 = Identity(past_key_cross_0)
  present_value_cross_0 = Identity(past_value_cross_0)
  kk = Transpose <perm = [0, 1, 3, 2]> (past_key_cross_0)
  scores = MatMul(qt, kk)
  weights = Softmax(scores)
  mixed = MatMul(weights, past_value_cross_0)
  back = Transpose <perm = [0, 2, 1, 3]> (mixed)
  flat = Reshape(back, hidden)
  y = MatMul(flat, o)
}
"""
LSTM = """
vad (float[t, b, 8] x, float[1, b, 16] h, float[1, b, 16] c)
  => (float[t, b, 4] y, float[1, b, 16] hn, float[1, b, 16] cn) {
  all, hn, cn = LSTM <hidden_size = 16> (x, w, r, , , h, c)
  flat = Squeeze(all, ones)
  y = MatMul(flat, o)
}
"""
BRANCHES = """
branches (float[b, 16] x, bool again, float[b, 32] state) => (float[b, 16] y, float[b, 32] stateN) {
  wide = MatMul(x, w)
  kept = If (again) <
    then_branch = g1 () => (float[b, 32] t) { t = Identity(state) },
    else_branch = g2 () => (float[b, 32] f) { f = Neg(state) }
  >
  stateN = Add(wide, kept)
  y = MatMul(stateN, o)
}
"""
GROUPS = """
<ir_version: 9, opset_import: ["" : 18, "com.microsoft" : 1]>
groups (float[b, s, 32] x, int32[b] ends, int32 total, float[b, 2, past, 8] past_key_0,
        float[b, 2, past, 8] past_value_0)
  => (float[b, s, 32] y, float[b, 2, all, 8] present_key_0, float[b, 2, all, 8] present_value_0) {
  q = MatMul(x, wq)
  k = MatMul(x, wk)
  v = MatMul(x, wv)
  a, present_key_0, present_value_0 = com.microsoft.GroupQueryAttention <num_heads = 4, kv_num_heads = 2> (
    q, k, v, past_key_0, past_value_0, ends, total)
  y = MatMul(a, o)
}
"""


TAKEN = HALF.replace("float16[", "float[").replace("Cast <to = 1> (past_0)", "Concat <axis = 2> (past_0)")
TAKEN = TAKEN.replace("present_0 = Cast <to = 10> (ka)", "turned = Neg(ka)").replace(
    "ka = Concat", "present_0 = Concat"
)
TAKEN = TAKEN.replace("ka)", "present_0)").replace("half", "taken")


def numbers(*values: int) -> np.ndarray[Any, Any]:
    return np.asarray(values, np.int64)


HEADS = {"heads": numbers(0, 0, 4, 4), "hidden": numbers(0, 0, 16), "zeros": numbers(0)}
HEADS |= {"zero": np.asarray(0, np.int64), "one": np.asarray(1, np.int64), "two": np.asarray(2, np.int64)}
MODELS: dict[str, tuple[str, dict[str, np.ndarray[Any, Any]], str, int]] = {
    "stacked": (STACKED, {"w": array(16, 48), "o": array(16, 16), **HEADS}, "split:2", 1),
    "half": (HALF, {"w": array(16, 16), "o": array(16, 16), **HEADS}, "split:1", 1),
    "taken": (TAKEN, {"w": array(16, 16), "o": array(16, 16), **HEADS}, "split:1", 1),
    "mamba": (
        MAMBA,
        {"w": array(16, 32), "taps": array(32, 4), "a": array(32, 4) / 3, "gain": array(32, 4),
         "o": array(32, 16), "last": numbers(2), "ones": numbers(1), "far": numbers(99)},
        "split:1", 1,
    ),
    "cross": (CROSS, {"w": array(16, 16), "o": array(16, 16), **HEADS}, "split:1", 1),
    "branches": (BRANCHES, {"w": array(16, 32), "o": array(32, 16)}, "replicated", 2),
    "groups": (
        GROUPS,
        {"wq": array(32, 32), "wk": array(32, 16), "wv": array(32, 16), "o": array(32, 32)},
        "split:1", 1,
    ),
}  # fmt: skip
"""Text, weights, how two ranks hold each state, and the collectives of an inference."""


def saved(path: Path, name: str) -> Path:
    text, weights, _, _ = MODELS[name]
    used = {key: item for key, item in weights.items() if f"({key}" in text or f" {key}" in text}
    return graphs.save(path / f"{name}.onnx", text, used)


def feeds_of(model: Path, step: int, state: Feeds) -> dict[str, np.ndarray[Any, Any]]:
    """Inputs of a step: three new positions first, then one; a cache of no length to begin with."""
    found: dict[str, np.ndarray[Any, Any]] = {}
    new, past = (3, 0) if step == 0 else (1, 2 + step)
    sizes = {"b": 2, "batch": 2, "s": new, "t": new, "seq": new, "past": past, "e": 5}
    for seed, item in enumerate(onnx.load(model, load_external_data=False).graph.input):
        kind = item.type.tensor_type
        shape = [axis.dim_value or sizes[axis.dim_param] for axis in kind.shape.dim]
        if item.name in state:
            found[item.name] = state[item.name]
        elif kind.elem_type == onnx.TensorProto.INT32:  # of GroupQueryAttention
            found[item.name] = np.full(shape, past + new - len(shape), np.int32)
        elif kind.elem_type == onnx.TensorProto.BOOL:
            found[item.name] = np.asarray(step % 2 == 0)
        elif kind.elem_type == onnx.TensorProto.INT64:
            found[item.name] = np.random.default_rng(step).integers(0, 128, shape)
        else:
            dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
            found[item.name] = array(*shape, seed=seed + 10 * step).astype(dtype)
    return found


def check_steps(plan: Plan, model: Path, folder: Path, steps: int = 3) -> None:
    """Whole and sliced, each with its own state, give the same in every step."""
    write_slices(plan, folder)
    pairs = {pair.input: pair.output for pair in plan.state}
    assert pairs
    whole: dict[str, np.ndarray[Any, Any]] = {}
    parts: dict[str, np.ndarray[Any, Any]] = {}
    for step in range(steps):
        expected = lockstep.reference(model, feeds_of(model, step, whole))
        found = lockstep.run_slices(folder, feeds_of(model, step, parts))
        for outputs in found:
            for name, value in expected.items():
                assert lockstep.relative_error(outputs[name], value) <= 1e-4, (step, name)
        whole = {taken: expected[made] for taken, made in pairs.items()}
        parts = {taken: found[0][made] for taken, made in pairs.items()}


@pytest.mark.parametrize("name", MODELS)
def test_state_stays_where_it_is_computed(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path, name)
    plan = plan_model(model, 2)
    _, _, placement, collectives = MODELS[name]
    assert {pair.placement for pair in plan.state} == {placement}
    assert sum(plan.collective_counts().values()) == collectives
    check_steps(plan, model, tmp_path / "slices")


def test_recurrent_states(tmp_path: Path) -> None:
    weights = {"w": array(1, 64, 8), "r": array(1, 64, 16) / 4, "o": array(16, 4), "ones": numbers(1)}
    model = graphs.save(tmp_path / "vad.onnx", LSTM, weights)
    plan = plan_model(model, 2, allow_replicated=True)
    assert [(pair.input, pair.output, pair.kind) for pair in plan.state] == [
        ("h", "hn", "replace"),
        ("c", "cn", "replace"),
    ]
    check_steps(plan, model, tmp_path / "slices")


@pytest.mark.parametrize(
    "mesh", ["tensor=4", "pipeline=2", "pipeline=2,tensor=2", "data=2", "data=2,tensor=2"]
)
def test_meshes(tmp_path: Path, mesh: str) -> None:
    """Every stage holds the state of its own layers; rows of a batch are cut as ever; fewer heads than ranks
    are held by group."""
    sizes = sized(kv_heads=2, cache=True, layers=3)
    model = sizes.save(tmp_path / "model.onnx")
    asked = parse_mesh(mesh)
    plan = plan_model(model, asked.size, options=SliceOptions(mesh=asked))
    tensor = asked.length("tensor")
    held = {1: "replicated", 2: "split:1", 4: "split:1*2"}[tensor]
    assert [pair.placement for pair in plan.state] == [held] * (2 * sizes.layers)
    counts = plan.collective_counts()
    sent = counts.pop("Send", 0)
    assert sent == 0 or asked.length("pipeline") == 2
    assert sum(counts.values()) == (2 * sizes.layers + 2 if tensor > 1 else 0)
    check_steps(plan, model, tmp_path / "slices")
    layers = []
    for stage in range(asked.length("pipeline")):
        name = f"rank_{asked.rank(data=0, pipeline=stage, tensor=tensor - 1)}.onnx"
        graph = onnx.load(tmp_path / "slices" / name, load_external_data=False).graph
        layers.append(
            {item.name.rpartition("_")[2] for item in graph.output if item.name.startswith("present")}
        )
    assert all(layers) or tensor == 1
    assert sorted(layer for held in layers for layer in held) == ["0", "1", "2"]


def _far(path: Path, near: str = "", made: str = "") -> Path:
    """``near``: what the first layer reads and gives beside; ``made``: the name of that output."""
    text = f"""
    far (float[b, 16] x, float[b, 16] state{near}) => (float[b, 16] y, float[b, 16] stateN{made}) {{
      a = Add(x, state)
      b1 = MatMul(a, w1)
      c = Relu(b1)
      {"first_out = Add(first, c)" if near else ""}
      d = MatMul(c, w2)
      y = Neg(c)
      stateN = Relu(d)
    }}
    """
    return graphs.save(path, text, {"w1": array(16, 16), "w2": array(16, 16)})


def test_a_state_that_is_asked_for_is_kept_or_refused(tmp_path: Path) -> None:
    """Those that the graph alone says give way before it."""
    model = _far(tmp_path / "far.onnx", ", float[b, 16] first", ", float[b, 16] first_out")

    def plan(**state: str) -> Plan:
        return plan_model(model, 2, options=SliceOptions(strategy="pipeline", state=state))

    assert [pair.input for pair in plan(first="first_out").state] == ["first"]
    with pytest.raises(SliceError, match=r"no cut into 2 pipeline stages .*`--state state=stateN` asks"):
        plan(state="stateN", first="first_out")


def test_a_state_that_no_stage_can_hold_is_fed_as_any_input(tmp_path: Path) -> None:
    """It is read in the first layer, and written in the last: no cut leaves it whole."""
    model = _far(tmp_path / "far.onnx")
    assert len(plan_model(model, 2).state) == 1
    plan = plan_model(model, 2, options=SliceOptions(strategy="pipeline"))
    assert plan.state == () and plan.pipeline.count == 2
    write_slices(plan, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", model, {"x": array(2, 16), "state": array(2, 16, seed=1)})


def test_a_saved_plan_and_steering_hold_for_a_pair(tmp_path: Path) -> None:
    model = sized(kv_heads=2, cache=True).save(tmp_path / "model.onnx")
    plan = plan_model(model, 2)
    from sharding.planning.saved_plan import save_plan

    save_plan(plan, tmp_path / "plan.json")
    again = plan_model(model, 2, options=SliceOptions(plan=tmp_path / "plan.json"))
    assert again.state == plan.state and again.collectives == plan.collectives
    (tmp_path / "steer.yaml").write_text("k_0: replicate\nv_0: replicate\n")
    steered = plan_model(model, 2, options=SliceOptions(steering=tmp_path / "steer.yaml"))
    check_steps(steered, model, tmp_path / "slices")


def test_annotations_hold_for_a_pair(tmp_path: Path) -> None:
    sizes = sized(kv_heads=2, cache=True)
    model = sizes.save(tmp_path / "model.onnx")
    plan = plan_model(model, 2)
    annotate(plan, tmp_path / "annotated.onnx")
    again = plan_model(tmp_path / "annotated.onnx", 2)
    assert again.state == plan.state and len(again.collectives) == len(plan.collectives)
    write_slices(again, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", model, sizes.feeds())


@pytest.mark.parametrize(
    ("kv_heads", "heads", "ranks"), [(1, 8, 2), (1, 8, 4), (3, 6, 2), (2, 6, 3), (2, 8, 8)]
)
def test_heads_that_ranks_do_not_divide(tmp_path: Path, kv_heads: int, heads: int, ranks: int) -> None:
    """Two collectives a layer all the same: one head is whole on every rank, and so is a state of others."""
    sizes = sized(kv_heads=kv_heads, heads=heads, cache=True)
    model = sizes.save(tmp_path / "model.onnx")
    plan = plan_model(model, ranks)
    assert len(plan.collectives) == 2 * sizes.layers + 2
    check_steps(plan, model, tmp_path / "slices", steps=2)


def test_a_user_names_a_pair(tmp_path: Path) -> None:
    text = """
    own (float[b, 16] x, float[b, 32] before) => (float[b, 16] y, float[b, 32] after) {
      wide = MatMul(x, w)
      after = Add(wide, before)
      y = MatMul(after, o)
    }
    """
    model = graphs.save(tmp_path / "own.onnx", text, {"w": array(16, 32), "o": array(32, 16)})
    assert plan_model(model, 2).state == ()
    plan = plan_model(model, 2, options=SliceOptions(state={"before": "after"}))
    assert [pair.placement for pair in plan.state] == ["split:1"] and len(plan.collectives) == 1
    check_steps(plan, model, tmp_path / "slices")
    with pytest.raises(OptionError, match=r"own\.onnx: --state before=y: .*\[b, 32\].*\[b, 16\]"):
        plan_model(model, 2, options=SliceOptions(state={"before": "y"}))


def test_a_configuration_beside_the_model_names_pairs(tmp_path: Path) -> None:
    text = """
    named (float[b, 16] x, float[b, 32] keep3) => (float[b, 16] y, float[b, 32] kept3) {
      wide = MatMul(x, w)
      kept3 = Add(wide, keep3)
      y = MatMul(kept3, o)
    }
    """
    model = graphs.save(tmp_path / "named.onnx", text, {"w": array(16, 32), "o": array(32, 16)})
    decoder = {"inputs": {"past_names": "keep%d"}, "outputs": {"present_names": "kept%d"}}
    config = tmp_path / "genai_config.json"
    config.write_text(json.dumps({"model": {"decoder": decoder, "type": "own"}}))
    assert [(pair.input, pair.output) for pair in plan_model(model, 2).state] == [("keep3", "kept3")]
    for other in ("{", "[]", '{"model": {"decoder": {"inputs": 3, "outputs": []}}}'):
        config.write_text(other)
        assert plan_model(model, 2).state == ()


def test_plans_and_manifests_say_the_bytes_of_state(tmp_path: Path) -> None:
    model = Llama(kv_heads=2, cache=True).save(tmp_path / "model.onnx")
    plan = plan_model(model, 2)
    # Two layers, keys and values of two heads of 8 numbers.
    assert dict(plan.rows())["state"] == "4 pairs, 128 B per token and rank (256 B whole), split:1"
    manifest = sharding.slice_model(model, 2, tmp_path / "slices")
    assert manifest.state == plan.state
    assert {entry.name: entry.shape for entry in manifest.inputs}["past_key_0"] == ("batch", 2, "past", 8)


# The head.


@pytest.mark.parametrize("mesh", ["tensor=2", "pipeline=2,tensor=2", "data=2"])
def test_logits_from_a_position_on(tmp_path: Path, mesh: str) -> None:
    model_sizes = sized(kv_heads=2, cache=True)
    model = model_sizes.save(tmp_path / "model.onnx")
    asked = parse_mesh(mesh)
    manifest = sharding.slice_model(model, asked.size, tmp_path / "slices", options=SliceOptions(mesh=asked))
    assert [entry.name for entry in manifest.optional_inputs] == [LOGITS_FROM]
    assert {entry.name: entry.shape[1] for entry in manifest.outputs}["logits"] == "seq"
    feeds = model_sizes.feeds(batch=2, length=5)
    expected = lockstep.reference(model, feeds)
    for first in (None, 0, 3, -1):
        more = {} if first is None else {LOGITS_FROM: numbers(first)}
        for outputs in lockstep.run_slices(tmp_path / "slices", {**feeds, **more}):
            for name, value in expected.items():
                wanted = value[:, first or 0 :] if name == "logits" else value
                assert lockstep.relative_error(outputs[name], wanted) <= 1e-4


HEAD = """
head (float[b, s, 16] x, float[b, 4] state) => (float[b, s, 32] logits, float[b, 4] stateN) {{
  stateN = Neg(state)
  {before}
  {product}
  {after}
}}
"""


@pytest.mark.parametrize(
    ("before", "product", "after"),
    [
        ("h = Tanh(x)", "p = MatMul(h, w)", "logits = Identity(p)"),
        ("h = Tanh(x)", "p = MatMul(h, w)", "q = Add(bias, p) t = Tanh(q) logits = Mul(t, number)"),
        ("h = Tanh(x)", "p = MatMul(h, w)", "q = Clip(p, low, high) logits = Div(q, number)"),
        ("h, s1, z1 = DynamicQuantizeLinear(x)", "i = MatMulInteger(h, w8, z1)",
         "f = Cast <to = 1> (i) logits = Mul(f, s1)"),
    ],
    ids=["plain", "soft cap", "clip", "integers"],
)  # fmt: skip
def test_heads(tmp_path: Path, before: str, product: str, after: str) -> None:
    model = _head(tmp_path, before, product, after)
    write_slices(plan_model(model, 2, allow_replicated=True), tmp_path / "slices")
    feeds = {"x": array(2, 5, 16), "state": array(2, 4)}
    expected = lockstep.reference(model, feeds)["logits"]
    for first in (0, 2, -1):
        for outputs in lockstep.run_slices(tmp_path / "slices", {**feeds, LOGITS_FROM: numbers(first)}):
            assert lockstep.relative_error(outputs["logits"], expected[:, first:]) <= 1e-4


@pytest.mark.parametrize(
    ("before", "product", "after"),
    [
        ("h = Tanh(x)", "p = MatMul(h, w)", "logits = Softmax <axis = 1> (p)"),
        ("h = Tanh(x)", "p = MatMul(h, w)", "m = ReduceMean(p, axis) logits = Sub(p, m)"),
        ("h = Softmax <axis = 1> (x)", "p = MatMul(wide, w)", "logits = Add(p, p)"),
        ("h = Tanh(x)", "t = MatMul(h, w)", "logits = Relu(t)"),
    ],
    ids=["over positions", "used twice", "both sides", "another operator"],
)
def test_where_positions_may_be_joined_all_logits_are_computed(
    tmp_path: Path, before: str, product: str, after: str
) -> None:
    before = before + " wide = Tanh(h)" if "wide" in product else before
    model = _head(tmp_path, before, product, after)
    manifest = sharding.slice_model(model, 2, tmp_path / "slices", allow_replicated=True)
    assert manifest.optional_inputs == ()


def test_a_model_without_state_gets_no_further_input(tmp_path: Path) -> None:
    model = sized(kv_heads=2).save(tmp_path / "model.onnx")
    assert sharding.slice_model(model, 2, tmp_path / "slices").optional_inputs == ()


def _head(folder: Path, before: str, product: str, after: str) -> Path:
    text = HEAD.format(before=before, product=product, after=after)
    one = np.float32
    weights = {
        "w": array(16, 32), "bias": array(32), "number": one(3), "low": one(-1), "high": one(1),
        "axis": numbers(1), "w8": np.arange(512, dtype=np.uint8).reshape(16, 32) // 2,
    }  # fmt: skip
    used = {
        name: np.asarray(item) for name, item in weights.items() if f", {name}" in text or f"({name}," in text
    }
    return graphs.save(folder / "head.onnx", text, used)
