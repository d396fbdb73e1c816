"""Precision modes and execution plans: types of nodes, numbers against float64, refusals."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto

import ranks
from ranks.common import notice
from ranks.devices.providers import CANN, CUDA, TENSORRT
from ranks.errors import ModelError, ShardrunError
from ranks.lite.options import config, precision_options, targets
from ranks.precision import modes
from ranks.precision.convert import apply
from ranks.precision.modes import CANN_MODES
from ranks.precision.request import FLOAT16, FLOAT32, Asked, Precision
from ranks.run import executor
from sharding import slice_model
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.sharding import graphs

RANDOM = np.random.default_rng(11)
W1 = RANDOM.standard_normal((8, 16)).astype(np.float32)
W2 = RANDOM.standard_normal((16, 6)).astype(np.float32)
X = RANDOM.standard_normal((5, 8)).astype(np.float32)


def mlp(path: Path, element: int = TensorProto.FLOAT) -> Path:
    kind, dtype = ("float", np.float32) if element == TensorProto.FLOAT else ("float16", np.float16)
    text = f"""g ({kind}[n, 8] x) => ({kind}[n, 6] y) {{
      [first] a = MatMul(x, w1)
      [act] b = Tanh(a)
      [second] y = MatMul(b, w2)
    }}"""
    return graphs.save(path, text, {"w1": W1.astype(dtype), "w2": W2.astype(dtype)}, opset=17)


def half(array: Any) -> Any:
    return np.asarray(array, np.float16).astype(np.float64)


def predict(path: Path, **options: Any) -> Any:
    model = ranks.Model()
    model.build_from_file(str(path), ranks.ModelType.MINDIR, **options)
    (output,) = model.predict([X.astype(model.get_inputs()[0].get_data_to_numpy().dtype)])
    return output.get_data_to_numpy()


def error(got: Any, want: Any) -> float:
    return float(np.max(np.abs(np.asarray(got, np.float64) - want)) / np.max(np.abs(want)))


def converted(path: Path, precision: Precision) -> onnx.ModelProto:
    model = onnx.load(path)
    apply(model, precision, path)
    onnx.checker.check_model(model, full_check=False)
    return model


def run(model: onnx.ModelProto, **feeds: Any) -> list[Any]:
    return list(graphs.session(model).run(None, feeds))


def element_types(model: onnx.ModelProto) -> dict[str, int]:
    """The type of what each node gives first, by its name; as ONNX's own inference has it."""
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True)
    types = {
        v.name: v.type.tensor_type.elem_type for v in (*inferred.graph.value_info, *inferred.graph.output)
    }
    return {node.name: types[node.output[0]] for node in inferred.graph.node if node.op_type != "Cast"}


EXACT = {
    "first": lambda x: np.tanh(half(half(x) @ half(W1))) @ W2.astype(np.float64),
    "second": lambda x: half(half(np.tanh(x.astype(np.float64) @ W1)) @ half(W2)),
    "MatMul": lambda x: half(half(np.tanh(half(half(x) @ half(W1)))) @ half(W2)),
}
"""What a plan with this entry gives: factors and results are numbers of float16."""


@pytest.mark.parametrize("key", EXACT)
def test_a_plan_gives_nodes_their_type(tmp_path: Path, key: str) -> None:
    path = mlp(tmp_path / "m.onnx")
    types = element_types(converted(path, Precision("", ((key, FLOAT16),))))
    for name in ("first", "act", "second"):
        is_half = name == key or (key == "MatMul" and name != "act")
        assert types[name] == (TensorProto.FLOAT16 if is_half else TensorProto.FLOAT), name
    (tmp_path / "c.ini").write_text(f"[execution_plan]\n{key}=data_type:float16\n")
    got = predict(path, config_path=str(tmp_path / "c.ini"))
    assert got.dtype == np.float32
    want = EXACT[key](X)
    whole = np.tanh(X.astype(np.float64) @ W1) @ W2
    # A unit in the last place of float16 may fall to either side, as sums are rounded in another order.
    assert error(got, want) < 2e-3
    assert np.isclose(got, want, rtol=1e-5).mean() > 0.8
    assert error(predict(path), whole) < 1e-6
    assert 1e-5 < error(got, whole) < 5e-3
    assert (half(got) == got).all() == (key != "first")
    assert (
        predict(path, config_dict={"execution_plan": {key: "data_type:float16"}}).tobytes() == got.tobytes()
    )


