"""Ranks of several hosts that do not all come: each waits the time-out once, and says for whom."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from ranks.collectives.torch import strangers
from ranks.collectives.torch.protocols import Store
from ranks.errors import CollectiveError
from ranks.identity.identity import identify
from tests.ranks.collectives.test_collectives import need
from tests.ranks.worlds import SETTINGS, copies

SECONDS = 60.0
PROGRAM = """
import sys, time
import torch.distributed  # its import is no part of the time
from ranks.run import group
from ranks.errors import CollectiveTimeoutError
began = time.monotonic()
try:
    group.join(collectives="gloo")
except CollectiveTimeoutError as error:
    print(f"{time.monotonic() - began:.2f} {error}")
"""


def run(program: str, environ: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return copies(torch=True).run(["-c", program], {**os.environ, **SETTINGS, **environ}, Path.cwd(), 90)


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, "Ranks 1, 2 of 3 did not join within 3 s (rank 0 waited)"),
        (1, "Rank 1 did not reach rank 0 at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) within 3 s"),
    ],
)
def test_ranks_that_do_not_come(rank: int, words: str) -> None:
    need("gloo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHARDRUN_TIMEOUT": "3",
    }  # fmt: skip
    began = time.monotonic()
    done = run(PROGRAM, environ)
    waited, _, said = done.stdout.partition(" ")
    assert said.startswith(words.format(port=port)), (done.stderr, time.monotonic() - began)
    assert 2.9 <= float(waited) < 2 * 3  # torch rounds down, and itself would take twice the time-out
    assert "frame #" not in done.stderr and "Exception raised" not in done.stderr


@pytest.mark.parametrize("kind", ["", "answers"])
def test_a_stranger_that_has_the_port(kind: str) -> None:
    """It takes connections and says nothing, where torch would wait for ever, or no store's word."""
    need("gloo")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        if kind:
            threading.Thread(target=meet_each, args=(stranger, kind), daemon=True).start()
        port = stranger.getsockname()[1]
        environ = {
            "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHARDRUN_TIMEOUT": "3",
        }  # fmt: skip
        done = run(PROGRAM, environ)
        stranger.shutdown(socket.SHUT_RDWR)
    assert done.returncode == 1
    *_, said = done.stderr.splitlines()
    assert f"Port {port} of 127.0.0.1 (MASTER_ADDR, MASTER_PORT) is taken by another program" in said
    assert "frame #" not in done.stderr


def meet_each(server: socket.socket, kind: str) -> None:
    """Another program at a port, until the server is closed."""
    with contextlib.suppress(OSError):
        while True:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError):
                if kind == "speaks first":
                    connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                    connection.recv(100)
                elif kind == "answers":
                    connection.recv(100)
                    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                elif kind == "says it again":
                    while word := connection.recv(100):
                        connection.sendall(word)
                elif kind == "resets":
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.mark.parametrize("kind", ["closes", "resets", "speaks first", "answers", "says it again"])
def test_another_program_that_has_the_port(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Told as soon as it says what is no store's word, or has closed each connection for a while: torch would
    try for long, and print its frames each time."""
    need("gloo")
    monkeypatch.setattr(strangers, "_SILENCE", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=meet_each, args=(server, kind), daemon=True).start()
        port = server.getsockname()[1]
        began = time.monotonic()
        with pytest.raises(CollectiveError, match=f"Port {port} of 127.0.0.1 .* is taken"):
            strangers.until_listening("127.0.0.1", port, 1, SECONDS, began + SECONDS)
        assert time.monotonic() - began < SECONDS / 2
        server.shutdown(socket.SHUT_RDWR)


def test_a_port_that_is_passed_on_before_rank_0_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Connections are closed at first. Then a store answers."""
    need("gloo")
    dist = pytest.importorskip("torch.distributed")
    store = dist.TCPStore("127.0.0.1", 0, 2, True, wait_for_workers=False)
    closed = threading.Event()

    def pass_on(server: socket.socket) -> None:
        for _ in range(3):
            server.accept()[0].close()
        closed.set()
        line, _ = server.accept()
        with line, socket.create_connection(("127.0.0.1", store.port)) as beyond:
            beyond.sendall(line.recv(100))
            line.sendall(beyond.recv(100))

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=pass_on, args=(server,), daemon=True).start()
        place = ("127.0.0.1", server.getsockname()[1])
        strangers.until_listening(*place, 1, SECONDS, time.monotonic() + SECONDS)
        assert closed.is_set()
    with pytest.raises(ConnectionRefusedError):  # as where what was there has ended: the caller looks why
        strangers.until_listening(*closing(), 1, SECONDS, time.monotonic() + SECONDS)


