"""Ranks that end before they have joined, where nothing else sees it: the others learn of it."""

from __future__ import annotations

import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ranks.collectives import absence, siblings
from ranks.identity.identity import identify
from tests.launcher.processes import wait_until
from tests.left_behind import holding
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import HAS_TORCH, need

PROGRAM = """
import os, signal, sys, time
from ranks.collectives.absence import ABSENCE
from ranks.errors import PeerLostError
from ranks.identity.identity import identify
from ranks.run import group

ABSENCE.stand(identify())
if os.environ["RANK"] in sys.argv[2].split(","):
    time.sleep(float(sys.argv[3]))
    exec(sys.argv[1])
try:
    joined = group.join()
    if os.environ.get("TEST_SPLIT"):
        joined.split([[0, 1], [2]])
except PeerLostError as error:
    print(error.peer, error, flush=True)
    sys.exit(5)
print("joined", flush=True)
time.sleep(0.5)
group.leave()
"""
SHELL = """
import ctypes, subprocess, sys
ctypes.CDLL(None).prctl(15, b"slurmstepd", 0, 0, 0)  # its name
subprocess.run(sys.argv[1:], stdin=subprocess.DEVNULL)
print("ended", flush=True)
sys.stdin.read()
"""
"""What starts a rank in a step of Slurm, and is still there when that has ended."""
SECONDS = 100.0
"""The ranks would wait four times as long."""


