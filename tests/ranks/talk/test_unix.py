"""Unix sockets: packets with descriptors from friends and strangers, and who is at the other end."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
from collections.abc import Iterator

import pytest

from ranks.common.descriptors import close_all
from ranks.talk import connect, unix
from tests.left_behind import left_open, open_descriptors

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


def test_a_packet_with_descriptors(pair: Pair) -> None:
    reading, writing = os.pipe()
    unix.send(pair[0], {"a": [1, "é"]}, [writing])
    close_all([writing])
    packet = unix.receive(pair[1], 4096, 2)
    assert packet is not None and packet.data == {"a": [1, "é"]} and packet.sender is None
    (found,) = packet.descriptors
    assert not os.get_inheritable(found)
    os.write(found, b"x")
    assert os.read(reading, 2) == b"x"
    close_all([reading, found])


@pytest.mark.parametrize(
    "raw", [b"x", b"[1]", b"[" * 4000, b"\xff", b'{"a": 1}' + b" " * 4096, b"1" * 4096], ids=range(6)
)
def test_what_is_no_object_or_too_long_has_no_data(pair: Pair, raw: bytes) -> None:
    pair[0].send(raw)
    packet = unix.receive(pair[1], 4096)
    assert packet is not None and packet.data is None and packet.descriptors == []


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize("asked", [0, 2])
def test_descriptors_beyond_those_asked_for_are_not_kept(pair: Pair, asked: int, named: bool) -> None:
    before = open_descriptors()
    if named:
        unix.name_senders(pair[1])
    socket.send_fds(pair[0], [b"{}"], [0, 0, 0, 0, 0])
    packet = unix.receive(pair[1], 4096, asked, named=named)
    assert packet is not None and packet.data is None and len(packet.descriptors) <= asked
    close_all(packet.descriptors)
    assert not left_open(before)


def test_the_end_and_what_was_said_before_it(pair: Pair) -> None:
    unix.send(pair[1], {"unread": 1})
    unix.send(pair[0], {"last": 1})
    pair[0].close()  # with something unread, which the other end sees as a reset
    packet = unix.receive(pair[1], 4096)
    assert packet is not None and packet.data == {"last": 1}
    assert unix.receive(pair[1], 4096) is None


def test_nothing_in_time(pair: Pair) -> None:
    assert not unix.readable(pair[0], 0)
    pair[0].setblocking(False)
    with pytest.raises(BlockingIOError):
        unix.receive(pair[0], 4096)
    unix.send(pair[1], {})
    assert unix.readable(pair[0], 5)


def test_a_named_sender_is_the_process_that_sent(pair: Pair) -> None:
    unix.name_senders(pair[1])
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            unix.send(pair[0], {"from": "child"})
        os._exit(0)
    os.waitpid(child, 0)
    packet = unix.receive(pair[1], 4096, named=True)
    assert packet is not None and (packet.data, packet.sender) == ({"from": "child"}, child)
    assert unix.credentials(pair[1]) == (os.getpid(), os.getuid())


def test_an_abstract_name_and_its_holder() -> None:
    name = unix.at(f"@shardrun-test-{secrets.token_hex(8)}")
    assert name[0] == "\0" and unix.at("/a/path") == "/a/path"
    assert unix.holder(name) is None
    with unix.listen(name, 4):
        assert unix.holder(name) == (os.getpid(), os.getuid())
        before = open_descriptors()
        with pytest.raises(OSError, match="in use"):
            unix.listen(name, 4)
        assert not left_open(before)
    assert unix.holder(name) is None


def test_a_stream_with_a_descriptor() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        buffer = memoryview(bytearray(16))
        socket.send_fds(ours, [b"one"], [0])
        count, found = unix.receive_into(theirs, buffer)
        assert bytes(buffer[:count]) == b"one" and len(found) == 1
        close_all(found)
        ours.send(json.dumps(2).encode())
        assert unix.receive_into(theirs, buffer) == (1, ())
        before = open_descriptors()
        socket.send_fds(ours, [b"many"], [0] * 9)
        with pytest.raises(OSError, match="open files"):
            unix.receive_into(theirs, buffer)
        assert len(left_open(before)) <= 2  # as many as the room for one holds


def test_how_a_process_of_another_ended() -> None:
    """The kernel tells it, also while the parent does not know yet; an older kernel only then."""
    tells = tuple(int(part) for part in os.uname().release.split(".")[:2] if part.isdecimal()) >= (6, 15)
    for end, code in (("kill -9 $$", -9), ("exit 7", 7), ("exit 0", 0)):
        shell = f'sh -c "read line; {end}" <&3 & echo $!; wait $!; echo waited; read line'
        ours, theirs = os.pipe()
        parent = subprocess.Popen(
            ["bash", "-c", f"exec 3<&{ours}; {shell.replace('$$', chr(92) + '$$')}"],
            pass_fds=[ours], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        process = os.pidfd_open(pid)
        assert unix.exit_code(process, pid) is None
        parent.send_signal(signal.SIGSTOP)
        os.write(theirs, b"\n")
        assert select.select([process], [], [], 10)[0]
        assert unix.exit_code(process, pid) == code
        parent.send_signal(signal.SIGCONT)
        assert parent.stdout.readline() == "waited\n"
        assert unix.exit_code(process, pid) == (code if tells else None)
        parent.communicate("\n", timeout=30)
        close_all([process, ours, theirs])


def test_what_is_closed_takes_no_message() -> None:
    """A launcher that looks for the first cause closes its ranks' sockets while somebody waits for them."""
    one, other = socket.socketpair()
    with other:
        assert unix.writable(one)
        one.close()
        assert not unix.writable(one)


def test_connections_to_other_hosts_notice_a_cut() -> None:
    """Whoever made them; not those within this host, nor sockets of other kinds."""
    with contextlib.ExitStack() as stack:
        made = []
        for host in ("127.0.0.2", "127.0.0.1"):  # which stands for another one, and for this one
            listening = stack.enter_context(socket.create_server((host, 0)))
            sock = socket.create_connection(listening.getsockname(), 10, source_address=("127.0.0.1", 0))
            made.append(stack.enter_context(sock))
        for sock in (*socket.socketpair(), socket.socket(socket.AF_INET, socket.SOCK_DGRAM)):
            stack.enter_context(sock)
        connect.tune_all_tcp()
        limits = [sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) for sock in made]
        alive = [sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) for sock in made]
        assert limits == [6000, 0] and alive == [1, 0]
