"""Ranks of several hosts: shared memory within each, one exchange between them.

The hosts are told apart by the names that ranks give them, all on this one.
"""

from __future__ import annotations

import pytest

from ranks.collectives.hierarchical import HierarchicalCommunicator
from ranks.errors import CollectiveError
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import launcher, need
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

FLAT = ["gloo", "mpi"]
PLACES = [[0, 0, 1, 1], [0, 1, 1, 0], [0, 0, 0, 1]]
SUITES = [("gloo", PLACES[0]), ("gloo", PLACES[2]), ("mpi", PLACES[1]), ("mpi", PLACES[2])]
"""Either joins ranks of hosts that are alike, MPI in the harder order of ranks, and of hosts that are not."""
PAIRS, CROSSED, UNEVEN = [[0, 1], [2, 3]], [[0, 2], [1, 3]], [[0, 2, 3], [1]]
DIVIDED = [
    *((PLACES[0], groups) for groups in (PAIRS, CROSSED, UNEVEN)),
    # The other pairs are those of before and of here with other numbers: one rank of each host in each part,
    *((PLACES[1], groups) for groups in (CROSSED, UNEVEN)),
    # or a part within a host and one across.
    *((PLACES[2], groups) for groups in (PAIRS, UNEVEN)),
]


def run(flat: str, hosts: list[int], scenario: str, **options: object) -> worlds.World:
    need(flat)
    copied = flat == "gloo"
    return worlds.run(
        "hierarchical", len(hosts), scenario, launcher=launcher(flat), copied=copied, hosts=hosts, **options
    )  # type: ignore[arg-type]


@pytest.mark.parametrize(("flat", "hosts"), SUITES)
def test_suite(flat: str, hosts: list[int]) -> None:
    world = run(flat, hosts, "suite", light=True, largest=1 << 20)
    assert world.status in {None, 0}, str(world)
    for ended in world.ranks:
        assert ended.status in {None, 0} and ended.reports.get("finished"), str(world)
        assert ended.reports["name"] == f"shm+{flat}"
        assert all(
            ended.reports[operation] > 20 for operation in ("sum", "gather", "exchange", "spread", "pass_on")
        ), ended.reports


@pytest.mark.parametrize(("hosts", "groups"), DIVIDED)
def test_suite_in_parts(hosts: list[int], groups: list[list[int]]) -> None:
    world = run("gloo", hosts, "parts", groups=groups, largest=1 << 18)
    for rank, ended in enumerate(world.ranks):
        assert ended.status == 0 and ended.reports.get("finished"), str(world)
        assert ended.reports["part"] == next(group for group in groups if rank in group)
        assert ended.reports["gather"] > 20


@pytest.mark.parametrize("flat", FLAT)
def test_parts_within_hosts_of_which_some_are_whole(flat: str) -> None:
    """Ranks of a host that is one part, and those of one that is divided, make the parts together."""
    groups = [[0, 1], [2], [3]]
    world = run(flat, [0, 0, 1, 1], "parts", groups=groups, largest=1 << 12, timeout=30)
    for rank, ended in enumerate(world.ranks):
        assert ended.status in {None, 0} and ended.reports.get("finished"), str(world)
        assert ended.reports["part"] == next(group for group in groups if rank in group)


def test_ranks_that_share_no_host_are_a_flat_group() -> None:
    world = run("gloo", [0, 1], "sending_first")
    assert [ended.reports["name"] for ended in world.ranks] == ["gloo"] * 2
    assert all(ended.reports.get("finished") for ended in world.ranks), str(world)


@pytest.mark.parametrize("operation", ["all_reduce", "barrier", "recv", "large"])
def test_every_rank_learns_of_a_death(operation: str) -> None:
    world = run(
        "gloo", [0, 0, 1, 1], "killed", timeout=60, who=3, operation=operation,
        after=0.3 if operation == "large" else 0.0,
    )  # fmt: skip
    assert world.ranks[3].status == -9
    for ended in world.ranks[:3]:
        assert ended.status == 0 and ended.reports.get("finished"), ended.errors
        assert ended.reports["seconds"] < 30, "learnt by time-out"
        assert "cannot be used any more" in ended.reports["afterwards"]
    assert ended.reports["error"] == "PeerLostError" and ended.reports["peer"] == 3, str(world)


@pytest.mark.parametrize("flat", FLAT)
def test_a_rank_that_alone_cannot_go_on_says_why(flat: str) -> None:
    """To those of its host and of others."""
    world = run(flat, [0, 0, 1, 1], "failed", timeout=60, who=[3], operation="all_reduce")
    for rank, ended in enumerate(world.ranks):
        report = ended.reports
        assert report.get("finished") and report["alike"] and report["sum"] == 4, str(world)
        assert report["seconds"] < 30, "learnt by time-out"
        assert rank == 3 or (report["peer"] == 3 and "this one has a cold" in report["message"]), str(world)


def test_a_late_rank_is_named() -> None:
    world = run("gloo", [0, 0, 1, 1], "late", seconds=1.5, who=[3], operation="all_reduce")
    report = world.ranks[2].reports
    assert report["error"] == "CollectiveTimeoutError", world.ranks[2].errors
    assert "Rank 3 did not come to all_reduce of float32[100] within" in report["message"]


def test_a_part_is_not_split_again() -> None:
    def work(rank: FakeCommunicator) -> None:
        whole = HierarchicalCommunicator(((0, 1),), rank, rank, None)
        part = HierarchicalCommunicator(((0, 1),), rank, rank, None, whole)
        with pytest.raises(CollectiveError, match=r"^split: this group is a part of another one already"):
            part.split([[0], [1]])

    on_ranks(2, work)
