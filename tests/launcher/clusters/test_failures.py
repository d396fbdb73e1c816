"""Some deaths, each with one way to start ranks; scripts/failures.py tries them all (docs/failures.md)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.failures.deaths import DEATHS, QUICK, STARTERS, find, left_out
from tests.failures.jobs import Jobs
from tests.launcher.clusters.conftest import Cluster


@pytest.mark.parametrize(("death", "starter", "count"), QUICK)
def test_a_death(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path, death: str, starter: str, count: int
) -> None:
    """Nothing is left, the exit code is right, and the first line names rank, host and cause."""
    slurm = request.getfixturevalue("slurm").slurm if starter == "slurm" else None
    jobs = Jobs(cluster.hosts, tmp_path, cluster.slices, None, slurm)
    outcome = jobs.run(find(death), starter, count)
    if outcome.problems and outcome.problems[0].startswith("left out: "):
        pytest.skip(outcome.problems[0])
    assert not outcome.problems, f"{outcome.problems}\n{outcome.errors}"


def test_the_table_is_whole() -> None:
    """Every death is tried with every starter, or it is said why not."""
    assert len({death.name for death in DEATHS}) == len(DEATHS) >= 14
    for name, starter, count in QUICK:
        assert starter in STARTERS and not left_out(find(name), starter, count)
    assert {death.victim for death in DEATHS} == {"rank", "launcher", "host", "cable", "before"}
