"""What collectives do when ranks come late, die, leave, or do something else."""

from __future__ import annotations

import pytest

from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import launcher, need

OPERATIONS = ["all_reduce", "barrier", "broadcast"]


@pytest.mark.parametrize("backend", ["shm", "mpi", "gloo"])
def test_time_out_names_who_is_missing(backend: str) -> None:
    need(backend)
    world = worlds.run(
        backend, 2, "late", launcher=launcher(backend), seconds=1.5, who=[1], operation="all_reduce"
    )
    report = world.ranks[0].reports
    assert report["error"] == "CollectiveTimeoutError", world.ranks[0].errors
    assert (
        "Rank 1 did not come to all_reduce of float32[100] within 1.5 s (rank 0 waited)" in report["message"]
    )
    assert "cannot be used any more: Rank 1 did not come" in report["afterwards"]


@pytest.mark.parametrize("operation", OPERATIONS)
def test_time_out_names_all_that_are_missing(operation: str) -> None:
    world = worlds.run("shm", 4, "late", seconds=0.5, who=[1, 3], operation=operation)
    for rank in (0, 2):
        report = world.ranks[rank].reports
        assert report["error"] == "CollectiveTimeoutError", world.ranks[rank].errors
        assert "Ranks 1, 3 did not come to" in report["message"]
        assert operation in report["message"]


@pytest.mark.parametrize(
    ("backend", "who", "operation"),
    [
        ("shm", [2], "all_reduce"),
        ("shm", [0, 2], "broadcast"),
        ("gloo", [2], "all_reduce"),
        ("gloo", [0], "broadcast"),
        ("mpi", [0], "all_reduce"),
        ("mpi", [1, 2], "broadcast"),
    ],
)
def test_ranks_that_alone_cannot_go_on_say_why(backend: str, who: list[int], operation: str) -> None:
    """What all cannot do ends nothing."""
    need(backend)
    world = worlds.run(
        backend, 3, "failed", launcher=launcher(backend), timeout=60, who=who, operation=operation
    )
    for rank, ended in enumerate(world.ranks):
        report = ended.reports
        assert report.get("finished") and report["alike"] and report["sum"] == 3, str(world)
        assert report["seconds"] < 30, "learnt by time-out"
        if rank in who:
            assert report["alone"] is False
            continue
        assert report["error"] == "PeerLostError" and report["peer"] in who, str(world)
        assert report["message"] == f"Rank {report['peer']} could not go on: this one has a cold"
        assert "cannot be used any more" in report["afterwards"]


@pytest.mark.parametrize("operation", ["all_reduce", "broadcast", "recv", "large"])
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_every_rank_learns_of_a_death(backend: str, operation: str) -> None:
    need(backend)
    if backend == "gloo" and operation in {"broadcast", "recv"}:
        pytest.skip("Gloo's operations all learn of it the same way")
    after = 0.3 if operation == "large" else 0.0  # in the middle of it
    world = worlds.run(backend, 3, "killed", timeout=60, who=2, operation=operation, after=after)
    assert world.ranks[2].status == -9
    for ended in world.ranks[:2]:
        assert ended.status == 0, ended.errors
        assert ended.reports["error"] == "PeerLostError", ended.errors
        assert ended.reports["seconds"] < 30, "learnt by time-out"
        assert ended.reports["peer"] == 2
        assert ended.reports["message"].startswith("Rank 2 ended while rank ")
        assert "cannot be used any more" in ended.reports["afterwards"]


def test_a_death_that_gloo_does_not_tell_is_learnt() -> None:
    """Once in hundreds of times on a busy host it waits for a rank that is gone."""
    need("gloo")
    world = worlds.run("gloo", 3, "untold", timeout=60, seconds=16)
    for ended in (world.ranks[0], world.ranks[2]):
        assert ended.status == 0, ended.errors
        assert (ended.reports["error"], ended.reports["peer"]) == ("PeerLostError", 1), ended.reports
        assert ended.reports["message"].startswith("Rank 1 ended while rank ")
        assert ended.reports["seconds"] < 14, "learnt by its end"


