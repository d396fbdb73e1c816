"""MindIR on the command line: run, sliced, inspected, converted, and as the distributed tutorials run it."""

import io
import json
import re
import shlex
import shutil
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from tests.end_to_end.processes import run_clean
from tests.launcher.cli_tools import copied
from tests.launcher.processes import LIMIT, wait_until
from tests.left_behind import in_shared_memory, left_in_shared_memory
from tests.ranks.worlds import mpirun

ROOT = Path(__file__).parents[2]
DATA = ROOT / "tests" / "data" / "mindir"
SHARDRUN = [sys.executable, "-m", "launcher.cli"]
EXAMPLES = ROOT / "examples"


def shardrun(folder: Path, *arguments: object, code: int = 0) -> str:
    before = in_shared_memory()
    done = copied(*arguments, cwd=folder, seconds=120)
    assert wait_until(lambda: not left_in_shared_memory(before), LIMIT)
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """A folder with the two files of a network that MindSpore cut itself, as the tutorial names them."""
    for rank in range(2):
        source = DATA / "shard_mlp_allreduce" / f"rank_{rank}" / "model.mindir"
        shutil.copy(source, tmp_path / f"Matmul{rank}.mindir")
    return tmp_path


def numbers(text: str) -> list[list[float]]:
    """The values that are printed of each output."""
    begin = "output data is:"
    return [
        [float(n) for n in line[len(begin) :].split()[:10]]
        for line in text.splitlines()
        if line.startswith(begin)
    ]


def whole_answer() -> list[float]:
    """What the network gives for ones, by numpy on the weights of both files."""
    from sharding.reading.read import read_model

    parts = [
        read_model(DATA / "shard_mlp_allreduce" / f"rank_{rank}" / "model.mindir").weights
        for rank in range(2)
    ]
    ones = np.ones((4, 8), np.float32)
    total = sum(np.maximum(ones @ part["Matmul0.w"].array(), 0) @ part["Matmul1.w"].array() for part in parts)
    return [float(n) for n in (total + parts[0]["bias"].array()).reshape(-1)[:10]]


def test_a_pattern_of_files_runs(pair: Path) -> None:
    found = json.loads(shardrun(pair, "run", "Matmul{}.mindir", "--json"))
    np.testing.assert_allclose(found["outputs"][0]["first"], whole_answer()[:4], rtol=1e-5)
    assert found["collectives"] == {"AllReduce": 1}


