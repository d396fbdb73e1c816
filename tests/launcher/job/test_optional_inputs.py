"""Inputs with a default value: sliced models take them when given and use the default otherwise."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

import sharding
from launcher import start
from launcher.errors import ConfigError, ShardrunError
from launcher.inspection import signature
from launcher.job.inputs import make_inputs
from ranks.models.optional import take
from ranks.run import executor
from sharding.demands.options import SliceOptions
from sharding.slices.manifest import read_manifest
from tests.launcher.cli_tools import copied as shardrun
from tests.sharding import graphs

Array = np.ndarray[Any, Any]
FEEDS = {"x": graphs.array(4, 16, seed=1)}
SCALE, BIAS = graphs.array(32, seed=2), graphs.array(16, seed=3)
SHAPE = np.array([-1, 8], np.int64)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A scale that a split product reads, a bias that is added to a sum, a shape, and two layers to cut."""
    text = """
    g (float[batch, 16] x, float[32] scale, float[16] bias, int64[2] shape)
      => (float[rows, columns] y, float[batch, 16] z) {
      a = MatMul(x, w1) b = Mul(a, scale) c = Relu(b) d = MatMul(c, w2) z = Add(d, bias)
      e = MatMul(z, w3) f = Relu(e) h = MatMul(f, w4) y = Reshape(h, shape)
    }"""
    rows = {"w1": (16, 32), "w2": (32, 16), "w3": (16, 32), "w4": (32, 16)}
    weights = {name: graphs.array(*shape) for name, shape in rows.items()}
    weights |= {
        "scale": np.full(32, 0.5, np.float32),
        "bias": np.ones(16, np.float32),
        "shape": np.array([-1, 4], np.int64),
    }
    return graphs.save(tmp_path_factory.mktemp("optional") / "model.onnx", text, weights)


CASES = [{}, {"scale": SCALE}, {"bias": BIAS, "shape": SHAPE}, {"scale": SCALE, "bias": BIAS, "shape": SHAPE}]
"""In one group one after the other: a default is back when nothing is given."""


def check(found: Any, model: Path, feeds: dict[str, Array]) -> None:
    """Results by name or in order against plain ONNX Runtime."""
    expected = onnxruntime.InferenceSession(model).run(None, feeds)
    values = [found["y"], found["z"]] if isinstance(found, dict) else found
    for value, right in zip(values, expected, strict=True):
        assert value.shape == right.shape
        np.testing.assert_allclose(value, right, rtol=0, atol=1e-4 * np.abs(right).max())


@pytest.mark.parametrize("strategy", ["tensor", "pipeline"])
def test_a_group_takes_them_or_uses_the_defaults(model: Path, strategy: Any, tmp_path: Path) -> None:
    sharding.slice_model(
        model, 2, tmp_path / "out", options=SliceOptions(strategy=strategy), allow_replicated=True
    )
    with start(tmp_path / "out", ranks=2, launcher="local", threads=1) as group:
        assert [spec.name for spec in group.inputs] == ["x"]
        assert [spec.name for spec in group.optional_inputs] == ["scale", "bias", "shape"]
        for more in [*CASES, *CASES]:
            check(group.predict(FEEDS | more), model, FEEDS | more)
        with pytest.raises(ShardrunError, match=r"Axis 0 of input 'scale' must have length 32 .* has 31"):
            group.predict({**FEEDS, "scale": SCALE[:31]})
        with pytest.raises(ShardrunError, match="no input 'w1'"):
            group.predict({**FEEDS, "w1": graphs.array(16, 32)})
        check(group.predict(FEEDS), model, FEEDS)


def test_rows_of_data_ranks_read_them_whole(tmp_path: Path) -> None:
    text = """g (float[batch, 8] x, float[8] s) => (float[batch, 8] y, float[batch, 8] z) {
      z = MatMul(x, w) y = Mul(z, s)
    }"""
    weights = {"w": graphs.array(8, 8), "s": np.ones(8, np.float32)}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    sharding.slice_model(path, 2, tmp_path / "out", options=SliceOptions(strategy="data"))
    feeds = {"x": graphs.array(5, 8)}
    with start(tmp_path / "out", ranks=2, launcher="local", threads=1) as group:
        for more in ({}, {"s": graphs.array(8)}, {}):
            check(group.predict(feeds | more), path, feeds | more)


def test_a_plain_model_takes_them(model: Path) -> None:
    loaded = executor.load(model)
    assert [spec.name for spec in loaded.optional_inputs] == ["scale", "bias", "shape"]
    for more in CASES:
        check(loaded.run(FEEDS | more), model, FEEDS | more)
    with pytest.raises(ShardrunError, match="must have dtype float32"):
        loaded.run({**FEEDS, "scale": SCALE.astype(np.float64)})
    with pytest.raises(ShardrunError, match="Input 'x' is missing"):
        loaded.run({"scale": SCALE})


