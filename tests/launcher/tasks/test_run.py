"""``shardrun run`` end to end: launchers, mpirun and scripts from outside, inputs, comparison, failures."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from launcher import cli
from launcher.errors import RankFailedError
from launcher.job.inputs import make_inputs
from launcher.job.job import Job
from launcher.job.model import opened
from sharding.slices.manifest import read_manifest
from tests.launcher import processes
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import environment, mpirun, run, save_mlp
from tests.sharding import graphs


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mlp(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.fixture(scope="module")
def slices(model: Path) -> Path:
    folder = model.parent / "slices"
    assert cli.main(["slice", str(model), "--ranks", "2", "--output", str(folder)]) == 0
    return folder


def reference(model: Path, x: Any) -> Any:
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": x})[0]


ROW = re.compile(r"^ *y +\[[0-9, ]+\] +float32 +(.*?) \.\.\. +(\S+) to (\S+)\r?$", re.M)


def first_values(out: str) -> list[float]:
    """The printed values of y in the table of outputs."""
    found = ROW.search(out)
    assert found, out
    return [float(value) for value in found[1].split()]


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_a_model_file(model: Path, tmp_path: Path, launcher: str) -> None:
    done = shardrun(
        "run", model, "--ranks", 2, "--launcher", launcher, "--repeat", 3, "--verify", cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert len(ROW.findall(done.stdout)) == 1  # rank 0's only
    right = reference(model, np.ones((1, 8), np.float32))[0]
    np.testing.assert_allclose(first_values(done.stdout), right[:4], 1e-3)
    found = ROW.search(done.stdout)
    assert found is not None
    np.testing.assert_allclose([float(found[2]), float(found[3])], [right.min(), right.max()], 1e-3)
    for line in (
        r"ranks +2",
        r"collectives per inference +1 AllReduce",
        r"latency .*median of 3",
        r"y +\S+e-\d\d +0.0001 +ok",
    ):
        assert re.search(f"^{line}", done.stdout, re.M), (line, done.stdout)
    assert len(list((tmp_path / "cache" / "slices").glob("m-2-*/manifest.json"))) == 1


def test_strategy_auto_says_why(model: Path, tmp_path: Path) -> None:
    done = shardrun("run", model, "--ranks", 2, "--strategy", "auto", "--verify", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.search(r"^chosen +\w+: .* of the weights|^chosen +data: all ", done.stdout, re.M), done.stdout
    assert len(re.findall(r"^ +\w+ would give .*|^ +\w+ is not possible", done.stdout, re.M)) == 2


def test_inputs_and_outputs(model: Path, slices: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).standard_normal((3, 8), np.float32)
    x.tofile(tmp_path / "x.bin")
    done = shardrun("run", slices, "--input", "x=x.bin", "--output", "y.npz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "wrote y.npz\n" in done.stdout
    with np.load(tmp_path / "y.npz") as saved:
        np.testing.assert_allclose(saved["y"], reference(model, x), 1e-4, 1e-5)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["x.bin", "y.npz"]


def test_seeds_and_dims(model: Path, slices: Path, tmp_path: Path) -> None:
    outputs = []
    for seed in (1, 2):
        done = shardrun("run", slices, "--seed", seed, "--dim", "batch=4", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        outputs.append(first_values(done.stdout))
        feeds, _ = make_inputs(read_manifest(slices).inputs, dims={"batch": 4}, seed=seed)
        np.testing.assert_allclose(outputs[-1], reference(model, feeds["x"]).reshape(-1)[:4], 1e-3, 1e-4)
    assert outputs[0] != outputs[1]


def test_verify_notices_another_model(slices: Path, tmp_path: Path) -> None:
    other = save_mlp(tmp_path / "other.onnx", seed=5)
    done = shardrun("run", slices, "--verify", "--against", other, "--output", "y.npz", cwd=tmp_path)
    assert done.returncode == 3
    assert "DIFFERS" in done.stdout and (tmp_path / "y.npz").exists()
    assert re.fullmatch(
        r"shardrun: error: the sliced model's result differs from that of \S+other.onnx in plain ONNX "
        r"Runtime: "
        r"y: relative error \S+, tolerance 0.0001\n", done.stderr,
    )  # fmt: skip


def test_verify_against_a_model_with_other_inputs_starts_nothing(slices: Path, tmp_path: Path) -> None:
    for kind, name in (("float", "other"), ("int64", "x")):
        text = f"m ({kind}[1] {name}) => ({kind}[1] y) {{ y = Identity({name}) }}"
        graphs.save(tmp_path / "wrong.onnx", text, {})
        done = shardrun("run", slices, "--verify", "--against", "wrong.onnx", cwd=tmp_path)
        found = "none of that name" if name == "other" else "int64"
        assert done.returncode == 2 and not done.stdout
        assert f"its input 'x' is expected to be float32, found {found}" in done.stderr
    (tmp_path / "wrong.onnx").write_bytes(b"no model")
    done = shardrun("run", slices, "--verify", "--against", "wrong.onnx", cwd=tmp_path)
    assert done.returncode == 2 and "cannot read wrong.onnx: it is not an ONNX model" in done.stderr


def test_verbose_says_what_was_started(slices: Path, tmp_path: Path) -> None:
    done = shardrun("-v", "run", slices, "--launcher", "local", cwd=tmp_path)
    assert done.returncode == 0
    assert f"slices: {slices}" in done.stderr
    for rank in range(2):
        assert re.search(rf"rank {rank} on host \S+ \(pid \d+\): \d+ segments, loaded in ", done.stderr)


def test_external_without_a_launcher(slices: Path, tmp_path: Path) -> None:
    done = shardrun("run", slices, "--launcher", "external", cwd=tmp_path)
    assert done.returncode == 2
    assert "neither RANK and WORLD_SIZE nor the variables of mpirun or srun are set" in done.stderr


def test_started_by_mpirun(model: Path, slices: Path, tmp_path: Path) -> None:
    """That it was is found without a word in the next test."""
    extra = ["--launcher", "external", "--verify", "--output", "y.npz"]
    done = shardrun("run", slices, *extra, cwd=tmp_path, before=mpirun(2))
    assert done.returncode == 0, done.stderr
    assert len(ROW.findall(done.stdout)) == 1
    with np.load(tmp_path / "y.npz") as saved:
        np.testing.assert_allclose(saved["y"], reference(model, np.ones((1, 8), np.float32)), 1e-4, 1e-5)


def test_a_model_file_started_by_mpirun(model: Path, tmp_path: Path) -> None:
    # All ranks want the same slices at once; one makes them.
    done = shardrun("run", model, "--verify", cwd=tmp_path, before=mpirun(2))
    assert done.returncode == 0, done.stderr
    assert len(list((tmp_path / "cache" / "slices").glob("m-2-*/manifest.json"))) == 1


def test_started_by_mpirun_with_other_numbers(slices: Path, tmp_path: Path) -> None:
    done = shardrun("run", slices, cwd=tmp_path, before=mpirun(3))
    assert done.returncode == 2
    assert "was sliced for 2 ranks, but 3 are asked for by the environment" in done.stderr
    assert "--ranks: leave out" not in done.stderr
    done = shardrun("run", slices, "--ranks", 2, cwd=tmp_path, RANK="0", WORLD_SIZE="3", LOCAL_RANK="0")
    assert done.returncode == 2
    assert "--ranks 2 contradicts the environment" in done.stderr
    done = shardrun("run", slices, cwd=tmp_path, RANK="0")
    assert done.returncode == 2
    assert "WORLD_SIZE" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("flag", [True, False], ids=["flag", "variable"])
def test_how_long_a_rank_waits_for_the_others(slices: Path, tmp_path: Path, flag: bool) -> None:
    """The flag wins over the variable, which ranks have from their own environment."""
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
    job = {"SHARDRUN_JOB": "a" * 32, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}
    done = shardrun(
        "run", slices, *(["--timeout", "0.3"] if flag else []), cwd=tmp_path,
        **place, **job, SHARDRUN_TIMEOUT="60" if flag else "0.3",
    )  # fmt: skip
    assert done.returncode == 1
    assert "0.3 s" in done.stderr and "60 s" not in done.stderr


def test_a_wrong_input_under_mpirun_ends_every_rank(slices: Path, tmp_path: Path) -> None:
    (tmp_path / "x.bin").write_bytes(b"12345")
    began = time.monotonic()
    done = shardrun("run", slices, "--input", "x=x.bin", cwd=tmp_path, before=mpirun(2))
    assert done.returncode == 2
    assert (
        "x.bin: input 'x': expected a multiple of 32 bytes (float32 [batch, 8]), found 5 bytes" in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_a_damaged_shard(slices: Path, tmp_path: Path, launcher: str) -> None:
    import shutil

    shutil.copytree(slices, tmp_path / "slices")
    path = tmp_path / "slices" / "rank_1.onnx"
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x10
    path.write_bytes(content)
    done = shardrun("run", "slices", "--launcher", launcher, cwd=tmp_path)
    assert done.returncode == 1
    assert re.match(
        r"shardrun: error: rank 1 on host \S+: \S*rank_1.onnx of rank 1 has SHA-256", done.stderr
    ), done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("launcher", "number", "code"), [("local", signal.SIGINT, 130), ("mpirun", signal.SIGTERM, 143)]
)
def test_interrupted(slices: Path, tmp_path: Path, launcher: str, number: int, code: int) -> None:
    mark = f"interrupted-{launcher}-{number}"
    command = [
        sys.executable,
        "-m",
        "launcher.cli",
        "run",
        str(slices),
        "--launcher",
        launcher,
        "--repeat",
        "100000000",
    ]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment(**{processes.MARK: mark}), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        # The ranks have started once there are three processes or more.
        assert processes.wait_until(lambda: len(processes.marked(mark)) >= 3, 30)
        time.sleep(0.5)
        process.send_signal(number)
        _, err = process.communicate(timeout=processes.LIMIT)
        assert process.returncode == code, err
        assert err == ("shardrun: interrupted\n" if number == signal.SIGINT else "shardrun: terminated\n")
        assert processes.wait_until(lambda: not processes.marked(mark), processes.LIMIT)
    finally:
        for pid in processes.marked(mark):
            subprocess.run(["kill", "-9", str(pid)], check=False)
        process.wait(10)


def test_job_file(model: Path, tmp_path: Path) -> None:
    import shutil

    (tmp_path / "jobs").mkdir()
    shutil.copy(model, tmp_path / "jobs")
    np.savez(tmp_path / "jobs" / "in.npz", x=np.full((2, 8), 0.5, np.float32))
    (tmp_path / "jobs" / "job.yaml").write_text(
        "model: m.onnx\nranks: 3\ninputs: [in.npz]\noutput: out.npz\nverify: true\nlauncher: local\n"
    )
    done = shardrun("run", "--config", "jobs/job.yaml", "--ranks", 2, "--threads", 1, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    with np.load(tmp_path / "jobs" / "out.npz") as saved:
        np.testing.assert_allclose(saved["y"], reference(model, np.full((2, 8), 0.5, np.float32)), 1e-4, 1e-5)


def test_example_configs(model: Path, tmp_path: Path) -> None:
    """Every file in configs/ runs as it is beside a model of the name it gives."""
    import shutil

    examples = sorted((Path(__file__).parents[3] / "configs").glob("*.yaml"))
    assert len(examples) >= 2
    (tmp_path / "configs").mkdir()
    shutil.copytree(Path(__file__).parents[3] / "rank_tables", tmp_path / "rank_tables")
    shutil.copy(model, tmp_path / "model.onnx")
    for example in examples:
        shutil.copy(example, tmp_path / "configs")
        done = shardrun("run", "--config", f"configs/{example.name}", cwd=tmp_path)
        assert done.returncode == 0, (example.name, done.stderr)


def test_a_rank_table_on_this_host(slices: Path, tmp_path: Path) -> None:
    assert (
        run(
            [sys.executable, "-m", "launcher.cli", "table", "make", "--local", 2, "--output", "t.json"],
            tmp_path,
        ).returncode
        == 0
    )
    for launcher in ("auto", "mpirun"):
        done = shardrun("run", slices, "--rank-table", "t.json", "--launcher", launcher, cwd=tmp_path)
        assert done.returncode == 0, done.stderr


def test_an_environment_with_nothing_in_it(slices: Path, tmp_path: Path) -> None:
    """Open MPI wants a home folder, which services and containers often lack."""
    bare = ["env", "-u", "HOME", "-u", "USER", "-u", "LOGNAME", "-u", "PATH"]
    done = shardrun("run", slices, "--launcher", "mpirun", cwd=tmp_path, before=bare)
    assert (done.returncode, done.stderr) == (0, "")


def test_errors_name_the_model_and_not_its_slices_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    model = save_mlp(tmp_path / "m.onnx")
    job = Job(model=model, ranks=2)
    with pytest.raises(RankFailedError) as caught, opened(job, 2) as made:
        assert made.path.is_relative_to(tmp_path / "cache")
        raise RankFailedError(f"rank 1: {made.path}/rank_1.onnx, {made.path}/shared.data", rank=1)
    assert (
        str(caught.value) == f"rank 1: {model} (rank 1), {made.path}/shared.data" and caught.value.rank == 1
    )
    with pytest.raises(RankFailedError, match=r"rank_1\.onnx"), opened(Job(model=made.path), 2) as same:
        raise RankFailedError(f"{same.path}/rank_1.onnx")  # the user's own folder
