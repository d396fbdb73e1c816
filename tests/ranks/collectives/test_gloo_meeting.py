"""Ranks of several hosts that do not all come: each waits the time-out once, and says for whom."""

from __future__ import annotations

import os
import socket
import subprocess
import threading
import time
from pathlib import Path
from typing import cast

import pytest

from ranks.collectives.torch import strangers
from ranks.collectives.torch.protocols import Store
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


def test_a_stranger_that_has_the_port() -> None:
    """It takes connections and says nothing: torch would wait for ever."""
    need("gloo")
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        port = stranger.getsockname()[1]
        environ = {
            "RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHARDRUN_TIMEOUT": "3",
        }  # fmt: skip
        done = run(PROGRAM, environ)
    assert done.returncode == 1
    *_, said = done.stderr.splitlines()
    assert f"Port {port} of 127.0.0.1 (MASTER_ADDR, MASTER_PORT) is taken by another program" in said
    assert "frame #" not in done.stderr


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