def test_factors_are_rounded_to_float16(tmp_path: Path) -> None:
    """To the last bit: 2049 and 1 + 2**-12 lie between two numbers of float16, and go to the even one."""
    x = np.full((1, 8), 2049, np.float32)
    weights = {"w": np.full((8, 1), 1 + 2**-12, np.float32)}
    text = "g (float[n, 8] x) => (float[n, 1] y) { [product] y = MatMul(x, w) }"
    path = graphs.save(tmp_path / "m.onnx", text, weights, opset=17)
    model = ranks.Model()
    for kind, want in (("float16", 8 * 2048), ("float32", 8 * 2049 * (1 + 2**-12))):
        plan = {"execution_plan": {"product": f"data_type:{kind}"}}
        model.build_from_file(str(path), ranks.ModelType.MINDIR, config_dict=plan)
        assert model.predict([x])[0].get_data_to_numpy()[0, 0] == np.float32(want)


def test_a_node_by_name_wins_over_its_type(tmp_path: Path) -> None:
    path = mlp(tmp_path / "m.onnx")
    plan = {"MatMul": "data_type:float16", "second": "data_type:float32", "act": '"datatype: FLOAT16"'}
    entries = config.load("", {"execution_plan": plan}).execution_plan
    types = element_types(converted(path, Precision("", entries)))
    assert types == {"first": TensorProto.FLOAT16, "act": TensorProto.FLOAT16, "second": TensorProto.FLOAT}
    # No cast stands between two nodes of one type.
    model = converted(path, Precision("", (("first", FLOAT16), ("act", FLOAT16))))
    assert [node.op_type for node in model.graph.node] == ["Cast", "Cast", "MatMul", "Tanh", "Cast", "MatMul"]


def test_enforced_float32_of_a_float16_model(tmp_path: Path) -> None:
    path = mlp(tmp_path / "m.onnx", TensorProto.FLOAT16)
    whole = np.tanh(half(X) @ half(W1)) @ half(W2)
    context = ranks.Context()
    context.cpu.precision_mode = "enforce_fp32"
    got = predict(path, context=context)
    assert got.dtype == np.float16  # inputs and outputs keep their types
    assert got.tobytes() == whole.astype(np.float16).tobytes()
    types = element_types(converted(path, Precision(FLOAT32)))
    assert types["first"] == types["act"] == TensorProto.FLOAT
    assert (
        predict(path, config_dict={"cpu_context": {"precision_mode": "enforce_fp32"}}).tobytes()
        == got.tobytes()
    )
    # A model of float32 has nothing to change.
    assert (
        predict(mlp(tmp_path / "f.onnx"), context=context).tobytes() == predict(tmp_path / "f.onnx").tobytes()
    )


def test_the_default_and_the_preference_leave_a_model_as_it_is(tmp_path: Path) -> None:
    for path in (mlp(tmp_path / "f.onnx"), mlp(tmp_path / "h.onnx", TensorProto.FLOAT16)):
        session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        x = X.astype(np.float16 if path.stem == "h" else np.float32)
        (want,) = session.run(None, {"x": x})
        context = ranks.Context()
        assert predict(path, context=context).tobytes() == want.tobytes()
        context.cpu.precision_mode = "preferred_fp16"
        assert predict(path, context=context).tobytes() == want.tobytes()


