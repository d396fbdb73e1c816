"""Jobs handed to Slurm: a real one of two nodes where it is installed, and programs that stand in for it."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from launcher.submission.systems import slurm
from sharding import slice_model
from tests.launcher import processes
from tests.launcher.cli_tools import ROOT, environment, save_mlp
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.submission import real_slurm, stand_in_slurm

BOTH = ["stand-in", "real"]
ONE = ["stand-in" if real_slurm.missing() else "real"]
"""Where Slurm is installed, the stand-in runs one test of each kind, and the real one all."""
TWO_NODES = ("--ranks", "2", "--nodes", "2")
HERE = os.uname().nodename


@pytest.fixture(scope="module", params=BOTH)
def cluster(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, str]]:
    """The variables with which a cluster's programs are found."""
    if request.param == "stand-in":
        yield stand_in_slurm.install(tmp_path_factory.mktemp("stand-in"))
        return
    if why := real_slurm.missing():
        pytest.skip(why)
    made = real_slurm.Cluster(tmp_path_factory.mktemp("slurm"))
    try:
        yield made.environment
    finally:
        made.close()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_mlp(tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.random.default_rng(1).standard_normal((4, 8), np.float32))
    return tmp_path


def expected(folder: Path, name: str = "x.npz") -> np.ndarray:
    session = onnxruntime.InferenceSession(folder / "m.onnx", providers=["CPUExecutionProvider"])
    found: np.ndarray = session.run(None, dict(np.load(folder / name)))[0]
    return found


