"""``shardrun scripts``: what it writes runs, whatever the paths are, fails as a whole, is quoted safely."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from launcher import cli
from launcher.job.job import Job, merge
from launcher.job.options import DATA, RANKS, TYPES, grouped
from launcher.job.rank_table import make_rank_table
from launcher.starters import scripts
from launcher.starters.scripts import write_scripts
from tests.launcher import processes
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import environment, run, save_mlp

ODD = 'it\'s an "odd" $(touch pwned) `id` \\ name; & é'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / ODD
    path.mkdir()
    save_mlp(path / "m.onnx")
    return path


def test_run_all(folder: Path) -> None:
    np.save(folder / "x.npy", np.ones((2, 8), np.float32))
    done = shardrun(
        "scripts", "m.onnx", "--ranks", 2, "--output", "job", "--input", "x=x.npy", "--save", "y.npz",
        "--repeat", 2, "--verify", "--against", "m.onnx", "--threads", 1, "--timeout", 60, "--collectives",
        "shm", cwd=folder,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "wrote job: rank_0.sh to rank_1.sh; run_all.sh starts them all\n"
    assert sorted(p.name for p in (folder / "job").iterdir()) == [
        "rank_0.sh",
        "rank_1.sh",
        "run_all.sh",
        "slices",
    ]
    elsewhere = folder.parent / "elsewhere"
    elsewhere.mkdir()
    # The folder holds its slices, so that it runs again where it is moved to.
    moved = folder.parent / "moved job"
    for job in (folder / "job", moved):
        done = run([job / "run_all.sh"], elsewhere)
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.count("\ny  ") == 2 and "median of 2" in done.stdout
        assert np.load(folder / "y.npz")["y"].shape == (2, 6)
        if job != moved:
            job.rename(moved)
    assert not list(folder.parent.rglob("pwned"))


def test_a_python_that_gets_another_descriptor(folder: Path) -> None:
    """As sudo and containers close them: a rank that is done is known all the same, and nobody's file is
    written to."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    wrapper, other = folder / "python", folder / "other"
    wrapper.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@" 5>>{shlex.quote(str(other))}\n')
    wrapper.chmod(0o755)
    done = run([folder / "job" / "run_all.sh"], folder, SHARDRUN_PYTHON=str(wrapper))
    assert (done.returncode, done.stderr) == (0, "")
    assert other.read_text() == ""


def test_nothing_of_run_all_is_left(folder: Path) -> None:
    """Whoever reads its output to the end need not wait for what watched its ranks."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    with subprocess.Popen(
        [folder / "job" / "run_all.sh"], stdout=subprocess.PIPE, env=environment(), start_new_session=True
    ) as started:
        assert started.stdout is not None
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        session = [
            path.parent.name
            for path in Path("/proc").glob("[0-9]*/stat")
            if (text := read(path)) and int(text.rpartition(")")[2].split()[3]) == started.pid
        ]
        assert session == [str(started.pid)]
        started.stdout.read()
    assert started.returncode == 0


def read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text()
    return ""


def test_ranks_started_one_by_one(folder: Path) -> None:
    assert shardrun("slice", "m.onnx", "--ranks", 2, "--output", "slices", cwd=folder).returncode == 0
    assert shardrun("scripts", "slices", "--output", "job", cwd=folder).returncode == 0
    mark = "one-by-one"
    environ = environment(**{processes.MARK: mark})
    started = [
        subprocess.Popen([folder / "job" / f"rank_{rank}.sh"], env=environ, stdout=subprocess.PIPE, text=True)
        for rank in (1, 0)
    ]
    outs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert "first values" not in outs[0] and "first values" in outs[1]
    assert processes.wait_until(lambda: not processes.marked(mark), 5)


def test_hosts_of_a_list(folder: Path) -> None:
    done = shardrun("scripts", "m.onnx", "--hosts", "node1:1,node2:1", "--output", "job", cwd=folder)
    assert done.returncode == 0 and "run_all.sh HOST starts those of a host" in done.stdout, done.stderr
    text = (folder / "job" / "rank_1.sh").read_text()
    assert "to run on node2" in text and "MASTER_ADDR=node1" in text
    assert "--hosts" not in text  # whoever runs the scripts places the ranks
    for flag in ("--nodes", "--bind", "--mpi-args"):
        done = shardrun("scripts", "m.onnx", flag, "2", "--output", "more", cwd=folder)
        assert done.returncode == 2 and f"unrecognized arguments: {flag}" in done.stderr


def test_one_rank_fails(folder: Path) -> None:
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    shard = folder / "job" / "slices" / "rank_1.onnx"
    shard.write_bytes(shard.read_bytes()[:-1])
    began = time.monotonic()
    done = run([folder / "job" / "run_all.sh"], folder)
    assert done.returncode == 1
    assert re.search(
        r"shardrun: error: rank 1 on host \S+: .*rank_1.onnx of rank 1 has \d+ bytes", done.stderr
    )
    assert "Traceback" not in done.stderr
    # The other rank was ended, and says nothing of it.
    assert len(done.stderr.splitlines()) == 1
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("killed", [0, 1])
def test_run_all_finds_two_ranks_ended(folder: Path, killed: int) -> None:
    """It had no processor meanwhile. The one that said something itself may only have missed the other."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    stops = 'sleep 0.2; kill -STOP "$PPID"; (sleep 0.8; kill -CONT "$1") >/dev/null 2>&1 & kill -KILL $$'
    for rank, words in ((killed, f'set -- "$PPID"; {stops}'), (1 - killed, "sleep 0.5; exit 1")):
        (folder / "job" / f"rank_{rank}.sh").write_text(f"#!/bin/sh\n{words}\n")
    done = run([folder / "job" / "run_all.sh"], folder)
    assert done.returncode == 128 + signal.SIGKILL
    assert done.stderr.startswith(
        f"shardrun: error: rank {killed} on host {os.uname().nodename} was killed by"
    )


