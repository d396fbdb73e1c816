"""Element types of outputs: as the model has them, whatever way they take to the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from launcher.cli import main
from launcher.job import inputs
from ranks.common.tensors import element_dtype, is_extended
from ranks.talk import wire

X = np.random.default_rng(4).standard_normal((20, 8))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """float64 scores and the number of the greatest, as int64."""
    weight = np.random.default_rng(5).standard_normal((8, 6))
    graph = helper.make_graph(
        [
            helper.make_node("MatMul", ["x", "w"], ["scores"]),
            helper.make_node("ArgMax", ["scores"], ["class"], axis=1, keepdims=0),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.DOUBLE, ["n", 8])],
        [
            helper.make_tensor_value_info("scores", TensorProto.DOUBLE, ["n", 6]),
            helper.make_tensor_value_info("class", TensorProto.INT64, ["n"]),
        ],
        [onnx.numpy_helper.from_array(weight, "w")],
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9), path)
    return path


@pytest.fixture
def reference(model: Path) -> Any:
    return onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, {"x": X})


def test_run_writes_the_types_that_the_model_gives(model: Path, reference: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    arguments = ["--ranks", "2", "--input", tmp_path / "x.npz", "--output", tmp_path / "y.npz", "--verify"]
    assert main(["run", str(model), *map(str, arguments)]) == 0
    found = np.load(tmp_path / "y.npz")
    assert (found["scores"].dtype, found["class"].dtype) == (np.float64, np.int64)
    assert np.abs(found["scores"] - reference[0]).max() < 1e-12
    assert (found["class"] == reference[1]).all()


@pytest.mark.parametrize("ranks", ["1", "2"])
def test_eval_of_class_numbers_and_of_float64(
    model: Path, reference: Any, tmp_path: Path, ranks: str
) -> None:
    labels = np.arange(20) % 6
    np.savez(tmp_path / "d.npz", x=X, label=labels, wanted=reference[0])
    common = ["eval", str(model), "--data", str(tmp_path / "d.npz"), "--ranks", ranks, "--output"]
    out = str(tmp_path / "r.json")
    assert main([*common, out, "--metric", "accuracy", "--prediction", "class", "--label", "label"]) == 0
    value = json.loads(Path(out).read_text())["metrics"]["accuracy"]
    assert value == pytest.approx((reference[1] == labels).mean(), abs=1e-12)
    assert main([*common, out, "--metric", "max_error", "--label", "wanted"]) == 0
    assert json.loads(Path(out).read_text())["metrics"]["max_error"] < 1e-12


@pytest.mark.parametrize("name", ["int64", "float64", "bool", "uint8", "complex64", "bfloat16"])
def test_types_from_other_processes_are_the_plain_ones(name: str) -> None:
    found = wire.dtype_named(name)
    extended = name == "bfloat16"
    assert is_extended(found) is extended
    assert extended or found.isbuiltin == 1
    for order in "<=>":  # another object each, with `isbuiltin` 0
        dtype = found if extended else found.newbyteorder(order)
        assert inputs._storable(np.zeros(3, dtype)).dtype == (np.float32 if extended else dtype)


def test_types_that_numpy_lacks() -> None:
    assert all(is_extended(element_dtype(number)) for number in range(16, 21))
    assert not any(is_extended(element_dtype(number)) for number in range(1, 16))
