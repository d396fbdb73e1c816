"""Hosts that are reached by way of others: agents on this machine take the part of all of them."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from launcher.starters.agent import Asked
from launcher.starters.agents import fan_out, relay, tree
from launcher.starters.agents.connection import Host, Process
from launcher.starters.agents.handle import AgentsHandle
from launcher.starters.base import Ended
from tests.launcher.cli_tools import ROOT
from tests.launcher.processes import wait_until
from tests.left_behind import holding

SECONDS = 60.0
AGENT = [sys.executable, "-m", "launcher.starters.agent"]
RANK = """
import os, signal, sys, time
rank = os.environ["RANK"]
with open("begun", "a") as file:
    file.write(f"{rank} {os.getpid()}\\n")
print("rank", rank, os.environ["SECRET"], flush=True)
"""
SLEEPING = f"{RANK}\ntime.sleep({SECONDS})"
ALL = "\nwhile len(open('begun').read().split('\\n')) <= {}: time.sleep(0.02)"
"""Keeps ranks, and so their agents, there until so many have begun."""


class Hosts:
    """Agents to be, in one folder; ``said`` has a line for each that is reached by another."""

    def __init__(self, folder: Path, beyond: str) -> None:
        self.folder, self.beyond, self.secret = folder, beyond, f"secret-{os.getpid()}-{time.monotonic_ns()}"
        self.pipes: list[int] = []
        self.handles: list[AgentsHandle] = []

    @property
    def said(self) -> list[str]:
        path = self.folder / "said"
        return path.read_text().split() if path.exists() else []

    def begun(self) -> dict[int, int]:
        """The process of each rank; a rank that was started twice is an error."""
        path = self.folder / "begun"
        lines = path.read_text().splitlines() if path.exists() else []
        found = {int(rank): int(pid) for rank, pid in (line.split() for line in lines)}
        assert len(found) == len(lines), lines
        return found

    def host(self, rank: int, code: str) -> Host:
        asked: Asked = {
            "folder": str(self.folder),
            "environment": {"SECRET": self.secret},
            "ranks": [{"RANK": str(rank)}],
            "program": [sys.executable, "-c", code],
        }
        name = f"host{rank}"
        beyond = ["sh", "-c", f"cd {ROOT}; echo {name} >> {self.folder}/said; {self.beyond}"]
        return Host(name, partial(Process, "ssh", name, AGENT), asked, beyond)

    def start(self, count: int, code: str) -> AgentsHandle:
        handle = AgentsHandle("ssh", [self.host(rank, code) for rank in range(count)])
        self.handles.append(handle)
        return handle

    def close(self) -> None:
        for handle in self.handles:
            handle.kill()
            for pipe in handle.pipes:
                os.close(pipe.descriptor)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One connection at a time from here, and a tree from two hosts on."""
    monkeypatch.setattr(fan_out, "WIDTH", 1)
    monkeypatch.setattr(fan_out, "FIRST_WIDTH", 1)
    monkeypatch.setattr(fan_out, "TREE_FROM", 2)
    monkeypatch.chdir(ROOT)


@pytest.fixture
def make(tmp_path: Path, narrow: None) -> Iterator[partial[Hosts]]:
    made: list[Hosts] = []

    def hosts(beyond: str = f"exec {' '.join(AGENT)}") -> Hosts:
        made.append(Hosts(tmp_path, beyond))
        return made[-1]

    yield partial(hosts)
    for item in made:
        item.close()


def ends(handle: AgentsHandle) -> list[Ended]:
    """All that the handle tells, until everything has ended."""
    found: list[Ended] = []
    reader = threading.Thread(target=lambda: found.extend(iter(handle.wait, None)), daemon=True)  # type: ignore[arg-type]
    reader.start()
    reader.join(SECONDS)
    assert not reader.is_alive(), found
    return found


def printed(handle: AgentsHandle) -> dict[tuple[int | None, str], bytes]:
    """What came through each pipe; all ranks have ended."""
    found: dict[tuple[int | None, str], bytes] = {}
    for pipe in handle.pipes:
        while data := os.read(pipe.descriptor, 1 << 16):
            found[pipe.rank, pipe.name] = found.get((pipe.rank, pipe.name), b"") + data
    return found


