"""Who uses a connection to the owner of shared weights is who made it; and what refusing costs the owner."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from ranks.talk.unix import has_ended, process_of
from ranks.weights.shared import handle, peers, server
from tests.ranks.threads import until

ROOT = Path(__file__).resolve().parents[4]

PROGRAM = """
import json, os, socket, sys
from ranks.weights.shared import handle, protocol

given, how = int(sys.argv[1]), sys.argv[2]
sys.stdin.readline()  # by then this process is listed
where = handle.address(given)
peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
peer.connect(where.socket_name)
peer.settimeout(30)
nonce = protocol.receive(peer).data["nonce"]


def prove():
    protocol.send(peer, {"nonce": "a1", "proof": where.prove("attacher", nonce, "a1")})
    return protocol.receive(peer, 8)


def fetch():
    protocol.send(peer, {"fetch": True})
    return protocol.receive(peer, 8)


def in_a_child(work, outlive=False):
    if (child := os.fork()) and outlive:
        os._exit(0)
    if not child:
        if outlive:
            while os.getppid() == int(sys.argv[3]):
                pass
        show(work())
        os._exit(0)
    os.waitpid(child, 0)


def show(packet):
    data = packet.data if packet else None
    print(json.dumps([data, len(packet.descriptors) if packet else 0, os.getpid()]), flush=True)


sys.argv.append(str(os.getpid()))
if how == "itself":
    show(prove())
    show(fetch())
elif how == "child proves":
    in_a_child(prove)
elif how == "orphan proves":
    in_a_child(prove, outlive=True)
else:
    show(prove())
    in_a_child(fetch)
"""


def ask(how: str) -> tuple[list[list[object]], int]:
    """What the owner answers to a listed process that does so; and that process's number."""
    given = handle.new_handle()
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(given), how],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    now = peers.status(child.pid)
    assert now is not None
    owner = server.Server(handle.address(given), peers.Guests({child.pid: now.start}))
    try:
        owner.serve(server.Offer({"model": "m"}, os.open("/", os.O_PATH)))
        said, _ = child.communicate("go\n", timeout=60)
        return [json.loads(line) for line in said.splitlines()], child.pid
    finally:
        child.kill()
        owner.close()


def test_the_process_that_connected_attaches_and_fetches() -> None:
    (proved, descriptors, _), (fetched, _, _) = ask("itself")[0]
    assert isinstance(proved, dict) and proved["facts"] == {"model": "m"} and descriptors == 1
    assert isinstance(fetched, dict) and "parts" in fetched


@pytest.mark.parametrize("how", ["child proves", "orphan proves"])
def test_a_connection_that_is_handed_on_proves_nothing(how: str) -> None:
    """Also where the process that made it has ended, whose number another may get."""
    [(answer, descriptors, sender)], pid = ask(how)
    assert descriptors == 0 and sender != pid
    said = f"process {sender} uses a connection that process {pid} made: each process attaches itself"
    assert answer == {"refused": said}


def test_an_attached_connection_that_is_handed_on_gives_nothing() -> None:
    (proved, _, _), (answer, descriptors, sender) = ask("child fetches")[0]
    assert isinstance(proved, dict) and "facts" in proved
    assert isinstance(answer, dict) and f"process {sender} uses a connection" in answer["refused"]
    assert descriptors == 0


def test_the_end_of_the_process_that_connected_is_seen() -> None:
    """By the kernel's word for that process, not by its number."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind("")
    listener.listen()
    child = os.fork()
    if not child:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.connect(listener.getsockname())
            peer.recv(1)
        os._exit(0)
    connection = listener.accept()[0]
    process = process_of(connection)
    try:
        if process is None:
            pytest.skip("this kernel has no SO_PEERPIDFD (Linux 6.5)")
        assert not has_ended(process)
        connection.send(b"x")
        until(lambda: has_ended(process))
    finally:
        os.waitpid(child, 0)
        for descriptor in [process] if process is not None else []:
            os.close(descriptor)
        connection.close()
        listener.close()


class Table:
    """Processes that are not there: each with a parent, and how often somebody looked."""

    def __init__(self, depth: int) -> None:
        self.parents = {10 + level: 9 + level if level else 0 for level in range(depth)}
        self.looks = 0

    def status(self, pid: int) -> peers.Status | None:
        self.looks += 1
        return peers.Status(self.parents[pid], pid) if pid in self.parents else None


def test_refusing_costs_as_little_the_second_time(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(200)
    monkeypatch.setattr(peers, "status", table.status)
    guests = peers.Guests(family=(5, 5))
    assert "not among those that may attach" in str(guests.refusal(209))
    assert table.looks <= 201
    table.looks = 0
    for _ in range(10):
        assert guests.refusal(209)
    table.parents[500] = 209  # a new child of his
    assert guests.refusal(500)
    assert table.looks <= 10 * 2 + 3


def test_descendants_are_still_found_and_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table(200)
    monkeypatch.setattr(peers, "status", table.status)
    assert peers.Guests(family=(10, 10)).refusal(209) is None
    assert peers.Guests(family=(10, 11)).refusal(209) is not None  # another process with that number

    def reused(pid: int) -> peers.Status | None:
        """While we look, process 100 ends, and its number goes to a child of somebody else."""
        found = table.status(pid)
        if pid == 11:
            table.parents[100] = 0
        return found

    monkeypatch.setattr(peers, "status", reused)
    assert peers.Guests(family=(10, 10)).refusal(209) is not None


def test_a_parent_that_is_younger_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    there = {20: peers.Status(30, 5), 30: peers.Status(10, 8), 10: peers.Status(0, 1)}
    monkeypatch.setattr(peers, "status", there.get)
    assert peers.Guests(family=(10, 1)).refusal(20) is not None
    there[30] = peers.Status(10, 4)
    assert peers.Guests(family=(10, 1)).refusal(20) is None
