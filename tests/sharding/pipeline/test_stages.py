"""Pipeline stages, micro-batches and mixes of strategies: balanced, with the unsliced model's results."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

import sharding
from sharding.demands.options import SliceOptions
from sharding.errors import SliceError
from sharding.pipeline.balance import MAX_CUTS, Costs, balanced
from sharding.pipeline.profile import read_profile
from sharding.pipeline.stages import Wishes, plan_stages
from sharding.planning.plan import Plan, plan_model
from sharding.slices.manifest import read_manifest
from sharding.slices.mesh import Mesh
from sharding.slices.placement import REPLICATED, Placement
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array

MESHES = {
    "two stages": (Mesh.of(pipeline=2), 1),
    "three stages, micro-batches": (Mesh.of(pipeline=3), 2),
    "stages of two": (Mesh.of(pipeline=2, tensor=2), 2),
    "all": (Mesh.of(data=2, pipeline=2, tensor=2), 2),
    "data of two": (Mesh.of(data=2, tensor=2), None),
    "data alone": (Mesh.of(data=3), None),
    "another order": (Mesh.of(tensor=2, pipeline=2, data=2), 2),
}


def layers(count: int) -> tuple[str, dict[str, Any]]:
    """A transformer's skeleton: an embedding, a mask from the inputs, attention-like products, residuals."""
    lines = ["h0 = Gather(table, ids)", "f = Cast<to=1>(mask)", "axes = Constant<value = int64[1] {2}>()"]
    lines += ["one = Constant<value = float {1.0}>()", "m1 = Sub(f, one)", "m = Unsqueeze(m1, axes)"]
    weights: dict[str, Any] = {"table": array(40, 32)}
    for i in range(count):
        lines += [
            f"q{i} = MatMul(h{i}, wq{i})",
            f"a{i} = Add(q{i}, m)",
            f"s{i} = Softmax<axis=1>(a{i})",
            f"o{i} = MatMul(s{i}, wo{i})",
            f"r{i} = Add(o{i}, h{i})",
            f"u{i} = MatMul(r{i}, wu{i})",
            f"g{i} = Relu(u{i})",
            f"d{i} = MatMul(g{i}, wd{i})",
            f"h{i + 1} = Add(d{i}, r{i})",
        ]
        weights |= {f"wq{i}": array(32, 32, seed=i), f"wo{i}": array(32, 32, seed=i) / 9}
        weights |= {f"wu{i}": array(32, 64, seed=i) / 9, f"wd{i}": array(64, 32, seed=i) / 9}
    text = "g (int64[n, seq] ids, int64[n, seq] mask) => (float[n, seq, 32] y) {\n" + "\n".join(lines)
    return text + f"\ny = Identity(h{count})\n}}", weights


def tied(tmp_path: Path) -> Path:
    """GPT-2's way: the table of the first node is the head of the last."""
    text, weights = layers(3)
    text = text.replace("float[n, seq, 32] y", "float[n, seq, 40] y")
    text = text.replace("y = Identity(h3)", "t = Transpose<perm=[1, 0]>(table)\ny = MatMul(h3, t)")
    return graphs.save(tmp_path / "tied.onnx", text, weights)


def bert(tmp_path: Path) -> Path:
    text, weights = layers(4)
    return graphs.save(tmp_path / "bert.onnx", text, weights, external=True)