def test_float16_with_what_cannot_have_it_left_alone(tmp_path: Path) -> None:
    """The graph that a GPU is given: a masked softmax, reductions, a whole-number path, an operator of
    ONNX Runtime's own."""
    text = """g (float[n, 8] x) => (float[n, 16] y, int64[n] best, int64[2] shape) {
      [scores] s = MatMul(x, w)
      [masking] masked = Add(s, mask)
      [softmax] p = Softmax<axis = -1>(masked)
      [reduce] mean = ReduceMean<axes = [-1], keepdims = 1>(p)
      [gelu] g = com.microsoft.Gelu(p)
      [last] y = Sub(g, mean)
      [arg] best = ArgMax<axis = -1, keepdims = 0>(y)
      [shape] shape = Shape(y)
    }"""
    mask = np.where(np.arange(16) < 3, np.finfo(np.float32).min, 0).astype(np.float32)
    path = graphs.save(tmp_path / "m.onnx", text, {"w": W1, "mask": mask}, opset=17)
    model = converted(path, Precision(FLOAT16))
    casts = {node.input[0]: node.attribute[0].i for node in model.graph.node if node.op_type == "Cast"}
    inputs = {node.name: list(node.input) for node in model.graph.node}
    assert casts["x"] == TensorProto.FLOAT16
    assert inputs["scores"] == ["x__float16", "w__float16"]
    assert inputs["masking"] == ["s", "mask"]  # -3.4e38 would be infinite
    assert inputs["softmax"] == ["masked__float16"]
    assert inputs["reduce"] == ["p"]
    assert inputs["gelu"] == ["p__float16"]
    assert inputs["last"] == ["g__float16", "mean__float16"]
    want = run(onnx.load(path), x=X)
    got = run(model, x=X)
    assert [array.dtype for array in got] == [array.dtype for array in want]
    assert error(got[0], want[0]) < 5e-3
    assert (got[2] == want[2]).all()


