"""What a script sets on a model's inputs, and the forms in which `Model.predict` takes them."""

import os
from pathlib import Path

import numpy as np
import pytest

import ranks
from ranks import Converter, DataType, Format, Model, ModelParallelRunner, ModelType, Tensor
from ranks.errors import ModelError, ShardrunError
from tests.ranks import api_models

pytestmark = pytest.mark.usefixtures("single")
DATA = np.arange(24, dtype=np.float32).reshape(3, 8)


@pytest.fixture
def model(tmp_path: Path) -> Model:
    model = Model()
    model.build_from_file(str(api_models.linear(tmp_path / "linear.onnx", batch=3)), ModelType.ONNX)
    return model


def given(array: np.ndarray) -> Tensor:
    return Tensor(np.ascontiguousarray(array))


def test_what_is_set_on_an_input_is_seen_later_but_not_its_data(model: Model) -> None:
    (tensor,) = model.get_inputs()
    tensor.set_data_from_numpy(DATA)
    tensor.name, tensor.format = "renamed", Format.NHWC
    (later,) = model.get_inputs()
    assert later is not tensor
    assert (later.name, later.format, later.shape) == ("renamed", Format.NHWC, [3, 8])
    assert not later.get_data_to_numpy().any()
    assert np.array_equal(
        model.predict([tensor])[0].get_data_to_numpy(), model.predict([DATA])[0].get_data_to_numpy()
    )
    assert model.get_model_info("input_shape") == "x:3,8"

    later.shape = [2, 8]
    assert model.get_inputs()[0].shape == [2, 8]
    with pytest.raises(ShardrunError, match="predict failed!"):
        model.predict(model.get_inputs())
    model.resize(model.get_inputs(), [[5, 8]])
    assert model.get_inputs()[0].shape == [5, 8]
    model.get_inputs()[0].dtype = DataType.FLOAT16
    assert model.get_inputs()[0].dtype is DataType.FLOAT16


def test_a_resize_with_tensors_of_another_model_leaves_that_one(model: Model, tmp_path: Path) -> None:
    other = Model()
    other.build_from_file(str(tmp_path / "linear.onnx"), ModelType.ONNX)
    model.resize(other.get_inputs(), [[2, 8]])
    assert model.get_inputs()[0].shape == [2, 8]
    assert other.get_inputs()[0].shape == [3, 8]


def test_inputs_of_a_runner_are_each_callers_own(tmp_path: Path) -> None:
    runner = ModelParallelRunner()
    runner.build_from_file(str(api_models.linear(tmp_path / "linear.onnx", batch=3)))
    runner.get_inputs()[0].name = "renamed"
    assert runner.get_inputs()[0].name == "x"


@pytest.mark.parametrize("shape", [[24], [1, 3, 8], [3, 1, 8], [3, 8, 1]])
def test_a_tensor_whose_order_leaves_no_doubt_is_taken(model: Model, shape: list[int]) -> None:
    wanted = model.predict([DATA])[0].get_data_to_numpy()
    assert np.array_equal(model.predict([given(DATA.reshape(shape))])[0].get_data_to_numpy(), wanted)


@pytest.mark.parametrize("shape", [[8, 3], [4, 6], [2, 3, 4], [23], [1, 8, 3]])
def test_a_tensor_whose_order_is_in_doubt_is_refused(model: Model, shape: list[int]) -> None:
    with pytest.raises(ShardrunError, match="predict failed! Error is"):
        model.predict([given(np.zeros(shape, np.float32))])


def test_a_flat_tensor_of_an_open_input_is_taken_once_the_shape_is_known(tmp_path: Path) -> None:
    model = Model()
    model.build_from_file(str(api_models.linear(tmp_path / "open.onnx", batch="n")), ModelType.ONNX)
    with pytest.raises(ShardrunError, match="predict failed! Error is"):
        model.predict([given(DATA.ravel())])
    model.resize(model.get_inputs(), [[3, 8]])
    (answer,) = model.predict([given(DATA.ravel())])
    assert np.array_equal(answer.get_data_to_numpy(), model.predict([DATA])[0].get_data_to_numpy())


@pytest.mark.parametrize("content", [b"\x08\x01junk" * 50, b"\x08\x08" + b"\xff" * 100])
def test_junk_is_no_model_of_the_format_that_its_name_says(content: bytes, tmp_path: Path) -> None:
    for name, kind in (("junk.mindir", "a MindIR file"), ("junk.onnx", "an ONNX file")):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ModelError, match=f"{name} is not {kind}, or it is truncated") as caught:
            Model().build_from_file(str(tmp_path / name), ModelType.MINDIR)
        assert "PROTOBUF" not in str(caught.value).upper()


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    """To open it would wait for who writes to it."""
    for name in ("pipe.onnx", "pipe.mindir"):
        os.mkfifo(tmp_path / name)
        path = str(tmp_path / name)
        for build in (
            lambda path: Model().build_from_file(path, ModelType.MINDIR),
            lambda path: ModelParallelRunner().build_from_file(path),
            ranks.share_weights,
        ):
            with pytest.raises(ModelError, match=f"{name} is not a file; expected a model"):
                build(path)


def test_lengths_beyond_64_bits_are_a_type_error(model: Model) -> None:
    beyond = "must fit in 64 bits, but got 9223372036854775808 at .*: incompatible function arguments"
    with pytest.raises(TypeError, match=f"dims element's element {beyond}"):
        model.resize(model.get_inputs(), [[2**63, 8]])
    with pytest.raises(TypeError, match=f"input_shape value's element {beyond}"):
        Converter().input_shape = {"x": [2**63]}


@pytest.mark.parametrize("shape", [(), (0, 3), (2, 0)])
def test_an_input_without_data_is_of_zeros(shape: tuple[int, ...], tmp_path: Path) -> None:
    """Also one number, and none at all; of an open shape nothing is known."""
    model = Model()
    model.build_from_file(str(api_models.add_one(tmp_path / "one.onnx", shape)), ModelType.ONNX)
    found = model.predict(model.get_inputs())[0].get_data_to_numpy()
    assert found.shape == shape and (found == 1).all()
    (tensor,) = model.get_inputs()
    tensor.shape = [-1]
    with pytest.raises(RuntimeError, match=r"'x' has no data and its shape \[-1\] is open"):
        model.predict([tensor])
