"""Which sentence is said first, where the news of one death come in an unlucky order: why a rank ended comes
after the news that it, or another one, is gone. The order is forced here; a busy machine makes it too."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

from launcher.errors import LaunchError, RankFailedError
from launcher.group import control, watch
from launcher.group.watch import Job
from launcher.job.rank_table import RankTable
from launcher.starters import cause
from launcher.starters.base import SOME_RANK, Ended, Handle, Launcher, Pipe
from launcher.starters.findings import Findings
from launcher.starters.mpi.handle import MpirunHandle
from launcher.starters.slurm import SlurmHandle
from ranks.common.settings import CONTROL, JOB
from ranks.talk import wire
from ranks.talk.connect import open_socket
from ranks.talk.stream import Stream
from tests.launcher.processes import wait_until

NOBODY = 1 << 30
"""The number of no process."""
LATE = 0.7  # seconds after the first news: longer than the launcher has waited for what a rank says itself


class Played(Handle):
    """Ranks that are played: what is heard of them comes as the test says. ``like``: whose words they are."""

    like: Any = None

    def __init__(self) -> None:
        super().__init__()
        reader, self._writer = os.pipe()
        self.pipes = [Pipe(reader, None, "stderr")]
        self._over, self._silent = threading.Event(), threading.Event()
        self._said, self._reported, self._blamed = "", False, False  # of `MpirunHandle.heard`
        self._flavour = "openmpi"
        self._missing: frozenset[int] = frozenset()  # of `SlurmHandle.heard`

    def attribute(self, line: str) -> list[tuple[int | None, str]]:
        found: list[tuple[int | None, str]] = self.like.attribute(self, line) if self.like else [(None, line)]
        return found

    def heard(self, line: str) -> list[Ended]:
        return list(self.like.heard(self, line)) if self.like else []

    def say(self, text: str) -> None:
        os.write(self._writer, text.encode())

    def end(self, ended: Ended) -> None:
        self._ended.put(ended)

    def shut(self) -> None:
        """Nothing more is said."""
        if not self._silent.is_set():
            self._silent.set()
            os.close(self._writer)

    def terminate(self) -> None:
        self.shut()
        if not self._over.is_set():
            self._over.set()
            self._ended.put(None)

    kill = terminate


class Player(Launcher):
    """Starts nothing; notes where ranks would say hello."""

    over_ssh = False

    def __init__(self, name: str, handle: Played) -> None:
        self.name, self.handle = name, handle
        self.told: Mapping[str, str] = {}

    def start(
        self,
        program: Sequence[str],
        world_size: int,
        environment: Mapping[str, str],
        table: RankTable | None = None,
    ) -> Handle:
        self.told = environment
        return self.handle


class Play:
    """A job of two ranks that this process plays."""

    def __init__(self, name: str, like: Any, short: str) -> None:
        self.handle = Played()
        self.handle.like, self.handle.short = like, short
        player = Player(name, self.handle)
        self.job = Job(player, ["serve"], 2, environment={})
        self.streams = [Stream(open_socket(CONTROL.text(player.told))) for _ in range(2)]
        for rank, stream in enumerate(self.streams):
            hello = {"job": JOB.text(player.told), "rank": rank, "world_size": 2, "pid": 0, "host": "h"}
            stream.send(wire.Message(wire.Kind.HELLO, hello, {}))
        self.job.wait_for(lambda: len(self.job._peers) == 2, 20, "say hello")

    def gone(self, rank: int) -> None:
        """The connection of a rank ends."""
        self.streams[rank].close()
        assert wait_until(lambda: rank in self.job._found.gone, 20)

    def misses(self, rank: int, peer: int | None) -> None:
        """A rank says that another one is gone."""
        error = {"type": "PeerLostError", "message": f"Rank {peer} ended", "secondary": True, "peer": peer}
        self.streams[rank].send(wire.Message(wire.Kind.ERROR, {**error, "expected": True}, {}))

    def killed(self, rank: int) -> None:
        """srun says that a rank was killed, which the launcher has taken."""
        self.handle.say(KILLED.format(rank))
        assert wait_until(lambda: self.told(rank), 20)

    def told(self, rank: int) -> bool:
        """Whether the launcher knows how or why a rank ended."""
        trouble = self.job._found.troubles.get(rank)
        return trouble is not None and trouble.told

    def failure(self) -> str:
        """The first sentence."""
        with pytest.raises((RankFailedError, LaunchError)) as caught:
            self.job.wait_for(lambda: False, 30, "fail")
        return str(caught.value)

    def close(self) -> None:
        self.job.close()
        for stream in self.streams:
            with contextlib.suppress(OSError):
                stream.close()


@pytest.fixture
def play(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Play]:
    # Or the kernel would say that this process is the ranks, which the launcher ends.
    monkeypatch.setattr(control, "_pid_of", lambda sock: NOBODY)
    made = Play(*request.param)
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What makes the first cause certain is waited for, however long it takes to come."""
    monkeypatch.setattr(watch, "GATHER_SECONDS", 30)


