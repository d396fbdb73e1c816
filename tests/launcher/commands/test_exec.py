"""``shardrun exec``: scripts written for mindspore_lite, alone and on ranks, arguments and exit codes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import cli
from tests.launcher import processes
from tests.launcher.cli_tools import environment, mpirun, save_mlp, shardrun

INFER = """
import sys
import numpy as np
import mindspore_lite as mslite

context = mslite.Context()
context.target = ["gpu"]
model = mslite.Model()
model.build_from_file(sys.argv[1].format(context.gpu.rank_id), mslite.ModelType.MINDIR, context)
inputs = model.get_inputs()
inputs[0].set_data_from_numpy(np.ones((1, 8), np.float32))
outputs = model.predict(inputs)
print("rank", context.gpu.rank_id, "of", context.gpu.group_size, outputs[0].get_data_to_numpy()[0, 0])
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "m.onnx")
    (tmp_path / "infer.py").write_text(INFER)
    assert (
        cli.main(["slice", str(tmp_path / "m.onnx"), "--ranks", "2", "--output", str(tmp_path / "slices")])
        == 0
    )
    return tmp_path


def printed(out: str) -> list[tuple[int, int, float]]:
    found = re.findall(r"^.*rank (\d) of (\d) (\S+)$", out.replace("\r", ""), re.M)
    return sorted((int(rank), int(size), round(float(value), 3)) for rank, size, value in found)


def test_the_same_answer_alone_and_on_ranks(folder: Path) -> None:
    alone = shardrun("exec", "--target", "cpu", "infer.py", "m.onnx", cwd=folder)
    assert alone.returncode == 0, alone.stderr
    assert "cpu" in alone.stderr.lower()  # a script that names gpu runs on the CPU with a warning
    [(_, _, value)] = printed(alone.stdout)
    for launcher in ("local", "mpirun"):
        options = ["--target", "cpu", "--ranks", 2, "--launcher", launcher]
        done = shardrun("exec", *options, "infer.py", "slices/rank_{}.onnx", cwd=folder)
        assert done.returncode == 0, done.stderr
        assert printed(done.stdout) == [(0, 2, value), (1, 2, value)]
    done = shardrun(
        "exec", "--target", "cpu", "infer.py", "slices/rank_{}.onnx", cwd=folder, before=mpirun(2)
    )
    assert done.returncode == 0, done.stderr
    assert printed(done.stdout) == [(0, 2, value), (1, 2, value)]


