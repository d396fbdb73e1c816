"""srun's command line, what it says of ended tasks, and ranks that a stand-in of it starts here."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from launcher.errors import ConfigError, LaunchError
from launcher.job.places.placement import Placement
from launcher.job.rank_table import make_rank_table
from launcher.starters import base, cause, mpirun, slurm
from launcher.starters.base import Ended
from launcher.starters.cause import Trouble
from launcher.starters.findings import Findings
from launcher.starters.known.slurm import STARTER
from launcher.starters.slurm import SlurmHandle, SlurmLauncher
from tests.launcher.cli_tools import save_mlp, shardrun
from tests.launcher.starters.test_mpirun import use_path, write_program

HERE = os.uname().nodename
ALLOCATION = {
    "SLURM_JOB_ID": "3",
    "SLURM_JOB_NODELIST": HERE,
    "SLURM_TASKS_PER_NODE": "2",
    "SLURM_NTASKS": "2",
}
# Starts the tasks on this machine, as srun does: each with its variables, their output marked, the others
# ended when one fails, and the end of a task told in srun's words.
SRUN = f"""\
#!{sys.executable}
import os, signal, subprocess, sys, threading, time
if "--mpi=list" in sys.argv:
    print("MPI plugin types are...\\n\\tnone\\n\\tpmi2")
    raise SystemExit
with open(os.environ["SAID"], "a") as file:
    print(*sys.argv[1:], file=file)
flags = [word for word in sys.argv[1:] if word.startswith("--")]
program = sys.argv[1 + len(flags):]
size = int(next(word for word in flags if word.startswith("--ntasks=")).partition("=")[2])
hosts = open(os.environ["SLURM_HOSTFILE"]).read().split()
assert len(hosts) == size
tasks = []
def copy(rank, source, target):
    for line in source:
        target.write(f"{{rank}}: {{line}}"); target.flush()
def end(number, frame):
    for task in tasks: task.kill()
    os._exit(143)
signal.signal(signal.SIGTERM, end)
copies = []
for rank in range(size):
    own = {{"SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_STEP_NUM_TASKS": str(size),
           "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": str(size)}}
    tasks.append(subprocess.Popen(program, env={{**os.environ, **own}}, stdout=-1, stderr=-1, text=True))
    for source, target in ((tasks[-1].stdout, sys.stdout), (tasks[-1].stderr, sys.stderr)):
        copies.append(threading.Thread(target=copy, args=(rank, source, target)))
        copies[-1].start()
worst = 0
while worst == 0 and None in [task.poll() for task in tasks]:
    time.sleep(0.02)
    worst = next((task.returncode for task in tasks if task.poll()), 0)
if worst:
    rank = next(rank for rank, task in enumerate(tasks) if task.returncode)
    how = "Killed" if worst == -9 else f"Exited with exit code {{worst}}"
    print(f"srun: error: {{hosts[rank]}}: task {{rank}}: {{how}}", file=sys.stderr, flush=True)
    for task in tasks:
        if task.poll() is None: task.kill()