def unet(tmp_path: Path) -> Path:
    """Skip connections that jump over stages, and an output of each of two stages."""
    text = """g (float[n, 8, 16, 16] x) => (float[n, 8, 16, 16] y, float[n, 32, 4, 4] middle) {
      a = Conv<pads=[1,1,1,1]>(x, w1) ar = Relu(a)
      b = Conv<pads=[1,1,1,1], strides=[2,2]>(ar, w2) br = Relu(b)
      c = Conv<pads=[1,1,1,1], strides=[2,2]>(br, w3) middle = Relu(c)
      d = ConvTranspose<strides=[2,2]>(middle, w4) e = Concat<axis=1>(d, br)
      f = Conv<pads=[1,1,1,1]>(e, w5) fr = Relu(f)
      g1 = ConvTranspose<strides=[2,2]>(fr, w6) h = Concat<axis=1>(g1, ar)
      y = Conv<pads=[1,1,1,1]>(h, w7) }"""
    shapes = [(8, 8, 3, 3), (16, 8, 3, 3), (32, 16, 3, 3), (32, 16, 2, 2), (16, 32, 3, 3), (16, 8, 2, 2)]
    weights = {f"w{i + 1}": array(*shape, seed=i) / 9 for i, shape in enumerate([*shapes, (8, 16, 3, 3)])}
    return graphs.save(tmp_path / "unet.onnx", text, weights)


def branches(tmp_path: Path) -> Path:
    """Both branches of an If in the last stage use what earlier stages made, by name."""
    text = """g (float[n, 16] x, bool c) => (float[n, 16] y) {
      a = MatMul(x, w1) b = Relu(a) d = MatMul(b, w2) e = Relu(d) f = MatMul(e, w3) k = Relu(f)
      z = If (c) <then_branch = t () => (float[n, 16] p) { p = Add(a, k) },
                  else_branch = u () => (float[n, 16] q) { q = Sub(d, k) }>
      y = MatMul(z, w4) }"""
    return graphs.save(
        tmp_path / "branches.onnx", text, {f"w{i}": array(16, 16, seed=i) / 4 for i in (1, 2, 3, 4)}
    )


def feeds_of(model: Path, rows: int = 5) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for value in onnx.load(model, load_external_data=False).graph.input:
        kind = value.type.tensor_type
        shape = [axis.dim_value or {"n": rows, "seq": 6}[axis.dim_param] for axis in kind.shape.dim]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(kind.elem_type)
        rng = np.random.default_rng(3)
        found[value.name] = (
            rng.standard_normal(shape).astype(dtype)
            if dtype == np.float32
            else rng.integers(0, 40, shape).astype(dtype)
        )
    return found


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("make", [bert, unet, tied])
def test_the_outputs_are_those_of_the_whole_model(tmp_path: Path, make: Any, mesh: str) -> None:
    path, (grid, pieces) = make(tmp_path), MESHES[mesh]
    options = SliceOptions(mesh=grid, micro_batches=pieces, allow_replicated=True)
    written = sharding.slice_model(path, grid.size, tmp_path / "out", options=options)
    assert read_manifest(tmp_path / "out") == written
    assert (written.mesh, written.micro_batches) == (grid, pieces or 1)
    lockstep.assert_same(tmp_path / "out", path, feeds_of(path))


@pytest.mark.parametrize("condition", [True, False])
@pytest.mark.parametrize("tensor", [1, 2])
def test_control_flow_gets_outer_values_whole(tmp_path: Path, condition: bool, tensor: int) -> None:
    path, mesh = branches(tmp_path), Mesh.of(pipeline=3, tensor=tensor)
    sharding.slice_model(path, mesh.size, tmp_path / "out", options=SliceOptions(mesh=mesh, micro_batches=1))
    feeds = feeds_of(path) | {"c": np.asarray(condition)}
    lockstep.assert_same(tmp_path / "out", path, feeds)


def _plan(path: Path, mesh: Mesh, **options: Any) -> Plan:
    return plan_model(path, mesh.size, options=SliceOptions(mesh=mesh, allow_replicated=True, **options))


