"""Models given as bytes, as `onnx.ModelProto` or as `onnx_ir.Model`, wherever a path may be given. The right
answer is ONNX Runtime's; no temporary file is left, whatever happens."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort
import pytest

import ranks
from launcher import start
from ranks.errors import ModelError, ShardrunError
from sharding import plan_model, slice_model
from sharding.onnx_files import given
from tests.launcher.cli_tools import ROOT, save_mlp
from tests.ranks.threads import until

X = np.random.default_rng(5).standard_normal((3, 8), np.float32)
KINDS: dict[str, Callable[[Path], Any]] = {
    "bytes": lambda path: path.read_bytes(),
    "bytearray": lambda path: bytearray(path.read_bytes()),
    "proto": onnx.load,
    "ir": ir.load,
}


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for temporary files."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    return folder


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save_mlp(tmp_path / "m.onnx")


def _right(path: Path, got: Any) -> None:
    want = ort.InferenceSession(str(path)).run(None, {"x": X})[0]
    assert np.abs(np.asarray(got) - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize("kind", KINDS)
def test_in_one_process(kind: str, path: Path, temporary: Path) -> None:
    model = ranks.Model()
    model.build_from_buffer(KINDS[kind](path), ranks.ModelType.ONNX)
    _right(path, model.predict([X])[0].get_data_to_numpy())
    model.resize(model.get_inputs(), [[3, 8]])
    _right(path, model.predict([X])[0].get_data_to_numpy())
    del model
    gc.collect()
    with ranks.share_weights(KINDS[kind](path)) as owner:
        _right(path, owner.predict([X])[0].get_data_to_numpy())
    del owner
    gc.collect()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(("kind", "size"), [("bytes", 2), ("proto", 1), ("ir", 2)])
def test_started(kind: str, size: int, path: Path, temporary: Path) -> None:
    with start(KINDS[kind](path), ranks=size, threads=1) as group:
        assert list(temporary.iterdir()) == []  # from the moment that all are ready
        _right(path, group.predict({"x": X})["y"])


@pytest.mark.parametrize("kind", KINDS)
def test_sliced_and_planned(kind: str, path: Path, temporary: Path, tmp_path: Path) -> None:
    slice_model(KINDS[kind](path), 2, tmp_path / "slices")
    wanted = slice_model(path, 2, tmp_path / "of_the_file")
    for rank in wanted.ranks:
        for entry in rank.files:
            if entry.file.endswith(".data"):
                ours = (tmp_path / "slices" / entry.file).read_bytes()
                assert ours == (tmp_path / "of_the_file" / entry.file).read_bytes()
    plan = plan_model(KINDS[kind](path), 2)
    assert plan.source.weights["w0"].array().shape == (8, 64)  # in the file, as long as the plan is there
    del plan
    gc.collect()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("typed", [False, True])
def test_weights_beyond_one_message(
    typed: bool, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, temporary: Path
) -> None:
    """Large weights go to a file of their own; the caller's message stays as it was."""
    monkeypatch.setattr(given, "LARGEST_MESSAGE", 1000)
    monkeypatch.setattr(given, "_LEAST_EXTERNAL", 100)
    model = onnx.load(path)
    if typed:
        for tensor in model.graph.initializer:
            values = onnx.numpy_helper.to_array(tensor).reshape(-1).tolist()
            tensor.ClearField("raw_data")
            tensor.float_data.extend(values)
    before = model.SerializeToString(deterministic=True)
    with given.GivenModel(model) as file:
        assert sorted(item.name for item in file.parent.iterdir()) == ["model.onnx", "model.onnx.data"]
        assert file.stat().st_size < 1000
        _right(path, ort.InferenceSession(str(file)).run(None, {"x": X})[0])
    assert model.SerializeToString(deterministic=True) == before
    assert list(temporary.iterdir()) == []


def test_external_data_of_an_ir_model_are_found(tmp_path: Path, temporary: Path) -> None:
    """onnx_ir knows the folder; a message and bytes do not, unless their weights were loaded."""
    path = save_mlp(tmp_path / "e.onnx", external=True)
    model = ranks.Model()
    model.build_from_buffer(ir.load(path), ranks.ModelType.ONNX)
    _right(path, model.predict([X])[0].get_data_to_numpy())
    for nowhere in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with pytest.raises(ModelError, match=r"has weights in other files \(e\.onnx\.data\)"):
            plan_model(nowhere, 2)
        with pytest.raises(ShardrunError, match="give the model's path"):
            start(nowhere, ranks=1)
    assert len(list(temporary.iterdir())) == 1  # of the model that is still there


@pytest.mark.parametrize(
    ("wrong", "error", "sentence"),
    [
        (b"", ModelError, "has 0 bytes"),
        (b"no model", ModelError, "given model is not an ONNX file"),
        (17, TypeError, "bytes, an onnx.ModelProto or an onnx_ir.Model, but got <class 'int'>"),
        (None, TypeError, "but got <class 'NoneType'>"),
        ({"a": 1}, TypeError, "but got <class 'dict'>"),
    ],
)  # fmt: skip
def test_what_is_no_model(wrong: Any, error: type[Exception], sentence: str, temporary: Path) -> None:
    with pytest.raises(error) as started:
        start(wrong, ranks=2)
    assert sentence in str(started.value)
    with pytest.raises(error):
        plan_model(wrong, 2)
    with pytest.raises((error, RuntimeError)):
        ranks.Model().build_from_buffer(wrong, ranks.ModelType.ONNX)
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("kind", [str, Path])
def test_a_path_is_no_content(kind: type, path: Path, temporary: Path) -> None:
    with pytest.raises(TypeError, match=r"^model must be bytes, .* a path is for build_from_file\.$"):
        ranks.Model().build_from_buffer(kind(path), ranks.ModelType.ONNX)
    assert list(temporary.iterdir()) == []


def test_a_killed_process_leaves_nothing(path: Path, temporary: Path) -> None:
    script = (
        "import os, signal, ranks\nmodel = ranks.Model()\n"
        f"model.build_from_buffer(open({str(path)!r}, 'rb').read(), ranks.ModelType.ONNX)\n"
        "assert os.listdir(os.environ['TMPDIR'])\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], timeout=60, check=False, env={**os.environ, "PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == -9
    until(lambda: not list(temporary.iterdir()))