for one in copies: one.join()
os._exit(worst if worst >= 0 else 128 - worst)
"""


@pytest.fixture
def stand_in(tmp_path: Path) -> Path:
    """A folder with an ``srun``."""
    program = tmp_path / "bin" / "srun"
    program.parent.mkdir()
    program.write_text(SRUN)
    program.chmod(0o755)
    return program.parent


def told(folder: Path, more: dict[str, str]) -> dict[str, str]:
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return {**ALLOCATION, "PATH": path, "SAID": str(folder / "said"), **more}


def test_ranks_of_a_job(stand_in: Path, tmp_path: Path) -> None:
    """The number of ranks and the hosts are those of the allocation."""
    save_mlp(tmp_path / "model.onnx")
    done = shardrun(
        *("run", "model.onnx", "--launcher", "slurm", "--srun-args=--time=1 --comment=x", "--verify"),
        cwd=tmp_path, **told(stand_in, {"SLURM_CPUS_PER_TASK": "3"}),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ranks                      2" in done.stdout and "shm" in done.stdout
    said = (stand_in / "said").read_text().split(" ")
    assert said[:3] == ["--ntasks=2", "--nodes=1", "--distribution=arbitrary"]
    assert {"--kill-on-bad-exit=1", "--mpi=none", "--cpu-bind=none", "--cpus-per-task=3"} <= set(said)
    assert {"--time=1", "--comment=x"} <= set(said) and "--overcommit" not in said


@pytest.mark.parametrize(
    ("ending", "code", "message"),
    [
        ("sys.exit(7)", 7, "rank 1 on host HERE ended with exit code 7."),
        ("os.kill(os.getpid(), 9)", 1, "rank 1 on host HERE was killed by SIGKILL."),
        ("os._exit(0)", 1, "rank 1 on host HERE ended with exit code 0 before it was done"),
    ],
)
def test_the_first_cause_is_named(
    stand_in: Path, tmp_path: Path, ending: str, code: int, message: str
) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, sys, time\nif os.environ['SLURM_PROCID'] == '1': {ending}\ntime.sleep(60)\n"
    )
    done = shardrun("exec", "--ranks", 2, "--launcher", "slurm", script, cwd=tmp_path, **told(stand_in, {}))
    assert done.returncode == code
    assert done.stderr.startswith(f"shardrun: error: {message.replace('HERE', HERE)}"), done.stderr


@pytest.mark.parametrize(
    ("line", "ends"),
    [
        ("srun: error: n2: task 3: Exited with exit code 7", [Ended(3, 7, heard=True)]),
        (
            "srun: error: n2: tasks 2-3: Exited with exit code 1",
            [Ended(2, 1, heard=True), Ended(3, 1, heard=True)],
        ),
        ("srun: error: n2: task 1: Killed", [Ended(1, -9, heard=True)]),
        ("srun: error: n2: task 1: Segmentation fault (core dumped)", [Ended(1, -11, heard=True)]),
        ("srun: error: n2: task 1: Exited with exit code 143", [Ended(1, -15, heard=True)]),
        ("srun: error: n2: task 1: Something else", []),
        ("srun: error: Unable to allocate resources: Invalid node name specified", []),
    ],
)
def test_what_srun_says_of_tasks(line: str, ends: list[Ended]) -> None:
    handle = SlurmHandle.__new__(SlurmHandle)
    assert handle.heard(line) == ends


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (
            "Node failure on n2",
            "Slurm says that its node has failed: that host is down, or the network to it is cut.",
        ),
        (
            "Task launch for StepId=1.0 failed on node n2: Communication connection failure",
            "Slurm cannot start it there (Communication connection failure): see that this host and its "
            "slurmd answer.",
        ),
    ],
)
def test_a_node_that_fails_while_ranks_start(line: str, why: str) -> None:
    """Slurm ends the ranks of other nodes then: none of them is the cause."""
    handle = SlurmHandle.__new__(SlurmHandle)
    handle._table = make_rank_table([("n1", 1), ("n2", 2), ("n21", 1)])
    found = Findings(4, {}, dict(enumerate(["n1", "n2", "n2", "n21"])))
    for said in (f"srun: error: {line}\n", "srun: error: n1: task 0: Killed\n"):
        for ended in handle.heard(said):
            assert ended.rank is not None
            found.troubles.setdefault(ended.rank, Trouble(ended.rank, found._hosts[ended.rank])).end(ended)
    assert set(found.troubles) == {0, 1, 2}
    assert str(verdict(found)) == f"rank 1 on host n2 is gone: {why}"


def test_a_plugin_that_does_not_load(stand_in: Path, tmp_path: Path) -> None:
    """srun lists it all the same."""
    save_mlp(tmp_path / "model.onnx")
    said = [
        "srun: error: Couldn't load specified plugin name for mpi/pmix: Plugin init() callback failed",
        "srun: error: MPI: Unable to load any plugin",
        "srun: error: Invalid MPI type 'pmix', --mpi=list for acceptable types",
    ]
    (stand_in / "srun").write_text("#!/bin/sh\ncat >&2 <<'END'\n" + "\n".join(said) + "\nEND\nexit 1\n")
    done = shardrun("run", "model.onnx", "--launcher", "slurm", cwd=tmp_path, **told(stand_in, {}))
    assert done.returncode == 1
    first, *rest = done.stderr.splitlines()
    assert first == (
        "shardrun: error: slurm ended with exit code 1 before the ranks had started. Slurm does not load its "
        "MPI plugin pmix: install the library that it needs here and on the nodes, or use collectives that "
        "need no MPI (--collectives gloo). It said:"
    )
    assert [line.strip() for line in rest] == said


@pytest.mark.parametrize("first", ["reason", "code"])
def test_a_program_that_is_not_there(first: str) -> None:
    """Slurm ends such a task with the number of the error, in whichever order it says both."""
    lines = [
        "1: slurmstepd-n2: error: execve(): /opt/my python: No such file or directory\n",
        "srun: error: n2: task 1: Exited with exit code 2\n",
    ]
    handle, trouble = SlurmHandle.__new__(SlurmHandle), Trouble(1, "n2")
    for line in lines if first == "reason" else reversed(lines):
        for ended in handle.heard(line):
            trouble.end(ended)
    said = str(cause.error_of(trouble, (), begun=False))
    assert said.startswith("rank 1 on host n2 is gone: /opt/my python cannot be started there (No such file")
    assert said.endswith("install the same at the same place on all hosts.") and "code" not in said


def test_a_task_that_has_said_nothing() -> None:
    """Slurm's reason is lost at times."""
    trouble = Trouble(1, "n2", ended=Ended(1, 2, heard=True))
    said = str(cause.error_of(trouble, (), begun=False))
    assert said.startswith("rank 1 on host n2 ended with exit code 2. It said nothing: see that ")
    assert f"{sys.executable} can be started there" in said
    for told in (cause.error_of(trouble, ()), cause.error_of(trouble, ("no memory",), begun=False)):
        assert "said nothing" not in str(told)