def test_stages_hold_about_equal_parts_and_their_times_are_about_equal(tmp_path: Path) -> None:
    text, weights = layers(12)
    plan = _plan(graphs.save(tmp_path / "m.onnx", text, weights), Mesh.of(pipeline=4))
    total = sum(weight.nbytes for weight in weights.values())
    assert max(map(plan.stage_weight_bytes, range(4))) <= 1.5 * total / 4
    assert max(plan.pipeline.seconds) <= 1.1 * sum(plan.pipeline.seconds) / 4
    tight = _plan(plan.source.path, Mesh.of(pipeline=4), memory=int(1.1 * total / 4))
    assert max(map(tight.stage_weight_bytes, range(4))) <= 1.1 * total / 4
    # Residual streams cross, and nothing else: the mask is made anew in each stage.
    assert {crossing.value.name for crossing in plan.pipeline.crossings}.isdisjoint({"m", "m1", "f"})
    assert all(crossing.target == crossing.source + 1 for crossing in plan.pipeline.crossings)


def test_tied_weights_are_held_by_each_stage_that_uses_them(tmp_path: Path) -> None:
    plan = _plan(tied(tmp_path), Mesh.of(pipeline=3), micro_batches=1)
    assert plan.weight_stages("table") == (0, 2)
    manifest = write_slices(plan, tmp_path / "out")
    assert manifest.weights["table"].stages == (0, 2)
    shared = [{item.file for item in entry.files} for entry in manifest.ranks]
    assert shared[0] & shared[2] == {"shared.data"} and "shared.data" not in shared[1]


def test_a_sum_that_its_stage_reduces_is_sent_whole_and_only_once_reduced(tmp_path: Path) -> None:
    plan = _plan(bert(tmp_path), Mesh.of(pipeline=2, tensor=2), micro_batches=1)
    reduced = plan.collective_counts().get("AllReduce", 0)
    alone = _plan(bert(tmp_path), Mesh.of(tensor=2)).collective_counts()["AllReduce"]
    assert reduced == alone
    assert {str(crossing.placement) for crossing in plan.pipeline.crossings} <= {"replicated", "split:2"}


def test_too_few_cuts_are_an_error(tmp_path: Path) -> None:
    text = "g (float[n, 4] x) => (float[n, 4] y) { a = MatMul(x, w) y = Relu(a) }"
    path = graphs.save(tmp_path / "m.onnx", text, {"w": array(4, 4)})
    with pytest.raises(SliceError, match=r"can be cut at \d places? only, too few for 4 pipeline stages"):
        _plan(path, Mesh.of(pipeline=4))


