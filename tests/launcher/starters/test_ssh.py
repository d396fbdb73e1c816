"""Ranks over ssh: a stand-in of it starts them here, as sshd would on another host."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path

import pytest

from launcher.errors import ConfigError, LaunchError, RankFailedError
from launcher.group.starting import run_program
from launcher.job.places.host_list import parse_hosts
from launcher.job.places.placement import Placement
from launcher.job.rank_table import make_rank_table
from launcher.starters import agent, base, mpirun, ssh
from launcher.starters.agent import Asked
from launcher.starters.agents import fan_out
from launcher.starters.agents.connection import Connection, Host
from launcher.starters.agents.handle import AgentsHandle
from launcher.starters.base import Ended
from launcher.starters.ssh import SshLauncher
from tests.launcher.cli_tools import ROOT
from tests.launcher.processes import wait_until
from tests.launcher.starters.test_mpirun import use_path, write_program
from tests.left_behind import holding

FAR = "127.0.0.2"
# sshd gives the words to a login shell, which begins elsewhere and has none of our variables.
SSH = f"""\
echo "$@" >> SAID
while [ "$1" != -- ]; do shift; done
if [ "$2" != {FAR} ]; then echo "ssh: connect to host $2 port 22: Connection refused" >&2; exit 255; fi
cd /
exec env -i PATH=/usr/bin:/bin HOME=/ sh -c "$3"
"""
SECONDS = 60.0


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What ssh is told, where this machine's other loopback address is another host."""
    path = tmp_path / "said"
    program = write_program(tmp_path / "bin" / "ssh", SSH.replace("SAID", str(path)))
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setattr(ssh, "is_here", lambda host: host == "localhost")
    monkeypatch.chdir(tmp_path)
    return path


def run(script: str, hosts: str = f"localhost:1,{FAR}:2", **environment: str) -> None:
    path = Path("script.py")
    path.write_text(f"import os, sys, time, signal\nrank = int(os.environ['RANK'])\n{script}\n")
    placement = Placement(hosts=parse_hosts(hosts))
    run_program(
        ["exec", str(path)], launcher="ssh", placement=placement, environment=environment, timeout=SECONDS
    )


@pytest.mark.parametrize("width", [1, fan_out.WIDTH])
def test_what_each_rank_is_told(
    said: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    """Nothing secret is on a command line, and this machine's rank needs no ssh."""
    monkeypatch.setattr(fan_out, "WIDTH", width)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "SHARDRUN_COLLECTIVES", "A")
    run(f"print(*(os.environ[name] for name in {names}), os.getcwd())", A="x y")
    lines = sorted(capfd.readouterr().out.splitlines())
    host = os.uname().nodename
    assert lines == [
        f"[0@{host}] 0 3 0 1 auto x y {tmp_path}",
        f"[1@{host}] 1 3 0 2 auto x y {tmp_path}",
        f"[2@{host}] 2 3 1 2 auto x y {tmp_path}",
    ]
    words = said.read_text()
    assert words.count("launcher.starters.agent") == 1 and "BatchMode=yes" in words
    assert not [word for word in ("SHARDRUN_JOB", "SHARDRUN_CONTROL", "x y", "HostKey") if word in words]


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("sys.exit(7)", "ended with exit code 7."),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "was killed by SIGSEGV."),
        ("os._exit(0)", "ended with exit code 0 before it was done"),
        ("raise ValueError('on purpose')", "ValueError: on purpose"),
    ],
)
def test_the_first_cause_is_named(said: Path, ending: str, message: str) -> None:
    host = os.uname().nodename
    with pytest.raises(RankFailedError, match=f"^rank 1 on host {host}:? {message}") as caught:
        run(f"if rank == 1: {ending}\ntime.sleep({SECONDS})")
    assert caught.value.rank == 1


def test_what_a_rank_wrote_last_is_shown(said: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RankFailedError, match=r"was killed by SIGKILL(.|\n)*Its last lines:\n  last"):
        run("if rank == 2:\n  sys.stderr.write('last'); sys.stderr.flush(); os.kill(os.getpid(), 9)\n"
            f"time.sleep({SECONDS})")  # fmt: skip
    assert f"[2@{os.uname().nodename}] last\n" in capfd.readouterr().err