def test_arguments_are_the_scripts_own(folder: Path) -> None:
    (folder / "show.py").write_text("import sys; print(sys.argv)")
    arguments = ["--ranks", "7", "-v", "--", "--help", "a b"]
    done = shardrun("exec", "show.py", *arguments, cwd=folder)
    assert done.stdout == f"{['show.py', *arguments]}\n"
    done = shardrun("exec", "--ranks", 2, "show.py", *arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{['show.py', *arguments]}") == 2


@pytest.mark.parametrize(
    ("code", "expected", "err"),
    [
        ("raise SystemExit", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('a reason')", 1, "a reason\n"),
        ("raise SystemExit(-1)", 255, ""),
    ],
)
def test_exit_codes_alone(folder: Path, code: str, expected: int, err: str) -> None:
    (folder / "s.py").write_text(code)
    done = shardrun("exec", "s.py", cwd=folder)
    assert (done.returncode, done.stderr) == (expected, err)


@pytest.mark.parametrize(
    ("arguments", "said", "ranks"),
    [
        ("'absent.onnx', mslite.ModelType.ONNX, context", "model_path does not exist! No file or folder", 0),
        ("'m.onnx', mslite.ModelType.ONNX, context, 'absent.ini'", "config_path does not exist! No file", 1),
        (
            "'m.onnx', mslite.ModelType.ONNX, config_dict={'cpu_context': {'precision_mode': 'fp8'}}",
            "[cpu_context] precision_mode must be one of enforce_fp32, preferred_fp16, but is 'fp8'",
            0,
        ),
    ],
)
def test_what_a_script_is_given_may_be_wrong(folder: Path, arguments: str, said: str, ranks: int) -> None:
    save_mlp(folder / "m.onnx")
    (folder / "s.py").write_text(
        "import mindspore_lite as mslite\ncontext = mslite.Context()\n"
        f"context.target = ['cpu']\nmslite.Model().build_from_file({arguments})\n"
    )
    options = ["--ranks", ranks] if ranks else []
    done = shardrun("exec", *options, "s.py", cwd=folder)
    assert done.returncode == 2, done.stderr
    assert said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize("launcher", ["local", "mpirun"])
def test_exit_codes_on_ranks(folder: Path, launcher: str) -> None:
    (folder / "s.py").write_text("import os, sys, time\nif os.environ['RANK' if 'RANK' in os.environ else "
                                 "'OMPI_COMM_WORLD_RANK'] == '1': sys.exit(7)\ntime.sleep(60)\n")  # fmt: skip
    done = shardrun("exec", "--ranks", 2, "--launcher", launcher, "s.py", cwd=folder, seconds=50)
    assert done.returncode == 7, done.stderr
    assert re.match(r"shardrun: error: rank 1 on host \S+ ended with exit code 7", done.stderr), done.stderr


def test_a_scripts_exception_is_shown_as_python_shows_it(folder: Path) -> None:
    (folder / "s.py").write_text("def f():\n    raise ValueError('mine')\nf()\n")
    done = shardrun("exec", "s.py", cwd=folder)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "ValueError: mine"
    assert all("launcher" not in line and "runpy" not in line for line in lines)
    done = shardrun("exec", "--ranks", 2, "s.py", cwd=folder)
    assert done.returncode == 1
    assert re.match(r"shardrun: error: rank \d on host \S+: ValueError: mine\n", done.stderr), done.stderr


def test_wrong_combinations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["exec", "--launcher", "external", "--ranks", "2", "x.py"]) == 2
    assert "--launcher external excludes --ranks" in capsys.readouterr().err


def test_a_rank_that_fails_under_mpirun_ends_the_others(folder: Path) -> None:
    # With MPI up, rank 0 waits for rank 1, whose ordinary exit would wait for rank 0.
    (folder / "s.py").write_text(
        INFER.replace(
            "outputs = ", "if context.gpu.rank_id: model.build_from_file('absent', 0, context)\noutputs = "
        )
    )
    for collectives in ("auto", "mpi"):
        options = ["--target", "cpu", "--collectives", collectives]
        done = shardrun(
            "exec", *options, "s.py", "slices/rank_{}.onnx", cwd=folder, before=mpirun(2), seconds=60
        )
        assert done.returncode not in {0, None}
        assert re.search(r"^(Traceback|shardrun: error: rank 1 on host)", done.stderr, re.M), done.stderr


def test_an_interrupted_script(folder: Path) -> None:
    (folder / "s.py").write_text("import time\nprint('here', flush=True)\ntime.sleep(60)\n")
    mark = "exec-interrupted"
    command = [sys.executable, "-m", "launcher.cli", "exec", "--ranks", "2", "s.py"]
    environ = environment(**{processes.MARK: mark})
    process = subprocess.Popen(
        command, cwd=folder, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    assert b"here" in process.stdout.readline()
    process.terminate()
    _, err = process.communicate(timeout=15)
    assert (process.returncode, err) == (143, b"shardrun: terminated\n")
    assert processes.wait_until(lambda: not processes.marked(mark), 5)


@pytest.mark.parametrize("ranks", [[], ["--ranks", "1"]])
def test_a_script_ends_as_in_any_python(tmp_path: Path, ranks: list[str]) -> None:
    """Its destructors run, which the command's own processes leave out."""
    (tmp_path / "last.py").write_text(
        "class Last:\n    def __del__(self):\n        print('taken apart')\nkept = Last()\n"
    )
    done = shardrun("exec", *ranks, "last.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("taken apart\n")
