"""An owner of shared weights among processes that mean no good: it serves on, and lets others attach."""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ranks.common.descriptors import close_all
from ranks.errors import WeightsError
from ranks.weights.shared import handle, peers, protocol, server
from tests.ranks.threads import until
from tests.ranks.weights_hostile import KINDS
from tests.ranks.weights_worker import Refused, Workers, oracle

pytestmark = pytest.mark.timeout(240)


def test_ten_thousand_hostile_connections(workers: Workers, shared_model: Path) -> None:
    expected = oracle(shared_model)
    owner, friend, listed, stranger = (workers.new() for _ in range(4))
    owner.do("patience", seconds=0.5)
    number = owner.do("share", path=str(shared_model), pids=[friend.pid, listed.pid], family=0)
    assert friend.do("attach", given=number, path=str(shared_model)) == "attached"
    before = owner.do("descriptors")
    listed.start("hostile", given=number, count=6000, seed=1)
    stranger.start("hostile", given=number, count=4000, seed=2)
    rounds = 0
    while not (listed.pipe.poll() and stranger.pipe.poll()):
        assert owner.predicts(expected)
        assert friend.do("attach", given=number, path=str(shared_model)) == "attached"
        assert friend.predicts(expected)
        rounds += 1
    assert rounds > 1
    for worker, count in ((listed, 6000), (stranger, 4000)):
        done = worker.reply()
        assert isinstance(done, dict), done
        assert set(done) == set(KINDS)
        assert sum(done.values()) == count
    # Whoever was hostile has let go, or was let go of; nothing of it is left in the owner.
    until(lambda: owner.do("descriptors") <= before)
    assert owner.do("threads") == 1
    assert owner.predicts(expected)
    # The one that was listed is not kept out for good.
    assert listed.do("attach", given=number, path=str(shared_model)) == "attached"
    assert listed.predicts(expected)
    found = stranger.do("attach", given=number, path=str(shared_model))
    assert isinstance(found, Refused) and f"process {stranger.pid} is not among" in found.text


def test_half_open_connections_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 0.1)
    with _serving() as (where, _), _connected(where) as peer:
        assert protocol.receive(peer) is not None
        answer = protocol.receive(peer)
        assert answer is not None and answer.data == {"refused": "it did not answer within 0.1 s"}
        assert protocol.receive(peer) is None


def test_the_limits_are_those_of_the_page() -> None:
    text = " ".join((Path(__file__).parents[4] / "docs" / "shared_weights.md").read_text().split())
    assert f"A process that may attach has {server.HANDSHAKE_SECONDS:g} seconds to prove" in text
    assert (
        f"{server.MOST_PENDING} connections that have not proved it yet, and {server.MOST_ATTACHED}" in text
    )


def test_limits_for_one_process_make_room_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HANDSHAKE_SECONDS", 60.0)
    monkeypatch.setattr(server, "MOST_ATTACHED", 3)
    with _serving() as (where, owner):
        pending = []
        for _ in range(server.MOST_PENDING + 2):
            pending.append(_connected(where))
            assert protocol.receive(pending[-1]) is not None
        for peer in pending[:2]:  # the oldest went, for the two newest
            answer = protocol.receive(peer)
            assert answer is not None and answer.data == {"refused": "the process has newer connections"}
        for peer in pending:
            peer.close()
        from ranks.weights.shared import client

        attached = [client.connect(where, 10) for _ in range(3)]
        with pytest.raises(Exception, match="is attached 3 times already, which is the limit"):
            client.connect(where, 10)
        attached.pop().close()
        until(lambda: owner.attached <= 2)
        attached.append(client.connect(where, 10))
        for one in attached:
            one.close()


def test_owner_without_descriptors_left(workers: Workers, shared_model: Path) -> None:
    """It cannot take more connections for a while, and goes on predicting; then it takes them again."""
    owner, other = workers.new(), workers.new()
    number = owner.do("share", path=str(shared_model), pids=[other.pid])
    owner.do("use_up_descriptors")
    other.start("attach", given=number, path=str(shared_model), timeout=60)
    assert owner.predicts(oracle(shared_model))
    assert not other.pipe.poll(0.3)
    owner.do("free_descriptors")
    assert other.reply() == "attached"
    assert other.predicts(oracle(shared_model))


def test_attached_process_that_asks_and_never_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []

    def part() -> tuple[dict[str, int], list[int]]:
        made.append(os.open("/dev/null", os.O_RDONLY))
        return {"n": len(made)}, [made[-1]]

    with _serving(part=part) as (where, _):
        from ranks.weights.shared import client

        deaf, good = client.connect(where, 10), client.connect(where, 10)
        peer = deaf._peer
        assert peer is not None
        peer.setblocking(False)
        sent = 0
        with pytest.raises(OSError):  # the owner hangs up, long before its descriptors are used up
            while sent < 10_000:
                try:
                    protocol.send(peer, {"fetch": True})
                    sent += 1
                except BlockingIOError:
                    time.sleep(0.001)
        assert len(made) < 200
        assert good.fetch()["part"][0]["n"] == len(made)
        deaf.close()
        good.close()


@pytest.mark.parametrize("nonce", ["", "x" * 65, "a|b", "\ud800", "é", 5, None, ["a"]])
def test_what_is_no_nonce(nonce: object, caplog: pytest.LogCaptureFixture) -> None:
    with _serving() as (where, _), _connected(where) as peer:
        assert protocol.receive(peer) is not None
        protocol.send(peer, {"nonce": nonce, "proof": "0" * 64})
        answer = protocol.receive(peer)
        assert answer is not None
        assert answer.data == {"refused": "it did not speak the protocol of this version"}
    assert caplog.records == []  # a guest cannot fill the owner's log


def test_a_part_that_fails_ends_that_connection_only() -> None:
    broken = False

    def part() -> tuple[dict[str, int], list[int]]:
        if broken:
            raise ZeroDivisionError
        return {}, []

    with _serving(part=part) as (where, _):
        from ranks.weights.shared import client

        first = client.connect(where, 10)
        broken = True
        with pytest.raises(Exception, match="has ended or closed its model: the owner failed to answer"):
            first.fetch()
        broken = False
        second = client.connect(where, 10)
        assert second.fetch() == {"part": ({}, [])}
        second.close()


@contextlib.contextmanager
def _serving(**parts: Any) -> Iterator[tuple[handle.Address, server.Server]]:
    """An owner of no weights but these parts, and where it listens."""
    where = handle.address(handle.new_handle())
    owner = server.Server(where, peers.Guests())
    owner.serve(server.Offer({}, os.open("/", os.O_PATH), parts))
    try:
        yield where, owner
    finally:
        owner.close()


def _connected(where: handle.Address) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    peer.settimeout(10)
    peer.connect(where.socket_name)
    return peer


@pytest.mark.parametrize("more", [1, 2, 300])
def test_an_owner_that_sends_fewer_descriptors_than_it_tells_is_not_believed(more: int) -> None:
    told, descriptors, made = protocol.pack({"part": ({"of": "it"}, [os.open("/", os.O_PATH)])})
    assert protocol.unpack(told, own := [os.dup(number) for number in descriptors])
    assert own == []
    told[0][1] = 1 + more
    try:
        with pytest.raises(WeightsError, match="parts that do not fit together"):
            protocol.unpack(told, descriptors)
    finally:
        close_all([*descriptors, *made])