class Ranks:
    """Ranks that nothing of this project starts, of one host or, as they are told, of several."""

    def __init__(self, size: int, several: bool, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.mark = f"SHARDRUN_JOB={secrets.token_hex(16)}"
        self.environ = {
            **os.environ, "WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "SHARDRUN_TIMEOUT": str(4 * SECONDS), **dict([self.mark.split("=")]),
        }  # fmt: skip
        if several:  # then this process is what started them
            self.environ["TORCHELASTIC_RUN_ID"] = "test"
        self.size, self.several = size, several
        self.folder = folder
        self.started: dict[int, Any] = {}

    def start(self, rank: int, death: str, dying: str, seconds: float = 0.0, *, copied: bool = True) -> None:
        """``copied``: as a copy of a process that has imported torch, most of what a new one would do."""
        place = (0, 1) if self.several else (rank, self.size)
        told = {"RANK": rank, "LOCAL_RANK": place[0], "LOCAL_WORLD_SIZE": place[1]}
        environ = {**self.environ, **{name: str(value) for name, value in told.items()}}
        command = ["-c", PROGRAM, death, dying, str(seconds)]
        if copied:
            output, errors = self.folder / f"{rank}.out", self.folder / f"{rank}.err"
            server = worlds.copies(torch=HAS_TORCH)
            self.started[rank] = server.start(command, environ, output=output, errors=errors)
            return
        self.started[rank] = subprocess.Popen(
            [sys.executable, *command], text=True, env=environ, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip

    def said(self, rank: int) -> tuple[str, str, int]:
        out, errors = self.started[rank].communicate(timeout=SECONDS)
        return out, errors, self.started[rank].returncode

    def close(self) -> None:
        for process in self.started.values():
            process.kill()
            process.communicate()
        for pid in holding(self.mark):
            os.kill(pid, 9)


@pytest.fixture
def ranks(request: pytest.FixtureRequest) -> Iterator[Ranks]:
    size, several = request.param
    if several:
        need("gloo")
    with tempfile.TemporaryDirectory() as folder:
        made = Ranks(size, several, Path(folder))
        yield made
        made.close()


@pytest.mark.parametrize(
    ("ranks", "dead", "death"),
    [
        ((3, False), 0, "os._exit(0)"),
        ((3, False), 1, "os.kill(os.getpid(), signal.SIGKILL)"),
        ((3, False), 2, "1 / 0"),
        ((3, True), 0, "1 / 0"),
        ((3, True), 1, "os.kill(os.getpid(), signal.SIGKILL)"),
    ],
    indirect=["ranks"],
)
def test_the_others_learn_of_it(ranks: Ranks, dead: int, death: str) -> None:
    """Those that wait already, and where what started them is there, one that comes later; nothing is left
    behind."""
    late = 2 if dead != 2 else 1
    seconds = {dead: 1.0, late: 4.0 if ranks.several else 0.0}
    for rank in range(3):
        ranks.start(rank, death if rank == dead else "pass", f"{dead},{late}", seconds.get(rank, 0.0))
    began = time.monotonic()
    for rank in {0, 1, 2} - {dead}:
        out, errors, code = ranks.said(rank)
        where = rf"{dead} Rank {dead} on host {re.escape(os.uname().nodename)} ended before all ranks had"
        assert re.match(where, out) and code == 5, (rank, out, errors)
        assert "frame #" not in errors and "Exception raised" not in errors, errors
    assert time.monotonic() - began < SECONDS
    assert wait_until(lambda: not holding(ranks.mark), absence.SHORTLY + 20), holding(ranks.mark)


@pytest.mark.parametrize("ranks", [(2, False), (2, True)], indirect=True, ids=["one host", "several"])
def test_who_has_joined_has_no_process_beside_it(ranks: Ranks) -> None:
    for rank in range(2):
        # Until rank 1 comes they are there, long enough to be seen. Of one host they begin as a user's do.
        ranks.start(rank, "pass", "1", 2.0, copied=ranks.several)
    try:
        assert wait_until(lambda: len(holding(ranks.mark)) == 4, SECONDS), holding(ranks.mark)
    finally:
        ends = [ranks.said(rank) for rank in range(2)]
    assert [end[0] for end in ends] == ["joined\n"] * 2, ends
    assert wait_until(lambda: not holding(ranks.mark), 10), holding(ranks.mark)


@pytest.mark.parametrize(
    ("tasks", "stays"), [("2", True), ("1", False)], ids=["a task is the rank", "a shell in a step"]
)
def test_it_is_told_for_long_only_where_this_start_is_the_launchers(tasks: str, stays: bool) -> None:
    """In an interactive shell the same ranks may be started again, by the same names, and must be able to
    meet."""
    mark = f"SHARDRUN_JOB={secrets.token_hex(16)}"
    place = ("RANK=0", "WORLD_SIZE=2", "LOCAL_RANK=0", "LOCAL_WORLD_SIZE=2")
    step = ("SLURM_JOB_ID=7", "SLURM_STEP_ID=0", "SLURM_PROCID=0", "SLURM_LOCALID=0")
    command = ["env", mark, *place, *step, f"SLURM_STEP_NUM_TASKS={tasks}"]
    with subprocess.Popen(
        [sys.executable, "-c", SHELL, *command, sys.executable, "-c", PROGRAM, "os._exit(3)", "0", "0"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE,
    ) as shell:  # fmt: skip
        try:
            assert shell.stdout is not None and shell.stdout.readline() == b"ended\n"
            ended = wait_until(lambda: not holding(mark), absence.SHORTLY + (2 if stays else 30))
            assert ended != stays, holding(mark)
        finally:
            for pid in holding(mark):
                os.kill(pid, 9)


INSIDE = """
import torch.distributed as dist
dist.{function} = lambda *given, **named: {death}
"""
"""What ends a rank when it is about to join in that function of torch's; the others wait in it then."""


@pytest.mark.parametrize(
    ("ranks", "dead", "death"),
    [
        ((3, False), 0, "os._exit(0)"),
        ((3, False), 1, "os.kill(os.getpid(), signal.SIGKILL)"),
        ((3, True), 0, "os._exit(0)"),
        ((3, True), 2, "os.kill(os.getpid(), signal.SIGKILL)"),
    ],
    indirect=["ranks"],
)
def test_who_ends_while_torch_joins(ranks: Ranks, dead: int, death: str) -> None:
    """In C++ the others wait for its address, for as long as their time-out."""
    need("gloo")
    ranks.environ["SHARDRUN_COLLECTIVES"] = "gloo"
    began = time.monotonic()
    for rank in range(3):
        ranks.start(rank, INSIDE.format(function="init_process_group", death=death), str(dead))
    for rank in {0, 1, 2} - {dead}:
        out, errors, code = ranks.said(rank)
        said = rf"{dead} Rank {dead}\b.* ended before all (ranks )?had joined"
        assert re.match(said, out), (out, errors)
        assert code == 5 and "frame #" not in errors and "Exception raised" not in errors, errors
    assert time.monotonic() - began < SECONDS
    assert wait_until(lambda: not holding(ranks.mark), absence.SHORTLY + 20), holding(ranks.mark)


@pytest.mark.parametrize(
    ("ranks", "says"),
    [((3, False), "1 Rank 1"), ((3, True), "None Another rank")],
    indirect=["ranks"],
    ids=["one host", "several"],
)
def test_who_ends_while_torch_makes_another_group(ranks: Ranks, says: str) -> None:
    """It has joined, and nothing is beside it any more; the others are connected to it. Rank 2 is done by
    then: else it might hear of it from rank 0."""
    need("gloo")
    ranks.environ |= {"SHARDRUN_COLLECTIVES": "gloo", "TEST_SPLIT": "1"}
    wait = (
        f"[time.sleep(0.02) for _ in iter(lambda: open({str(ranks.folder / '2.out')!r}).read(), 'joined\\n')]"
    )
    death = INSIDE.format(function="new_group", death=f"({wait}, os.kill(os.getpid(), signal.SIGKILL))")
    began = time.monotonic()
    for rank in range(3):
        ranks.start(rank, death, "1")
    out, errors, code = ranks.said(0)
    assert out.startswith(f"{says} ended before all ranks had joined.") and code == 5, (out, errors)
    assert ranks.said(2)[0] == "joined\n"  # which is in no group with it
    assert time.monotonic() - began < SECONDS


LATER = """
import torch.distributed as dist
made = dist.new_group
dist.new_group = lambda ranks, **named: (time.sleep(4 * (ranks == [0, 1])), made(ranks, **named))[1]
"""


@pytest.mark.parametrize("ranks", [(3, False)], indirect=True)
def test_who_is_in_another_group_may_have_ended_well(ranks: Ranks) -> None:
    """Rank 2 is done before rank 1 comes to make the group of the others."""
    need("gloo")
    ranks.environ |= {"SHARDRUN_COLLECTIVES": "gloo", "TEST_SPLIT": "1"}
    for rank in range(3):
        ranks.start(rank, LATER, "1")
    ends = [ranks.said(rank) for rank in (2, 0, 1)]
    assert [(out, code) for out, _, code in ends] == [("joined\n", 0)] * 3, ends


PMIX = {"PMIX_RANK": "1", "PMIX_NAMESPACE": "slurm.pmix.7.0"}
TASK = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "3", "SLURM_PROCID": "1", "SLURM_LOCALID": "0",
        "SLURM_STEP_NUM_TASKS": "2", "SLURM_NODEID": "1"}  # fmt: skip
FAR = {**TASK, "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}
NEAR = {**TASK, "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0", "SLURM_LOCALID": "1"}
PMI = {"PMI_RANK": "1", "PMI_SIZE": "2"}
OPEN_MPI = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environ", "collectives", "needed"),
    [
        (FAR, "", True),
        ({**FAR, **PMIX}, "gloo", True),
        ({**FAR, **PMI}, "gloo", True),
        ({**NEAR, **PMIX}, "", True),
        ({**NEAR, **PMIX}, "auto", True),
        ({**FAR, **PMIX}, "", False),
        ({**FAR, **PMI}, "auto", False),
        ({**FAR, **PMIX}, "mpi", False),
        ({**NEAR, **PMIX}, "mpi", False),
        ({**FAR, **PMIX, **OPEN_MPI}, "gloo", False),
        ({**PMI, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, "gloo", True),
        ({**PMI, "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}, "", True),
        ({**PMI, "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "1"}, "", False),
        (OPEN_MPI, "gloo", False),
    ],
)
def test_where_ranks_of_mpi_need_it(
    monkeypatch: pytest.MonkeyPatch, environ: dict[str, str], collectives: str, needed: bool
) -> None:
    """Open MPI's mpirun ends all where one ends by an error; others need not. In MPI_Init it is of no use."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "PMI", "OMPI_", "SHARDRUN_", "MPI_")):
            monkeypatch.delenv(name)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    identity = identify()
    assert (identity.rank, identity.world_size) == (1, 2)
    assert absence._is_needed(identity, collectives) == needed


@pytest.mark.parametrize("ranks", [(2, False), (2, True)], indirect=True, ids=["one host", "several"])
def test_a_rank_and_the_process_beside_it_are_killed_together(ranks: Ranks) -> None:
    """As where a whole control group is: nobody is left to tell, and the rank is missed in time."""
    ranks.environ |= {"SHARDRUN_TIMEOUT": "8", "SHARDRUN_COLLECTIVES": "gloo"}
    need("gloo")
    death = "ABSENCE._process.kill(); ABSENCE._process.wait(); os.kill(os.getpid(), signal.SIGKILL)"
    ranks.start(1, death, "1")
    ranks.start(0, "pass", "")
    out, errors, code = ranks.said(0)
    assert code != 0 and re.search(r"Ranks? 1\b.* did not join within 8 s", out + errors), (out, errors)


def test_a_process_that_waits_for_no_other_is_not_tied_to_what_started_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(siblings, "end_with_launcher", lambda: pytest.fail("it is"))
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "1")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "0")
    with siblings.watched(identify()):
        pass
