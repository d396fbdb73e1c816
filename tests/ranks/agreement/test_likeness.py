"""Whether ranks find out that two of them loaded the same part, in every way that ranks are started."""

from __future__ import annotations

import shutil
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ranks.errors import ShardError
from ranks.run import executor
from sharding import slice_model
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import mpirun, run, save_mlp
from tests.ranks import api_models
from tests.ranks.fake_communicator import on_ranks
from tests.ranks.rank_models import model, node, save, value

pytestmark = pytest.mark.timeout(120)
DATA = Path(__file__).parents[2] / "data" / "mindir"
SAME = "ranks 0 and 1 loaded the same weights"
OTHER = "come from slice folders of different models or plans"
X = np.linspace(-1, 1, 16, dtype=np.float32).reshape(2, 8)


def loaded(paths: list[Path], feeds: dict[str, Any] | None = None) -> tuple[list[str], list[Any]]:
    """The warnings, and what the ranks compute."""

    def work(communicator: Any) -> list[Any]:
        found = executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        try:
            return found.run(feeds) if feeds is not None else []
        finally:
            found.close()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = on_ranks(len(paths), work)
    assert not any(Path(one.filename).name == "contextlib.py" for one in caught)  # no line of the user's
    return [str(one.message) for one in caught], answers


def test_the_same_file_and_a_copy_of_it(tmp_path: Path) -> None:
    parts = api_models.linear_ranks(tmp_path)
    whole = ort.InferenceSession(str(api_models.linear(tmp_path / "whole.onnx")))
    said, answers = loaded(parts, {"x": X})
    assert said == []
    assert np.allclose(answers[0][0], whole.run(None, {"x": X})[0], atol=1e-5)
    copy = tmp_path / "copy.onnx"
    shutil.copyfile(parts[0], copy)
    for paths in ([parts[0], parts[0]], [parts[0], copy], [parts[1], parts[1]]):
        said, _ = loaded(paths)
        assert len(said) == 1, said
        assert said[0].startswith(SAME) and "give each rank its own file" in said[0]


def several(folder: Path, weights: list[np.ndarray[Any, Any]], *, external: bool = False) -> list[Path]:
    """Rank models that add up x @ w, each with its own w."""
    folder.mkdir()
    nodes = [node("MatMul", ["x", "w"], ["part"]), node("AllReduce", ["part"], ["y"])]
    models = [model(nodes, [value("x", ["n", w.shape[0]])], ["y"], {"w": w}) for w in weights]
    return save(models, folder, external=external)


@pytest.mark.parametrize("external", [False, True])
def test_weights_that_differ_in_one_number(external: bool, tmp_path: Path) -> None:
    """In the middle, where no sample of it lies; the same weights under other names of files; three ranks."""
    w = np.random.default_rng(0).standard_normal((64, 256)).astype(np.float32)
    other = w.copy()
    other[32, 128] += 1
    assert loaded(several(tmp_path / "a", [w, other], external=external))[0] == []
    said, _ = loaded(several(tmp_path / "b", [other, w, w], external=external))
    assert len(said) == 1 and said[0].startswith("ranks 1 and 2 loaded the same weights")
    said, _ = loaded(several(tmp_path / "c", [w, w, w], external=external))
    assert len(said) == 1 and said[0].startswith("ranks 0, 1 and 2 loaded the same weights")


@pytest.mark.parametrize("shape", [(4,), (1, 1)])
def test_models_without_weights_are_alike_without_a_warning(shape: tuple[int, ...], tmp_path: Path) -> None:
    nodes = [node("Add", ["x", "one"], ["h"]), node("AllReduce", ["h"], ["y"])]
    one = {"one": np.ones(shape, np.float32)}
    paths = save([model(nodes, [value("x", ["n", 4])], ["y"], one)] * 2, tmp_path)
    said, answers = loaded(paths, {"x": np.ones((1, 4), np.float32)})
    assert said == []
    assert np.array_equal(answers[1][0], np.full((1, 4), 4))