def test_graphs_inside_nodes(tmp_path: Path) -> None:
    text = """g (float[n, 8] x, bool c) => (float[n, 6] y) {
      [first] h = MatMul(x, w1)
      [choice] y = If (c) <
        then_branch = yes () => (float[n, 6] yes_y) { [yes_node] yes_y = MatMul(h, w2) },
        else_branch = no () => (float[n, 6] no_y) { [no_node] no_y = MatMul(h, w2) }
      >
    }"""
    path = graphs.save(tmp_path / "m.onnx", text, {"w1": W1, "w2": W2}, opset=17)
    model = converted(path, Precision("", (("yes_node", FLOAT16), ("first", FLOAT16))))
    first = half(half(X) @ half(W1))
    assert error(run(model, x=X, c=np.array(True))[0], half(first @ half(W2))) < 2e-3
    assert error(run(model, x=X, c=np.array(False))[0], first @ W2.astype(np.float64)) < 1e-3
    inside = {attribute.name: attribute.g.node for attribute in model.graph.node[-1].attribute}
    assert [node.op_type for node in inside["then_branch"]] == ["Cast", "Cast", "MatMul", "Cast"]
    assert [node.op_type for node in inside["else_branch"]] == ["MatMul"]
    assert error(run(converted(path, Precision(FLOAT16)), x=X, c=np.array(False))[0], first @ W2) < 5e-3


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        ({"thrid": "data_type:float16"}, r"\[execution_plan\] thrid: .*neither a node of this name"),
        ({"a" * 3000: "data_type:int8"}, r"\[execution_plan\] a{29}…a{29} must be data_type:float16"),
        ({"act": "data_type:int8"}, r"\[execution_plan\] act must be data_type:float16 or data_type:float32"),
        ({"wide": "data_type:float16"}, "float16: its weight 'big' holds numbers beyond 65504"),
        ({"shape": "data_type:float16"}, "computes no floating-point numbers that could be float16"),
        ({"nms": "data_type:float16"}, "computes no floating-point"),
        ({"own": "data_type:float16"}, "is of an operator whose types are unknown"),
        ({"AllReduce": "data_type:float16"}, "neither a node of this name"),
    ],
)  # fmt: skip
def test_plans_that_cannot_be_followed(tmp_path: Path, plan: dict[str, str], message: str) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17, "elsewhere" : 1]>
    g (float[2, 8] x, int64[2] i) => (float[2, 8] u, int64[1] s, int64[2] j, float[2, 8] z) {
      [act] t = Tanh(x)
      [wide] u = Mul(t, big)
      [shape] s = Shape(i)
      [nms] j = Neg(i)
      [own] z = elsewhere.Unheard(x)
    }"""
    path = graphs.save(tmp_path / "m.onnx", text, {"big": np.array(1e30, np.float32)})
    with pytest.raises(RuntimeError, match=message) as caught:
        ranks.Model().build_from_file(str(path), ranks.ModelType.MINDIR, config_dict={"execution_plan": plan})
    assert isinstance(caught.value, ShardrunError)


def test_a_plan_of_type_float32_is_kept_beside_a_mode(tmp_path: Path) -> None:
    path = mlp(tmp_path / "m.onnx")
    types = element_types(converted(path, Precision(FLOAT16, (("second", FLOAT32),))))
    assert types == {"first": TensorProto.FLOAT16, "act": TensorProto.FLOAT16, "second": TensorProto.FLOAT}


def test_weights_in_files_beside_the_model(tmp_path: Path) -> None:
    model = onnx.load(mlp(tmp_path / "m.onnx"))
    onnx.save(model, tmp_path / "e.onnx", save_as_external_data=True, location="e.data", size_threshold=0)
    plan = {"execution_plan": {"MatMul": "data_type:float16"}}
    assert (
        predict(tmp_path / "e.onnx", config_dict=plan).tobytes()
        == predict(tmp_path / "m.onnx", config_dict=plan).tobytes()
    )


def test_together_with_other_shapes_and_variable_weights(tmp_path: Path) -> None:
    path = mlp(tmp_path / "m.onnx")
    model = ranks.Model()
    model.build_from_file(
        str(path), ranks.ModelType.MINDIR,
        config_dict={
            "execution_plan": {"second": "data_type:float16"}, "cpu_context": {"variable_weights_list": "w2"}
        },
    )  # fmt: skip
    inputs = model.get_inputs()
    model.resize(inputs, [[5, 8]])
    (before,) = model.predict([X])
    assert error(before.get_data_to_numpy(), EXACT["second"](X)) < 2e-3
    new = ranks.Tensor()
    new.name, new.dtype, new.shape = "w2", ranks.DataType.FLOAT32, [16, 6]
    new.set_data_from_numpy(W2 * 3)
    model.update_weights([[new]])
    (after,) = model.predict([X])
    want = half(half(np.tanh(X.astype(np.float64) @ W1)) @ half(W2 * 3))
    assert error(after.get_data_to_numpy(), want) < 2e-3


def test_rank_models_keep_what_they_exchange(tmp_path: Path) -> None:
    """Collectives keep their type, so that ranks need not agree."""
    text = """g (float[n, 8] x) => (float[n, 16] y) {
      [first] h = MatMul(x, w1)
      [sum] r = com.microsoft.AllReduce(h)
      [act] y = Tanh(r)
    }"""
    path = graphs.save(tmp_path / "m.onnx", text, {"w1": W1}, opset=17)
    model = onnx.load(path)
    assert apply(model, Precision(FLOAT16), path, part=True) == {}
    kept = next(node for node in model.graph.node if node.op_type == "AllReduce")
    assert (list(kept.input), list(kept.output)) == (["h"], ["r"])
    changed = onnx.load(path)
    apply(changed, Precision("", (("act", FLOAT16),)), path, part=True)
    # What is behind a collective has its type.
    assert [node.op_type for node in changed.graph.node] == ["MatMul", "AllReduce", "Cast", "Tanh", "Cast"]
    changed = onnx.load(path)
    plan = (("elsewhere", FLOAT16), ("first", FLOAT32), ("Tanh", FLOAT16), ("act", FLOAT32))
    # What a name overrides fits all the same.
    fits = {"elsewhere": False, "first": True, "Tanh": True, "act": True}
    assert apply(changed, Precision("", plan), path, part=True) == fits
    assert changed == onnx.load(path)
    with pytest.raises(ModelError, match="exchanges values between ranks, which keep their type"):
        apply(onnx.load(path), Precision("", (("AllReduce", FLOAT16),)), path, part=True)


Plan = tuple[tuple[str, str], ...]


def on_two_ranks(folder: Path, plans: Sequence[Plan]) -> list[Any]:
    """Each rank's answer, or its error, with its plan."""

    def rank(communicator: FakeCommunicator) -> Any:
        precision = Precision("", plans[communicator.rank], rounded=True)
        try:
            model = executor.load(folder, communicator=communicator, precision=precision)
        except ModelError as error:
            return str(error)
        return model.run({"x": X})[0]

    return on_ranks(2, rank, timeout=20)


