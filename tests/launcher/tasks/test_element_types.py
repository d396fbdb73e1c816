"""Element types of outputs: as the model has them, whatever way they take to the user."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest

from launcher.cli import main
from launcher.common.element_types import numpy_dtype
from launcher.errors import ConfigError
from launcher.job import inputs
from ranks.common.tensors import element_dtype, is_extended
from ranks.talk import wire
from tests.sharding import graphs

X = np.random.default_rng(4).standard_normal((20, 8))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """float64 scores and the number of the greatest, as int64."""
    text = """m (double[n, 8] x) => (double[n, 6] scores, int64[n] class) {
        scores = MatMul(x, w)
        class = ArgMax <axis = 1, keepdims = 0> (scores)
    }"""
    weight = np.random.default_rng(5).standard_normal((8, 6))
    return graphs.save(tmp_path / "m.onnx", text, {"w": weight})


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


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("float16", np.float16), ("string", object), (np.dtype("int8"), np.int8),
        ("bfloat16", ml_dtypes.bfloat16),
        ("float8e4m3fn", ml_dtypes.float8_e4m3fn), ("float4e2m1fn", ml_dtypes.float4_e2m1fn),
    ],
)  # fmt: skip
def test_types_by_their_names(name: object, found: Any) -> None:
    assert numpy_dtype(name) == np.dtype(found)


@pytest.mark.parametrize("name", ["float7", "__name__", 5, ""])
def test_names_that_are_no_types(name: object) -> None:
    with pytest.raises(ConfigError, match=r"^x: the element type .* is not known"):
        numpy_dtype(name, "x")