def test_sequences_are_not_cut(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 16] y) {
      a = MatMul(x, w1) s = SequenceConstruct(a, x) b = MatMul(a, w2) zero = Constant<value = int64 {0}>()
      c = SequenceAt(s, zero) d = Add(b, c) e = MatMul(d, w3) y = MatMul(e, w4) }"""
    weights = {f"w{i}": array(16, 16, seed=i) / 4 for i in (1, 2, 3, 4)}
    path = graphs.save(tmp_path / "m.onnx", text, weights)
    plan = _plan(path, Mesh.of(pipeline=2), micro_batches=1)
    places = {step.node.op_type: place for step, place in zip(plan.steps, plan.stages, strict=True)}
    assert places["SequenceConstruct"] == places["SequenceAt"]
    write_slices(plan, tmp_path / "out")
    lockstep.assert_same(tmp_path / "out", path, feeds_of(path))


def test_the_slowest_stage_is_as_fast_as_can_be() -> None:
    costs = Costs(8)
    for number in range(8):
        costs.seconds[number] = 7 if number == 0 else 1
        if number:
            costs.crosses(number - 1, number, 0.1)
    assert balanced(costs, 2) == ([0], [7.0, pytest.approx(7.1)])


def test_memory_comes_before_time() -> None:
    """Seven weights in the last step: a cut before it, whatever the times."""
    costs = Costs(4)
    costs.seconds[:] = (1, 1, 1, 9)
    for number, size in enumerate((1, 1, 5, 7)):
        costs.use(number, size, number)
        if number:
            costs.crosses(number - 1, number, 0.1)
    assert balanced(costs, 2) == ([2], [3.0, pytest.approx(9.1)])
    costs.use(3, 7, 3)
    costs.use("tied", 7, 3)  # nothing is lighter now than the last step alone
    assert balanced(costs, 2) == ([2], [3.0, pytest.approx(9.1)])


@pytest.mark.parametrize(("bounds", "cut"), [({1: 1}, 0), ({3998: 0}, 3998)], ids=["before", "behind"])
def test_of_many_cuts_those_that_are_demanded_are_looked_at(bounds: dict[int, int], cut: int) -> None:
    """Though they are the dearest, and of neighbours only the cheapest are."""
    costs = Costs(4000)
    costs.seconds[:] = 1
    costs.crosses(cut, cut + 1, 9)
    costs.bounds.update(bounds)
    assert costs.length > 3 * MAX_CUTS
    found = balanced(costs, 2)
    assert found is not None and found[0] == [cut]


def test_no_stage_holds_half_as_much_again_as_the_average() -> None:
    """Were it not for the weights, the cut before the last step would be the fastest."""
    costs = Costs(4)
    costs.seconds[:] = (1, 1, 1, 3)
    for number in range(3):
        costs.use(number, 1, number)
    assert balanced(costs, 2) == ([1], [2.0, 4.0])
    costs.use("last", 1, 3)
    assert balanced(costs, 2) == ([2], [3.0, 3.0])


@pytest.mark.parametrize("seed", range(3))
def test_a_stage_holds_each_weight_once(seed: int) -> None:
    """The bytes of every run of steps, against a count of what its steps use."""
    random = np.random.default_rng(seed)
    costs = Costs(9)
    uses = [(1 << number, sorted(random.choice(9, 3, replace=False).tolist())) for number in range(5)]
    for size, steps in uses:
        for step in steps:
            costs.use(size, size, step)
    cuts = [-1, 1, 2, 5, 8]
    held = costs.weight_bytes(cuts)
    for i, j in itertools.combinations(range(len(cuts)), 2):
        run = range(cuts[i] + 1, cuts[j] + 1)
        assert held[i, j] == sum(size for size, steps in uses if any(step in run for step in steps))


def test_measured_times_move_the_cut(tmp_path: Path) -> None:
    """Between two products any Relu may end the first stage; ONNX Runtime says which are slow."""
    text = "g (float[n, 16] x) => (float[n, 16] y) {\nr0 = MatMul(x, w0)\n"
    text += "\n".join(f"r{i + 1} = Relu(r{i})" for i in range(8)) + "\ny = MatMul(r8, w1) }"
    path = graphs.save(tmp_path / "m.onnx", text, {"w0": array(16, 16), "w1": array(16, 16)})
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = f"node_{node.output[0]}"
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.enable_profiling = True
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.profile_file_prefix = str(tmp_path / "profile")
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session.run(None, {"x": array(2, 16)})
    profile = Path(session.end_profiling())
    assert set(read_profile(profile)) == {node.name for node in model.graph.node}

    def cut_after(slow: str) -> int:
        events = json.loads(profile.read_text())
        for event in events:
            if event["cat"] == "Node":
                event["dur"] = 8_000 if event["name"] == f"node_{slow}_kernel_time" else 1_000
        profile.write_text(json.dumps(events))
        options = SliceOptions(strategy="pipeline", profile=profile, micro_batches=1)
        plan = plan_model(path, 2, options=options)
        return sum(place == 0 for place in plan.stages)

    assert cut_after("r1") == 2
    assert cut_after("r8") == 8


def test_a_value_that_ranks_hold_in_parts_crosses_in_parts(tmp_path: Path) -> None:
    """The first product takes nearly all of the time, so that any cut behind it makes stages as fast. Of two
    ranks each sends half of a value that is split: half of three fifths is less than two fifths whole."""
    text = """g (float[64, 128] x) => (float[64, 128] y) {
      wide = MatMul(x, w0) w = Relu(wide) narrow = MatMul(w, w1) n = Relu(narrow)
      b = MatMul(n, w2) c = Relu(b) y = MatMul(c, w3) }"""
    weights = {f"w{i}": array(*((192, 128) if i % 2 else (128, 192)), seed=i) for i in range(4)}
    path = graphs.save(tmp_path / "m.onnx", text, weights)
    model = onnx.load(path)
    for node in model.graph.node:
        node.name = node.output[0]
    onnx.save(model, path)

    def crosses(tensor: int) -> list[tuple[str, str]]:
        plan = _plan(path, Mesh.of(tensor=tensor), micro_batches=1)
        measured = {node.name: 1e-6 for node in model.graph.node} | {"wide": 10.0}
        stages = plan_stages(plan.source, plan.steps, plan.choices, tensor, 2, wishes=Wishes(measured))
        return [(crossing.value.name or "", str(crossing.placement)) for crossing in stages.crossings]

    assert crosses(tensor=2) in ([("wide", "split:1")], [("w", "split:1")])
    assert crosses(tensor=1) in ([("narrow", "replicated")], [("n", "replicated")])


def test_the_lengths_that_inputs_will_have_move_the_cut(tmp_path: Path) -> None:
    """Two towers of attention-like products, one after the other: the cut goes through that of a long input.
    One weight stands before them and one behind, so that weights are balanced by any cut between."""
    lines = ["a0 = MatMul(a, w0)", "at = Transpose(a)"]
    lines += [f"as{i} = MatMul(a{i}, at)\na{i + 1} = MatMul(as{i}, a)" for i in range(6)]
    lines += ["am = ReduceSum<keepdims = 1>(a6)", "b0 = Add(b, am)", "bt = Transpose(b)"]
    lines += [f"bs{i} = MatMul(b{i}, bt)\nb{i + 1} = MatMul(bs{i}, b)" for i in range(6)]
    text = "g (float[p, 16] a, float[q, 16] b) => (float[q, 16] y) {\n" + "\n".join(lines)
    weights = {"w0": array(16, 16), "w1": array(16, 16)}
    path = graphs.save(tmp_path / "m.onnx", text + "\ny = MatMul(b6, w1) }", weights)

    def made_first(p: int, q: int) -> int:
        """How many of the towers' 12 layers the first stage makes."""
        options = SliceOptions(strategy="pipeline", dims={"p": p, "q": q}, micro_batches=1)
        plan = plan_model(path, 2, options=options)
        steps = zip(plan.steps, plan.stages, strict=True)
        return sum(step.node.outputs[0].name[:2] in {"as", "bs"} for step, stage in steps if stage == 0)

    assert made_first(4000, 400) in {2, 3, 4}
    assert made_first(1000, 1000) in {5, 6, 7}
    assert made_first(400, 4000) in {8, 9, 10}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "is not JSON"),
        ("{}", r"\$ must be a list of events, but is \{\}"),
        ("[3]", r"\$\[0\] must be an object, but is 3"),
        ('[{"cat": "Node", "name": "a_kernel_time", "dur": -1}]', r"\$\[0\].dur must be a number of micro"),
        (
            '[{"cat": "Node", "name": "a_kernel_time"}]',
            r"\$\[0\].dur must be a number of microseconds, but is null",
        ),
        ("[]", "has no kernel times"),
        (None, "does not exist"),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, text: str | None, sentence: str) -> None:
    profile = tmp_path / "profile.json"
    if text is not None:
        profile.write_text(text)
    with pytest.raises(SliceError, match=sentence):
        plan_model(
            graphs.mlp(tmp_path / "m.onnx"), 2, options=SliceOptions(strategy="pipeline", profile=profile)
        )