def test_hosts_reach_others(make: partial[Hosts]) -> None:
    """Each rank is started once, what it prints comes here, and nothing secret is on a command line."""
    hosts = make()
    code = f"{RANK}{ALL.format(6)}\nassert os.environ['SECRET'] not in ' '.join(words())\n"
    handle = hosts.start(6, code.replace(
        "rank = ", "import glob\ndef words():\n  for path in glob.glob('/proc/[0-9]*/cmdline'):\n    try:\n"
        "      yield open(path, 'rb').read().decode(errors='replace')\n    except OSError: pass\nrank = ",
    ))  # fmt: skip
    found = ends(handle)
    assert sorted((item.rank, item.code) for item in found) == [(rank, 0) for rank in range(6)]
    assert printed(handle) == {
        (rank, "stdout"): f"rank {rank} {hosts.secret}\n".encode() for rank in range(6)
    }
    assert sorted(hosts.begun()) == list(range(6))
    assert hosts.said and "host0" not in hosts.said and len(set(hosts.said)) == len(hosts.said)


@pytest.mark.parametrize(
    ("beyond", "seconds"),
    [
        ("echo no key >&2; exit 255", 60.0),
        ("exit 0", 60.0),
        ("MARK=left exec sleep 60", 0.2),
        ("cat; exit 3", 0.2),
    ],
)
def test_what_a_host_cannot_reach_is_reached_from_here(
    make: partial[Hosts], monkeypatch: pytest.MonkeyPatch, beyond: str, seconds: float
) -> None:
    """And the failure of a way that is not used is shown to nobody, and nothing is left of it."""
    monkeypatch.setattr(fan_out, "ROUTE_SECONDS", seconds)
    hosts = make(beyond)
    hosts.beyond = beyond.replace("MARK=left", f"MARK={hosts.secret}")
    handle = hosts.start(4, f"{RANK}\nwhile not os.path.exists('go'): time.sleep(0.02)")
    assert wait_until(lambda: len(hosts.begun()) == 4, SECONDS), hosts.begun()
    # The ways that were given up end while the host between goes on.
    mark = f"MARK={hosts.secret}"
    assert wait_until(lambda: not holding(mark), relay.HANG_UP_SECONDS + 10), holding(mark)
    (hosts.folder / "go").touch()
    assert sorted((item.rank, item.code) for item in ends(handle)) == [(rank, 0) for rank in range(4)]
    assert hosts.said
    assert {key for key, data in printed(handle).items() if data} == {(rank, "stdout") for rank in range(4)}


def test_no_more_ways_are_tried_where_none_is_one(make: partial[Hosts]) -> None:
    """Hosts that have no keys for each other: the first attempts say so."""
    hosts = make("exit 255")
    found = ends(hosts.start(12, RANK))
    assert sorted((item.rank, item.code) for item in found) == [(rank, 0) for rank in range(12)]
    assert len(hosts.said) <= fan_out.BRANCH_WIDTH + 1


def test_a_host_that_nobody_reaches(make: partial[Hosts]) -> None:
    """Is named, by the launcher's own attempt."""
    hosts = make("exit 255")
    items = [hosts.host(0, SLEEPING), hosts.host(1, SLEEPING)]
    away = ["sh", "-c", "echo no route to host1 >&2; exit 255"]
    items[1] = items[1]._replace(connect=partial(Process, "ssh", "host1", away))
    handle = AgentsHandle("ssh", items)
    hosts.handles.append(handle)
    assert handle.wait() == Ended(None, 255, "")
    handle.kill()
    ends(handle)
    said = printed(handle)
    assert said[None, "stderr"] == b"no route to host1\n"


@pytest.mark.parametrize("death", ["agent", "leaf"])
def test_who_is_named_where_a_connection_ends(make: partial[Hosts], death: str) -> None:
    """The host that is gone first, and then what was reached by it, with why; no rank is left of either."""
    hosts = make()
    handle = hosts.start(2, SLEEPING)
    assert wait_until(lambda: len(hosts.begun()) == 2, SECONDS)
    assert hosts.said == ["host1"]
    # A rank may have begun before its agent's word of it is here.
    assert wait_until(lambda: not handle._fan_out._direct | handle._fan_out._through.keys(), SECONDS)
    agents = {rank: parent(pid) for rank, pid in hosts.begun().items()}
    os.kill(agents[0 if death == "agent" else 1], signal.SIGKILL)
    first = handle.wait()
    handle.kill()
    found = [first, *ends(handle)]
    why = {item.rank: item.why for item in found if item is not None}
    if death == "agent":
        assert [item.rank for item in found if item is not None] == [0, 1]
        assert why[0] == "the ssh connection to host0 was killed by SIGKILL"
        assert why[1] == "the ssh connection to host0, by which it was reached, ended"
    else:
        assert first is not None and first.rank == 1
        assert why[1] == "the ssh connection to host1, made by host0, was killed by SIGKILL"
    # The other one ends with its agent where a process of ours is above it (`ranks.talk.keeper`).
    os.kill(hosts.begun()[0 if death == "agent" else 1], signal.SIGKILL)
    assert wait_until(lambda: not holding(f"SECRET={hosts.secret}"), 10), holding(f"SECRET={hosts.secret}")


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


