"""Parts of a group: process groups of their own, on every backend."""

from __future__ import annotations

import pytest

from ranks.collectives.single import SingleCommunicator
from ranks.errors import CollectiveError
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import launcher, need
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

BACKENDS = ["shm", "mpi", "gloo"]


@pytest.mark.parametrize("groups", [[[0, 1], [2, 3]], [[0, 2, 3], [1]]])
@pytest.mark.parametrize("backend", BACKENDS)
def test_suite_in_parts(backend: str, groups: list[list[int]]) -> None:
    need(backend)
    world = worlds.run(backend, 4, "parts", launcher=launcher(backend), groups=groups, largest=1 << 20)
    assert world.status in {None, 0}, str(world)
    for rank, ended in enumerate(world.ranks):
        assert ended.status in {None, 0} and ended.reports.get("finished"), str(world)
        part = next(group for group in groups if rank in group)
        assert ended.reports["part"] == part
        assert ended.reports["gather"] > 20


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_death_in_a_part_is_learnt_by_all(backend: str) -> None:
    need(backend)
    world = worlds.run(backend, 4, "part_killed", timeout=60, groups=[[0, 1], [2, 3]], who=3)
    assert world.ranks[3].status == -9
    for ended in world.ranks[:3]:
        assert ended.status == 0, ended.errors
        assert ended.reports["error"] == "PeerLostError", ended.errors
        assert ended.reports["peer"] == 3, "errors name ranks of the whole"
        assert ended.reports["message"].startswith("Rank 3 ended while rank ")
        assert "cannot be used any more: Rank 3 ended" in ended.reports["whole"], (
            "a part's failure is the whole's"
        )
        assert ended.reports["seconds"] < 30, "learnt by time-out"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_time_out_in_a_part_names_ranks_of_the_whole(backend: str) -> None:
    need(backend)
    world = worlds.run(
        backend, 4, "part_late", launcher=launcher(backend), seconds=1.0, groups=[[0, 1], [2, 3]], who=2
    )
    report = world.ranks[3].reports
    assert report["error"] == "CollectiveTimeoutError", world.ranks[3].errors
    assert "Rank 2 did not come to all_reduce of float32[100] within 1 s (rank 3 waited)" in report["message"]
    assert world.ranks[0].reports.get("finished"), world.ranks[0].errors


def test_a_group_of_one_is_its_own_part() -> None:
    single = SingleCommunicator()
    assert single.split([[0]]) is single
    with pytest.raises(CollectiveError, match="do not hold each of the ranks"):
        single.split([[0], [0]])


@pytest.mark.parametrize("groups", [[[1, 0]], [[0], [0, 1]], [[0]], [[0, 2], [1]]])
def test_groups_that_are_not_all_ranks_in_order_are_refused(groups: list[list[int]]) -> None:
    def work(world: FakeCommunicator) -> None:
        with pytest.raises(CollectiveError, match=r"do not hold each of the ranks 0\.\.1 once, in ascending"):
            world.split(groups)

    on_ranks(2, work)
