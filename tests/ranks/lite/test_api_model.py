"""`ranks.Model` in one process, compared with plain ONNX Runtime."""

import gc
import json
import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnxruntime
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import ranks
from ranks import (
    Context,
    DataType,
    Model,
    ModelGroup,
    ModelGroupFlag,
    ModelParallelRunner,
    ModelType,
    Tensor,
    TensorMeta,
)
from ranks.errors import DeviceError, IdentityError, ModelError, ShardError, ShardrunError
from tests.ranks import api_models
from tests.ranks.threads import works_in_child

pytestmark = pytest.mark.usefixtures("single")


def built(path: Path, **options: Any) -> Model:
    model = Model()
    model.build_from_file(str(path), ModelType.ONNX, **options)
    return model


def oracle(path: Path, *arrays: NDArray[Any]) -> list[NDArray[Any]]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [argument.name for argument in session.get_inputs()]
    return list(session.run(None, dict(zip(names, arrays, strict=True))))


def test_tutorial_of_the_present_generation(tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "linear.onnx", batch=3)
    context = Context()
    context.target = ["cpu"]
    context.cpu.thread_num = 1
    model = built(path, context=context)
    assert str(model) == f"model_path: {path}."
    (tensor,) = model.get_inputs()
    assert (tensor.name, tensor.dtype, tensor.shape) == ("x", DataType.FLOAT32, [3, 8])
    data = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    tensor.set_data_from_numpy(data.flatten())
    (output,) = model.predict([tensor])
    assert str(output) == (
        "name: y,\ndtype: DataType.FLOAT32,\nshape: [3, 4],\nformat: Format.NCHW,\n"
        "element_num: 12,\ndata_size: 48.\ndevice: None:-1."
    )
    np.testing.assert_array_equal(output.get_data_to_numpy(), oracle(path, data)[0])