ALONE, MPIRUN, SRUN = ("local", None, ""), ("mpirun", MpirunHandle, ""), ("slurm", SlurmHandle, "")
SHORT = ("mpirun", MpirunHandle, " /tmp has 200 KB free, and MPI may need 32 MB there: free some space.")

ABORT = (
    "prterun has exited due to process rank 1 with PID 0 on node h calling\n"
    '"abort". This may have caused other processes in the application to be\n'
    "terminated by signals sent by prterun (as reported here).\n"
)
LOST = "[1,{}]<stderr>: [h:00000] *** An error occurred in Socket closed\n"
SIGNAL = (
    "prterun noticed that process rank 1 with PID 7 on node h exited on signal 11 (Segmentation fault).\n"
)


@pytest.mark.parametrize("play", [ALONE, MPIRUN, SRUN], indirect=True, ids=lambda given: given[0])
@pytest.mark.parametrize("peer", [1, None])
def test_the_end_of_a_rank_comes_after_the_word_of_one_that_misses_it(play: Play, peer: int | None) -> None:
    play.misses(0, peer)
    time.sleep(LATE)
    play.handle.end(Ended(1, -9))
    assert play.failure().startswith("rank 1 on host h was killed by SIGKILL.")


@pytest.mark.parametrize("play", [SRUN], indirect=True)
@pytest.mark.parametrize(("said", "how"), [("Killed", "SIGKILL"), ("Segmentation fault", "SIGSEGV")])
def test_srun_says_in_one_line_how_several_ranks_ended(play: Play, said: str, how: str) -> None:
    play.gone(1)
    play.handle.say(f"srun: error: h: tasks 0-1: {said}\n")
    assert play.failure().startswith(f"rank 1 on host h was killed by {how}.")


@pytest.mark.parametrize("play", [MPIRUN], indirect=True)
def test_the_end_of_a_rank_comes_after_that_of_one_whose_mpi_missed_it(play: Play) -> None:
    play.handle.say(LOST.format(0))
    play.handle.end(Ended(0, 14))
    time.sleep(LATE)
    play.handle.end(Ended(1, -9))
    assert play.failure().startswith("rank 1 on host h was killed by SIGKILL.")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("play", [ALONE], indirect=True)
def test_how_a_rank_ended_comes_after_the_end_of_the_way_to_its_host(play: Play) -> None:
    """As of one that the agent on its host was killed with."""
    play.handle.end(Ended(1, None, "the ssh connection to h ended"))
    assert wait_until(lambda: play.told(1), 20)
    play.handle.end(Ended(1, -9))
    assert play.failure().startswith("rank 1 on host h was killed by SIGKILL.")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize(
    ("play", "said"),
    [(MPIRUN, SIGNAL), (SRUN, "srun: error: h: task 1: Segmentation fault (core dumped)\n")],
    indirect=["play"],
    ids=["mpirun", "srun"],
)
def test_the_rank_that_was_ended_for_another_one_s_sake_is_missed_first(play: Play, said: str) -> None:
    play.gone(0)
    play.handle.say(said)
    assert wait_until(lambda: play.told(1), 20)
    play.gone(1)
    assert play.failure().startswith("rank 1 on host h was killed by SIGSEGV.")


@pytest.mark.parametrize("play", [SRUN], indirect=True)
def test_a_rank_that_was_ended_is_named_first(play: Play) -> None:
    """By an srun that has lost the host of another one."""
    play.gone(1)
    play.handle.say("srun: error: h: task 0: Killed\n")
    play.gone(0)
    assert play.failure().startswith("rank 1 on host h is gone, and nothing says why.")


MISSED = "0: [h:00000] *** An error occurred in Socket closed\n"
KILLED = "srun: error: h: task {}: Killed\n"


@pytest.mark.parametrize("play", [SRUN], indirect=True)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_srun_killed_all_for_a_rank_whose_mpi_missed_one(play: Play, order: Sequence[int]) -> None:
    """And with them the process above the one that was gone, before it could say how that ended."""
    play.handle.say(MISSED + "".join(KILLED.format(rank) for rank in order))
    for rank in order:
        play.gone(rank)
    play.handle.end(Ended(None, 14))
    play.handle.shut()
    expected = "rank 1 on host h is gone: the MPI of rank 0 lost its connection and ended the job."
    assert play.failure() == expected


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("play", [SRUN], indirect=True)
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_who_saw_a_rank_end_comes_after_srun(play: Play, order: Sequence[int]) -> None:
    play.handle.say(MISSED)
    for rank in order:
        play.killed(rank)
        play.gone(rank)
    play.handle.end(Ended(1, 0))
    assert play.failure().startswith("rank 1 on host h ended with exit code 0 before it was done")