@pytest.mark.parametrize("name", ["shard_mlp_allreduce", "shard_col_allgather", "shard_row_allreduce"])
def test_mindir(name: str) -> None:
    own = [DATA / name / f"rank_{rank}" / "model.mindir" for rank in range(2)]
    assert all(path.is_file() for path in own)
    assert loaded(own)[0] == []
    said, _ = loaded([own[0], own[0]])
    assert len(said) == 1 and said[0].startswith(SAME)


def sliced(folder: Path, name: str, seed: int = 0, ranks: int = 2) -> Path:
    slice_model(save_mlp(folder / f"{name}.onnx", seed), ranks, folder / name)
    return folder / name


def test_slices_of_another_model_or_plan(tmp_path: Path) -> None:
    a, b = sliced(tmp_path, "a"), sliced(tmp_path, "b", seed=1)
    copied = tmp_path / "copied"
    shutil.copytree(a, copied)
    assert loaded([a / "rank_0.onnx", copied / "rank_1.onnx"])[0] == []
    assert loaded([a, copied])[0] == []
    for paths in ([a / "rank_0.onnx", b / "rank_1.onnx"], [a, b], [b, a / "rank_1.onnx"]):
        with pytest.raises(ShardError, match=OTHER):
            loaded(paths)
    four = sliced(tmp_path, "four", ranks=4)
    with pytest.raises(ShardError, match=r"world size|is the model of rank"):
        loaded([a / "rank_0.onnx", four / "rank_1.onnx"])
    with pytest.raises(ShardError, match="is the shard of rank 0, but this process is rank 1"):
        loaded([a / "rank_0.onnx", a / "rank_0.onnx"])


def test_a_folder_with_the_files_of_one_rank_only(tmp_path: Path) -> None:
    source = save_mlp(tmp_path / "m.onnx")
    for rank in range(2):
        slice_model(source, 2, tmp_path / f"host{rank}", rank=rank)
    assert loaded([tmp_path / "host0", tmp_path / "host1"], {"x": X})[0] == []


def test_a_pattern_whose_files_are_copies(tmp_path: Path) -> None:
    part = api_models.linear_ranks(tmp_path)[0]
    for rank in range(2):
        shutil.copyfile(part, tmp_path / f"same_{rank}.onnx")
    done = shardrun("run", "same_{}.onnx", "--launcher", "local", "--dim", "batch=2", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(SAME) == 1
    fine = shardrun("run", "part_{}.onnx", "--launcher", "local", "--dim", "batch=2", cwd=tmp_path)
    assert (fine.returncode, fine.stderr) == (0, "")


SCRIPT = """
import sys
import numpy as np
import mindspore_lite as mslite

model = mslite.Model()
model.build_from_file(sys.argv[1], mslite.ModelType.MINDIR)
print(model.predict([np.ones((2, 8), np.float32)])[0].shape)
"""


@pytest.mark.parametrize("how", ["exec", "mpirun", "scripts per rank"])
def test_model_in_scripts(how: str, tmp_path: Path) -> None:
    api_models.linear_ranks(tmp_path)
    (tmp_path / "script.py").write_text(SCRIPT)
    if how == "exec":
        done = shardrun("exec", "--ranks", 2, "--launcher", "local", "script.py", "part_0.onnx", cwd=tmp_path)
    elif how == "mpirun":
        done = shardrun("exec", "script.py", "part_0.onnx", cwd=tmp_path, before=mpirun(2))
    else:
        done = shardrun("scripts", "part_{}.onnx", "--dim", "batch=2", "--output", "job", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        shutil.copyfile(tmp_path / "part_0.onnx", tmp_path / "part_1.onnx")
        done = run(["bash", "job/run_all.sh"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert (done.stderr + done.stdout).count(SAME) == 1