@pytest.mark.parametrize("axis", ["tensor", "pipeline"])
def test_plans_of_sliced_models(tmp_path: Path, axis: str) -> None:
    path, folder = mlp(tmp_path / "m.onnx"), tmp_path / "slices"
    slice_model(path, 2, folder, options=SliceOptions(mesh=Mesh.of(**{axis: 2}), micro_batches=1))
    # With stages, each of the nodes is on one rank only.
    for key in ("first", "second", "MatMul") if axis == "pipeline" else ("MatMul",):
        for answer in on_two_ranks(folder, [((key, FLOAT16),)] * 2):
            assert error(answer, EXACT[key](X)) < 2e-3, key
    for plans in ([(("MatMul", FLOAT16), ("thrid", FLOAT16))] * 2, [(), (("thrid", FLOAT16),)]):
        for answer in on_two_ranks(folder, plans):
            assert str(answer).startswith(
                "[execution_plan] thrid: no rank that has this plan has a node of th"
            )
    # Ranks need not have the same plan, nor any: each may have what is for its nodes.
    whole = np.tanh(X.astype(np.float64) @ W1) @ W2
    for answer in on_two_ranks(folder, [(), (("second", FLOAT32),)]):
        assert error(answer, whole) < 1e-6
    if axis == "pipeline":
        for answer in on_two_ranks(folder, [(), (("first", FLOAT16),)]):
            assert str(answer).startswith(
                "[execution_plan] first: no rank that has this plan has a node of th"
            )


def contexts(target: str, mode: str = "", provider: str = "") -> ranks.Context:
    context = ranks.Context()
    context.target = [target]
    device = context.ascend if target == "ascend" else context.gpu
    if mode:
        device.precision_mode = mode
    device.provider = provider
    return context


def test_what_devices_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ranks.devices.devices.require", lambda provider, device: None)

    def told(context: ranks.Context, modes: precision_options.Modes = ()) -> dict[str, str]:
        asked = precision_options.asked(context, targets.target_of(context), modes, ())
        options = targets.place(context, asked).options[0]
        return {key: value for key, value in options.items() if key != "device_id"}

    assert told(contexts("gpu")) == {}
    assert told(contexts("gpu", "enforce_fp32")) == {"use_tf32": "0"}
    assert told(contexts("gpu", "preferred_fp16")) == {}
    assert told(contexts("gpu", "preferred_fp16", "tensorrt")) == {"trt_fp16_enable": "True"}
    assert told(contexts("gpu"), (("gpu", "enforce_fp32"),)) == {"use_tf32": "0"}
    for mode, name in CANN_MODES.items():
        assert told(contexts("ascend", mode)) == {"precision_mode": name}
        assert told(contexts("ascend", "enforce_fp32"), (("ascend", mode),)) == {"precision_mode": name}
    assert told(contexts("ascend"), (("ascend", "force_fp16"),)) == {"precision_mode": "force_fp16"}
    older = contexts("ascend")
    older.ascend.legacy_precision_mode = "force_fp32"  # as `AscendDeviceInfo` says it
    assert told(older) == {"precision_mode": "force_fp32"}
    assert told(older, (("ascend", "force_fp16"),)) == {"precision_mode": "force_fp16"}