@pytest.mark.parametrize("codes", [(7, 9), (9, 1), (1, 3)])
@pytest.mark.parametrize("said", [None, 0, 1])
def test_each_silent_rank_is_named(folder: Path, codes: tuple[int, int], said: int | None) -> None:
    """Of those that have ended when it looks; what a rank has said is not said again."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    # The first lets run_all.sh go on when the other has ended too.
    stops = 'kill -STOP "$PPID"; (sleep 0.6; kill -CONT "$1") >/dev/null 2>&1 & '
    for rank, words in enumerate((f'set -- "$PPID"; sleep 0.2; {stops}', "sleep 0.4; ")):
        tells = f"echo said {rank} >&5; " if said == rank else ""
        (folder / "job" / f"rank_{rank}.sh").write_text(f"#!/bin/sh\n{words}{tells}exit {codes[rank]}\n")
    done = run([folder / "job" / "run_all.sh"], folder)
    silent = [rank for rank in range(2) if rank != said]
    host = os.uname().nodename
    assert sorted(done.stderr.splitlines()) == [
        f"shardrun: error: rank {rank} on host {host} ended with exit code {codes[rank]}." for rank in silent
    ]
    assert done.returncode == codes[silent[0]]


def test_an_error_is_said_once(folder: Path) -> None:
    """By the rank, or where who read its output has gone by nobody; run_all.sh adds nothing."""
    assert shardrun("scripts", "m.onnx", "--ranks", 1, "--output", "job", cwd=folder).returncode == 0
    whole = (folder / "job" / "rank_0.sh").read_text()
    (folder / "job" / "rank_0.sh").write_text(f"{whole.rstrip()} --no-such-flag\n")
    done = run([folder / "job" / "run_all.sh"], folder)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1 and "--no-such-flag" in done.stderr
    (folder / "job" / "rank_0.sh").write_text(whole)
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(
            [folder / "job" / "run_all.sh"], env=environment(), stdout=writer, stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL, text=True, timeout=60, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")


@pytest.mark.parametrize("end", ["exit 1", "exit 3", "kill -TERM $$"])
def test_a_rank_ends_without_a_word(folder: Path, end: str) -> None:
    """Also with a code that a rank ends with which has said why."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    (folder / "job" / "rank_1.sh").write_text(f"#!/bin/sh\n{end}\n")
    done = run([folder / "job" / "run_all.sh"], folder)
    how = "was killed by SIGTERM" if "kill" in end else f"ended with exit code {end[-1]}"
    assert done.returncode == (143 if "kill" in end else int(end[-1]))
    assert done.stderr == f"shardrun: error: rank 1 on host {os.uname().nodename} {how}.\n"


def test_what_a_rank_has_started_ends_with_it(folder: Path) -> None:
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    nothing = ">/dev/null 2>&1 </dev/null"
    (folder / "job" / "rank_1.sh").write_text(
        f"#!/bin/sh\nsleep 100 {nothing} &\nsetsid sleep 100 {nothing} &\nexit 7\n"
    )
    # `run` sees to it that nothing is left.
    assert run([folder / "job" / "run_all.sh"], folder).returncode == 7


