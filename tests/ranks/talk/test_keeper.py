"""The process above a rank of another host: the launcher hears from it how the rank ended."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from launcher.group import control, halted
from launcher.group.control import Listener
from launcher.starters.base import Ended
from ranks.common import processes
from ranks.talk import keeper
from tests.launcher.processes import wait_until
from tests.left_behind import holding

ROOT = Path(__file__).parents[3]
SECONDS = 60


class Told:
    """A launcher's listener over TCP."""

    def __init__(self) -> None:
        self.ended: list[Ended] = []
        self.here: list[int] = []
        self.peers: list[control.Peer] = []
        self.listener = Listener(
            2, ["127.0.0.1"], self.hello, lambda peer, message: None,
            lambda peer: None, on_shortage=lambda error: None, on_ended=self.ended.append,
        )  # fmt: skip

    def hello(self, peer: control.Peer) -> None:
        self.peers.append(peer)
        self.here.append(peer.pid)

    def start(self, folder: Path, script: str) -> subprocess.Popen[bytes]:
        path = folder / "script.py"
        path.write_text(f"import os, signal, sys, time\n{script}\n")
        told = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}
        ours = {"SHARDRUN_JOB": self.listener.secret, "SHARDRUN_CONTROL": self.listener.address}
        kept = {name: value for name, value in os.environ.items() if not name.startswith("SHARDRUN")}
        return subprocess.Popen(
            [sys.executable, "-m", "ranks.boot", "exec", str(path)],
            env={**kept, "PYTHONPATH": str(ROOT), **told, **ours}, stdin=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, start_new_session=True,
        )  # fmt: skip


@pytest.fixture
def told() -> Iterator[Told]:
    made = Told()
    yield made
    made.listener.close()


@pytest.mark.parametrize(
    ("script", "code"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("os.kill(os.getpid(), signal.SIGSEGV)", -11),
        ("os._exit(0)", 0),
        ("os._exit(7)", 7),
    ],
)
def test_how_a_rank_ended(told: Told, tmp_path: Path, script: str, code: int) -> None:
    """Whatever started it sees the same end."""
    process = told.start(tmp_path, script)
    assert process.wait(SECONDS) == code
    assert wait_until(lambda: told.ended, SECONDS) and told.ended == [Ended(1, code)]
    assert len(told.here) == 1 and told.here[0] != process.pid


def test_a_crash_leaves_one_core_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """That of the rank. The process above it, which ends by the same signal, writes none of its own."""
    child = os.fork()
    if not child:
        with contextlib.suppress(OSError, ValueError):
            most = resource.getrlimit(resource.RLIMIT_CORE)[1]
            resource.setrlimit(resource.RLIMIT_CORE, (most, most))
        monkeypatch.setattr(keeper, "_end_left", lambda: None)
        limits: list[int] = []
        monkeypatch.setattr(os, "kill", lambda *_: limits.append(resource.getrlimit(resource.RLIMIT_CORE)[0]))
        monkeypatch.setattr(os, "_exit", lambda code, leave=os._exit: leave(0 if limits == [0] else 1))
        keeper._end_alike(-signal.SIGABRT)
    assert os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("blocked", [False, True])
def test_a_signal_reaches_the_rank(told: Told, tmp_path: Path, blocked: bool) -> None:
    """Also where what started it holds signals back, which its children inherit."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM} if blocked else set())
    try:
        process = told.start(tmp_path, "time.sleep(100)")
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert wait_until(lambda: told.here, SECONDS)
    process.terminate()
    try:
        assert process.wait(SECONDS / 4) == -signal.SIGTERM
    finally:
        process.kill()
        process.wait()


def test_a_stopped_rank_and_where_it_is(told: Told, tmp_path: Path) -> None:
    """It is told that the rank is stopped and that it goes on, and where it is in its code."""
    process = told.start(tmp_path, "def sleeps_long():\n    time.sleep(100)\nsleeps_long()")
    assert wait_until(lambda: told.peers, SECONDS)
    (peer,) = told.peers
    assert peer.process is None and not halted.stopped(told.peers)
    assert wait_until(lambda: "sleeps_long" in peer.above.stacks(), SECONDS)
    os.kill(peer.pid, signal.SIGSTOP)
    assert wait_until(lambda: halted.stopped(told.peers) == [peer], SECONDS)
    assert (
        halted.Seen()
        .in_sentences(told.peers)
        .startswith(f" Rank 1 is process {peer.pid}, which is stopped by a signal such as SIGSTOP")
    )
    os.kill(peer.pid, signal.SIGCONT)
    assert wait_until(lambda: not halted.stopped(told.peers), SECONDS)
    os.kill(peer.pid, signal.SIGSTOP)
    assert wait_until(lambda: halted.stopped(told.peers), SECONDS)
    assert "Stacks of rank 1:" in halted.stacks(peer) and "sleeps_long" in halted.stacks(peer)
    os.kill(peer.pid, signal.SIGKILL)
    assert process.wait(SECONDS) == -signal.SIGKILL
    assert wait_until(lambda: told.ended, SECONDS) and told.ended == [Ended(1, -signal.SIGKILL)]
    assert peer.above.stacks() == ""


def test_native_stacks_come_from_its_host(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By py-spy, here another program of that name, which refuses what that refuses; where it fails, those
    of Python alone."""
    spy = tmp_path / "bin" / "py-spy"
    spy.parent.mkdir()
    spy.write_text(
        '#!/bin/sh\ncase $* in *--nonblocking*) exit 1 ;; esac\n[ ! -e "$0.broken" ] && echo "spied: $*"\n'
    )
    spy.chmod(0o755)
    monkeypatch.setenv("PATH", str(spy.parent), prepend=":")
    process = told.start(tmp_path, "def sleeps_long():\n    time.sleep(100)\nsleeps_long()")
    assert wait_until(lambda: told.peers, SECONDS)
    (peer,) = told.peers
    wanted = f"spied: dump --native --pid {peer.pid}"
    assert wait_until(lambda: peer.above.stacks().strip() == wanted, SECONDS)
    spy.with_name("py-spy.broken").touch()
    assert wait_until(lambda: "sleeps_long" in peer.above.stacks(), SECONDS)
    process.kill()
    process.wait()