def test_demanded_stages_are_followed_though_branches_are_listed_in_turn(tmp_path: Path) -> None:
    text = """g (float[n, 16] x) => (float[n, 16] y) {
      a1 = MatMul(x, w1) b1 = MatMul(x, w2) a2 = Relu(a1) b2 = Relu(b1) a3 = MatMul(a2, w3)
      b3 = MatMul(b2, w4) y = Add(a3, b3) }"""
    path = graphs.save(tmp_path / "m.onnx", text, {f"w{i}": array(16, 16, seed=i) for i in (1, 2, 3, 4)})
    plan = _plan(path, Mesh.of(pipeline=2), micro_batches=1)
    wanted = [{"a": 0, "b": 1}.get((step.node.outputs[0].name or "")[0]) for step in plan.steps]
    stages = plan_stages(plan.source, plan.steps, plan.choices, 1, 2, wishes=Wishes(demanded=wanted))
    assert [place for place, want in zip(stages.of, wanted, strict=True) if want is not None] == [
        want for want in wanted if want is not None
    ]
    held: tuple[dict[str, tuple[Placement, ...]], ...] = tuple(
        {
            value.name or "": (REPLICATED,)
            for index in members
            for value in plan.steps[index].inputs
            if value is not None and value.is_initializer()
        }
        for members in stages.members
    )
    write_slices(replace(plan, pipeline=stages, stage_held=held), tmp_path / "out")
    lockstep.assert_same(tmp_path / "out", path, feeds_of(path))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (SliceOptions(mesh=Mesh.of(tensor=4)), r"tensor=4 has 4 ranks, but 2 are asked for"),
        (SliceOptions(strategy="expert"), "must be one of tensor, pipeline, data, auto, but is 'expert'"),
        (SliceOptions(micro_batches=2), "2 micro-batches need pipeline stages"),
        (SliceOptions(strategy="pipeline", micro_batches=0), "must be a whole number from 1 up, but is 0"),
    ],
)
def test_options_that_cannot_be_are_refused(tmp_path: Path, options: SliceOptions, sentence: str) -> None:
    with pytest.raises(SliceError, match=sentence):
        plan_model(graphs.mlp(tmp_path / "m.onnx"), 2, options=options)