def test_what_comes_in_the_place_of_what_has_ended_is_waited_for() -> None:
    """Beside rank 0 another process serves its port, once that has ended, until all have heard why."""
    need("gloo")
    dist = pytest.importorskip("torch.distributed")
    place, stores = closing(), []

    def follow() -> None:
        time.sleep(0.3)
        stores.append(dist.TCPStore(*place, 2, True, wait_for_workers=False))

    follower = threading.Thread(target=follow)
    follower.start()
    strangers.until_listening(*place, 1, SECONDS, time.monotonic() + SECONDS, again=True)
    follower.join()
    assert len(stores) == 1


def closing() -> tuple[str, int]:
    """A place where one connection is closed, and then nobody is."""
    server = socket.create_server(("127.0.0.1", 0))

    def close() -> None:
        connection, _ = server.accept()
        server.close()
        connection.close()

    threading.Thread(target=close, daemon=True).start()
    return "127.0.0.1", server.getsockname()[1]


def test_stores_that_answer_in_other_words_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should a torch of later have others, all is as it would be without this question."""
    need("gloo")
    assert strangers._knows_the_words()
    monkeypatch.setattr(strangers, "_ANSWER", b"what")  # to a question with another word in it
    assert not strangers._knows_the_words()
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=meet_each, args=(server, "answers"), daemon=True).start()
        strangers.until_listening(*server.getsockname(), 1, SECONDS, time.monotonic() + SECONDS)
        server.shutdown(socket.SHUT_RDWR)


def answer_after(server: socket.socket, seconds: float, word: bytes) -> None:
    connection, _ = server.accept()
    with connection:
        time.sleep(seconds)
        connection.sendall(word)
        while connection.recv(100):
            pass


@pytest.mark.parametrize(
    ("word", "pause", "found"), [(b"", 0.0, False), (b"1", 0.0, True), (b"1", 1.0, True)]
)
def test_who_is_silent_when_asked_is_no_store(
    monkeypatch: pytest.MonkeyPatch, word: bytes, pause: float, found: bool
) -> None:
    """The patience for one that is asked is brief, and begins with the question, not with a slow name."""
    monkeypatch.setattr(strangers, "_SILENCE", 0.5)
    held: list[socket.socket] = []

    def make() -> Store:
        time.sleep(pause)
        held.append(socket.create_connection(server.getsockname()))
        held[0].sendall(b"are you there?")
        held[0].recv(1)
        return cast("Store", held[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=answer_after, args=(server, 0.0, word), daemon=True).start()
        began = time.monotonic()
        store = strangers.soon(make, server.getsockname()[1], SECONDS)
        assert (store is not None) == found and time.monotonic() - began < SECONDS / 2
    held[0].close()


def test_another_job_that_has_the_port() -> None:
    """Its store answers as ours would. Neither job is disturbed: the other one's ranks meet afterwards."""
    need("gloo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port), "SHARDRUN_TIMEOUT": str(SECONDS),
    }  # fmt: skip
    first, second = ({"SHARDRUN_JOB": word * 32} for word in "12")
    waiting = copies(torch=True).popen(
        ["-c", PROGRAM], {**os.environ, **SETTINGS, **environ, **first, "RANK": "0"}, Path.cwd()
    )
    try:
        stranger = run(PROGRAM, {**environ, **second, "RANK": "1"})
        assert stranger.returncode == 1
        assert f"Port {port} of 127.0.0.1 (MASTER_ADDR, MASTER_PORT) is taken" in stranger.stderr
        own = run(PROGRAM, {**environ, **first, "RANK": "1"})
        assert own.returncode == 0, own.stderr
        assert waiting.communicate(timeout=2 * SECONDS) == ("", "")
    finally:
        waiting.kill()


