"""Whether hosts answer of which nothing was heard yet, and where Slurm's daemons listen."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.job.rank_table import make_rank_table
from launcher.starters.reach import answering, slurmd, words
from launcher.starters.reach.answering import Answering, Place
from launcher.starters.slurm import SlurmHandle
from tests.launcher.processes import wait_until
from tests.launcher.starters.test_mpirun import write_program

SECONDS = 10.0
NODES = """\
echo "$@" >> asked
case "$*" in
*" node "*) echo 'NodeName=a1 Arch=x86_64 NodeAddr=10.0.0.1 NodeHostName=a1 Port=7001 Version=22.05'
      echo 'NodeName=a2 Arch=x86_64 NodeAddr=a2-data NodeHostName=a2 Version=22.05'
      echo 'NodeName=a3 Arch=x86_64 NodeHostName=a3'
      echo 'NodeName=other NodeAddr=10.0.0.9 Port=7001' ;;
*" config") echo 'SlurmctldPort           = 6817'; echo 'SlurmdPort              = 6818' ;;
esac
"""


@contextlib.contextmanager
def listening(*, deaf: bool = False) -> Iterator[tuple[Place, socket.socket]]:
    """A daemon of this host; a ``deaf`` one does not even have the kernel take a connection."""
    with contextlib.ExitStack() as closing, socket.create_server(("127.0.0.1", 0), backlog=0) as server:
        place = server.getsockname()
        while deaf:
            full = closing.enter_context(socket.socket())
            full.settimeout(0.2)
            try:
                full.connect(place)
            except TimeoutError:
                break
        yield place, server


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "AFTER_SECONDS", 0.0)
    monkeypatch.setattr(answering, "SILENT_SECONDS", 0.4)
    monkeypatch.setattr(answering, "_ANEW_SECONDS", 0.05)
    monkeypatch.setattr(answering, "_PAUSE_SECONDS", 0.02)


def names() -> list[str]:
    return [thread.name for thread in threading.enumerate()]


def test_a_host_that_does_not_answer_is_lost() -> None:
    with listening(deaf=True) as (deaf, _), listening() as (near, _):
        hosts = Answering(lambda hosts: {"b": near, "c": deaf})
        assert hosts.lost([]) == "" and "shardrun reach" not in names()
        assert wait_until(lambda: hosts.lost(["a", "b", "c"]), SECONDS)
        assert hosts.lost(["a", "b", "c"]) == "c"
        assert hosts.lost(["a", "b"]) == ""  # something was heard of it after all
        assert wait_until(lambda: "shardrun reach" not in names(), SECONDS)


def test_hosts_that_answer_are_not() -> None:
    """A daemon that says nothing, one that is not there, and one that ends each connection."""
    with listening() as (near, _), listening() as (short, server), listening() as (gone, closing):
        closing.close()
        hosts = Answering(lambda hosts: {"a": near, "b": short, "c": gone, "d": ("no.such.host.invalid", 9)})
        for _ in range(5):
            assert hosts.lost(["a", "b", "c", "d", "e"]) == ""
            server.settimeout(SECONDS)
            server.accept()[0].close()
        threading.Event().wait(0.6)
        assert hosts.lost(["a", "b", "c", "d", "e"]) == ""
        hosts.close()
        assert wait_until(lambda: "shardrun reach" not in names(), SECONDS)


def test_a_host_of_which_something_is_heard_is_let_alone() -> None:
    with listening() as (place, server):
        hosts = Answering(lambda hosts: dict.fromkeys(hosts, place))
        hosts.lost(["a"])
        server.settimeout(SECONDS)
        taken, _ = server.accept()
        with taken:
            assert hosts.lost([]) == "" and not taken.recv(1)  # it is ended in order
        assert wait_until(lambda: "shardrun reach" not in names(), SECONDS)


def test_a_cable_that_is_cut_for_a_moment_is_no_loss() -> None:
    """The kernel counts from the last word, so that one must have come within a second."""
    with listening() as (place, _):
        line = answering._Line(place)
        try:
            assert line._socket is not None
            assert line._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 1
        finally:
            line.close()


def test_nobody_is_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(answering, "AFTER_SECONDS", 0.3)
    asked: list[str] = []
    hosts = Answering(lambda hosts: asked.extend(hosts) or {})
    hosts.lost(["a"])
    assert not asked and "shardrun reach" not in names()
    assert wait_until(lambda: hosts.lost(["a", "b"]) or asked, SECONDS)
    assert sorted(asked) == ["a", "b"]


def test_where_slurm_listens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = str(write_program(tmp_path / "scontrol", NODES))
    found = slurmd.places(["a1", "a2", "a3", "a4"], program, os.environ)
    assert found == {"a1": ("10.0.0.1", 7001), "a2": ("a2-data", 6818)}
    assert Path("asked").read_text().splitlines() == ["--oneliner show node a1,a2,a3,a4", "show config"]


@pytest.mark.parametrize(
    "does", ["exit 1", "echo x", "printf '\\377'", "echo 'NodeName=a1 NodeAddr=b Port=0'"]
)
def test_a_slurm_that_says_nothing_of_it(does: str, tmp_path: Path) -> None:
    program = str(write_program(tmp_path / "scontrol", does))
    assert slurmd.places(["a1"], program, os.environ) == {}
    assert slurmd.places(["a1"], str(tmp_path / "none"), os.environ) == {}


def test_slurm_tells_of_a_node_that_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with listening(deaf=True) as ((address, port), _):
        said = f"echo 'NodeName=far NodeAddr={address} Port={port} x'"
        write_program(tmp_path / "scontrol", said)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
        handle = SlurmHandle(["sleep", "60"], dict(os.environ), 0, None, make_rank_table([("far", 1)]))
        try:
            assert wait_until(lambda: handle.lost_host([], ["far"]), SECONDS)
            assert handle.lost_host([], ["far"]) == "far"
        finally:
            handle.kill()
            for pipe in handle.pipes:
                os.close(pipe.descriptor)
            handle.close()


def test_what_is_said_of_it() -> None:
    assert words.lost("slurm", "far", ssh=False) == (
        "host far, where slurm starts ranks, does not answer: it is down, or the network to it is cut. "
        "See to it, or leave it out."
    )
    assert words.lost("mpirun", "far", ssh=True) == words.sentence("mpirun", ["far"])
