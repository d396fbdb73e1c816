"""Jobs handed to PBS, with programs that stand in for it: no PBS was at hand."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from launcher.common.mpi_library import AS_ROOT
from launcher.errors import ConfigError
from launcher.job.job import Job
from launcher.submission.base import Submission
from launcher.submission.options import SubmitOptions
from launcher.submission.systems import pbs
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import save_mlp

QSUB = """#!/bin/sh
cat >"$STAND_IN/script"
PBS_O_WORKDIR=$PWD PBS_JOBID=7.server bash "$STAND_IN/script" >/dev/null 2>&1
echo "    Exit_status = $?" >"$STAND_IN/exit"
echo 7.server
"""
QSTAT = """#!/bin/sh
[ "$*" = "-x -f 7.server" ] || exit 9
printf 'Job Id: 7.server\\n    Job_Name = x\\n    job_state = F\\n'
cat "$STAND_IN/exit"
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "m.onnx")
    (tmp_path / "bin").mkdir()
    for name, text in (("qsub", QSUB), ("qstat", QSTAT)):
        (tmp_path / "bin" / name).write_text(text)
        (tmp_path / "bin" / name).chmod(0o755)
    return tmp_path


def dry(folder: Path, *arguments: object) -> str:
    done = shardrun("submit", "--pbs", "m.onnx", *arguments, "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    return done.stdout


def test_a_job_on_one_node(folder: Path) -> None:
    own = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "STAND_IN": str(folder)}
    odd = folder / "it's $(touch pwned)"
    odd.mkdir()
    done = shardrun(
        *("submit", "--pbs", folder / "m.onnx", "--ranks", 2, "--output", "y.npz", "--name", "it"),
        cwd=odd, **own,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"wrote {odd}/y.npz\n" in done.stdout and np.load(odd / "y.npz")["y"].shape == (1, 6)
    assert (odd / "it-7.log").is_file() and not list(folder.rglob("pwned"))
    failed = shardrun(
        *("submit", "--pbs", folder / "m.onnx", "--ranks", 2, "--input", "x=no%a.npy", "--name", "it"),
        cwd=odd, **own,
    )  # fmt: skip
    assert failed.returncode == 2 and "no%a.npy" in failed.stdout, failed.stdout + failed.stderr


def test_a_job_on_several_nodes(folder: Path) -> None:
    """The nodes are this machine; mpirun is a real one."""
    (folder / "nodes").write_text("localhost\nlocalhost\n")
    own = {
        "PATH": os.pathsep.join([str(folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "STAND_IN": str(folder), "PBS_NODEFILE": str(folder / "nodes"), **AS_ROOT,
    }  # fmt: skip
    words = ("submit", "--pbs", "m.onnx", "--ranks", 2, "--nodes", 2, "--name", "it", "--env", "number=x")
    done = shardrun(*words, "--output", "y.npz", cwd=folder, **own)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"[0@{os.uname().nodename}] wrote {folder}/y.npz\n" in done.stdout
    assert "on host" not in done.stdout
    done = shardrun(*words, "--log-json", "--tee", 0, cwd=folder, **own)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert {(line["rank"], line["host"]) for line in lines} == {(0, os.uname().nodename)}


def test_the_script_says_what_is_asked(folder: Path) -> None:
    lines = dry(
        folder, "--ranks", 4, "--nodes", 2, "--partition", "q", "--account", "us", "--time", "90",
        "--gpus", 1, "--cpus", 2, "--mem", "1GiB", "--constraint", "model=x", "--array", "0-3", "--requeue",
        "--directive=-l place=excl", "--module", "mpi", "--input", "x_%a.npz",
    ).splitlines()  # fmt: skip
    for directive in (
        *("-N m", "-q q", "-A us", "-l walltime=01:30:00", "-J 0-3", "-r y", "-l place=excl", "-j oe"),
        "-l select=2:ncpus=4:mpiprocs=2:ngpus=2:mem=1048576kb:model=x",
    ):
        assert f"#PBS {directive}" in lines
    assert "module load mpi" in lines
    text = "\n".join(lines)
    assert 'exec mpirun -n 4 "$@" \\' in text and 'x_"${PBS_ARRAY_INDEX}".npz' in text


def test_ranks_that_talk_by_mpi_are_started_by_it(folder: Path) -> None:
    assert "--launcher=local" in dry(folder, "--ranks", 2)
    assert "--tee=0-1 --log-json\n" in dry(folder, "--ranks", 2, "--tee", "0,1", "--log-json")
    assert "--launcher=mpirun" in dry(folder, "--ranks", 2, "--collectives", "mpi")


def test_variables_reach_the_ranks(folder: Path) -> None:
    text = dry(folder, "--ranks", 2, "--nodes", 2, "--env", "A=it's $x")
    assert "export A='it'\"'\"'s $x'\n" in text and "-x MASTER_PORT -x SHARDRUN_JOB -x A" in text


def test_jobs_of_an_array_do_not_meet(folder: Path, tmp_path: Path) -> None:
    """Where they share a node, each has a port, and a name by which its ranks know one another."""
    whole = dry(folder, "--ranks", 2, "--nodes", 2, "--array", "0-1")
    lines = whole.partition("# Where the ranks meet")[2].partition("# Whichever MPI")[0]
    (tmp_path / "nodes").write_text("n1\nn2\n")
    found = []
    for index in ("0", "1"):
        environ = {"PBS_JOBID": f"12340[{index}].head", "PBS_ARRAY_INDEX": index, "PATH": os.environ["PATH"]}
        done = subprocess.run(
            ["sh", "-c", f"#{lines}\necho $MASTER_ADDR $MASTER_PORT $SHARDRUN_JOB"],
            env={**environ, "PBS_NODEFILE": str(tmp_path / "nodes")}, capture_output=True, text=True,
            timeout=30, check=True,
        )  # fmt: skip
        found.append(done.stdout.split())
    (address, port, name), (_, other_port, other_name) = found
    assert (address, port, other_port) == ("n1", "22340", "22341")
    assert re.fullmatch("[0-9a-f]{32}", name) and re.fullmatch("[0-9a-f]{32}", other_name)
    assert name != other_name


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--partition", "a b"], "--partition a b: PBS can be told"),
        (["--name", "a b"], "--name a b: PBS takes letters"),
        (["--array", "1,2"], "PBS takes one range"),
        (["--gpus", "a100:1"], "PBS has no types of GPUs"),
        (["--directive=--x"], "expected one option of qsub"),
        (["--mpi", "pmix"], "--mpi: --pbs has no such option"),
        (["--ranks", "3", "--nodes", "2"], "cannot be shared out evenly"),
    ],
)  # fmt: skip
def test_what_pbs_cannot_take_is_said(folder: Path, arguments: list[str], message: str) -> None:
    done = shardrun("submit", "--pbs", "m.onnx", "--ranks", "2", *arguments, "--dry-run", cwd=folder)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("0", 0, ""),
        ("3", 3, ""),
        ("271", 143, ""),
        ("137", 137, ""),
        ("-3", None, "could not be started by PBS (its code -3)"),
        ("", None, "ended before it had run, or was deleted"),
    ],
)
def test_codes_of_pbs(text: str, code: int | None, why: str) -> None:
    found = pbs._ended(text)
    assert (found.phase, found.code, found.why) == ("done", code, why)