def test_what_a_rank_leaves_is_asked_first(said: Path, tmp_path: Path) -> None:
    """What keeps shared memory then removes it; who ignores it is killed."""
    kept = tmp_path / "kept"
    script = (
        "if rank == 1:\n"
        "    import subprocess\n"
        f"    for what in ('sleep 0.1; echo $$ >{kept}; exit', f'echo {{os.getpid()}} >{tmp_path}/asked'):\n"
        "        words = f'trap \"{what}\" TERM; echo; while :; do sleep 0.05; done'\n"
        "        subprocess.Popen(['sh', '-c', words], stdout=subprocess.PIPE).stdout.readline()\n"
        "    os._exit(3)\n"
        f"time.sleep({SECONDS})"
    )
    with pytest.raises(RankFailedError, match="ended with exit code 3"):
        run(script, LEFT=str(tmp_path))
    assert kept.exists() and (tmp_path / "asked").exists()
    assert not holding(f"LEFT={tmp_path}")


def test_a_host_that_cannot_be_reached(said: Path) -> None:
    with pytest.raises(LaunchError) as caught:
        run("time.sleep(60)", "localhost:1,127.0.0.3:1")
    text = str(caught.value)
    assert text.startswith("host 127.0.0.3 cannot be reached over ssh (connect to host 127.0.0.3 port 22: ")
    assert "port 22: Connection refused), so ssh starts no ranks there" in text


def test_nothing_outlives_a_connection(tmp_path: Path) -> None:
    """When the agent's input ends, its ranks are killed, and what they started too."""
    mark = f"MARK=left-{os.getpid()}"
    script = f"import subprocess; subprocess.run(['sleep', '{SECONDS}'])"
    asked: Asked = {
        "folder": str(tmp_path),
        "environment": dict([mark.split("=")]),
        "ranks": [{"RANK": "0"}, {"RANK": "1"}],
        "program": [sys.executable, "-c", script],
    }
    command = [sys.executable, "-m", agent.__name__]
    with subprocess.Popen(command, stdin=-1, stdout=-1, cwd=ROOT) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(asked).encode() + b"\n")
        process.stdin.flush()
        try:
            assert wait_until(lambda: len(holding(mark)) == 4, SECONDS)
        finally:
            process.stdin.close()
        frames = [json.loads(line) for line in process.stdout]
    assert process.returncode == 0 and wait_until(lambda: not holding(mark), 10), holding(mark)
    assert "here" in frames[0] and "started" in frames[1]
    assert sorted((frame["rank"], frame["code"]) for frame in frames[2:]) == [(0, -9), (1, -9)]