@pytest.mark.parametrize("how", ["terminate", "kill"])
def test_the_end_reaches_every_rank(make: partial[Hosts], how: str) -> None:
    hosts = make()
    handle = hosts.start(5, SLEEPING)
    assert wait_until(lambda: len(hosts.begun()) == 5, SECONDS)
    assert hosts.said
    getattr(handle, how)()
    found = ends(handle)
    if how == "terminate":
        assert sorted((item.rank, item.code) for item in found) == [(rank, -15) for rank in range(5)]
    assert wait_until(lambda: not holding(f"SECRET={hosts.secret}"), 10), holding(f"SECRET={hosts.secret}")


def test_a_stopped_host_between_holds_nobody_up(make: partial[Hosts]) -> None:
    """A kill comes to an end though the host that has reached others takes no word."""
    hosts = make()
    handle = hosts.start(3, SLEEPING)
    assert wait_until(lambda: len(hosts.begun()) == 3, SECONDS)
    between = parent(hosts.begun()[0])
    os.kill(between, signal.SIGSTOP)
    try:
        handle.kill()
        assert {item.rank for item in ends(handle)} == {0, 1, 2}
    finally:
        for pid in (between, *hosts.begun().values()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
    assert wait_until(lambda: not holding(f"SECRET={hosts.secret}"), 10)


def test_what_a_login_shell_prints_before(make: partial[Hosts]) -> None:
    """Is no answer, whatever it looks like."""
    hosts = make(f"echo '[1]'; echo '\"here\"'; echo here; echo '{{}}'; exec {' '.join(AGENT)}")
    handle = hosts.start(3, f"{RANK}{ALL.format(3)}")
    assert sorted((item.rank, item.code) for item in ends(handle)) == [(rank, 0) for rank in range(3)]
    assert hosts.said and sorted(hosts.begun()) == [0, 1, 2]


def test_a_rank_that_is_done_first_keeps_the_way_open(make: partial[Hosts]) -> None:
    """The host between has nothing of its own any more, and passes on what the others print. Its rank waits
    until the other host is reached from there: a host whose ranks are done before is asked nothing more."""
    hosts = make()
    code = f"{RANK}\nawaited = 'said' if rank == '0' else 'go'"
    code += "\nwhile not os.path.exists(awaited): time.sleep(0.02)\nif rank != '0': print('late')"
    handle = hosts.start(2, code)
    assert handle.wait() == Ended(0, 0)
    assert wait_until(lambda: len(hosts.begun()) == 2 and hosts.said == ["host1"], SECONDS)
    (hosts.folder / "go").touch()
    assert ends(handle) == [Ended(1, 0)]
    assert printed(handle)[1, "stdout"].endswith(b"late\n")


@pytest.mark.parametrize("code", ["", ', "code": null', ', "code": "gone"', ', "code": true'])
def test_an_end_without_a_code_is_none(make: partial[Hosts], code: str) -> None:
    """Of a rank that a host only says something of, the end is told when the connection ends."""
    hosts = make()
    lie = f"""read -r asked; printf '{{"started": "h"}}\\n{{"rank": 0{code}}}\\n'; exit 3"""
    host = hosts.host(0, RANK)._replace(connect=partial(Process, "ssh", "host0", ["sh", "-c", lie]))
    handle = AgentsHandle("ssh", [host])
    hosts.handles.append(handle)
    (end,) = ends(handle)
    assert (end.rank, end.code) == (0, None) and "the ssh connection to host0" in end.why


@pytest.mark.parametrize("end", [relay.Relay.close, relay.Relay.wait])
def test_nothing_is_opened_after_the_end(end: Callable[[relay.Relay], None]) -> None:
    said: list[object] = []
    routes = relay.Relay(lambda *frame: said.append(frame))
    end(routes)
    routes.obey({"to": 1, "run": ["true"]})
    routes.wait()
    assert said == []


def test_a_way_through_a_host_that_is_gone_has_failed() -> None:
    branch = tree.Branch("ssh", "near", lambda line: None)
    changed: list[bool] = []
    host = Host("far", lambda errors: None, {}, ["ssh", "far"])  # type: ignore[arg-type, typeddict-item, return-value]
    first = branch.open(host, lambda: changed.append(first.failed))
    assert branch.usable and not first.failed and first.why == "no answer"
    branch.end()
    assert not branch.usable and first.failed and first.wait(0) == 255
    later = branch.open(host, lambda: changed.append(True))
    assert later.failed and later.wait(0) == 255 and changed == [True, True]
    assert later.lost(255) == "the ssh connection to near, by which it was reached, ended"
    for route in (first, later):
        route.leave()
