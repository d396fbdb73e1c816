"""Rank models made elsewhere, named by a pattern: what is known of them, and running them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from launcher.errors import ConfigError
from launcher.group import group
from launcher.inspection.rank_models import count_files, folder_of, is_rank_models, open_rank_models
from ranks.errors import ModelError
from sharding import slice_model
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import mpirun, save_mlp
from tests.sharding import graphs


def save_rank_models(folder: Path) -> Path:
    """The two halves of y = relu(x @ w0 + b0) @ w1 as another tool would write them; returns the pattern."""
    whole = onnx.load(save_mlp(folder / "m.onnx"))
    weights = {item.name: numpy_helper.to_array(item) for item in whole.graph.initializer}
    text = """half (float[batch, 8] x) => (float[batch, 6] y) {
      h0 = MatMul(x, w0)
      h1 = Add(h0, b0)
      h2 = Relu(h1)
      part = MatMul(h2, w1)
      y = com.microsoft.AllReduce(part)
    }"""
    for rank in range(2):
        part = {
            name: np.split(weights[name], 2, axis)[rank] for name, axis in [("w0", 1), ("b0", 0), ("w1", 0)]
        }
        made = graphs.model(text, {name: np.ascontiguousarray(value) for name, value in part.items()}, 17)
        onnx.save(made, folder / f"rank_{rank}_model.onnx")
    return folder / "rank_{}_model.onnx"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_rank_models(tmp_path_factory.mktemp("rank models"))


def test_what_is_known(pattern: Path) -> None:
    assert is_rank_models(pattern) and not is_rank_models(pattern.with_name("m.onnx"))
    manifest = open_rank_models(pattern, None)
    assert manifest.world_size == count_files(pattern) == 2
    assert manifest.source.file == "rank_{}_model.onnx"
    assert [[file.file for file in rank.files] for rank in manifest.ranks] == [
        ["rank_0_model.onnx"], ["rank_1_model.onnx"]
    ]  # fmt: skip
    assert [(item.name, item.dtype, item.shape) for item in manifest.inputs] == [
        ("x", "float32", ("batch", 8))
    ]
    assert [(item.name, item.shape) for item in manifest.outputs] == [("y", ("batch", 6))]
    assert [item.op for item in manifest.collectives] == ["AllReduce"]
    assert [rank.weight_bytes for rank in manifest.ranks] == [4 * (8 * 32 + 32 + 32 * 6)] * 2
    assert folder_of(pattern) is None


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_run(pattern: Path, launcher: str) -> None:
    done = shardrun(
        "run", pattern, "--launcher", launcher, "--ranks", 2, "--dim", "batch=3", "--seed", 1, "--verify",
        "--against", "m.onnx", cwd=pattern.parent,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "collectives per inference  1 AllReduce" in done.stdout and " ok" in done.stdout


def test_ranks_that_something_else_started(pattern: Path) -> None:
    done = shardrun(
        "run", pattern.name, "--verify", "--against", "m.onnx", cwd=pattern.parent, before=mpirun(2)
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall(r"^ *y +\[", done.stdout, re.MULTILINE)) == 1


def test_scripts(pattern: Path, tmp_path: Path) -> None:
    done = shardrun("scripts", pattern, "--output", "job", "--dim", "batch=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    from tests.launcher.cli_tools import run

    done = run(["job/run_all.sh"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^y +\[2, 6\] ", done.stdout, re.MULTILINE)


def test_a_group_from_python(pattern: Path) -> None:
    x = np.random.default_rng(3).standard_normal((4, 8)).astype(np.float32)
    from tests.sharding.lockstep import reference, relative_error

    with group.start(pattern, launcher="local") as ranks:
        found = ranks.predict({"x": x})["y"]
    assert relative_error(found, reference(pattern.with_name("m.onnx"), {"x": x})["y"]) <= 1e-4


def test_a_pattern_of_slices_is_their_folder(tmp_path: Path) -> None:
    slice_model(save_mlp(tmp_path / "m.onnx"), 2, tmp_path / "slices")
    assert folder_of(tmp_path / "slices" / "rank_{}.onnx") == tmp_path / "slices"
    (tmp_path / "slices" / "manifest.json").write_text("{")
    assert folder_of(tmp_path / "slices" / "rank_{}.onnx") is None
    assert open_rank_models(tmp_path / "slices" / "rank_{}.onnx", 2).world_size == 2


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    pattern = save_rank_models(tmp_path)
    with pytest.raises(ConfigError, match="has the files of 2 ranks, but 3 are asked for"):
        open_rank_models(pattern, 3)
    with pytest.raises(ConfigError, match="contradicts the files that fit"):
        group.start(pattern, ranks=3)
    done = shardrun("run", pattern, "--verify", cwd=tmp_path)
    assert done.returncode == 2 and "give it with --against" in done.stderr
    (tmp_path / "rank_3_model.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match="there is no file of rank 2, but one of rank 3"):
        open_rank_models(pattern, None)
    (tmp_path / "rank_3_model.onnx").rename(tmp_path / "rank_2_model.onnx")
    with pytest.raises(ModelError, match=r"rank_2_model\.onnx is empty"):
        open_rank_models(pattern, None)
    text = (tmp_path / "rank_1_model.onnx").read_bytes()
    for size in range(0, len(text), 97):
        (tmp_path / "rank_2_model.onnx").write_bytes(text[:size])
        try:
            open_rank_models(pattern, None)
        except ModelError as error:
            assert "rank_2_model.onnx" in str(error)


def test_a_folder_for_each_rank(tmp_path: Path) -> None:
    pattern = save_rank_models(tmp_path)
    place = tmp_path / "made {} by {rank}"  # such folders are there, so these are no ranks
    for rank in range(2):
        (place / f"rank_{rank}").mkdir(parents=True)
        (tmp_path / f"rank_{rank}_model.onnx").rename(place / f"rank_{rank}" / f"model_{rank}.onnx")
    (place / "rank_2").mkdir()
    assert not pattern.with_name("rank_0_model.onnx").exists()
    found = place / "rank_{}" / "model_{r}.onnx"
    assert open_rank_models(found, None).world_size == 2
    done = shardrun("run", found, "--seed", "1", "--verify", "--against", tmp_path / "m.onnx", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with pytest.raises(ConfigError, match=r"no file fits .*rank_0.*x\.onnx"):
        group.start(place / "rank_{}" / "x.onnx", ranks=2)
    with pytest.raises(ConfigError, match=r"expected .* folder; \{\}, \{r\} or \{rank\} stands for"):
        group.start(place / "rank_{x}" / "model.onnx", ranks=2)


def test_one_ranks_part_is_not_said_to_be_unsliced(tmp_path: Path) -> None:
    pattern = save_rank_models(tmp_path)
    own = tmp_path / "rank_0_model.onnx"
    done = shardrun("run", own, cwd=tmp_path)
    assert done.returncode == 2 and "not sliced" not in done.stderr
    assert f"{own} has collectives: it is one rank's part of a model" in done.stderr
    assert f"give them all, as `{pattern.with_name('rank_{}_model.onnx')}`" in done.stderr
    with pytest.raises(ConfigError, match="has collectives"):
        group.start(own)
    (tmp_path / "rank_1_model.onnx").unlink()
    with pytest.raises(ConfigError, match=r"a pattern names: \{\} stands for the rank"):
        group.start(own)
    slice_model(tmp_path / "m.onnx", 2, tmp_path / "slices")
    done = shardrun("scripts", "slices/rank_1.onnx", "--output", "job", cwd=tmp_path)
    assert done.returncode == 2 and "give the folder, `slices`" in done.stderr
