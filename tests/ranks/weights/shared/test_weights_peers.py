"""Who may attach to shared weights when numbers of processes are given again; and no descriptor leaks."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from ranks.common.descriptors import Part
from ranks.devices.providers import CPU
from ranks.errors import ModelError, WeightsError
from ranks.weights.shared import client, handle, peers, protocol, server, sharing
from ranks.weights.shared.peers import Guests, Status
from ranks.weights.shared.request import Attach
from tests.left_behind import left_open, open_descriptors


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> dict[int, Status]:
    """The processes that run, in place of this host's: 10 began 20, which began 30."""
    table = {10: Status(1, 100), 20: Status(10, 200), 30: Status(20, 300), 40: Status(1, 400)}
    monkeypatch.setattr(peers, "status", table.get)
    monkeypatch.setattr(os, "getpid", lambda: 99)
    return table


@pytest.mark.usefixtures("processes")
def test_a_family_is_a_process_and_what_descends_from_it() -> None:
    guests = Guests(family=(10, 100))
    assert [guests.refusal(pid) for pid in (10, 20, 30, 99)] == [None] * 4
    assert (
        guests.refusal(40) == "process 40 is not among those that may attach (process 10 and its descendants)"
    )


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("pid", [10, 20, 30])
def test_an_ancestor_whose_number_is_another_processs_now(pid: int) -> None:
    """The family's first process has ended, and its number was given to the parent of these."""
    assert "is not among those that may attach" in str(Guests(family=(10, 99)).refusal(pid))


def test_a_parent_that_is_younger_than_its_child(processes: dict[int, Status]) -> None:
    """The parent ended after the child's status was read, and its number was given again."""
    processes[10] = Status(1, 201)
    assert "is not among" in str(Guests(family=(10, 201)).refusal(20))
    processes[10] = Status(1, 200)  # within one tick
    assert Guests(family=(10, 200)).refusal(20) is None


def test_a_child_that_changes_its_parent_meanwhile(
    processes: dict[int, Status], monkeypatch: pytest.MonkeyPatch
) -> None:
    def status(pid: int) -> Status | None:
        found = processes.get(pid)
        if pid == 10:  # read as the parent of 20, which has another one from now on
            processes[20] = Status(1, 200)
        return found

    monkeypatch.setattr(peers, "status", status)
    assert "is not among" in str(Guests(family=(10, 100)).refusal(20))


def test_a_listed_number_that_is_another_processs_now(processes: dict[int, Status]) -> None:
    guests = Guests({20: 200, 30: 299})
    assert guests.refusal(20) is None
    assert "is not the one that the owner listed" in str(guests.refusal(30))
    del processes[20]
    assert guests.refusal(20) == "process 20 has ended"


def test_a_process_is_checked_again_when_it_has_proved_to_know_the_handle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It passed when it connected, but its number is another process's by now: it is given nothing."""
    found = [None, "process 7 is not the one that the owner listed"]
    monkeypatch.setattr(Guests, "refusal", lambda self, pid: found.pop(0))
    where, given = handle.address(handle.new_handle()), []
    owner = server.Server(where, Guests())
    owner.serve(server.Offer({}, os.open("/", os.O_PATH), {"part": lambda: given.append(1) or ({}, [])}))
    try:
        with pytest.raises(WeightsError, match="refused this process: process 7 is not the one"):
            client.connect(where, 10)
    finally:
        owner.close()
    assert (found, given, owner.attached) == ([], [], 0)