def test_the_rank_ends_with_it(told: Told, tmp_path: Path) -> None:
    process = told.start(tmp_path, "time.sleep(100)")
    assert wait_until(lambda: told.here, SECONDS)
    rank = os.pidfd_open(told.here[0])
    process.kill()
    process.wait()
    assert wait_until(lambda: control.unix.has_ended(rank), SECONDS)
    os.close(rank)


def test_a_signal_is_passed_on(told: Told, tmp_path: Path) -> None:
    process = told.start(tmp_path, "signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))\ntime.sleep(100)")
    assert wait_until(lambda: told.here, SECONDS)
    assert wait_until(lambda: _handles(told.here[0]), SECONDS)
    process.terminate()
    assert process.wait(SECONDS) == 5


def _handles(pid: int) -> bool:
    """Whether a process has a handler of SIGTERM."""
    line = next(
        line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt")
    )
    return bool(int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1)


def test_it_imports_next_to_nothing() -> None:
    asked = "import sys, ranks.talk.keeper, ranks.identity.identity; print('numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout == "False\n"


def test_the_launcher_knows_the_process_above_by_its_number(told: Told, tmp_path: Path) -> None:
    """What started it may tell of its end by that; and in the rank an MPI that ends the job gives it time."""
    written = tmp_path / "delay"
    script = (
        f"open({str(written)!r}, 'w').write(os.environ['OMPI_MCA_opal_abort_delay'])\ntime.sleep({SECONDS})"
    )
    process = told.start(tmp_path, script)
    try:
        assert wait_until(lambda: told.peers and told.peers[0].above.pid is not None, SECONDS)
        assert told.peers[0].above.pid == process.pid != told.peers[0].pid
        assert wait_until(lambda: written.exists() and written.read_text() != "", SECONDS)
        assert int(written.read_text()) >= 1
    finally:
        process.kill()
        process.wait()


def test_what_the_rank_leaves_running_ends_with_it(told: Told, tmp_path: Path) -> None:
    """Also what that has started in its turn; nobody else may do it on that host."""
    written = tmp_path / "pids"
    script = (
        "import subprocess\n"
        "shell = subprocess.Popen(['sh', '-c', 'sleep 100 & echo $!; wait'], stdout=subprocess.PIPE)\n"
        f"open({str(written)!r}, 'w').write(f'{{shell.pid}} {{int(shell.stdout.readline())}}')\n"
        "os._exit(3)"
    )
    process = told.start(tmp_path, script)
    assert process.wait(SECONDS) == 3
    pids = [int(pid) for pid in written.read_text().split()]
    assert len(pids) == 2 and not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_what_the_rank_leaves_running_may_end_by_itself(told: Told, tmp_path: Path) -> None:
    """By SIGTERM first: what keeps shared memory removes it. One that ignores that is killed."""
    kept = tmp_path / "kept"
    script = (
        "import subprocess\n"
        f"saves = 'trap \"sleep 0.1; echo saved >{kept}; exit\" TERM; echo; while :; do sleep 0.05; done'\n"
        "for words in (saves, 'trap \"\" TERM; echo; while :; do sleep 0.05; done'):\n"
        "    subprocess.Popen(['sh', '-c', words], stdout=subprocess.PIPE).stdout.readline()\n"
        "os._exit(3)"
    )
    process = told.start(tmp_path, script)
    assert process.wait(SECONDS) == 3
    assert kept.read_text() == "saved\n"
    assert not holding(f"SHARDRUN_JOB={told.listener.secret}")


def test_shared_memory_that_the_rank_leaves_is_removed(told: Told, tmp_path: Path) -> None:
    """By multiprocessing's resource tracker, which runs beside it."""
    written = tmp_path / "name"
    script = (
        "from multiprocessing import shared_memory\n"
        "memory = shared_memory.SharedMemory(create=True, size=64)\n"
        f"open({str(written)!r}, 'w').write(memory.name)\n"
        "os._exit(3)"
    )
    process = told.start(tmp_path, script)
    assert process.wait(SECONDS) == 3
    assert not Path("/dev/shm", written.read_text()).exists()