def test_its_reason_is_waited_for() -> None:
    """Of a rank that has not begun; it comes after the code at times."""
    found = Findings(2, {}, {})
    found.troubles[1] = Trouble(1, "n2", ended=Ended(1, 2, heard=True))
    assert not found.certain(remote=True)
    found.troubles[1].end(Ended(1, None, "python cannot be started there", heard=True))
    assert "python cannot be started there" in str(verdict(found))


def verdict(found: Findings) -> Exception:
    return found.verdict("slurm", far=(), short="", started=False, trace=False, more="")


def test_whose_line_it_is() -> None:
    handle = SlurmHandle.__new__(SlurmHandle)
    assert handle.attribute(" 3: a: b\n") == [(3, "a: b\n")]
    assert handle.attribute("srun: error: x\n") == [(None, "srun: error: x\n")]
    slurms = "0: slurmstepd: error: *** STEP 1.0 ON n1 CANCELLED ***\n"
    assert handle.attribute(slurms) == [(None, slurms)]


@pytest.mark.parametrize(
    ("flavour", "listed", "plugin"),
    [
        ("openmpi", "none pmi2 pmix", "pmix"),
        ("openmpi", "none pmi2", "none"),
        ("mpich", "none pmi2 pmix", "pmi2"),
        ("intel", "none pmi2", "pmi2"),
        ("mpich", "none pmix", "none"),
    ],
)
def test_the_plugin_that_the_library_understands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flavour: mpirun.Flavour, listed: str, plugin: str
) -> None:
    """With another one every rank is a world of its own, and nobody says so."""
    srun = write_program(
        tmp_path / "srun", f"echo 'MPI plugin types are...'; for p in {listed}; do echo $p; done"
    )
    monkeypatch.setattr(mpirun, "find", lambda: mpirun.Mpirun(Path("mpirun"), flavour))
    assert slurm.choose_plugin("auto", str(srun)) == plugin
    older = write_program(tmp_path / "older", f"{srun} --mpi=list >&2")  # where it printed the list
    assert slurm.choose_plugin("auto", str(older)) == plugin
    assert slurm.choose_plugin("gloo", str(srun)) == "none"
    if plugin == "none":
        with pytest.raises(
            LaunchError, match=r"no MPI plugin (pmix|pmi2), by which .* or the gloo collectives"
        ):
            slurm.choose_plugin("mpi", str(srun))
    else:
        assert slurm.choose_plugin("mpi", str(srun)) == plugin


