"""``shardrun`` on models with annotations made by hand, and on models in folders that are read-only."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from sharding.slices.manifest import read_manifest
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import save_mlp

X = np.random.default_rng(5).standard_normal((3, 8)).astype(np.float32)


def by_hand(path: Path, axis: int, devices: int = 2) -> Path:
    """The two products of `save_mlp`, of which the first is annotated as its author wants it cut."""
    model = ir.load(save_mlp(path))
    model.ir_version = 11
    mine = model.add_device_configuration("mine", num_devices=devices)
    first = next(node for node in model.graph if node.name == "first")
    weight = model.graph.initializers["w0"]
    first.shard(weight, configuration=mine, axis=axis, num_shards=devices)
    ir.save(model, path)
    return path


def check_outputs(file: Path, model: Path) -> None:
    """Against plain ONNX Runtime."""
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"x": X})[0]
    with np.load(file) as found:
        np.testing.assert_allclose(found["y"], expected, rtol=0, atol=1e-4 * np.abs(expected).max())


@pytest.mark.parametrize(("axis", "placement"), [(0, "split:0"), (1, "split:1")])
def test_annotations_made_by_hand_are_followed(tmp_path: Path, axis: int, placement: str) -> None:
    plain = save_mlp(tmp_path / "plain.onnx")
    model = by_hand(tmp_path / "m.onnx", axis)
    done = shardrun("slice", model, "--ranks", 2, "--output", "out", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert read_manifest(tmp_path / "out").weights["w0"].placement == placement
    np.save(tmp_path / "x.npy", X)
    done = shardrun("run", "out", "--ranks", 2, "--input", "x.npy", "--output", "y.npz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    check_outputs(tmp_path / "y.npz", plain)


def test_annotations_that_cannot_be_followed_are_refused(tmp_path: Path) -> None:
    """Three devices: axis 0 has 8 rows. The sentence names node, tensor and axis, and nothing is left."""
    model = by_hand(tmp_path / "m.onnx", 0, devices=3)
    done = shardrun("slice", model, "--ranks", 3, "--output", "out", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith("shardrun: error: ") and done.stderr.count("\n") == 1
    for word in ("first", "w0", "axis 0", "3"):
        assert word in done.stderr
    assert [item.name for item in tmp_path.iterdir()] == ["m.onnx"]


WITHOUT_RIGHTS = ("setpriv", "--bounding-set=-all", "--inh-caps=-all")
"""Starts a command as the same user without a superuser's rights: then root, too, obeys a folder's mode."""


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[tuple[Path, Path, Sequence[str]]]:
    """A model's folder that is read-only, one that is not, and the words before a command that obeys this."""
    source, work = tmp_path / "source", tmp_path / "work"
    source.mkdir()
    work.mkdir()
    save_mlp(source / "m.onnx", external=True)
    np.save(work / "x.npy", X)
    source.chmod(0o555)
    try:
        words = () if os.geteuid() else WITHOUT_RIGHTS
        if words and shutil.which(words[0]) is None:
            pytest.skip("root may write everywhere, and setpriv, which gives its rights up, is not installed")
        probe = [*words, sys.executable, "-c", f"open({str(source / 'new')!r}, 'w')"]
        done = subprocess.run(probe, capture_output=True, text=True, timeout=60, check=False)
        if "PermissionError" not in done.stderr:
            pytest.skip("this user may write into folders that are read-only, and cannot give up that right")
        yield source, work, words
    finally:
        source.chmod(0o755)


def test_a_model_in_a_folder_that_is_read_only(folders: tuple[Path, Path, Sequence[str]]) -> None:
    source, work, words = folders
    model = source / "m.onnx"
    done = shardrun("slice", model, "--ranks", 2, "--output", "out", cwd=work, before=words)
    assert (done.returncode, done.stderr) == (0, "")
    files = ("--input", "x.npy", "--output", "y.npz")
    done = shardrun("run", model, "--ranks", 2, *files, cwd=work, before=words)
    assert (done.returncode, done.stderr) == (0, "")
    check_outputs(work / "y.npz", model)
    assert sorted(item.name for item in source.iterdir()) == ["m.onnx", "m.onnx.data"]


@pytest.mark.parametrize(
    "arguments", [["--output", "{}/out"], ["--output", "out", "--annotate", "{}/a.onnx"]]
)
def test_what_cannot_be_written_is_one_sentence(
    folders: tuple[Path, Path, Sequence[str]], arguments: list[str]
) -> None:
    source, work, words = folders
    rest = [word.format(source) for word in arguments]
    done = shardrun("slice", source / "m.onnx", "--ranks", 2, *rest, cwd=work, before=words)
    assert done.returncode in {1, 2}
    assert done.stderr.startswith("shardrun: error: ") and done.stderr.count("\n") == 1
    assert "Permission denied" in done.stderr
    assert str(source) in done.stderr
    assert sorted(item.name for item in source.iterdir()) == ["m.onnx", "m.onnx.data"]
    assert {item.name for item in work.iterdir()} <= {"x.npy", "cache"}