def test_nothing_is_left_of_a_start_that_fails(tmp_path: Path) -> None:
    """The first ranks have started something when the last one cannot be."""
    mark = f"MARK=half-{os.getpid()}"
    ranks = [{"RANK": str(rank)} for rank in range(40)]
    ranks.append({"RANK": "40", "LONG": "x" * (1 << 20)})  # more than Linux takes
    asked: Asked = {
        "folder": str(tmp_path),
        "environment": dict([mark.split("=")]),
        "ranks": ranks,
        "program": ["sh", "-c", f"sleep {SECONDS}; exit"],
    }
    done = subprocess.run(
        [sys.executable, "-m", agent.__name__], input=json.dumps(asked).encode() + b"\n",
        capture_output=True, cwd=ROOT, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 1 and b'"problem"' in done.stdout, done.stdout
    assert wait_until(lambda: not holding(mark), 10), holding(mark)


def test_an_agent_that_is_asked_nothing_says_nothing() -> None:
    """The launcher has ended before: a traceback would be taken for the cause."""
    done = subprocess.run(
        [sys.executable, "-m", agent.__name__],
        input=b"",
        capture_output=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1 and not done.stderr
    assert [set(json.loads(line)) for line in done.stdout.splitlines()] == [{"here", "bytes"}]
    # Nor is it kept by a launcher that was cut off: then its input has no end.
    hurried = f"import {agent.__name__} as agent; agent.FIRST_SECONDS = 0.1; agent.main()"
    with subprocess.Popen([sys.executable, "-c", hurried], stdin=subprocess.PIPE, cwd=ROOT) as waiting:
        assert waiting.wait(timeout=60) == 1


def test_no_agent_is_left_where_descriptors_run_out(said: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Kept(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *arguments: object, **more: object) -> None:
            super().__init__(*arguments, **more)  # type: ignore[call-overload]
            started.append(self)
            monkeypatch.setattr(os, "pipe", none_left)

    def none_left() -> tuple[int, int]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(subprocess, "Popen", Kept)
    monkeypatch.setattr(ssh, "is_here", lambda host: True)
    before = set(Path("/proc/self/fd").iterdir())
    with pytest.raises(LaunchError, match="cannot start and watch its ranks"):
        SshLauncher().start(["exec", "x.py"], 1, {}, make_rank_table([("a", 1), ("b", 1)]))
    monkeypatch.undo()
    assert len(started) == 1
    started[0].wait(SECONDS)  # it ends
    assert wait_until(lambda: set(Path("/proc/self/fd").iterdir()) <= before, SECONDS)


def test_a_connection_that_ends_takes_its_ranks_along(said: Path) -> None:
    """The launcher does not wait for a word that cannot come."""
    handle = SshLauncher().start(["exec", "x.py"], 1, {}, make_rank_table([(FAR, 1)]))
    try:
        connection = handle._agents[0]._connection
        assert connection is not None
        connection.kill()
        ended = [handle.wait(), handle.wait()]
    finally:
        handle.close()
        for pipe in handle.pipes:
            os.close(pipe.descriptor)
    assert ended[0] is not None and ended[0].rank in {None, 0} and ended[1] is None


def test_when_it_is_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For several hosts, where nothing else can start ranks there."""
    two = make_rank_table([("node1", 1), ("node2", 1)])
    assert not isinstance(base.choose("auto", two), SshLauncher)
    monkeypatch.setattr(mpirun, "candidates", lambda: iter(()))
    assert isinstance(base.choose("auto", two), SshLauncher)
    with pytest.raises(
        ConfigError, match="The mpi collectives need the launcher mpirun or slurm, but ssh is asked"
    ):
        base.choose("ssh", two, "mpi")


class FakeConnection(Connection):
    """An agent that says what the test wants."""

    def __init__(self, begun: list[FakeConnection], errors: int) -> None:
        ours, theirs = os.pipe(), os.pipe()
        self.stdin, self._asked = os.fdopen(ours[1], "wb"), os.fdopen(ours[0], "rb")
        self.stdout, self.says = os.fdopen(theirs[0], "rb"), os.fdopen(theirs[1], "wb")
        begun.append(self)

    def say(self, **fields: object) -> None:
        self.says.write(json.dumps(fields).encode() + b"\n")
        self.says.flush()

    def wait(self, timeout: float | None = None) -> int:
        self._asked.close()
        return 0

    def kill(self) -> None: ...

    def lost(self, code: int) -> str:
        return "it is lost"


@pytest.mark.parametrize("ends", ["started", "fails", "closed"])
def test_few_connections_are_made_at_once(monkeypatch: pytest.MonkeyPatch, ends: str) -> None:
    """256 hosts are not 256 logins at once; the next host's begins when one has started or failed, and none
    where the job has been closed."""
    monkeypatch.setattr(fan_out, "WIDTH", 4)
    begun: list[FakeConnection] = []
    count = 64
    handle = AgentsHandle("ssh", fake_hosts(begun, count))
    assert len(begun) == 4
    if ends == "closed":
        handle.kill()
        for connection in begun:
            connection.says.close()
    else:
        for number in range(count):
            assert wait_until(lambda at=number: len(begun) == min(4 + at, count), SECONDS), len(begun)  # type: ignore[misc]
            if ends == "started":
                begun[number].say(started="h")
            else:
                begun[number].says.close()
    if ends == "started":
        for rank, connection in enumerate(begun):
            connection.say(rank=rank, code=0)
            connection.says.close()
    found = list(iter(handle.wait, None))
    ranks = sorted(item.rank for item in found if item is not None and item.rank is not None)
    assert len(begun) == (4 if ends == "closed" else count)
    assert ranks == (list(range(count)) if ends == "started" else [])
    closed(handle)


def fake_hosts(begun: list[FakeConnection], count: int) -> list[Host]:
    asked: Asked = {"folder": "/", "environment": {}, "ranks": [], "program": []}
    return [
        Host(f"h{rank}", partial(FakeConnection, begun), {**asked, "ranks": [{"RANK": str(rank)}]})
        for rank in range(count)
    ]


def closed(handle: AgentsHandle) -> None:
    handle.close()
    for pipe in handle.pipes:
        assert os.read(pipe.descriptor, 1) == b""
        os.close(pipe.descriptor)


@pytest.mark.parametrize(
    "words",
    [
        "[" * 60_000, '{"bytes": 1' + "0" * 30 + "}", '{"rank": 0, "stream": "stdout", "bytes": -1}', "[]",
        '{"bytes": "1"}', '{"bytes": 1e999}', '{"rank": [], "stream": {}}',
    ],
)  # fmt: skip
def test_words_that_are_no_frames(words: str) -> None:
    """Whatever comes before an agent's own, its ranks' ends are heard."""
    begun: list[FakeConnection] = []
    handle = AgentsHandle("ssh", fake_hosts(begun, 1))
    begun[0].says.write(words.encode() + b"\n")
    begun[0].say(started="h")
    begun[0].say(rank=0, code=3)
    begun[0].says.close()
    found: list[Ended | None] = []
    reader = threading.Thread(target=lambda: found.extend([handle.wait(), handle.wait()]), daemon=True)
    reader.start()
    reader.join(SECONDS / 4)
    assert found == [Ended(0, 3), None]
    closed(handle)


def test_a_connection_that_gets_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its host has failed, once, and the others' ranks are waited for."""
    monkeypatch.setattr(fan_out, "WIDTH", 1)
    begun: list[FakeConnection] = []
    start, tried = threading.Thread.start, []

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "shardrun ssh h1":
            tried.append(thread)
            if len(tried) == 2:
                raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_left)
    handle = AgentsHandle("ssh", fake_hosts(begun, 3))
    begun[0].say(started="h")
    assert handle.wait() == Ended(None, 1, "can't start new thread")
    assert wait_until(lambda: len(begun) == 3, SECONDS)
    begun[1].says.close()
    begun[2].say(started="h")
    for rank in (0, 2):
        begun[rank].say(rank=rank, code=0)
        begun[rank].says.close()
    found = [handle.wait(), handle.wait()]
    assert {item.rank for item in found if item is not None} == {0, 2} and handle.wait() is None
    closed(handle)


def test_without_ssh(said: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_path(monkeypatch, tmp_path / "nothing")
    monkeypatch.setenv("PATH", str(tmp_path / "nothing"))
    with pytest.raises(LaunchError, match=f"^There is no ssh on PATH, by which to reach {FAR}: install"):
        run("pass")


def test_a_name_that_nobody_knows() -> None:
    with pytest.raises(ConfigError, match=r"^--hosts: the host 'no\.such\.host' cannot be found: correct"):
        run_program(["exec", "x.py"], placement=Placement(hosts=parse_hosts("no.such.host")))


PLACE = """
path = f"place_{rank}"
alone = os.environ.get("SHARDRUN_BOUND")
open(path, "w").write(f"{sorted(os.sched_getaffinity(0))} {os.environ['GLOO_SOCKET_IFNAME']} {alone}")
"""


def test_what_a_table_says_of_thousands_of_ranks_is_in_no_variable(said: Path) -> None:
    """The kernel takes texts of 128 KB at most."""
    core = min(os.sched_getaffinity(0))
    table = make_rank_table([("localhost", 2)], [",".join([str(core)] * 90_000)] * 2, "eth7")
    Path("script.py").write_text(f"import os\nrank = os.environ['RANK']\n{PLACE}")
    run_program(["exec", "script.py"], launcher="ssh", rank_table=table, timeout=SECONDS)
    assert [Path(f"place_{rank}").read_text() for rank in range(2)] == [f"[{core}] eth7 None"] * 2
    table = make_rank_table([("localhost", 1)], [str(core)], "eth7")
    run_program(["exec", "script.py"], launcher="ssh", rank_table=table, timeout=SECONDS)
    assert Path("place_0").read_text() == f"[{core}] eth7 1"


FILE_SAYS = """case "$*" in *"-F none"*) echo connecttimeout none ;; *) echo connecttimeout 60 ;; esac"""


def test_what_sshs_files_say_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Options on its command line would win."""
    program = write_program(tmp_path / "bin" / "ssh", FILE_SAYS)
    monkeypatch.setenv("PATH", os.pathsep.join([str(program.parent), os.environ["PATH"]]))
    monkeypatch.setattr(ssh, "is_here", lambda host: False)
    words = SshLauncher().reach("far", None)
    assert "ServerAliveInterval=2" in words and "ConnectTimeout=7" not in words
