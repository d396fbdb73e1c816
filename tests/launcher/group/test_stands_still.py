"""Ranks that get on no more though their process lives: whoever waits for them is told which, and where."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from launcher import start
from launcher.errors import RankFailedError
from launcher.group import halted
from tests.launcher import slices
from tests.launcher.planted import Planted, planted

__all__ = ["planted"]


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halted, "NOTICE_SECONDS", 0.3)
    monkeypatch.setattr(halted, "LOOK_SECONDS", 0.2)
    monkeypatch.setattr(halted, "_GRACE", 0.5)


@pytest.mark.parametrize(
    ("launcher", "rank", "what"), [("local", 1, "waits_for_a_lock"), ("mpirun", 0, "sleeps_on_and_on")]
)
def test_a_rank_that_stands_still_is_named(
    planted: Planted, two_slices: Path, launcher: str, rank: int, what: str
) -> None:
    with start(two_slices, launcher=launcher, threads=1, timeout=60, hang_timeout=1.0) as group:
        group.predict(slices.feeds(1))
        planted.tell(rank, what)
        with pytest.raises(RankFailedError) as caught:
            group.predict(slices.feeds(1))
    assert caught.value.rank == rank
    sentence, _, where = str(caught.value).partition("\n")
    assert sentence.startswith(f"rank {rank} on host {os.uname().nodename} has stood still for 1 s ")
    assert where.startswith(f"Stacks of rank {rank}:\n") and what in where


def test_a_rank_that_computes_for_long_and_one_that_waits_for_it_do_not(
    planted: Planted, two_slices: Path
) -> None:
    with start(two_slices, launcher="local", threads=1, timeout=60, hang_timeout=1.0) as group:
        expected = group.predict(slices.feeds(1))["y"]
        planted.tell(1, "computes")
        assert np.array_equal(group.predict(slices.feeds(1))["y"], expected)


def test_a_rank_that_fails_after_all_have_answered_ends_the_job(planted: Planted, two_slices: Path) -> None:
    """It is out of step, though the answers so far were right."""
    with start(two_slices, launcher="local", threads=1, timeout=60) as group:
        group.predict(slices.feeds(1))
        planted.tell(1, "fails later")
        with pytest.raises(RankFailedError) as caught:
            for _ in range(1000):
                group.predict(slices.feeds(1))
    assert str(caught.value).endswith(": it broke afterwards. Other ranks did not fail alike.")
    assert caught.value.rank == 1