def test_mpirun_starts_one_process_for_each_file(pair: Path) -> None:
    command = mpirun()
    if command is None:
        pytest.skip("there is no mpirun on this machine")
    start = [
        command,
        "--allow-run-as-root",
        "--oversubscribe",
        "-n",
        "2",
        *SHARDRUN,
        "exec",
        "--target",
        "cpu",
    ]
    environment = {"PYTHONPATH": str(ROOT), "SHARDRUN_CACHE": str(pair / "cache")}
    done = run_clean(
        [*start, str(EXAMPLES / "distributed_mpirun.py"), "--model_path=Matmul{}.mindir"],
        cwd=pair, environment=environment, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    found = numbers(done.stdout)
    assert len(found) == 2
    for values in found:
        np.testing.assert_allclose(values, whole_answer(), rtol=1e-5)


def test_two_commands_find_each_other_by_a_rank_table(pair: Path) -> None:
    own = shlex.join([*SHARDRUN, "exec", "--target", "cpu", str(EXAMPLES / "distributed_rank_table.py")])
    config = shlex.quote(str(EXAMPLES / "config_file.ini"))
    commands = [
        f"{own} --model_path=Matmul{rank}.mindir --device_id={rank} --rank_id={rank} --config_file={config} "
        f"> out_{rank} & p{rank}=$!"
        for rank in range(2)
    ]
    environment = {"PYTHONPATH": str(ROOT), "SHARDRUN_CACHE": str(pair / "cache"), "SHARDRUN_TIMEOUT": "60"}
    script = "; ".join([*commands, "wait $p0 && wait $p1"]).replace("$!;", "$!\n")
    done = run_clean(["bash", "-c", script], cwd=pair, environment=environment, timeout=120)
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        (values,) = numbers((pair / f"out_{rank}").read_text())
        np.testing.assert_allclose(values, whole_answer(), rtol=1e-5)


def test_run_slice_and_inspect_read_mindir(tmp_path: Path) -> None:
    model = DATA / "gpt_s" / "model.mindir"
    assert "ok" in shardrun(tmp_path, "run", model, "--ranks", 2, "--verify")
    assert "wrote slices: 2 rank models" in shardrun(
        tmp_path, "slice", model, "--ranks", 2, "--output", "slices"
    )
    assert "ok" in shardrun(tmp_path, "run", "slices", "--verify", "--against", model)
    assert "made by     shardrun" in shardrun(tmp_path, "inspect", model)
    refused = shardrun(tmp_path, "slice", model, "--ranks", 2, "--annotate", "a.onnx", "--plan-only", code=2)
    assert "convert it first, with `shardrun convert`" in refused


def test_convert(tmp_path: Path) -> None:
    case = DATA / "mlp"
    text = shardrun(tmp_path, "convert", case / "model.mindir", "m.onnx", "--verify", case / "io.npz")
    assert "inputs: x; outputs: output" in text and "ok" in text
    (tmp_path / "key").write_bytes(b"0123456789ABCDEF")
    secret = DATA / "mlp_encrypted" / "model_aes_gcm.mindir"
    shardrun(tmp_path, "convert", secret, "s.onnx", "--dec-key-file", "key", "--opset", 21)
    for command in (["convert", secret, "t.onnx"], ["inspect", secret], ["run", secret, "--ranks", 2]):
        text = shardrun(tmp_path, *command, code=2)
        assert "is encrypted (AES-GCM): give its key (--dec-key-file FILE --dec-mode AES-GCM;" in text
    half = DATA / "fp16_mlp"  # float32 weights and results, float16 between them
    text = shardrun(tmp_path, "convert", half / "model.mindir", "h.onnx", "--verify", half / "io.npz")
    assert re.search(r"0\.02 +ok", text), text
    (tmp_path / "h.onnx").unlink()
    wrong = dict(np.load(case / "io.npz"))
    wrong["out_0"] = wrong["out_0"] + 1
    np.savez(tmp_path / "wrong.npz", **wrong)
    differs = shardrun(tmp_path, "convert", case / "model.mindir", "m.onnx", "--verify", "wrong.npz", code=3)
    assert (
        "error: the result of m.onnx differs from the answers in wrong.npz: output: relative error" in differs
    )
    (tmp_path / "note.txt").write_text("mine")
    kept = shardrun(tmp_path, "convert", case / "model.mindir", "note.txt", code=2)
    assert "it is no ONNX model that could be replaced" in kept
    assert (tmp_path / "note.txt").read_text() == "mine"
    assert "is an ONNX file already" in shardrun(tmp_path, "convert", "m.onnx", "n.onnx", code=2)
    assert sorted(item.name for item in tmp_path.iterdir() if item.suffix == ".onnx") == ["m.onnx", "s.onnx"]


def test_an_input_of_any_number_of_axes_is_run_and_evaluated(tmp_path: Path) -> None:
    """A network of a layer normalization over the last axis, exported with `Tensor(shape=None)`."""
    with zipfile.ZipFile(DATA / "open_v3.zip") as archive:
        archive.extract("cell_LN.r.mindir", tmp_path)
        answers = dict(np.load(io.BytesIO(archive.read("cell_LN.npz"))))
    common = ("cell_LN.r.mindir", "--ranks", 2, "--allow-replicated")
    for number in range(2):
        np.savez(tmp_path / "in.npz", x0=answers[f"s{number}_in_0"])
        shardrun(tmp_path, "run", *common, "--input", "in.npz", "--output", "out.npz", "--verify")
        found = np.load(tmp_path / "out.npz")["output"]
        np.testing.assert_allclose(found, answers[f"s{number}_out_0"], rtol=1e-4, atol=1e-5)
    text = shardrun(tmp_path, "run", *common, code=2)
    assert "input 'x0' may have any number of axes, so it cannot be made up; give it with --input x0=" in text
    rows = answers["s0_in_0"]
    np.savez(tmp_path / "data.npz", x0=rows, label=answers["s0_out_0"].argmax(-1))
    assert re.search(
        r"top1 +1\n", shardrun(tmp_path, "eval", *common, "--data", "data.npz", "--metric", "top1")
    )