def test_the_command_reads_them_from_files(model: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", FEEDS["x"])
    np.savez(tmp_path / "more.npz", scale=SCALE, shape=SHAPE)
    inputs = ["--input", "x=x.npy", "--input", "more.npz"]
    done = shardrun("run", model, "--ranks", 2, *inputs, "--verify", "--output", "out.npz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    with np.load(tmp_path / "out.npz") as found:
        check(dict(found), model, {**FEEDS, "scale": SCALE, "shape": SHAPE})
    wrong = shardrun("run", model, "--ranks", 2, "--input", "w1=x.npy", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "the model has no input 'w1' (it has: x, scale, bias, shape)" in wrong.stderr


def test_without_a_source_no_array_is_made(model: Path, tmp_path: Path) -> None:
    manifest = sharding.slice_model(model, 2, tmp_path / "out")
    assert read_manifest(tmp_path / "out") == manifest
    assert [entry.name for entry in manifest.optional_inputs] == ["scale", "bias", "shape"]
    feeds, made = make_inputs(manifest.inputs, optional=manifest.optional_inputs)
    assert (list(feeds), made) == (["x"], ["x"])
    np.save(tmp_path / "a.npy", BIAS)
    feeds, _ = make_inputs(manifest.inputs, [f"bias={tmp_path}/a.npy"], optional=manifest.optional_inputs)
    np.testing.assert_array_equal(feeds["bias"], BIAS)
    with pytest.raises(ConfigError, match="scale"):
        make_inputs(manifest.inputs, [f"scale={tmp_path}/a.npy"], optional=manifest.optional_inputs)


def test_where_all_weights_are_listed_nobody_feeds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As exporters did up to IR version 3 and after: such weights are cut, and to feed one is refused."""
    path = graphs.mlp(tmp_path / "model.onnx", inner=512)
    model = onnx.load(path)
    for tensor in model.graph.initializer:
        model.graph.input.append(
            helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        )
    onnx.save(model, path)
    assert take(model, path) == {}
    manifest = sharding.slice_model(path, 2, tmp_path / "out")
    assert manifest.optional_inputs == ()
    with start(tmp_path / "out", ranks=2, launcher="local", threads=1) as group:
        feeds = {"x": graphs.array(3, 16)}
        expected = onnxruntime.InferenceSession(path).run(None, feeds)[0]
        np.testing.assert_allclose(group.predict(feeds)["y"], expected, atol=1e-4)
        fed = {**feeds, "w1": graphs.array(16, 512)}
        with pytest.raises(ShardrunError, match="The model has no input 'w1'; it expects 'x'") as caught:
            group.predict(fed)
        assert "'w1' is a weight, of which ranks hold parts: name it in variable_weights" in str(caught.value)
        with monkeypatch.context() as patch:  # the weights' names are known by now
            patch.setattr(signature, "names_of_weights", None)
            with pytest.raises(ShardrunError, match=r"no input 'w0'; it expects 'x' float32\[batch, 16\]\.$"):
                group.predict({**feeds, "w0": feeds["x"]})
    with start(tmp_path / "out", ranks=2, launcher="local", threads=1, variable_weights=["w1"]) as group:
        group.update_weights({"w1": fed["w1"]})
        expected = onnxruntime.InferenceSession(path).run(None, fed)[0]
        np.testing.assert_allclose(group.predict(feeds)["y"], expected, atol=1e-4)
    np.savez(tmp_path / "fed.npz", **fed)
    for given in ((tmp_path / "out",), (path, "--ranks", 2)):
        done = shardrun("run", *given, "--input", "fed.npz", cwd=tmp_path)
        assert done.returncode == 2
        assert "the model has no input 'w1' (it has: x); 'w1' is a weight, of which" in done.stderr
    # One process runs the model as it is, and the runtime takes such a value.
    (alone,) = executor.load(path).run(fed)
    np.testing.assert_allclose(alone, expected, atol=1e-4)


def test_a_default_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    text = "g (float[4] x, float[4] s) => (float[4] y) { a = Mul(x, s) y = Add(a, w) }"
    path = graphs.save(
        tmp_path / "model.onnx", text, {"s": np.ones(4, np.float32), "w": np.ones(4, np.float32)}
    )
    model = onnx.load(path)
    model.graph.initializer[0].raw_data = b"123"
    with pytest.raises(ShardrunError, match=r"model\.onnx: the default of input 's' cannot be read"):
        take(model, path)
    model.graph.initializer[0].CopyFrom(numpy_helper.from_array(np.ones(4, np.float32), "s"))
    assert list(take(model, path)) == ["s"]
    assert [tensor.name for tensor in model.graph.initializer] == ["w"]
