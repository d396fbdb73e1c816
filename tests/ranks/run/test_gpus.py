"""Ranks that have come to one GPU: found by what tells GPUs apart, whatever number each knows it by."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from ranks.devices import owners
from ranks.errors import DeviceError
from ranks.run import gpus
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

ONE, TWO, THREE = "0123456789abcdef" * 2, "1" * 32, "2" * 32
NAMED = "the GPU GPU-01234567-89ab-cdef-0123-456789abcdef"


@pytest.mark.parametrize(
    ("held", "shared"),
    [
        ([(ONE, 0), (TWO, 0), (THREE, 0)], None),
        ([(ONE, 0), (TWO, 1), (ONE, 0)], (0, 2, f"{NAMED} (device 0 of each)")),
        ([(TWO, 0), (ONE, 3), (ONE, 1), (TWO, 0)], (1, 2, f"{NAMED} (device 3 and 1 of theirs)")),
        ([("", 0), ("", 0)], None),
        ([], None),
    ],
)
def test_the_first_two_of_one_gpu(held: list[tuple[str, int]], shared: Any) -> None:
    assert owners.first_shared(held) == shared


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> Callable[..., list[Any]]:
    """What each of three ranks says of its GPU, by that GPU."""
    caplog.set_level(logging.WARNING)

    def ask(check: Callable[[Any, int], None], uuids: list[str]) -> list[Any]:
        monkeypatch.setattr(owners, "uuid_of", lambda device: uuids[device])

        def work(rank: FakeCommunicator) -> str | None:
            rank.members = (4, 5, 6)
            try:
                check(rank, rank.rank)
            except DeviceError as error:
                return str(error)
            return None

        return on_ranks(3, work)

    return ask


def test_all_ranks_refuse_it_together(found: Callable[..., list[Any]]) -> None:
    """By their numbers in the job; where each has its own, nothing is said."""
    said = found(gpus.demand_own, [ONE, TWO, ONE])
    assert len(set(said)) == 1
    assert said[0].startswith(f"Ranks 4 and 6 both use {NAMED} (device 0 and 2 of theirs), but NCCL needs")
    assert found(gpus.demand_own, [ONE, TWO, THREE]) == [None] * 3


def test_one_of_them_says_what_sharing_costs(
    found: Callable[..., list[Any]], caplog: pytest.LogCaptureFixture
) -> None:
    assert found(gpus.say_shared, [ONE, TWO, THREE]) == [None] * 3 and not caplog.records
    assert found(gpus.say_shared, [ONE, ONE, TWO]) == [None] * 3
    assert [record.getMessage() for record in caplog.records] == [
        f"ranks 4 and 5 share {NAMED} (device 0 and 1 of theirs): each takes memory of its own there, and "
        "what they exchange goes through host memory"
    ]


def test_a_gpu_is_asked_for_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(owners, "Driver", lambda: SimpleNamespace(uuid=lambda device: f"gpu {device}"))
    assert owners.uuid_of(3) == "gpu 3"