def test_what_gloo_ends_just_after_a_look_is_no_failure() -> None:
    pytest.importorskip("torch", reason="torch is not installed")
    from ranks.collectives.torch.distributed import GlooCommunicator

    class Work:
        waits = 0

        def is_completed(self) -> bool:
            return True

        def wait(self, *_: object) -> None:
            self.waits += 1
            if self.waits == 1:
                raise RuntimeError("Operation timed out!")

    work = Work()
    GlooCommunicator.__new__(GlooCommunicator)._await(work)
    assert work.waits == 2


def test_a_group_of_device_tensors_is_aborted_when_a_rank_is_killed() -> None:
    """With torch's own functions, on CPU tensors over Gloo."""
    need("gloo")
    world = worlds.run("auto", 3, "device_killed", timeout=60, copied=True, who=2)
    for ended in world.ranks[:2]:
        report = ended.reports
        assert ended.status == 0 and report.get("finished"), ended.errors
        assert (report["error"], report["peer"], report["initialised"]) == ("PeerLostError", 2, False)
        assert report["message"].startswith("Rank 2 ended while rank ")
        assert report["seconds"] < 30


def test_mpi_ends_all_ranks_when_one_is_killed() -> None:
    need("mpi")
    world = worlds.run("mpi", 2, "killed", launcher="mpirun", who=1, operation="all_reduce", after=0.0)
    assert world.status == 137
    assert "finished" not in world.ranks[0].reports


def test_mpi_ends_all_ranks_when_one_fails() -> None:
    """By itself MPI would wait for the rank that failed, and mpirun for both."""
    need("mpi")
    world = worlds.run("mpi", 2, "nowhere", launcher="mpirun")
    assert world.status not in {0, None}
    assert "KeyError: 'nowhere'" in world.ranks[0].errors


def test_leaving_in_order() -> None:
    world = worlds.run("shm", 3, "leaving")
    for ended in world.ranks[:2]:
        assert ended.reports["error"] == "PeerLostError", ended.errors
        assert "Rank 2 left the group while rank" in ended.reports["message"]
    assert world.ranks[2].reports["finished"], world.ranks[2].errors


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("shape", "all_reduce of float32 of its own shape while"),
        ("type", "all_reduce of int32 of its own shape while"),
        ("operation", "barrier while"),
        ("root", "broadcast of float32 of its own shape while"),
        ("mail", "Rank 0 sent another type or shape than rank 1 expects in recv from rank 0 of float32[5]"),
    ],
)
def test_ranks_that_disagree_are_told(how: str, words: str) -> None:
    world = worlds.run("shm", 2, "disagreeing", how=how)
    for ended in world.ranks:
        assert ended.status == 0 and ended.reports["finished"], ended.errors
    report = world.ranks[1].reports
    assert report["error"] in {"CollectiveError", "PeerLostError"}
    assert words in report["message"]
    if how != "mail":
        assert "every rank must make the same calls in the same order" in world.ranks[0].reports["message"]


@pytest.mark.parametrize("backend", ["shm", "mpi", "gloo"])
def test_waiting_burns_nothing(backend: str) -> None:
    need(backend)
    world = worlds.run(backend, 2, "idle", launcher=launcher(backend), seconds=3)
    assert world.ranks[0].reports["busy"] < 0.05, world.ranks[0].errors


@pytest.mark.parametrize("backend", ["shm", "mpi", "gloo"])
def test_a_forked_child_is_no_rank(backend: str) -> None:
    need(backend)
    world = worlds.run(backend, 2, "forked", launcher=launcher(backend))
    for ended in world.ranks:
        assert (ended.reports["children"], ended.reports["sum"]) == ([7, 5], 2.0), ended.errors