@pytest.mark.parametrize("cluster", ONE, indirect=True, scope="module")
def test_ranks_on_two_nodes_answer(cluster: dict[str, str], folder: Path) -> None:
    (folder / "logs here").mkdir()
    done = shardrun(
        *("submit", "--slurm", "m.onnx", *TWO_NODES, "--time", "10:00", "--cpus", 1, "--log", "logs here"),
        *("--input", "x.npz", "--output", "y.npz", "--timeout", 60),
        cwd=folder, **cluster,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"[0@{HERE}] collectives by             shm+gloo\n" in done.stdout
    assert "on host" not in done.stdout
    np.testing.assert_allclose(np.load(folder / "y.npz")["y"], expected(folder), rtol=1e-5, atol=1e-5)
    (log,) = (folder / "logs here").iterdir()
    number = done.stderr.split()[2]
    assert log.name == f"m-{number}.log" and "0: wrote" in log.read_text()


@pytest.mark.parametrize("cluster", ONE, indirect=True, scope="module")
def test_the_first_code_is_the_jobs(cluster: dict[str, str], folder: Path) -> None:
    """One rank finds a difference, or a wrong input; what srun then does to the other is not the answer."""
    save_mlp(folder / "other.onnx", seed=7)
    model = ("--slurm", "m.onnx", "--ranks", "2", "--nodes", "1")
    done = shardrun(
        "submit", *model, "--verify", "--against", "other.onnx", "--timeout", 60, cwd=folder, **cluster
    )
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"[0@{HERE}] shardrun: error: rank 0 on host" in done.stdout
    # What may be the name of an array's file is read by rank 0 only.
    np.savez(folder / "bad%a.npz", z=np.ones(3, np.float32))
    # Without cgroups a step's end may miss a task that is just being started: that one waits for as long.
    done = shardrun("submit", *model, "--input", "bad%a.npz", "--timeout", 15, cwd=folder, **cluster)
    assert done.returncode == 2, done.stdout + done.stderr


def test_the_first_code_is_the_jobs_where_others_hear_of_the_end_before_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rank 0 has told rank 1 that it ends, and gets no processor to do so."""
    cluster = stand_in_slurm.install(tmp_path_factory.mktemp("stand-in"))
    (folder / "late").mkdir()
    (folder / "late" / "sitecustomize.py").write_text(ENDS_LATE)
    np.savez(folder / "bad%a.npz", z=np.ones(3, np.float32))
    done = shardrun(
        *("submit", "--slurm", "m.onnx", "--ranks", 2, "--nodes", 1, "--input", "bad%a.npz", "--timeout", 60),
        cwd=folder, PYTHONPATH=f"{folder / 'late'}:{ROOT}", **cluster,
    )  # fmt: skip
    assert done.returncode == 2 and "[0@" in done.stdout, done.stdout + done.stderr


ENDS_LATE = """
import os, sys, time

def end(code, end=os._exit):
    time.sleep(2)
    end(code)

if os.environ.get("SLURM_PROCID") == "0":
    os._exit = end
"""


def test_jobs_of_an_array_have_inputs_of_their_own(cluster: dict[str, str], folder: Path) -> None:
    for index in range(2):
        np.savez(folder / f"x_{index}.npz", x=np.full((2, 8), index + 1, np.float32))
    done = shardrun(
        *("submit", "--slurm", "m.onnx", "--ranks", 2, "--nodes", 1, "--array", "0-1", "--timeout", 60),
        *("--input", "x_%a.npz", "--output", "y_%a.npz"),
        cwd=folder, **cluster,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    for index in range(2):
        assert f"[job {index}] [0@{HERE}] wrote {folder}/y_{index}.npz" in done.stdout
        found = np.load(folder / f"y_{index}.npz")["y"]
        np.testing.assert_allclose(found, expected(folder, f"x_{index}.npz"), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("cluster", ONE, indirect=True, scope="module")
def test_hostile_names_are_names(cluster: dict[str, str], folder: Path) -> None:
    odd = folder / 'it\'s "$(touch pwned)" `touch pwned` %j #1; touch pwned'
    odd.mkdir()
    (folder / "m.onnx").rename(odd / "m.onnx")
    (folder / "x.npz").rename(odd / "x.npz")
    done = shardrun(
        *("submit", "--slurm", "m.onnx", "--ranks", 2, "--nodes", 1, "--name", "$(touch pwned) %x 'n' \"#"),
        *("--input", "x.npz", "--output", "$y.npz", "--timeout", 60, "--directive=--comment=a\\b\"$(touch)"),
        cwd=odd, **cluster,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    np.testing.assert_allclose(np.load(odd / "$y.npz")["y"], expected(odd), rtol=1e-5, atol=1e-5)
    assert [path.name for path in odd.glob("*.log")] != []
    assert not list(folder.rglob("pwned"))


@pytest.mark.parametrize("cluster", ONE, indirect=True, scope="module")
def test_lines_as_json(cluster: dict[str, str], folder: Path) -> None:
    done = shardrun(
        *("submit", "--slurm", "m.onnx", "--ranks", 2, "--nodes", 1, "--timeout", 60, "--log-json"),
        *("--output", "y.npz", "--array", "1-1", "--directive=--comment=x"), cwd=folder, **cluster,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    # Rank 1 may say that it waits for the other one's slices.
    found = {(line["job"], line["rank"], line["host"], line["stream"]) for line in lines}
    assert ("1", 0, HERE, None) in found <= {("1", rank, HERE, None) for rank in range(2)}
    assert f"wrote {folder}/y.npz" in [line["line"] for line in lines]
    none = shardrun(
        *("submit", "--slurm", "m.onnx", "--ranks", 2, "--nodes", 1, "--timeout", 60, "--tee", 1),
        cwd=folder, **cluster,
    )  # fmt: skip
    assert none.returncode == 0, none.stderr
    assert all(line.startswith(f"[1@{HERE}] shardrun: warning") for line in none.stdout.splitlines())


def test_a_job_that_is_started_again(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """It is followed on, and its first lines are not shown twice."""
    if why := real_slurm.missing():
        pytest.skip(why)
    made = real_slurm.Cluster(tmp_path_factory.mktemp("slurm"))  # short: it holds sockets
    own = environment(SHARDRUN_CACHE=str(folder / "cache"), **made.environment)
    words = ["submit", "--slurm", "m.onnx", "--ranks", "1", "--requeue", "--repeat", "1000000000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", *words, "--env", "PYTHONFAULTHANDLER=1"], cwd=folder, env=own,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        state = lambda: made.ask("squeue", "-h", "-o", "%T %i").split()  # noqa: E731
        assert processes.wait_until(lambda: state()[:1] == ["RUNNING"], 60)
        number = state()[1]
        made.ask("scontrol", "requeue", number)
        assert processes.wait_until(lambda: "Restarts=1" in made.ask("scontrol", "show", "job", number), 20)
        assert process.poll() is None
        made.ask("scancel", number)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1 and f"job {number} was cancelled" in err, out + err
    finally:
        process.kill()
        made.close()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_a_job_is_handed_in(folder: Path, number: int) -> None:
    """The job is cancelled when its number is known."""
    for name, text in (
        ("sbatch", "cat >/dev/null; : >begun; sleep 1; echo 77"),
        ("scancel", 'echo "$@" >told'),
    ):
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    (folder / "scontrol").write_text("#!/bin/sh\necho 'JobId=77 JobState=CANCELLED ExitCode=0:15'\n")
    (folder / "scontrol").chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", "submit", "--slurm", "m.onnx", "--ranks", "2"], cwd=folder,
        env=environment(PATH=f"{folder}:{os.environ['PATH']}"), stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert processes.wait_until((folder / "begun").exists, 60)
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 128 + number and "cancelling job 77" in err, out + err
    assert (folder / "told").read_text() == "77\n"


def test_a_job_of_an_array_that_slurm_has_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """It had failed; the others go on for longer than Slurm remembers it."""
    system = slurm.Slurm()
    first = "JobId=8 ArrayJobId=7 ArrayTaskId=0 JobState=FAILED Reason=NonZeroExitCode ExitCode=3:0\n"
    states = iter((
        (0, first + "JobId=7 ArrayJobId=7 ArrayTaskId=1 JobState=RUNNING Reason=None ExitCode=0:0\n"),
        (0, "JobId=7 ArrayJobId=7 ArrayTaskId=1 JobState=RUNNING Reason=None ExitCode=0:0\n"),
        (0, "JobId=7 ArrayJobId=7 ArrayTaskId=1 JobState=COMPLETED Reason=None ExitCode=0:0\n"),
        (1, "slurm_load_jobs error: Invalid job id specified"),
    ))  # fmt: skip
    monkeypatch.setattr(system, "ask", lambda *_: subprocess.CompletedProcess([], *next(states), ""))
    found = [system.status("7") for _ in range(4)]
    assert [one.phase for one in found] == ["running", "running", "done", "done"]
    assert [one.code for one in found] == [None, None, 3, 3]


@pytest.mark.parametrize(
    ("cluster", "number"),
    [("stand-in", signal.SIGINT), (ONE[0], signal.SIGTERM)],
    indirect=["cluster"],
    scope="module",
)
def test_a_signal_cancels_the_job(cluster: dict[str, str], folder: Path, number: int) -> None:
    mark = uuid.uuid4().hex
    command = ["submit", "--slurm", "m.onnx", "--ranks", "2", "--nodes", "1", "--repeat", "1000000000"]
    own = {processes.MARK: mark, "SHARDRUN_CACHE": str(folder / "cache")}
    process = subprocess.Popen(
        [sys.executable, "-m", "launcher.cli", *command], cwd=folder, env=environment(**own, **cluster),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def ranks() -> list[str]:
        # As they are called once they work: Slurm has to find them by these names.
        return [line for line in processes.marked(mark).values() if line.startswith("shardrun rank ")]

    try:
        assert processes.wait_until(lambda: len(ranks()) >= 2, 60), processes.marked(mark)
        process.send_signal(number)
        out, err = process.communicate(timeout=90)
        assert process.returncode == 128 + number, out + err
        assert "cancelling job" in err and "Traceback" not in err
        assert processes.wait_until(lambda: not processes.marked(mark), 30), processes.marked(mark)
    finally:
        process.kill()
        for pid in processes.marked(mark):
            os.kill(pid, signal.SIGKILL)


def dry(folder: Path, *arguments: object) -> str:
    done = shardrun("submit", "--slurm", *arguments, "--dry-run", cwd=folder, PATH="/usr/bin:/bin")
    assert done.returncode == 0, done.stderr
    assert subprocess.run(["bash", "-n"], input=done.stdout, text=True, check=False).returncode == 0
    return done.stdout


def test_the_script_says_what_is_asked(folder: Path) -> None:
    (folder / "env" / "bin").mkdir(parents=True)
    (folder / "env" / "bin" / "activate").touch()
    (folder / "job.yaml").write_text(
        "model: m.onnx\nranks: 4\n"
        "submit: {partition: gpu, gpus: 2, nodes: 3, time: '1-2:03', requeue: true}\n"
    )
    text = dry(
        folder, "--config", "job.yaml", "--nodes", 2, "--account", "us", "--cpus", 8, "--mem", "24GB",
        "--constraint", "a100&ib", "--module", "gcc/12", "--module", "it's", "--venv", "env",
        "--directive=--qos=high", "--collectives", "mpi", "--mpi", "pmix",
    )  # fmt: skip
    lines = text.splitlines()
    for option in (
        *("partition=gpu", "account=us", "time=26:03:00", "nodes=2", "ntasks=4", "ntasks-per-node=2"),
        *("cpus-per-task=8", "mem=23437500K", "constraint=a100&ib", "gpus-per-node=4", "requeue", "qos=high"),
    ):
        assert f"#SBATCH --{option}" in lines
    assert lines.index("module load gcc/12") < lines.index(f". {folder}/env/bin/activate")
    assert "module load 'it'\"'\"'s'" in lines
    (run,) = (shlex.split(line.rstrip("\\")) for line in lines if line.strip().startswith("srun"))
    assert {"--mpi=pmix", "--kill-on-bad-exit=1", "--cpus-per-task=8", "--threads=8"} <= set(run)
    assert run[run.index("shardrun") :][:3] == ["shardrun", "run", f"{folder}/m.onnx"]
    name = dry(folder, "m.onnx", "--ranks", 1, "--name", "ü" * 200).partition("--output=")[2].splitlines()[0]
    assert len(name.encode()) - len(os.fsencode(folder)) < 240 and "ü" * 90 in name  # of a file's 255 bytes


def test_a_job_file_for_run_is_one_for_submit(folder: Path) -> None:
    """What says how `run` starts ranks is the job system's, and variables are on no command line."""
    (folder / "job.yaml").write_text(
        "model: m.onnx\nranks: 2\nnodes: 2\nbind: cores\nhang_timeout: 9\nmpi_args: --x\nsrun_args: --y\n"
        "launcher: slurm\nenv: {SECRET: a b}\n"
    )
    lines = dry(folder, "--config", "job.yaml", "--env", "MORE=1").splitlines()
    assert "#SBATCH --nodes=2" in lines
    assert {"export SECRET='a b'", "export MORE=1"} <= set(lines)
    (run,) = (shlex.split(line.rstrip("\\")) for line in lines if line.strip().startswith("srun"))
    after = run[run.index("run") + 1 :]
    assert after == [f"{folder}/m.onnx", "--launcher=external", "--hang-timeout=9.0"]


def test_a_path_that_is_no_utf8_stays_what_it_is(folder: Path) -> None:
    path = (folder / "m.onnx").rename(folder / os.fsdecode(b"m\xff.onnx"))
    odd = os.fsencode(path)
    command = [sys.executable, "-m", "launcher.cli", "submit", "--slurm", odd, "--ranks", "2", "--dry-run"]
    done = subprocess.run(command, cwd=folder, env=environment(), capture_output=True, timeout=60, check=True)
    assert odd in done.stdout
    said = slurm.Slurm().ask("cat", given=done.stdout.decode(errors="surrogateescape")).stdout
    assert said.encode(errors="surrogateescape") == done.stdout


@pytest.mark.parametrize("runner", ["apptainer", "pyxis"])
def test_a_job_runs_in_an_image(folder: Path, runner: str) -> None:
    """Files are those of the image then, which nobody looks for here."""
    text = dry(
        folder, "/in/it.onnx", "--ranks", 2, "--image", "some image.sif", "--container", runner, "--gpus", 1
    )
    (run,) = (shlex.split(line.rstrip("\\")) for line in text.splitlines() if line.strip().startswith("srun"))
    if runner == "pyxis":
        assert "--container-image=some image.sif" in run and "apptainer" not in run
    else:
        words = ["apptainer", "exec", "--nv", "some image.sif", "shardrun"]
        assert run[run.index("apptainer") :][:5] == words


@pytest.mark.parametrize(
    ("said", "code", "expected"),
    [
        (["srun: error: h2: task 1: Exited with exit code 3", "srun: error: h1: task 0: Killed"], 143, 3),
        (["srun: error: h2: tasks 1-2: Killed", "srun: error: h1: task 0: Exited with exit code 1"], 9, 137),
        (["srun: error: h1: task 0: Segmentation fault (core dumped)"], 139, 139),
        (["1: srun: error: h1: task 0: Exited with exit code 3", "srun: error: no such node"], 1, 1),
        ([], 0, 0),
    ],
)  # fmt: skip
def test_the_script_ends_as_the_first_rank_that_failed(
    folder: Path, said: list[str], code: int, expected: int
) -> None:
    text = dry(folder, "m.onnx", "--ranks", 2)
    programs = folder / "bin"
    programs.mkdir()
    (programs / "srun").write_text(
        f"#!/bin/sh\nprintf '%s\\n' {shlex.join(said)} >&2; echo '0: out'; exit {code}\n"
    )
    (programs / "scontrol").write_text("#!/bin/sh\necho 'NodeName=h1 NodeAddr=10.0.0.9 Version=1'\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    inside = {"SLURM_JOB_ID": "4", "SLURMD_NODENAME": "h1", "PATH": f"{programs}:/usr/bin:/bin"}
    done = subprocess.run(
        ["bash"], input=text, text=True, env=inside, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (expected, "0: out\n")
    assert all(line in done.stderr for line in said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["m.onnx"], "say over how many ranks"),
        (["absent.onnx", "--ranks", "2"], "absent.onnx: no such file"),
        (["m.onnx", "--ranks", "2", "--input", "absent.npz"], "absent.npz"),
        (["m.onnx", "--ranks", "2", "--input", "other.npz"], "other.npz"),
        (["slices", "--input", "other.npz"], "other.npz"),
        (["slices", "--dim", "bacth=2"], "no such symbolic dimension"),
        (["m.onnx", "--ranks", "2", "--nodes", "3"], "at most one node for each of the 2 ranks"),
        (["m.onnx", "--ranks", "2", "--dim", "bacth=2"], "no such symbolic dimension"),
        (["m.onnx", "--ranks", "2", "--time", "1:99:00"], "expected a time above 0"),
        (["m.onnx", "--ranks", "2", "--time", "soon"], "expected a time as minutes"),
        (["m.onnx", "--ranks", "2", "--array", "0-x"], "expected indices"),
        (["m.onnx", "--ranks", "2", "--gpus", "0"], "the GPUs of one rank"),
        (["m.onnx", "--ranks", "2", "--partition", "a\nb"], "without control characters"),
        (["m.onnx", "--ranks", "2", "--namespace", "n"], "--namespace: --slurm has no such option"),
        (["m.onnx", "--ranks", "2", "--directive", "high"], "expected one option of sbatch"),
        (["m.onnx", "--ranks", "2", "--venv", "."], "expected a virtual environment"),
        (["m.onnx", "--ranks", "2", "--log", "no"], "--log no: expected a folder"),
        (["m.onnx", "--ranks", "2", "--container", "pyxis"], "give one with --image"),
        (["m.onnx", "--ranks", "2", "--image=--bind=/"], "begins with no hyphen"),
        (["m.onnx", "--ranks", "2", "--module=-x"], "begins with no hyphen"),
        (["m.onnx", "--ranks", "2", "--log-dir", "x"], "unrecognized arguments: --log-dir"),
        (["m.onnx", "--ranks", "4", "--nodes", "2", "--tasks-per-node", "1"], "do not come to 1 a node"),
        (["--config", "job.yaml"], "$.submit.time: expected a time in quotes"),
        (["m.onnx", "--ranks", "2", "--log", "a\\b"], "a path with a backslash"),
        (["m.onnx", "--ranks", "2", "--log", "a\ntouch pwned"], "or a control character"),
        (["--config", "hosts.yaml"], "--hosts: the job system chooses the hosts"),
        (["--config", "typo.yaml"], "unknown key \"partiton\" in $.submit; did you mean partition?"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_before_the_job_waits(folder: Path, arguments: list[str], message: str) -> None:
    (folder / "job.yaml").write_text("model: m.onnx\nranks: 2\nsubmit: {time: 60}\n")
    (folder / "typo.yaml").write_text("model: m.onnx\nranks: 2\nsubmit: {partiton: gpu}\n")
    (folder / "hosts.yaml").write_text("model: m.onnx\nranks: 2\nhosts: 'a:1,b:1'\n")
    (folder / "a\\b").mkdir()
    (folder / "a\ntouch pwned").mkdir()
    np.savez(folder / "other.npz", y=np.ones((4, 8), np.float32))
    if arguments[0] == "slices":
        slice_model(folder / "m.onnx", 2, folder / "slices")
    done = shardrun("submit", "--slurm", *arguments, cwd=folder)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and not list(folder.glob("*.log"))


def test_without_slurm_it_says_what_to_do(folder: Path) -> None:
    done = shardrun("submit", "--slurm", "m.onnx", "--ranks", "2", cwd=folder, PATH=str(folder))
    assert done.returncode == 1
    assert "There is no sbatch on PATH" in done.stderr and "--dry-run" in done.stderr


@pytest.mark.parametrize(
    ("record", "phase", "code", "why"),
    [
        ("JobState=PENDING Reason=Resources ExitCode=0:0", "waiting", None, "Resources"),
        ("JobState=CONFIGURING Reason=None ExitCode=0:0", "waiting", None, ""),
        ("JobState=COMPLETING Reason=None ExitCode=0:0", "running", None, ""),
        ("JobState=REQUEUED Reason=None ExitCode=0:0", "waiting", None, ""),
        ("JobState=COMPLETED Reason=None ExitCode=0:0", "done", 0, ""),
        ("JobState=FAILED Reason=NonZeroExitCode ExitCode=7:0", "done", 7, ""),
        ("JobState=FAILED Reason=RaisedSignal ExitCode=0:9", "done", 0, "was killed by SIGKILL"),
        ("JobState=FAILED Reason=RaisedSignal:53 ExitCode=0:53", "done", 0, slurm._killed(53)),
        ("JobState=TIMEOUT Reason=TimeLimit ExitCode=0:15", "done", 0, "reached its time limit (--time)"),
        ("JobState=NODE_FAIL Reason=NodeDown ExitCode=0:0", "done", 0, "lost a node"),
    ],
)  # fmt: skip
def test_states_of_slurm(
    monkeypatch: pytest.MonkeyPatch, record: str, phase: str, code: int | None, why: str
) -> None:
    system = slurm.Slurm()
    line = f"JobId=3 JobName=JobState=FAKE {record} RunTime=00:01:02\n"
    answer = subprocess.CompletedProcess([], 0, line, "")
    monkeypatch.setattr(system, "ask", lambda *command, **more: answer)
    found = system.status("3")
    assert (found.phase, found.why) == (phase, why)
    assert found.code == code