def test_what_a_rank_has_started_may_end_by_itself(folder: Path) -> None:
    """As multiprocessing's resource tracker does, which then removes shared memory."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    saves = "trap 'sleep 0.1; echo saved >kept; exit' TERM; echo; while :; do sleep 0.05; done"
    ignores = "trap '' TERM; echo; while :; do sleep 0.05; done"
    (folder / "saves").write_text(saves)
    (folder / "ignores").write_text(ignores)
    (folder / "job" / "rank_1.sh").write_text(
        "#!/bin/bash\nfor one in saves ignores; do coproc setsid sh $one 2>/dev/null; "
        "read -ru ${COPROC[0]}; done\nexit 7\n"
    )
    assert run([folder / "job" / "run_all.sh"], folder).returncode == 7
    assert (folder / "kept").read_text() == "saved\n"


def test_run_all_does_not_wait_for_itself(folder: Path) -> None:
    """It looks for what ranks have left, and finds none of its own tools among that."""
    assert shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", cwd=folder).returncode == 0
    tools, naps = folder / "tools", folder / "naps"
    tools.mkdir()
    (tools / "sleep").write_text(
        f'#!/bin/sh\necho "$1" >>{shlex.quote(str(naps))}\nexec {shutil.which("sleep")} "$1"\n'
    )
    (tools / "sleep").chmod(0o755)
    for rank in (0, 1):
        (folder / "job" / f"rank_{rank}.sh").write_text(f"#!/bin/sh\necho {rank} >>/proc/$PPID/fd/5\n")
    done = run([folder / "job" / "run_all.sh"], folder, PATH=f"{tools}:{os.environ['PATH']}")
    assert (done.returncode, done.stderr) == (0, "")
    assert "0.1" not in read(naps).split()


def test_verify_compares_with_the_model_that_was_given(folder: Path) -> None:
    assert (
        shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", "--verify", cwd=folder).returncode == 0
    )
    done = run([folder / "job" / "run_all.sh"], folder)
    assert done.returncode == 0 and "against m.onnx in plain ONNX Runtime" in done.stdout, done.stderr


def working(mark: str) -> list[str]:
    """The ranks that are called so, as they are once they work."""
    return [line for line in processes.marked(mark).values() if line.startswith("shardrun rank ")]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_run_all_is_ended(folder: Path, number: int, code: int) -> None:
    done = shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "job", "--repeat", 10**8, cwd=folder)
    assert done.returncode == 0
    mark = f"run-all-{number}"
    process = subprocess.Popen(
        [folder / "job" / "run_all.sh"], env=environment(**{processes.MARK: mark}), stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True,
    )  # fmt: skip
    try:
        assert processes.wait_until(lambda: len(working(mark)) == 2, 30)
        os.killpg(process.pid, number)
        assert process.wait(10) == code
        assert processes.wait_until(lambda: not processes.marked(mark), 5)
    finally:
        for pid in processes.marked(mark):
            os.kill(pid, signal.SIGKILL)
        process.wait(10)


def test_several_hosts(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["slice", "m.onnx", "--ranks", "3", "--output", "slices", "--allow-replicated"]) == 0
    (folder / "hosts.yaml").write_text(
        "version: '1.0'\nserver_count: 2\nstatus: completed\nserver_list:\n"
        "- {server_id: 'h$(touch pwned)', device: [{device_id: 4, rank_id: 0}, {device_id: 6, rank_id: 2}]}\n"
        "- {server_id: other, server_ip: 10.0.0.2, device: [{device_id: 1, rank_id: 1}]}\n"
    )
    assert cli.main(["scripts", "slices", "--rank-table", "hosts.yaml", "--output", "job"]) == 2
    assert "the server's name or address" in capsys.readouterr().err
    text = (folder / "hosts.yaml").read_text().replace("h$(touch pwned)", "h''1;x")
    (folder / "hosts.yaml").write_text(text)
    assert cli.main(["scripts", "slices", "--rank-table", "hosts.yaml", "--output", "job"]) == 0
    assert "run_all.sh HOST starts those of a host" in capsys.readouterr().out
    third = (folder / "job" / "rank_2.sh").read_text()
    assert "export RANK=2 WORLD_SIZE=3 LOCAL_RANK=1 LOCAL_WORLD_SIZE=2\n" in third
    assert "export DEVICE_ID=6\n" in third and "MASTER_ADDR='h'\"'\"'1;x'\n" in third
    done = run(["bash", folder / "job" / "run_all.sh"], folder)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "usage: run_all.sh HOST, with HOST one of h'1;x, 10.0.0.2\n"
    assert not list(folder.parent.rglob("pwned"))


def test_scripts_are_private_and_parse(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    assert cli.main(["scripts", "m.onnx", "--ranks", "2", "--output", "job"]) == 0
    for path in (folder / "job").glob("*.sh"):
        assert path.stat().st_mode & 0o777 == 0o700
        shell = "bash" if path.name == "run_all.sh" else "sh"
        assert subprocess.run([shell, "-n", path], check=False, timeout=10).returncode == 0
        if shutil.which("shellcheck"):
            subprocess.run(["shellcheck", path], check=True, timeout=30)
    text = (folder / "job" / "rank_0.sh").read_text()
    assert cli.main(["scripts", "m.onnx", "--ranks", "2", "--output", "job2"]) == 0
    secret = re.search(r"SHARDRUN_JOB=([0-9a-f]{32})\n", text)
    assert secret and secret[1] not in (folder / "job2" / "rank_0.sh").read_text()


def test_nothing_is_left_of_a_failure(folder: Path) -> None:
    before = sorted(folder.iterdir())
    done = shardrun("scripts", "m.onnx", "--ranks", 5, "--output", "job", cwd=folder)
    assert done.returncode == 1 and "--allow-replicated" in done.stderr
    (folder / "file").write_text("")
    done = shardrun("scripts", "m.onnx", "--ranks", 2, "--output", "file", cwd=folder)
    assert done.returncode == 2 and "expected a new or empty folder" in done.stderr
    assert sorted(folder.iterdir()) == sorted([*before, folder / "file"])


def test_arguments_with_absolute_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (folder / "a=b.npz").touch()
    job = Job(model=Path("slices"), ranks=1, inputs=("x=y.bin", "a=b.npz"), dims={"n=m": 3}, seed=0,
              output=Path("o.npz"))  # fmt: skip
    write_scripts(job, folder / "job", "/usr/bin/python3")
    last = (folder / "job" / "rank_0.sh").read_text().splitlines()[-1]
    printed = subprocess.run(
        ["sh", "-c", last.replace('exec "$python"', "printf '%s\\n'")],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert printed == [
        "-m", "launcher.cli", "run", f"{folder}/slices", "--launcher", "external", "--input",
        f"x={folder}/y.bin", "--input", f"{folder}/a=b.npz", "--dim", "n=m=3", "--seed", "0", "--output",
        f"{folder}/o.npz",
    ]  # fmt: skip


def test_every_option_of_a_rank_is_passed_on(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a script says is read back as what the job said, for each row of the table of options."""
    monkeypatch.chdir(folder)
    for name in ("x.bin", "key"):
        (folder / name).write_bytes(b"0" * 16)
    given = {
        "collectives": "shm", "threads": 3, "timeout": 2.5, "hang_timeout": 1.5,
        "target": "gpu", "precision_mode": "enforce_fp32",
        "execution_plan": {"MatMul": "float16", "a=b": "float32"}, "inputs": (f"x={folder / 'x.bin'}",),
        "dims": {"n": 0, "m": 7}, "seed": 0, "output": folder / "o.npz", "repeat": 2, "verify": True,
        "against": folder / "m.onnx",
    }  # fmt: skip
    of_ranks = [option.name for group in (RANKS, TYPES, DATA) for option in grouped(group)]
    of_starting = {"ranks", "rank_table", "launcher", "hosts", "hostfile", "nodes", "bind", "env"}
    of_starting |= {"mpi_args", "srun_args", "stage", "log_dir", "tee", "log_json"}
    of_starting |= {"ray_address", "gpus", "restart"}
    assert sorted(given) == sorted({*of_ranks} - of_starting)
    assert all(given[name] != getattr(Job(), name) for name in given)
    arguments = shlex.split(" ".join(scripts._arguments(Job(model=folder / "m.onnx", ranks=1, **given))))
    read = cli.build_parser().parse_args(["run", f"{folder}/m.onnx", *arguments])
    job = merge(vars(read), None)
    assert {name: getattr(job, name) for name in given} == given
    assert job.launcher == "external"


@pytest.mark.parametrize(
    ("host", "ranks"), [("n1", "0 1"), ("h'1;x", "2"), ("n3", "3 4"), ("n9", ""), ("", "")], ids=repr
)
def test_a_host_starts_its_own_ranks(host: str, ranks: str, tmp_path: Path) -> None:
    """As far as the choice of ranks goes."""
    table = make_rank_table([("n1", 2), ("h'1;x", 1), ("n3", 2)])
    path = tmp_path / "run_all.sh"
    whole = scripts._run_all(table, "python=x", 5)
    choice, found, _ = whole.partition("\nesac\n")
    assert found
    path.write_text(f'{choice}{found}echo "${{ranks[*]}}"\n')
    done = subprocess.run(
        ["bash", path, *([host] if host else [])], capture_output=True, text=True, timeout=60, check=False
    )
    if ranks:
        assert (done.returncode, done.stdout, done.stderr) == (0, f"{ranks}\n", "")
    else:
        assert done.returncode == 2 and done.stderr.startswith(
            "usage: run_all.sh HOST, with HOST one of n1, h'1"
        )