@pytest.mark.parametrize("play", [SRUN], indirect=True)
def test_a_rank_that_was_killed_and_srun_says_so(play: Play) -> None:
    play.handle.say(KILLED.format(1))
    play.gone(1)
    assert play.failure().startswith("rank 1 on host h was killed by SIGKILL.")


@pytest.mark.parametrize("play", [SRUN], indirect=True)
@pytest.mark.parametrize("code", [-11, 0])
@pytest.mark.parametrize("seen", [True, False], ids=["the kernel says so", "only srun says so"])
def test_a_rank_crashes_since_it_misses_the_one_that_was_killed(
    play: Play, code: int, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seen:
        monkeypatch.setattr(play.job._peers[1], "ended", lambda: Ended(1, -9))
    play.killed(1)
    play.handle.end(Ended(0, code))
    play.gone(1)
    play.gone(0)
    assert play.failure().startswith(
        "rank 1 on host h was killed by SIGKILL. Someone killed it, or the kernel"
    )


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("play", [SRUN], indirect=True)
@pytest.mark.parametrize("code", [-11, 0])
def test_a_rank_of_another_host_was_killed_for_one_that_crashed(play: Play, code: int) -> None:
    """And with it the process above it."""
    play.job._peers[1].above.pid = 6
    play.killed(1)
    play.handle.end(Ended(0, code))
    play.gone(0)
    expected = "ended with exit code 0 before" if code == 0 else "was killed by SIGSEGV."
    assert play.failure().startswith(f"rank 0 on host h {expected}")


@pytest.mark.parametrize("play", [SRUN], indirect=True)
@pytest.mark.parametrize(
    ("all_killed", "seen"),
    [(True, True), (False, True), (False, False)],
    ids=["all, as the kernel says", "one, as the kernel says", "one, as srun says"],
)
def test_the_mpi_of_a_rank_missed_the_one_that_was_killed(
    play: Play, all_killed: bool, seen: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seen:
        monkeypatch.setattr(play.job._peers[1], "ended", lambda: Ended(1, -9))
    play.handle.say(MISSED)
    play.killed(1)
    if all_killed:
        play.killed(0)
    else:
        play.handle.end(Ended(0, 14))
    for rank in (1, 0):
        play.gone(rank)
    play.handle.end(Ended(None, 14))
    play.handle.shut()
    assert play.failure().startswith(
        "rank 1 on host h was killed by SIGKILL. Someone killed it, or the kernel"
    )


@pytest.mark.parametrize("play", [MPIRUN, SRUN], indirect=True, ids=lambda given: given[0])
@pytest.mark.parametrize("code", [-11, 0])
def test_a_rank_that_crashed_comes_before_one_of_which_nothing_is_known(play: Play, code: int) -> None:
    """As where MPICH's mpirun, which says nothing of it, has killed that one, and what is above it."""
    play.gone(0)
    play.handle.end(Ended(1, code))
    play.handle.end(Ended(None, 255))
    play.handle.shut()
    play.gone(1)
    expected = "ended with exit code 0 before" if code == 0 else "was killed by SIGSEGV."
    assert play.failure().startswith(f"rank 1 on host h {expected}")


MPICH = (
    "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
    "=   PID {} RUNNING AT h\n=   EXIT CODE: {}\n=   CLEANING UP REMAINING PROCESSES\n"
)


@pytest.mark.parametrize("play", [MPIRUN], indirect=True)
@pytest.mark.parametrize(
    ("pid", "status", "expected"),
    [(6, 9, "was killed by SIGKILL."), (6, 0x8B, "was killed by SIGSEGV."), (9, 9, "is gone, and nothing")],
)
def test_a_rank_is_killed_with_the_process_above_it(play: Play, pid: int, status: int, expected: str) -> None:
    """MPICH's mpirun tells of that process by its number, and ends with a code of its own."""
    play.handle._flavour = "mpich"
    for rank, peer in play.job._peers.items():
        peer.above.pid = 5 + rank
    play.gone(1)
    play.handle.say(MPICH.format(pid, status))
    play.handle.end(Ended(None, 255))
    play.handle.shut()
    play.gone(0)
    assert play.failure().startswith(f"rank 1 on host h {expected}")


@pytest.mark.parametrize("play", [MPIRUN], indirect=True)
@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", "ended with exit code 255."),
        (MPICH.format(7, 9), "is gone, and nothing says why."),
        ("[mpiexec@h] main (hydra/mpiexec.c:270): process manager error\n", "is gone, and nothing says why."),
    ],
    ids=["a rank's", "killed", "lost"],
)
def test_mpich_ends_with_255_for_a_rank_or_itself(play: Play, said: str, expected: str) -> None:
    play.handle._flavour = "mpich"
    play.gone(1)
    play.handle.say(said)
    play.handle.end(Ended(None, 255))
    play.handle.shut()
    play.gone(0)
    assert play.failure().startswith(f"rank 1 on host h {expected}")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("play", [MPIRUN], indirect=True)