def test_auto_says_why(tmp_path: Path) -> None:
    text, weights = layers(3)
    path = graphs.save(tmp_path / "m.onnx", text, weights)
    total = sum(weight.nbytes for weight in weights.values())
    plan = plan_model(path, 2, options=SliceOptions(strategy="auto"))
    # So small a model is not worth collectives.
    assert plan.mesh.length("data") == 2
    assert plan.reason.startswith("data: all ") and "; tensor would give 0.5" in plan.reason
    first, *others = plan.reason.split("; ")
    assert {("chosen", first), *(("", other) for other in others)} < set(plan.rows())
    assert plan.to_json()["reason"] == plan.reason
    small = plan_model(path, 2, options=SliceOptions(strategy="auto", memory=int(0.7 * total)))
    assert small.rank_weight_bytes() <= 0.7 * total
    assert "data would give all" in small.reason and "more than" in small.reason
    with pytest.raises(
        SliceError, match="no strategy for 2 ranks needs at most 10 B of weights on each; the least"
    ):
        plan_model(path, 2, options=SliceOptions(strategy="auto", memory=10))


def test_weights_that_are_transposed_first_do_not_go_to_every_stage(tmp_path: Path) -> None:
    steps = [
        f"t{i} = Transpose<perm=[1, 0]>(w{i}) m{i} = MatMul(r{i}, t{i}) r{i + 1} = Relu(m{i})"
        for i in range(4)
    ]
    text = "g (float[n, 16] r0) => (float[n, 16] r4) { " + " ".join(steps) + " }"
    weights = {f"w{i}": array(16, 16, seed=i) for i in range(4)}
    plan = _plan(graphs.save(tmp_path / "m.onnx", text, weights), Mesh.of(pipeline=2))
    held = [plan.stage_weight_bytes(stage) for stage in range(2)]
    assert sum(held) == 4 * 16 * 16 * 4  # each weight once
    assert min(held) > 0
