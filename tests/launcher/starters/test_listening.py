"""A job of one host takes no connections from other hosts, whatever starts its ranks and joins them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from launcher import start
from launcher.starters.loopback import family, move_to_loopback
from tests.launcher.cli_tools import save_mlp
from tests.listening import outside_loopback
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import launcher as launcher_of
from tests.ranks.collectives.test_collectives import need


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mlp(tmp_path_factory.mktemp("model") / "m.onnx", width=512)


@pytest.mark.parametrize(
    ("launcher", "collectives"),
    [("local", "shm"), ("local", "gloo"), ("mpirun", "shm"), ("mpirun", "gloo"), ("mpirun", "mpi")],
)
def test_a_job(model: Path, launcher: str, collectives: str) -> None:
    for backend in {collectives, "mpi" if launcher == "mpirun" else collectives}:
        need(backend)
    with start(str(model), ranks=2, launcher=launcher, collectives=collectives, timeout=60) as group:
        group.predict({"x": np.ones((2, 8), np.float32)})
        job = family(os.getpid())
        assert {stats.pid for stats in group.stats} <= set(job)
        assert outside_loopback(job) == []


@pytest.mark.parametrize(
    ("backend", "address"), [("gloo", ""), ("gloo", socket.gethostname()), ("mpi", socket.gethostname())]
)
def test_ranks_that_nobody_of_ours_started(backend: str, address: str) -> None:
    """Also in groups along a mesh's axes, and where MASTER_ADDR is this host's name."""
    need(backend)
    environ = {"LOCAL_WORLD_SIZE": "4", "MASTER_ADDR": address, "MASTER_PORT": "29517"}
    world = worlds.run(backend, 4, "open_sockets", launcher=launcher_of(backend), environ=environ)
    for ended in world.ranks:
        assert ended.reports.get("finished"), ended.errors
        assert ended.reports["outside"] == [] and ended.reports["sum"] == [4.0, 2.0]


WAITING = """
import select, socket
sockets = []
for family, address in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::"), (socket.AF_INET, "127.0.0.1")):
    made = socket.socket(family)
    made.bind((address, 0))
    made.listen(4)
    made.setblocking(False)
    sockets.append(made)
print(*[made.getsockname()[1] for made in sockets], flush=True)
while True:
    for made in select.select(sockets, [], [])[0]:
        try:
            made.accept()[0].send(b"hello")
        except BlockingIOError:
            pass
"""


def test_sockets_of_a_child_are_moved_and_still_work() -> None:
    child = subprocess.Popen([sys.executable, "-c", WAITING], stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        ports = [int(port) for port in child.stdout.readline().split()]
        assert len(outside_loopback([child.pid])) == 2
        move_to_loopback(child.pid)
        assert outside_loopback([child.pid]) == [] and child.pid in family(os.getpid())
        assert child.pid not in family(os.getpid(), without=[child.pid])
        for address, port in zip(("127.0.0.1", "::1", "127.0.0.1"), ports, strict=True):
            with socket.create_connection((address, port), 20) as connection:
                connection.settimeout(20)
                assert connection.recv(5) == b"hello"
    finally:
        child.kill()
        child.communicate()