def test_a_process_that_has_ended_since_is_given_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number may be that of a process which may attach, and its end is known by no number."""
    child = os.fork()
    if not child:
        os._exit(0)
    process = os.pidfd_open(child)
    os.waitpid(child, 0)
    monkeypatch.setattr(server, "process_of", lambda connection: process)
    where = handle.address(handle.new_handle())
    owner = server.Server(where, Guests())
    owner.serve(server.Offer({}, os.open("/", os.O_PATH)))
    try:
        with pytest.raises(WeightsError, match=f"refused this process: process {os.getpid()} has ended"):
            client.connect(where, 10)
    finally:
        owner.close()


def test_what_is_told_of_a_part_can_be_changed_by_nobody() -> None:
    """All that attach have the same memory, and its owner reads nothing of it again."""
    _, (description,), _ = protocol.pack({"part": ({"a": 1}, [])})
    try:
        for change in (lambda: os.pwrite(description, b"x", 0), lambda: os.ftruncate(description, 1)):
            with pytest.raises(PermissionError):
                change()
    finally:
        os.close(description)


# Descriptors: whatever happens, as many are open afterwards as before.


@pytest.fixture
def _nothing_leaks() -> Iterator[None]:
    before = open_descriptors()
    yield
    assert not left_open(before)


def _null() -> int:
    return os.open("/dev/null", os.O_RDONLY)


def _owner(**parts: Callable[[], Part]) -> tuple[handle.Address, server.Server]:
    where = handle.address(handle.new_handle())
    owner = server.Server(where, Guests())
    owner.serve(server.Offer({}, os.open("/", os.O_PATH), parts))
    return where, owner


def _close(parts: dict[str, Part]) -> None:
    for _, numbers in parts.values():
        for number in numbers:
            os.close(number)  # an `OSError` if it is not open: each is the caller's own


@pytest.mark.usefixtures("_nothing_leaks")
def test_parts_that_are_taken_again_and_again() -> None:
    where, owner = _owner(a=lambda: ({"n": 1}, [_null()]), b=lambda: ({}, [_null(), _null()]))
    try:
        connection = client.connect(where, 10)
        _close(connection.parts)
        for _ in range(3):
            parts = connection.fetch()
            assert [len(numbers) for _, numbers in parts.values()] == [1, 2]
            _close(parts)
        connection.close()
    finally:
        owner.close()


@pytest.mark.usefixtures("_nothing_leaks")
def test_a_part_that_fails_after_another_was_made() -> None:
    def fail() -> Part:
        raise WeightsError("it is gone")

    where, owner = _owner(a=lambda: ({}, [_null()]), b=fail)
    try:
        with pytest.raises(WeightsError, match="refused this process: it is gone"):
            client.connect(where, 10)
    finally:
        owner.close()


@pytest.mark.usefixtures("_nothing_leaks")
@pytest.mark.parametrize("beyond", [0, 1])
def test_more_descriptors_than_a_packet_takes(beyond: int) -> None:
    """With one for what is said of them, and one that goes with every packet."""
    count = protocol.MOST_DESCRIPTORS - 1 + beyond
    where, owner = _owner(a=lambda: ({}, [_null() for _ in range(count)]))
    try:
        with pytest.raises(WeightsError, match="descriptors do not fit into one packet"):
            client.connect(where, 10)
    finally:
        owner.close()


@pytest.mark.usefixtures("_nothing_leaks")
def test_parts_that_do_not_fit_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner tells of one part more than it sends, and then of none of what it sends."""
    pack, more = server.pack, [["more", 1]]

    def wrong(parts: dict[str, Part]) -> tuple[list[list[Any]], list[int], list[int]]:
        told, descriptors, made = pack(parts)
        return [*told, *more] if more else [], descriptors, made

    where, owner = _owner(a=lambda: ({}, [_null()]))
    try:
        connection = client.connect(where, 10)
        _close(connection.parts)
        monkeypatch.setattr(server, "pack", wrong)
        with pytest.raises(WeightsError, match="do not fit together"):
            connection.fetch()
        with pytest.raises(WeightsError, match="do not fit together"):
            client.connect(where, 10)
        more.clear()
        assert connection.fetch() == {}
        other = client.connect(where, 10)
        assert other.parts == {}
        other.close()
        connection.close()
    finally:
        owner.close()


@pytest.mark.usefixtures("_nothing_leaks")
@pytest.mark.parametrize("wrong", ["model", "load"])
def test_an_attacher_that_does_not_go_on(wrong: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner's weights are for something else, or the model cannot be loaded: all that came is closed."""
    model = tmp_path / "model.onnx"
    model.write_bytes(b"not read here")
    use = sharing.Use(model, "the CPU", CPU)
    facts = {**sharing._facts(use), **({"model": "another"} if wrong == "model" else {})}
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parts = {sharing.VARIABLES: ({}, [_null()])}
    connection = client.Connection(ours, 1, facts, os.open("/", os.O_PATH), parts)
    monkeypatch.setattr(client, "connect", lambda *_, **__: connection)

    def load(_: object) -> Any:
        raise ModelError("it cannot be loaded")

    expected = "has another model" if wrong == "model" else "it cannot be loaded"
    with theirs, pytest.raises((WeightsError, ModelError), match=expected):
        sharing.attach(Attach(1, timeout=1), use, load)


@pytest.mark.usefixtures("_nothing_leaks")
def test_variable_weights_of_an_owner_whose_model_has_none_here() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    parts = {sharing.VARIABLES: ({}, [_null(), _null()])}
    connection = client.Connection(ours, 1, {}, os.open("/", os.O_PATH), parts)
    model: Any = SimpleNamespace(weights=None)
    sharing._take_variables(model, connection)
    assert connection.parts == {}
    connection.close()
    theirs.close()