def test_what_is_left_for_the_graph() -> None:
    entries = (("MatMul", FLOAT16),)

    def left(provider: str, mode: str = "", plan: Any = ()) -> Precision | None:
        asked = Asked(mode, plan)
        modes.told(provider, asked)
        return modes.left(provider, asked)

    assert left(CUDA) is None
    assert left(CUDA, "preferred_fp16") == Precision(FLOAT16)
    assert left(CUDA, "enforce_fp32", entries) == Precision(FLOAT32, entries)
    assert left(TENSORRT, "preferred_fp16") is None
    assert left(TENSORRT, "enforce_fp32") == Precision(FLOAT32)
    with pytest.raises(ShardrunError, match=r"\[execution_plan\] cannot be kept with TensorRT.*: leave the"):
        left(TENSORRT, "preferred_fp16", entries)
    assert left(CANN, "enforce_fp16") is None
    for mode in ("", "enforce_origin", "must_keep_origin_dtype"):
        assert left(CANN, mode, entries) == Precision("", entries)
        assert modes.told(CANN, Asked(mode, entries)) == {"precision_mode": "must_keep_origin_dtype"}
    with pytest.raises(ShardrunError, match="precision mode force_fp16 of CANN contradict each other"):
        left(CANN, "enforce_fp16", entries)


def test_a_plan_for_tensorrt_in_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ranks.devices.devices.require", lambda provider, device: None)
    context = contexts("gpu", provider="tensorrt")
    asked = Asked("", (("MatMul", FLOAT16),))
    with pytest.raises(ShardrunError, match=r'set context.gpu.provider to "" \(CUDA\), or leave the plan'):
        precision_options.left("gpu", targets.place(context, asked), asked)


def test_modes_in_configurations(tmp_path: Path) -> None:
    path = tmp_path / "c.ini"
    path.write_text(
        '[gpu_context]\nprecision_mode=preferred_fp16\n[ascend_context]\nprecision_mode="force_fp16"\n'
    )
    assert config.load(str(path)).precision_modes == (("gpu", "preferred_fp16"), ("ascend", "force_fp16"))
    with pytest.raises(
        RuntimeError, match=r"\[cpu_context\] precision_mode must be one of enforce_fp32, preferred"
    ):
        config.load("", {"cpu_context": {"precision_mode": "enforce_fp16"}})


def test_modes_for_other_targets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice.NOTICES, "_given", set())
    path = mlp(tmp_path / "h.onnx", TensorProto.FLOAT16)
    plain = predict(path)
    given = {"ascend_context": {"precision_mode": "enforce_fp32"}}
    text = r"\[ascend_context\] precision_mode=enforce_fp32 has no effect, because the target is 'cpu'"
    with pytest.warns(UserWarning, match=text) as caught:
        assert predict(path, config_dict=given).tobytes() == plain.tobytes()
        predict(path, config_dict=given)
    assert len(caught) == 1
    assert caught[0].filename == __file__
    # A file for several platforms: the target's own section is followed.
    given["cpu_context"] = {"precision_mode": "preferred_fp16"}
    modes = config.load("", given).precision_modes
    assert precision_options.chosen(ranks.Context(), "cpu", modes) == "preferred_fp16"
    assert precision_options.chosen(contexts("ascend"), "ascend", modes) == "enforce_fp32"


def test_each_target_has_its_own_mode() -> None:
    context = ranks.Context()
    context.cpu.precision_mode, context.gpu.precision_mode = "preferred_fp16", "enforce_fp32"
    context.ascend.precision_mode = "enforce_origin"
    found = [precision_options.chosen(context, target) for target in ("cpu", "gpu", "ascend")]
    assert found == ["preferred_fp16", "enforce_fp32", "enforce_origin"]


def test_a_device_that_the_cpu_stands_in_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TARGET", "cpu")
    path = mlp(tmp_path / "m.onnx")
    plain = predict(path)
    for context in (contexts("gpu", "preferred_fp16"), contexts("ascend", "enforce_fp16")):
        assert predict(path, context=context).tobytes() == plain.tobytes()
        plan = {"execution_plan": {"second": "data_type:float16"}}
        assert error(predict(path, context=context, config_dict=plan), EXACT["second"](X)) < 2e-3


def test_the_executor_alone(tmp_path: Path) -> None:
    loaded = executor.load(mlp(tmp_path / "m.onnx"), precision=Precision("", (("first", FLOAT16),)))
    assert error(loaded.run({"x": X})[0], EXACT["first"](X)) < 2e-3
    loaded.close()
