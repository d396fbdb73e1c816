"""Ranks of one host find each other: late, missing, doubled and hostile ones."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from ranks.collectives import meeting
from ranks.collectives.meeting import meet
from ranks.collectives.rendezvous import Rendezvous
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from ranks.identity.place import Identity
from ranks.talk import unix
from tests.left_behind import left_open, open_descriptors
from tests.ranks.threads import until

PATIENCE = 30.0


@pytest.fixture
def job() -> str:
    return secrets.token_hex(16)


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as executor:
        yield executor


def who(job: str, rank: int, size: int) -> Identity:
    return Identity(rank, size, rank, size, source="test", key=job)


def join(
    pool: ThreadPoolExecutor, job: str, rank: int, size: int, timeout: float = PATIENCE
) -> Future[Rendezvous]:
    return pool.submit(meet, who(job, rank, size), timeout)


def everyone(pool: ThreadPoolExecutor, job: str, size: int) -> list[Rendezvous]:
    return [future.result(PATIENCE) for future in [join(pool, job, rank, size) for rank in range(size)]]


@pytest.mark.parametrize("size", [1, 2, 5])
def test_exchange_gives_everyone_everything(pool: ThreadPoolExecutor, job: str, size: int) -> None:
    before = open_descriptors()
    group = everyone(pool, job, size)
    pipes = [os.pipe() for _ in range(size)]
    rounds = [
        pool.submit(group[r].exchange, {"rank": r, "text": "x" * r}, [pipes[r][0]]) for r in range(size)
    ]
    for rank, future in enumerate(rounds):
        items = future.result(PATIENCE)
        assert [item.data for item in items] == [{"rank": r, "text": "x" * r} for r in range(size)]
        for peer, item in enumerate(items):
            os.write(pipes[peer][1], f"{peer}".encode())
            assert os.read(item.descriptors[0], 10) == f"{peer}".encode()
            assert not os.get_inheritable(item.descriptors[0])
            if peer != rank:
                os.close(item.descriptors[0])
    for member in group:
        member.close()
        member.close()
    for ends in pipes:
        for end in ends:
            os.close(end)
    assert not left_open(before)


def test_late_ranks_are_waited_for(pool: ThreadPoolExecutor, job: str) -> None:
    third = join(pool, job, 2, 3)
    time.sleep(0.3)
    first = join(pool, job, 0, 3)
    time.sleep(0.3)
    second = join(pool, job, 1, 3)
    for future in (first, second, third):
        future.result(PATIENCE).close()


def test_a_job_can_meet_again_at_once(pool: ThreadPoolExecutor, job: str) -> None:
    for _ in range(5):
        for member in everyone(pool, job, 3):
            member.close()


def test_missing_ranks_are_named_on_every_rank(pool: ThreadPoolExecutor, job: str) -> None:
    before = open_descriptors()
    futures = [join(pool, job, rank, 5, timeout=0.7) for rank in (0, 2, 4)]
    for future in futures:
        with pytest.raises(CollectiveError, match=r"Ranks 1, 3 of 5 did not join within 0\.7 s"):
            future.result(PATIENCE)
    with pytest.raises(CollectiveTimeoutError):
        futures[0].result(PATIENCE)
    assert not left_open(before)


def test_without_rank_0(job: str) -> None:
    with pytest.raises(CollectiveTimeoutError, match=r"waited 0\.3 s for rank 0"):
        meet(who(job, 1, 2), 0.3)


def test_the_same_rank_twice(pool: ThreadPoolExecutor, job: str) -> None:
    futures = [join(pool, job, rank, 3) for rank in (0, 1, 1)]
    for future in futures:
        with pytest.raises(CollectiveError, match="Rank 1 was started twice"):
            future.result(PATIENCE)


def test_another_that_says_it_is_rank_0(pool: ThreadPoolExecutor, job: str) -> None:
    first = join(pool, job, 0, 2)
    said = f"^Rank 0 was started twice: processes {os.getpid()} and {os.getpid()}\\.$"
    with pytest.raises(CollectiveError, match=said):
        meeting._connect(who(job, 0, 2), 0, PATIENCE)
    with pytest.raises(CollectiveError, match=said):
        first.result(PATIENCE)


def test_another_world_size(pool: ThreadPoolExecutor, job: str) -> None:
    futures = [join(pool, job, 0, 3), join(pool, job, 1, 2)]
    for future in futures:
        with pytest.raises(CollectiveError, match=r"Rank 1 .* was started for 2 ranks, but rank 0 .* for 3"):
            future.result(PATIENCE)


def test_rank_0_twice(pool: ThreadPoolExecutor, job: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_NAME_TAKEN_PATIENCE", 0.3)
    first = join(pool, job, 0, 2)
    time.sleep(0.2)
    with pytest.raises(
        CollectiveError, match=rf"there already \(process {os.getpid()} of user {os.getuid()}\)"
    ):
        meet(who(job, 0, 2), PATIENCE)
    second = join(pool, job, 1, 2)
    for future in (first, second):
        future.result(PATIENCE).close()


def stranger(job: str, size: int) -> socket.socket:
    deadline = time.monotonic() + PATIENCE
    while True:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with contextlib.suppress(ConnectionRefusedError):
            connection.connect(meeting._name(who(job, 0, size)))
            return connection
        connection.close()
        assert time.monotonic() < deadline
        time.sleep(0.01)


GARBAGE = [
    b"\x00",
    b"GET / HTTP/1.1\r\n\r\n",
    b"\xff" * 60_000,
    b"[" * 50_000,
    b"{}",
    b"[1, 2]",
    b'"x"',
    b"1e999",
    json.dumps({"protocol": "shardrun-rendezvous-0", "rank": 1, "world_size": 2}).encode(),
]


def test_strangers_do_not_disturb(pool: ThreadPoolExecutor, job: str) -> None:
    before = open_descriptors()
    first = join(pool, job, 0, 2)
    silent = [stranger(job, 2) for _ in range(3)]  # half-open: never say anything
    for raw in GARBAGE:
        with stranger(job, 2) as connection:
            connection.send(raw)
    with stranger(job, 2) as connection:  # with file descriptors, which must not be kept
        socket.send_fds(connection, [b"take these"], [0, 1, 2])
    stranger(job, 2).close()
    second = join(pool, job, 1, 2)
    for future in (first, second):
        future.result(PATIENCE).close()
    for connection in silent:
        connection.close()
    assert not left_open(before)


def dropped(connections: list[socket.socket]) -> int:
    return sum(bool(select.select([one], [], [], 0)[0]) and one.recv(1) == b"" for one in connections)


def test_silent_connections_do_not_use_up_what_ranks_need(pool: ThreadPoolExecutor, job: str) -> None:
    before = open_descriptors()
    first = join(pool, job, 0, 3)
    silent = [stranger(job, 3) for _ in range(200)]
    until(lambda: dropped(silent) >= 200 - meeting._MOST_SILENT - 3)  # the first that came
    assert not select.select([silent[-1]], [], [], 0)[0]
    others = [join(pool, job, rank, 3) for rank in (1, 2)]
    for member in [first.result(PATIENCE), *(other.result(PATIENCE) for other in others)]:
        member.close()
    assert dropped(silent) == 200  # at the latest when all have joined
    for one in silent:
        one.close()
    assert not left_open(before)


@pytest.mark.parametrize("rank", [-1, 2, "1", None, True, 1.0, [1]])
def test_impossible_ranks_are_refused(pool: ThreadPoolExecutor, job: str, rank: object) -> None:
    first = join(pool, job, 0, 2)
    hello = {"protocol": "shardrun-rendezvous-2", "rank": rank, "world_size": 2}
    with stranger(job, 2) as connection:
        connection.send(json.dumps(hello).encode())
        with pytest.raises(CollectiveError, match="which does not exist"):
            first.result(PATIENCE)
        assert "refused" in json.loads(connection.recv(4096))


@pytest.mark.parametrize("answer", [b"\x00\x01", b"[]", b'{"hello": 1}', b'{"refused": ["x"]}', b""])
def test_a_rank_0_that_answers_garbage(pool: ThreadPoolExecutor, job: str, answer: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(meeting._name(who(job, 0, 2)))
        listener.listen()
        future = join(pool, job, 1, 2)
        with listener.accept()[0] as connection:
            assert json.loads(connection.recv(4096))["rank"] == 1
            if answer:
                connection.send(answer)
        with pytest.raises(CollectiveError):
            future.result(PATIENCE)


def hello(connection: socket.socket, rank: int, size: int) -> None:
    connection.send(
        json.dumps({"protocol": "shardrun-rendezvous-2", "rank": rank, "world_size": size}).encode()
    )


@pytest.mark.parametrize("size", [3, 4])
def test_a_rank_that_ends_while_the_ranks_join(pool: ThreadPoolExecutor, job: str, size: int) -> None:
    before = open_descriptors()
    first = join(pool, job, 0, size)
    with stranger(job, size) as third:
        hello(third, 2, size)
        with stranger(job, size) as second:
            hello(second, 1, size)
        with pytest.raises(PeerLostError, match=r"Rank 1 .*ended"):
            first.result(PATIENCE)
        heard = b""
        while packet := third.recv(4096):
            heard += packet
    assert re.search(rb"Rank 1 .*ended", heard), heard
    assert not left_open(before)


def other_process(job: str, rank: int, size: int, then: str) -> subprocess.Popen[str]:
    program = f"""if True:
        import os, signal, sys, time
        from ranks.identity.identity import Identity
        from ranks.collectives.meeting import meet
        member = meet(Identity({rank}, {size}, {rank}, {size}, key={job!r}), {PATIENCE})
        {then}
        """
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)


def until_gone(member: Rendezvous, rank: int) -> bool:
    deadline = time.monotonic() + PATIENCE
    while rank not in member.gone() and time.monotonic() < deadline:
        select.select([], [], [], 0.01)
    return member.gone() == [rank]


def test_every_rank_learns_of_a_death(pool: ThreadPoolExecutor, job: str) -> None:
    futures = [join(pool, job, 0, 3), join(pool, job, 1, 3)]
    process = other_process(job, 2, 3, "print('in', flush=True); time.sleep(60)")
    try:
        members = [future.result(PATIENCE) for future in futures]
        assert process.stdout is not None and process.stdout.readline() == "in\n"
        assert [member.gone() for member in members] == [[], []]
        process.kill()
        assert [until_gone(member, 2) for member in members] == [True, True]
        for member in members:
            member.close()
    finally:
        process.kill()
        process.communicate(timeout=PATIENCE)


def test_who_is_lost_is_who_was_missed_first(pool: ThreadPoolExecutor, job: str) -> None:
    """A rank that left says whom it had lost; where that is the rank that asks, it is itself the lost one."""
    first, second, third = everyone(pool, job, 3)
    second.blame(2)
    second.close()
    third.blame(0)
    third.close()
    assert first.gone() == [1, 2]
    for asked in (1, 2):
        error = first.lost(asked)
        assert (str(error), error.peer) == ("Rank 2 left the group", 2)
    first.close()


@pytest.mark.parametrize("said", [{"what": 1}, {"failed": "so"}, {"rank": 1, "data": None}])
def test_descriptors_of_what_nobody_expects_are_closed(
    pool: ThreadPoolExecutor, job: str, said: dict[str, object]
) -> None:
    first, second = everyone(pool, job, 2)
    with Path(os.devnull).open("rb") as file:
        unix.send(first._peers[1], said, [file.fileno()])
    before = open_descriptors()
    with pytest.raises(CollectiveError, match="sent an unexpected message" if "failed" not in said else "so"):
        second.exchange(None)
    assert not left_open(before)
    first.close()
    second.close()


def test_a_child_that_outlives_its_rank_does_not_hide_the_death(pool: ThreadPoolExecutor, job: str) -> None:
    first = join(pool, job, 0, 2)
    then = "child = os.fork(); child or time.sleep(60); print(child, flush=True); os.kill(os.getpid(), 9)"
    process = other_process(job, 1, 2, then)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        member = first.result(PATIENCE)
        assert until_gone(member, 1)
        os.kill(child, 0)  # the child is there still
        member.close()
    finally:
        os.kill(child, signal.SIGKILL)
        process.communicate(timeout=PATIENCE)


NOBODY = 65534
as_root = pytest.mark.skipif(os.getuid() != 0, reason="only root can act as two users")


def as_nobody(program: str) -> subprocess.Popen[str]:
    program = f"import os, socket, sys, time; {program}"
    return subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@as_root
def test_another_user_cannot_join(pool: ThreadPoolExecutor, job: str) -> None:
    first = join(pool, job, 0, 2)
    stranger(job, 2).close()
    hello = json.dumps({"protocol": "shardrun-rendezvous-2", "rank": 1, "world_size": 2})
    intruder = as_nobody(
        f"os.setuid({NOBODY}); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.connect({meeting._name(who(job, 0, 2))!r}); print('in'); s.send({hello!r}.encode()); "
        f"s.recv(10)"
    )
    assert (
        intruder.communicate(timeout=PATIENCE)[0] == "in\n"
    )  # then it is cut off, before or after its hello
    assert not first.done()
    second = join(pool, job, 1, 2)
    for future in (first, second):
        future.result(PATIENCE).close()


@as_root
def test_another_user_cannot_be_rank_0(pool: ThreadPoolExecutor, job: str) -> None:
    squatter = as_nobody(
        f"os.setuid({NOBODY}); s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET); "
        f"s.bind({meeting._name(who(job, 0, 2))!r}); s.listen(); print('there', flush=True); "
        f"sys.stdin.read()"
    )
    assert squatter.stdout is not None and squatter.stdout.readline() == "there\n"
    try:
        with pytest.raises(CollectiveError, match=f"process of another user \\(uid {NOBODY}\\)"):
            join(pool, job, 1, 2).result(PATIENCE)
    finally:
        squatter.communicate(timeout=PATIENCE)


def test_what_a_rank_gave_stays_its_own_where_an_exchange_fails(pool: ThreadPoolExecutor, job: str) -> None:
    """For whichever rank it is: who gave a file may still use it."""
    first, second = everyone(pool, job, 2)
    second.close()
    for member in (first,):
        ends = os.pipe()
        with pytest.raises(PeerLostError):
            member.exchange({}, [ends[0]], PATIENCE)
        os.write(ends[1], b"mine")
        assert os.read(ends[0], 9) == b"mine"
        for end in ends:
            os.close(end)
    first.close()