def test_what_has_ended_is_reaped(told: Told, tmp_path: Path) -> None:
    """Else what the rank has forked twice would stay as zombies for as long as it runs."""
    script = (
        "import subprocess\n"
        "for _ in range(3):\n"
        "    subprocess.run(['sh', '-c', 'sleep 0.01 &'], check=True)\n"
        "time.sleep(100)"
    )
    process = told.start(tmp_path, script)
    try:
        assert wait_until(lambda: told.here, SECONDS)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        asleep = Path(f"/proc/{told.here[0]}/wchan")
        assert wait_until(lambda: "nanosleep" in asleep.read_text(), SECONDS)
        assert wait_until(lambda: children.read_text().split() == [str(told.here[0])], SECONDS / 6)
    finally:
        process.kill()
        process.wait()


class Network:
    """Between a launcher and its ranks, until it is cut: neither side ends a connection in order then."""

    def __init__(self, address: str) -> None:
        self._place = ("127.0.0.1", int(address.rpartition(":")[2]))
        self._ends: list[socket.socket] = []
        self._there = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp:127.0.0.1:{self._there.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ends = self._there.accept()[0], socket.create_connection(self._place)
                self._ends += ends
                for one, other in (ends, ends[::-1]):
                    threading.Thread(target=self._pass, args=(one, other), daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(4096):
                other.sendall(data)
            other.shutdown(socket.SHUT_WR)

    def cut(self) -> None:
        with contextlib.suppress(OSError):
            self._there.shutdown(socket.SHUT_RDWR)  # who waits for a connection holds it open
        self._there.close()
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RD)  # wakes who reads it
            end.close()


DAEMON = """
import pathlib, signal, subprocess, sys
name, space, others, seconds, script = sys.argv[1:]
pathlib.Path("/proc/self/comm").write_text(name)
other = subprocess.Popen(["sleep", "1000"], stdout=subprocess.DEVNULL) if others else None
rank = subprocess.Popen([sys.executable, "-m", "ranks.boot", "exec", script], stderr=subprocess.DEVNULL)
print("ended", rank.wait(), flush=True)
signal.signal(signal.SIGALRM, lambda *_: sys.exit(0))
signal.alarm(int(seconds))
try:
    signal.pause()
finally:
    if other is not None:
        other.kill()
"""


class Case(NamedTuple):
    """A daemon, and what becomes of the network of its host."""

    name: str = "prted"
    space: str = "prterun-a-1@0"
    others: str = ""
    script: str = "time.sleep(100)"
    cut: str = "later"
    left: bool = True


@pytest.mark.parametrize(
    ("case", "code"),
    [
        (Case(left=False), 75),
        (Case(cut="before", left=False), 1),
        (Case(name="slurmstepd"), 75),  # which starts other jobs too
        (Case(space="prte-a-1@0"), 75),  # of a DVM, which many share
        (Case(others="a rank that goes on"), 75),
        (Case(script="sys.exit(75)", cut=""), 75),  # its own code, with which a rank ends that is cut off
    ],
)
def test_open_mpis_daemon_ends_where_nothing_reaches_its_mpirun(
    told: Told, tmp_path: Path, case: Case, code: int
) -> None:
    """By itself it tries for a quarter of an hour. What has other work is left alone."""
    path = tmp_path / "script.py"
    path.write_text(f"import sys, time\n{case.script}\n")
    network = Network(told.listener.address)
    rank = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "SHARDRUN_JOB": told.listener.secret}
    environ = {**os.environ, **rank, "SHARDRUN_CONTROL": network.address, "PYTHONPATH": str(ROOT)}
    words = [case.name, case.space, case.others, "5" if case.left else str(SECONDS), str(path)]
    command = [sys.executable, "-c", DAEMON, *words]
    if case.cut == "before":
        network.cut()
    with subprocess.Popen(command, env=environ, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as daemon:
        if case.cut == "later":
            assert wait_until(lambda: told.here, SECONDS)
            network.cut()
        assert daemon.stdout is not None and daemon.stdout.read() == f"ended {code}\n".encode()
        assert daemon.wait(SECONDS) == (0 if case.left else -signal.SIGTERM)
    network.cut()


def test_what_is_to_end_the_daemon_does_nothing_else(
    told: Told, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the daemon ends by itself just then, or anything fails."""
    ends, others = os.pipe()
    ours = os.getpid()

    def fail(*_: object) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(keeper, "_end_daemon", fail)
    monkeypatch.setattr(keeper, "_serves_one", lambda daemon, name: True)
    monkeypatch.setattr(keeper.processes, "status", lambda pid: processes.Status(1, 1, "prted"))
    connection, other = socket.socketpair()
    with connection, other:
        keeper._end_daemon_later(connection)
        if os.getpid() != ours:
            os.write(others, b"a second one")
            os._exit(1)
    os.close(others)
    assert os.read(ends, 100) == b""
    os.close(ends)
    os.wait()