def test_the_logs_of_an_array_are_those_of_its_own_jobs(tmp_path: Path) -> None:
    """Whatever signs of a pattern are in the folder's name, and whose number begins alike."""
    folder = tmp_path / "a[b]*"
    folder.mkdir()
    submission = Submission(Job(model=Path("m.onnx")), 2, SubmitOptions(name="x", log=folder))
    for number in ("7", "71", "7[1]", "7[12]", "71[1]", "17[1]"):
        (folder / f"x-{number}.log").write_text(f"{number}\n")
    system = pbs.Pbs()
    array = "".join(system.tails(submission, "7[].server").lines())
    assert array.count("7[1]") == array.count("7[12]") == 1 and "71" not in array and "17" not in array
    for number in ("7", "71"):
        assert system.tails(submission, f"{number}.server").lines() == [number]


@pytest.mark.parametrize(
    ("ranks", "nodes", "each", "per_node"),
    [
        (4, None, None, None),
        (4, 2, None, 2),
        (5, 2, None, None),
        (4, 4, None, 1),
        (5, 2, 3, 3),
        (4, None, 3, 3),
    ],
)
def test_ranks_on_each_node(ranks: int, nodes: int | None, each: int | None, per_node: int | None) -> None:
    options = SubmitOptions(nodes=nodes, tasks_per_node=each)
    assert Submission(Job(), ranks, options).per_node == per_node


@pytest.mark.parametrize(
    ("ranks", "nodes", "each", "message"),
    [
        (4, 5, None, "--nodes 5: expected at most one node for each of the 4 ranks"),
        (4, 2, 1, "--tasks-per-node 1: 4 ranks on 2 nodes do not come to 1 a node"),
        (4, 2, 4, "--tasks-per-node 4: 4 ranks on 2 nodes do not come to 4 a node"),
    ],
)
def test_nodes_that_do_not_fit(ranks: int, nodes: int, each: int | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Submission(Job(), ranks, SubmitOptions(nodes=nodes, tasks_per_node=each))