class Words(dict[str, str]):
    """A store without a process."""

    def set(self, key: str, value: str) -> None:
        self[key] = value

    def get(self, key: str) -> bytes:  # type: ignore[override]
        return self[key].encode()

    def check(self, keys: list[str]) -> bool:
        return set(keys) <= self.keys()


def test_jobs_without_a_name_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what Open MPI or Slurm call those that they have started; not where ranks may be started apart."""
    monkeypatch.delenv("SHARDRUN_JOB", raising=False)
    plain = {"LOCAL_RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"}
    step = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    alone = {**step, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    open_mpi = {f"OMPI_COMM_WORLD_{name}": "1" for name in ("RANK", "LOCAL_RANK")}
    open_mpi |= {"OMPI_COMM_WORLD_SIZE": "2"}
    for own, other, alike in (
        ({**step, "SLURM_JOB_ID": "7"}, {**step, "SLURM_JOB_ID": "8"}, False),
        ({**step, "SLURM_JOB_ID": "7"}, {**step, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "1"}, False),
        ({**step, "SLURM_JOB_ID": "7"}, {**step, "SLURM_JOB_ID": "7", "SLURM_PROCID": "0"}, True),
        ({**open_mpi, "PMIX_NAMESPACE": "a@1"}, {**open_mpi, "PMIX_NAMESPACE": "b@1"}, False),
        # A user's own numbers: in two steps, or in two programs of mpirun.
        ({**plain, **alone, "RANK": "0", "SLURM_JOB_ID": "7"}, {**plain, "RANK": "1"}, True),
    ):  # fmt: skip
        store = cast("Store", Words())
        strangers.sign(store, identify(environ=own))
        assert strangers.is_ours(store, identify(environ=other), 0.1) == alike, (own, other)
    monkeypatch.setenv("SLURM_HET_SIZE", "2")  # its components are jobs with numbers of their own
    store = cast("Store", Words())
    strangers.sign(store, identify(environ={**step, "SLURM_JOB_ID": "7"}))
    assert strangers.is_ours(store, identify(environ={**step, "SLURM_JOB_ID": "8"}), 0.1)


SEVERAL = """
import sys
import numpy as np
import torch.distributed as dist
from ranks.run import group
from ranks.collectives.torch.distributed import GlooCommunicator
from ranks.collectives.torch.group import Membership
from ranks.identity.identity import identify

who = identify()
if sys.argv[1] == "initialised":
    dist.init_process_group("gloo")
sums = []
with_two = [group.join(collectives="gloo"), GlooCommunicator(Membership(who, 60.0, "gloo"), 60.0)]
for communicator in with_two:
    part = np.ones(3)
    communicator.all_reduce(part)
    sums.append(float(part[0]))
with_two[1].close()
group.leave()
print(sums, dist.is_initialized())
"""


@pytest.mark.parametrize("first", ["ours", "initialised"])
def test_a_second_group_needs_no_second_store(first: str) -> None:
    """Ranks of several hosts, with a group for the host's values and one for the device's; or in a program
    that has initialised torch.distributed itself."""
    need("gloo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        **os.environ, **SETTINGS, "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHARDRUN_TIMEOUT": "60",
    }  # fmt: skip
    ranks = [
        copies(torch=True).popen(["-c", SEVERAL, first], {**environ, "RANK": str(rank)}, Path.cwd())
        for rank in range(2)
    ]  # fmt: skip
    try:
        ends = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    for said, errors in ends:
        assert said.splitlines()[-1:] == [f"[2.0, 2.0] {first == 'initialised'}"], errors