def test_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_program(tmp_path / "srun", "exit 0")
    use_path(monkeypatch, tmp_path)
    for name, value in {
        **ALLOCATION,
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_TASKS_PER_NODE": "1(x2)",
    }.items():
        monkeypatch.setenv(name, value)
    inside, outside = make_rank_table([("n1", 1), ("n2", 1)]), make_rank_table([("n1", 1), ("n3", 1)])
    assert isinstance(base.choose("auto", inside), SlurmLauncher)
    assert not isinstance(base.choose("auto", outside), SlurmLauncher)
    assert not isinstance(base.choose("auto", None), SlurmLauncher)
    with pytest.raises(LaunchError, match="Slurm job 3 has no host n3: it has n1, n2"):
        SlurmLauncher().check(outside)
    SlurmLauncher().check(inside)
    SlurmLauncher().check(None)
    with monkeypatch.context() as patch:
        for name in ALLOCATION:
            patch.delenv(name)
        SlurmLauncher().check(outside)  # it makes an allocation of its own, of these hosts
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    assert not STARTER.here(inside, Placement())


def test_nodes_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are held by salloc, until they are given back."""
    out = tmp_path / "out"
    write_program(tmp_path / "srun", "exit 0")
    write_program(
        tmp_path / "salloc",
        f'echo "$@" > {out}; while [ "$1" != sh ]; do shift; done\n'
        'SLURM_JOB_ID=9 SLURM_JOB_NODELIST="n[1-2]" SLURM_TASKS_PER_NODE="2,1" SLURM_NTASKS=3 "$@"\n'
        f"echo ended >> {out}",
    )
    use_path(monkeypatch, tmp_path)
    launcher = base.choose("auto", placement=Placement(nodes=2, srun_args=("--partition=p",)))
    assert isinstance(launcher, SlurmLauncher)
    table = launcher.place(3, None)
    assert table is not None and {host: len(ranks) for host, ranks in table.hosts.items()} == {
        "n1": 1,
        "n2": 2,
    }
    assert out.read_text().startswith("--quiet --ntasks=3 --nodes=2 --partition=p sh -c ")
    launcher.release()
    launcher.release()
    with pytest.raises(ConfigError, match="--nodes 2: more nodes than ranks, of which there are 1"):
        launcher.place(1, None)
    try:
        assert launcher.place(2, None) is not None  # one rank a node
    finally:
        launcher.release()


def test_waiting_for_nodes_is_said(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_program(tmp_path / "srun", "exit 0")
    write_program(tmp_path / "salloc", "sleep 0.5; echo 'salloc: error: no' >&2; exit 1")
    monkeypatch.setenv("PATH", os.pathsep.join([str(tmp_path), os.environ["PATH"]]))
    monkeypatch.setattr(slurm, "NOTICE_SECONDS", 0.05)
    with pytest.raises(LaunchError, match=r"gives no nodes for these ranks: no\.$"):
        base.choose("slurm", placement=Placement(nodes=1)).place(1, None)
    assert [record.getMessage() for record in caplog.records] == [
        "waiting for Slurm to give nodes; Ctrl-C gives up"
    ]


def test_nodes_that_slurm_does_not_give(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    write_program(tmp_path / "srun", "exit 0")
    write_program(tmp_path / "salloc", "echo 'salloc: error: invalid partition specified: p' >&2; exit 1")
    use_path(monkeypatch, tmp_path)
    launcher = base.choose("slurm", placement=Placement(nodes=1))
    with pytest.raises(
        LaunchError, match=r"^Slurm gives no nodes for these ranks: invalid partition specified: p\.$"
    ):
        launcher.place(1, None)
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(LaunchError, match="There is no srun on PATH"):
        SlurmLauncher().place(1, None)
    with pytest.raises(
        ConfigError, match=r"^--nodes is for the launcher slurm, but local is asked for: leave it out"
    ):
        base.choose("local", placement=Placement(nodes=1))