@pytest.mark.parametrize("pid", [5, 6])
def test_mpich_has_killed_what_it_tells_of(play: Play, pid: int) -> None:
    """For the sake of a rank of which another process above it tells."""
    play.handle._flavour = "mpich"
    for rank, peer in play.job._peers.items():
        peer.above.pid = 5 + rank
    play.gone(0)
    play.handle.say(MPICH.format(pid, 9))
    play.gone(1)
    play.handle.end(Ended(1, -7))
    assert play.failure().startswith("rank 1 on host h was killed by SIGBUS.")


@pytest.mark.parametrize("play", [MPIRUN], indirect=True)
def test_what_mpirun_says_is_read_after_its_end(play: Play) -> None:
    play.gone(1)
    play.handle.end(Ended(None, 139))
    time.sleep(LATE)
    play.handle.say(SIGNAL)
    play.handle.shut()
    assert play.failure().startswith("rank 1 on host h was killed by SIGSEGV.")


@pytest.mark.parametrize(
    ("play", "before", "expected"),
    [
        (SHORT, "", "mpirun ended with exit code 14 while the ranks were running. /tmp has 200 KB free,"),
        (MPIRUN, "", "rank 1 on host h ended with exit code 14.\nIts last lines:\n  no such device"),
        (MPIRUN, LOST.format(1), "rank 0 on host h is gone: the MPI of rank 1 lost its connection"),
    ],
    indirect=["play"],
    ids=["no room", "its own reason", "a lost connection"],
)
def test_the_mpi_of_a_rank_ended_the_job_and_another_rank_is_missed_first(
    play: Play, before: str, expected: str
) -> None:
    """It did so for a reason of its own, unless it says that it lost a connection."""
    play.gone(0)
    play.handle.say(f"[1,1]<stderr>: no such device\n{before}{ABORT}")
    play.handle.end(Ended(None, 14))
    play.handle.shut()
    play.gone(1)
    assert play.failure().startswith(expected)


@pytest.mark.parametrize("play", [MPIRUN], indirect=True)
def test_a_rank_says_that_it_ended_the_job_and_another_one_is_missed_first(play: Play) -> None:
    """MPICH's mpirun names neither."""
    play.handle._flavour = "mpich"
    play.gone(0)
    play.handle.say("[1] Abort(3) on node 1 (rank 1 in comm 0): application called MPI_Abort(comm=0x84, 3)\n")
    play.handle.end(Ended(SOME_RANK, 3))
    play.handle.end(Ended(None, 3))
    play.handle.shut()
    play.gone(1)
    assert play.failure().startswith("rank 1 on host h ended with exit code 3.")


@pytest.mark.parametrize("order", [(1, 2), (2, 1)])
def test_the_first_rank_that_the_launching_program_names_counts(order: tuple[int, int]) -> None:
    """Those that it names later it may have ended itself, whichever was missed first."""
    found = Findings(3, {}, {})
    ended = {1: Ended(1, -signal.SIGSEGV), 2: Ended(2, -signal.SIGKILL)}
    found.troubles = {rank: cause.Trouble(rank, "h", ended=ended[rank]) for rank in order}
    found.name(1)
    found.name(2)
    first = found.first()
    assert first is not None and first.rank == 1


def test_what_a_launcher_cannot_do_is_said_before_anything_starts() -> None:
    started: list[str] = []

    class Refusing(Player):
        def check(self, table: RankTable | None) -> None:
            raise LaunchError("not on these hosts")

        def start(self, *given: Any) -> Handle:
            started.append(self.name)
            return self.handle

    handle = Played()
    with pytest.raises(LaunchError, match="not on these hosts"):
        Job(Refusing("ssh", handle), ["serve"], 2, environment={})
    assert not started
    handle.shut()
    os.close(handle.pipes[0].descriptor)


def test_a_rank_of_which_nothing_is_known_but_that_it_is_gone() -> None:
    """What the launching program may still say of it is waited for."""
    found = Findings(3, {}, {})
    assert not found.silent()
    found.troubles[1] = cause.Trouble(1, "h")
    assert found.silent()
    found.some = Ended(SOME_RANK, 3)
    assert not found.silent()
    found.some, found.troubles[1].ended = None, Ended(1, 3)
    assert not found.silent()