def test_inputs_without_data_are_zeros(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    (output,) = model.predict(model.get_inputs())
    np.testing.assert_array_equal(output.get_data_to_numpy(), np.ones((2, 3)))


def test_arrays_and_new_tensors_serve_as_inputs(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    array = np.full((2, 3), 4, np.float32)
    for given_input in (array, Tensor(array), array.T.copy().T):
        (output,) = model.predict((given_input,))
        np.testing.assert_array_equal(output.get_data_to_numpy(), array + 1)


@pytest.mark.parametrize("options", [{}, {"config_dict": {"cpu_context": {"variable_weights_list": "w1"}}}])
def test_arrays_however_they_lie_in_memory(tmp_path: Path, options: dict[str, Any]) -> None:
    path = api_models.linear(tmp_path / "linear.onnx")
    model = built(path, **options)
    data = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    unaligned = np.frombuffer(b"." + data.tobytes(), np.uint8)[1:].view(np.float32).reshape(3, 8)
    swapped = data.astype(data.dtype.newbyteorder("S"))
    wanted = oracle(path, data)[0]
    for array in (swapped, np.asfortranarray(swapped), np.repeat(data, 2, 1)[:, ::2], unaligned):
        (output,) = model.predict([array])
        np.testing.assert_allclose(output.get_data_to_numpy(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "element",
    [
        onnx.TensorProto.FLOAT16,
        onnx.TensorProto.DOUBLE,
        onnx.TensorProto.INT8,
        onnx.TensorProto.INT64,
        onnx.TensorProto.UINT8,
    ],
)
def test_types(tmp_path: Path, element: int) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx", element=element))
    (tensor,) = model.get_inputs()
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(element))
    tensor.set_data_from_numpy(np.full((2, 3), 2, dtype))
    (output,) = model.predict([tensor])
    assert output.dtype == tensor.dtype
    np.testing.assert_array_equal(output.get_data_to_numpy(), np.full((2, 3), 3, dtype))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_a_child_forked_while_another_thread_predicts(tmp_path: Path) -> None:
    """Of a type that ONNX Runtime takes by address only, one prediction waits for the other."""
    node, shape = onnx.helper.make_node("Identity", ["x"], ["y"]), [2, 3]
    kind = onnx.TensorProto.BFLOAT16
    model = built(api_models.save(tmp_path / "m.onnx", [node], {"x": shape}, {"y": shape}, element=kind))
    assert model._built is not None
    loaded = model._built.model
    assert not loaded.concurrent

    def answers() -> bool:
        (answer,) = loaded.run({"x": np.ones(shape, ml_dtypes.bfloat16)})
        return bool((answer == 1).all())

    assert works_in_child(answers, loaded._lock)


def test_outputs_stay_the_callers(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    results = []
    for number in range(3):
        (output,) = model.predict([np.full((2, 3), number, np.float32)])
        results.append(output)
        gc.collect()
    for number, output in enumerate(results):
        np.testing.assert_array_equal(output.get_data_to_numpy(), np.full((2, 3), number + 1))


def test_get_outputs_describes_and_is_filled(tmp_path: Path) -> None:
    model = built(api_models.linear(tmp_path / "m.onnx"))
    outputs = model.get_outputs()
    assert all(isinstance(output, TensorMeta) for output in outputs)
    assert (outputs[0].name, outputs[0].dtype, outputs[0].shape) == ("y", DataType.FLOAT32, [-1, 4])
    assert (outputs[0].element_num, outputs[0].data_size) == (0, 0)
    data = np.ones((2, 8), np.float32)
    filled = model.predict([data], outputs)
    assert filled[0] is outputs[0]
    assert outputs[0].shape == [2, 4]
    np.testing.assert_array_equal(filled[0].get_data_to_numpy(), model.predict([data])[0].get_data_to_numpy())


def test_predict_fills_the_users_buffers(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    buffer = np.zeros((2, 3), np.float32)
    model.predict([np.ones((2, 3), np.float32)], [Tensor(buffer)])
    np.testing.assert_array_equal(buffer, np.full((2, 3), 2))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tutorial_of_the_older_generation(tmp_path: Path) -> None:
    path = api_models.add_one(tmp_path / "m.onnx")
    context = Context(thread_num=1, thread_affinity_mode=2)
    context.append_device_info(ranks.CPUDeviceInfo(enable_fp16=False))
    model = built(path, context=context)
    inputs = model.get_inputs()
    inputs[0].set_data_from_numpy(np.arange(6, dtype=np.float32))
    outputs = model.get_outputs()
    model.predict(inputs, outputs)
    (output,) = outputs
    assert isinstance(output, Tensor)
    assert (output.get_tensor_name(), output.get_data_size(), output.get_element_num()) == ("y", 24, 6)
    np.testing.assert_array_equal(output.get_data_to_numpy(), np.arange(1, 7).reshape(2, 3))
    assert model.get_input_by_tensor_name("x").name == "x"
    assert model.get_output_by_tensor_name("y").name == "y"
    with pytest.raises(RuntimeError, match="get_input_by_tensor_name failed! The model has no input 'z'"):
        model.get_input_by_tensor_name("z")
    with pytest.raises(RuntimeError, match="get_output_by_tensor_name failed!"):
        model.get_output_by_tensor_name("x")
    with pytest.raises(TypeError, match="tensor_name must be str, but got <class 'int'>"):
        model.get_output_by_tensor_name(1)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize(
    ("inputs", "kind", "message"),
    [
        ([], RuntimeError, "model input len:1 not equal input len:0!"),
        ([1], TypeError, "inputs element must be Tensor, but got <class 'int'> at index 0."),
        ("x", TypeError, "inputs must be list or tuple, but got <class 'str'>."),
        ([np.zeros((2, 3))], RuntimeError, "predict failed! Error is Input 'x' must have dtype float32"),
        ([np.zeros((2, 4), np.float32)], RuntimeError, "predict failed! Error is Axis 1 of input 'x' must"),
        (
            [Tensor(np.zeros(5, np.float32))],
            RuntimeError,
            "predict failed! Error is Input 'x' must have 2 axes",
        ),
    ],
)
def test_inputs_that_do_not_fit(tmp_path: Path, inputs: Any, kind: type[Exception], message: str) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    with pytest.raises(kind) as caught:
        model.predict(inputs)
    assert str(caught.value).startswith(message)
    model.predict([np.zeros((2, 3), np.float32)])  # still usable


def test_outputs_that_do_not_fit(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    data = [np.zeros((2, 3), np.float32)]
    with pytest.raises(TypeError, match="outputs must be list or tuple, but got <class 'int'>"):
        model.predict(data, 1)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(TypeError, match=r"outputs element must be Tensor, but got .*ndarray.* at index 0"):
        model.predict(data, data)  # type: ignore[arg-type]  # what is tested
    with pytest.raises(RuntimeError, match="model output len:1 not equal output len:0!"):
        model.predict(data, [])


def test_inputs_one_by_one(tmp_path: Path) -> None:
    """As MindSpore's Model takes them: a tensor or an array, or several."""
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    place = np.zeros((2, 3), np.float32)
    ways: list[tuple[Any, ...]] = [(array,), (Tensor(array),), (array, [Tensor(place)]), ((array,),)]
    for arguments in ways:
        (found,) = model.predict(*arguments)
        assert np.array_equal(found.get_data_to_numpy(), array + 1)
    assert np.array_equal(place, array + 1)
    with pytest.raises(RuntimeError, match="model input len:1 not equal input len:3! predict failed!"):
        model.predict(array, array, array)
    runner = ModelParallelRunner()
    runner.build_from_file(str(tmp_path / "m.onnx"))
    assert np.array_equal(runner.predict(array)[0].get_data_to_numpy(), array + 1)
    with pytest.raises(RuntimeError, match=r"predict failed! .*not equal input len:2!"):
        Model().predict(array, Tensor(array))


def test_several_inputs_one_by_one(tmp_path: Path) -> None:
    node = onnx.helper.make_node("Sub", ["a", "b"], ["y"])
    model = built(api_models.save(tmp_path / "m.onnx", [node], {"a": [2], "b": [2]}, {"y": [2]}))
    a, b = np.array([5, 6], np.float32), np.array([1, 4], np.float32)
    assert np.array_equal(model.predict(a, b)[0].get_data_to_numpy(), [4, 2])
    assert np.array_equal(model.predict(Tensor(b), Tensor(a))[0].get_data_to_numpy(), [-4, -2])


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (np.zeros((3, 2), np.float32), r"shape \[2, 3\], but .* dtype float32 and shape \[3, 2\]"),
        (np.zeros(6, np.float32), r"shape \[2, 3\], but .* dtype float32 and shape \[6\]"),
        (np.zeros((2, 3)), r"has dtype float32 .* dtype float64 and shape \[2, 3\]"),
        (np.frombuffer(bytes(24), np.float32).reshape(2, 3), "which is read-only"),
    ],
    ids=["shape", "axes", "dtype", "read-only"],
)
def test_arrays_for_outputs_that_do_not_fit(tmp_path: Path, own: np.ndarray[Any, Any], words: str) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    tensor = Tensor(own)
    with pytest.raises(RuntimeError, match=f"predict failed! Error is Output 'y' .*{words}"):
        model.predict([np.ones((2, 3), np.float32)], [tensor])
    assert tensor.get_data_to_numpy() is own
    assert not own.any()
    without = Tensor(shape=list(own.shape), dtype=DataType.INT64)
    model.predict([np.ones((2, 3), np.float32)], [without])  # without data it takes what comes
    np.testing.assert_array_equal(without.get_data_to_numpy(), np.full((2, 3), 2, np.float32))


def test_none_of_the_callers_arrays_is_written_to_where_one_does_not_fit(tmp_path: Path) -> None:
    nodes = [onnx.helper.make_node("Neg", ["x"], [name]) for name in ("y", "z")]
    model = built(api_models.save(tmp_path / "m.onnx", nodes, {"x": [2]}, {"y": [2], "z": [2]}))
    own = np.zeros(2, np.float32)
    with pytest.raises(RuntimeError, match="predict failed! Error is Output 'z' "):
        model.predict([np.ones(2, np.float32)], [Tensor(own), Tensor(np.zeros(3, np.float32))])
    assert not own.any()


def test_open_dimension_by_data_or_by_resize(tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx")
    model = built(path)
    inputs = model.get_inputs()
    assert inputs[0].shape == [-1, 8]
    with pytest.raises(RuntimeError, match=r"input 'x' has no data and its shape \[-1, 8\] is open"):
        model.predict(inputs)
    for batch in (1, 5, 2):
        data = np.random.default_rng(batch).standard_normal((batch, 8)).astype(np.float32)
        inputs[0].set_data_from_numpy(data)
        np.testing.assert_array_equal(model.predict(inputs)[0].get_data_to_numpy(), oracle(path, data)[0])
    model.resize(inputs, [[4, 8]])
    assert inputs[0].shape == model.get_inputs()[0].shape == [4, 8]
    assert model.predict(inputs)[0].shape == [4, 4]


def test_resize_of_a_fixed_dimension_that_the_graph_does_not_need(tmp_path: Path) -> None:
    path = api_models.add_one(tmp_path / "m.onnx", (2, 3))
    model = built(path)
    inputs = model.get_inputs()
    model.resize(inputs, [[5, 3]])
    assert inputs[0].shape == [5, 3]
    data = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
    inputs[0].set_data_from_numpy(data)
    (output,) = model.predict(inputs)
    np.testing.assert_array_equal(output.get_data_to_numpy(), data + 1)
    # The dimension is open now: another length needs no resize, and the file's own works as before.
    (output,) = model.predict([np.zeros((7, 3), np.float32)])
    assert output.shape == [7, 3]
    model.resize(inputs, [[2, 9]])
    assert model.predict(model.get_inputs())[0].shape == [2, 9]
    model.resize(inputs, [[2, 3]])
    assert model.predict(model.get_inputs())[0].shape == [2, 3]


def test_resize_reloads_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ranks.run import executor

    loads = []
    load = executor.load
    monkeypatch.setattr(executor, "load", lambda *a, **k: loads.append(k["dims"]) or load(*a, **k))
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    inputs = model.get_inputs()
    for batch in (5, 2, 7, 5):
        model.resize(inputs, [[batch, 3]])
    assert loads == [None, {"x": ["x_0", 3]}]


@pytest.mark.parametrize("shape", [[3, 3], [2, 4]])
def test_resize_that_the_graph_refuses_leaves_the_model_as_it_was(tmp_path: Path, shape: list[int]) -> None:
    model = built(api_models.flatten(tmp_path / "m.onnx"))
    inputs = model.get_inputs()
    with pytest.raises(RuntimeError) as caught:
        model.resize(inputs, [shape])
    assert str(caught.value).startswith(
        f"resize failed! Error is the graph does not allow the shapes 'x' {shape}: "
    )
    assert isinstance(caught.value, ModelError)
    assert inputs[0].shape == model.get_inputs()[0].shape == [2, 3]
    assert model.predict([np.zeros((2, 3), np.float32)])[0].shape == [6]
    model.resize(inputs, [[3, 2]])  # as many elements: allowed
    assert model.predict([np.zeros((3, 2), np.float32)])[0].shape == [6]


def test_resize_of_a_dimension_that_a_weight_fixes(tmp_path: Path) -> None:
    model = built(api_models.linear(tmp_path / "m.onnx"))
    with pytest.raises(
        RuntimeError, match=r"resize failed! Error is the graph does not allow the shapes 'x' \[2, 9\]"
    ):
        model.resize(model.get_inputs(), [[2, 9]])
    assert model.predict([np.zeros((2, 8), np.float32)])[0].shape == [2, 4]


def test_resize_beyond_memory(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    with pytest.raises(RuntimeError, match=r"resize failed! .*do not fit into memory"):
        model.resize(model.get_inputs(), [[2**40, 2**20]])
    assert model.predict([np.zeros((2, 3), np.float32)])[0].shape == [2, 3]


@pytest.mark.parametrize(
    ("dims", "message"),
    [
        (
            [[2, 3, 1]],
            "resize failed! Error is input 'x' has 2 dimensions, but the new shape [2, 3, 1] has 3.",
        ),
        ([[-1, 3]], "resize failed! Error is the new shape [-1, 3] of input 'x' is negative in a dimension"),
    ],
)
def test_resize_to_what_is_no_shape_of_the_input(tmp_path: Path, dims: list[list[int]], message: str) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    with pytest.raises(RuntimeError) as caught:
        model.resize(model.get_inputs(), dims)
    assert str(caught.value).startswith(message)


def test_resize_of_too_many_inputs(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "m.onnx"))
    with pytest.raises(RuntimeError, match="the model has 1 inputs, but 2 shapes were given"):
        model.resize([Tensor(), Tensor()], [[1], [1]])


def test_building_again_replaces_the_model_only_if_it_works(tmp_path: Path) -> None:
    model = built(api_models.add_one(tmp_path / "a.onnx"))
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08broken")
    with pytest.raises(RuntimeError):
        model.build_from_file(str(tmp_path / "broken.onnx"), ModelType.ONNX)
    assert str(model) == f"model_path: {tmp_path / 'a.onnx'}."
    assert model.predict([np.zeros((2, 3), np.float32)])[0].shape == [2, 3]
    model.build_from_file(str(api_models.flatten(tmp_path / "b.onnx")), ModelType.ONNX)
    assert model.predict([np.zeros((2, 3), np.float32)])[0].shape == [6]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is an empty file, not a model."),
        (b"no model at all\n", "is no model: its 16 bytes are neither those of an ONNX file nor MindIR's."),
        (b"\x00\x01\x02\x03MSL2\x00\x00", "is a MindSpore Lite file (.ms), whose operators"),
        (b"\x0a\x050.1.0\x12\x04MIND", "is MindIR of version 0"),
        (b"\xd8\x5e\x3a\x7f" + b"\x00" * 60, "is encrypted (AES-GCM): give its key"),
        (b"\x08\x08", "graph"),
        (b"\x08\x08\x3a\xff\xff\xff\xff\x0f", ""),
        (b"\xff" * 64, "is no model: its 64 bytes are neither those of an ONNX file nor MindIR's."),
    ],
)
def test_files_that_are_no_onnx_models(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(RuntimeError) as caught:
        built(path)
    assert isinstance(caught.value, ModelError)
    assert str(caught.value).startswith("build_from_file failed! Error is ")
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_model_type_is_decided_by_content(tmp_path: Path) -> None:
    path = str(api_models.add_one(tmp_path / "m.mindir"))
    model = Model()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.build_from_file(path, ModelType.MINDIR)
    with pytest.warns(UserWarning, match="is read as ONNX, which it is, and not as ModelType.MINDIR_LITE"):
        model.build_from_file(path, ModelType.MINDIR_LITE)
    assert model.predict([np.zeros((2, 3), np.float32)])[0].shape == [2, 3]


def test_folder_without_manifest(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"build_from_file failed! Error is .*manifest.json") as caught:
        built(tmp_path)
    assert isinstance(caught.value, ShardError)


def test_rank_model_alone(tmp_path: Path) -> None:
    path, _ = api_models.linear_ranks(tmp_path)
    with pytest.raises(RuntimeError, match=r"build_from_file failed! Error is .*runs alone") as caught:
        built(path)
    assert isinstance(caught.value, ShardError)


@pytest.mark.parametrize("path", ["", "a" * 5000, "a\0b", "/proc/self/nothing", "a/" * 3000])
def test_paths_where_nothing_is(path: str) -> None:
    with pytest.raises(ShardrunError, match="build_from_file failed, model_path does not exist! No file or"):
        Model().build_from_file(path, ModelType.ONNX)
    with pytest.raises(ShardrunError, match="build from file failed, model_path does not exist! No file or"):
        ModelParallelRunner().build_from_file(path)
    with pytest.raises(ShardrunError, match=r"ModelGroup's add model failed. No file or folder"):
        ModelGroup(ModelGroupFlag.SHARE_WEIGHT).add_model([path])


def test_encrypted_models_are_refused(tmp_path: Path) -> None:
    path = api_models.add_one(tmp_path / "m.onnx")
    with pytest.raises(TypeError, match="dec_key must be bytes, but got <class 'str'>"):
        built(path, dec_key="k")
    with pytest.raises(TypeError, match="dec_mode must be str, but got <class 'int'>"):
        built(path, dec_key=b"k", dec_mode=1)
    with pytest.raises(TypeError, match="dec_num_parallel must be int, but got <class 'str'>"):
        built(path, dec_key=b"k", dec_num_parallel="1")
    with pytest.raises(ValueError, match="dec_mode must not be empty string!"):
        built(path, dec_key=b"k", dec_mode="")
    with pytest.raises(RuntimeError, match="is no encrypted MindIR file, but dec_key was given"):
        built(path, dec_key=b"k")


def test_what_needs_a_built_model_says_so() -> None:
    said = "the model is not built: call build_from_file first"
    calls: dict[str, tuple[str, Callable[[Model], object]]] = {
        "predict": (
            rf"{said} \(model input len:0 not equal input len:1!\)\.",
            lambda m: m.predict([np.ones(2)]),
        ),
        "resize": (rf"{said}\.", lambda m: m.resize([], [])),
        "eval": (rf"{said}\.", lambda m: m.eval([], "accuracy")),
        "session": (rf"{said}\.", lambda m: m.session()),
    }
    for name, (text, call) in calls.items():
        with pytest.raises(ShardrunError, match=f"^{name} failed! Error is {text}$"):
            call(Model())


def test_a_session_needs_a_model_with_state(tmp_path: Path) -> None:
    with pytest.raises(ShardrunError, match=r"^session failed! Error is .*/m\.onnx has no state"):
        built(api_models.add_one(tmp_path / "m.onnx")).session()


def test_missing_device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def require(provider: str, device_id: int = 0) -> None:
        raise DeviceError(f"{provider} is not here.")

    monkeypatch.setattr("ranks.devices.devices.require", require)
    context = Context()
    context.target = ["gpu"]
    with pytest.raises(
        RuntimeError, match="build_from_file failed! Error is The target 'gpu' cannot"
    ) as caught:
        built(api_models.add_one(tmp_path / "m.onnx"), context=context)
    assert isinstance(caught.value, DeviceError)


def test_rank_table_needs_a_rank_and_must_be_one(tmp_path: Path) -> None:
    path = api_models.add_one(tmp_path / "m.onnx")
    options = {"ascend_context": {"rank_table_file": str(tmp_path / "table.json")}}
    with pytest.raises(RuntimeError, match=r"set context.ascend.rank_id") as caught:
        built(path, config_dict=options)
    assert isinstance(caught.value, IdentityError)
    context = Context()
    context.ascend.rank_id = 0
    with pytest.raises(RuntimeError, match=r"table.json: cannot read this rank table: No such file"):
        built(path, context=context, config_dict=options)
    with pytest.raises(RuntimeError, match="zero byte"):
        built(path, context=context, config_dict={"ascend_context": {"rank_table_file": "a\0b"}})


def test_plain_model_under_a_rank_table_runs_by_itself(tmp_path: Path) -> None:
    device = [{"device_id": str(index), "rank_id": str(index)} for index in range(2)]
    server = {"server_id": "10.0.0.1", "device": device, "host_nic_ip": "reserve"}
    table = {"version": "1.0", "server_count": "1", "server_list": [server], "status": "completed"}
    (tmp_path / "table.json").write_text(json.dumps(table))
    context = Context()
    context.ascend.rank_id = 1
    options = {"ascend_context": {"rank_table_file": str(tmp_path / "table.json")}}
    model = built(api_models.add_one(tmp_path / "m.onnx"), context=context, config_dict=options)
    assert model.predict([np.zeros((2, 3), np.float32)])[0].shape == [2, 3]


def test_rank_of_the_script_against_that_of_the_launcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "1")
    context = Context()
    context.ascend.rank_id = 0
    with pytest.raises(
        RuntimeError, match=r"context.ascend.rank_id is 0, but this process was started as rank 1"
    ):
        built(api_models.add_one(tmp_path / "m.onnx"), context=context)


def test_model_info(tmp_path: Path) -> None:
    model = built(api_models.linear(tmp_path / "m.onnx"))
    assert model.get_model_info("input_shape") == "x:-1,8"
    assert json.loads(model.get_model_info("user_info")) == {"author": "tests"}
    assert model.get_model_info("other") == Model().get_model_info("input_shape") == ""
    with pytest.raises(TypeError, match="key must be str, but got <class 'int'>"):
        model.get_model_info(1)  # type: ignore[arg-type]  # what is tested


def test_cores_and_threads(tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx")
    context = Context()
    context.cpu.thread_num = 2
    before = os.sched_getaffinity(0)
    context.cpu.thread_affinity_core_list = [min(before)]
    model = built(path, context=context)
    assert os.sched_getaffinity(0) == before
    assert model.predict([np.zeros((1, 8), np.float32)])[0].shape == [1, 4]
    context.cpu.thread_affinity_core_list = [100_000]
    context.cpu.thread_num = 10**6
    with pytest.warns(UserWarning) as seen:
        built(path, context=context)
    texts = sorted(str(one.message) for one in seen)
    assert texts[0].startswith("thread_affinity_core_list [100000] is not applied")
    assert texts[1].startswith("thread_num 1000000 is too many, ")


ANYTHING = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.lists(st.one_of(st.integers(-2, 4), st.lists(st.integers(-2, 4), max_size=3)), max_size=2),
    st.sampled_from(
        [ModelType.ONNX, Context(), Model(), Tensor(), [Tensor()], [np.zeros((2, 3), np.float32)]]
    ),
)


# A model may be looked for on the disk: how long one example takes is the machine's affair.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(arguments=st.lists(ANYTHING, min_size=2, max_size=6))
def test_any_arguments_of_build(arguments: list[Any]) -> None:
    try:
        Model().build_from_file(*arguments)
    except (TypeError, ValueError) as error:
        assert str(error)
    except RuntimeError as error:
        assert isinstance(error, ShardrunError)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return built(api_models.add_one(tmp_path_factory.mktemp("small") / "m.onnx"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=100, deadline=None)
@given(first=ANYTHING, second=ANYTHING, method=st.sampled_from(["predict", "resize", "get_model_info"]))
def test_any_arguments_of_a_built_model(first: Any, second: Any, method: str, small: Model) -> None:
    arguments = (first,) if method == "get_model_info" else (first, second)
    try:
        getattr(small, method)(*arguments)
    except (TypeError, ValueError) as error:
        assert str(error)
    except RuntimeError as error:
        assert isinstance(error, ShardrunError)
    assert small.predict([np.zeros((2, 3), np.float32)])[0].shape == [2, 3]
