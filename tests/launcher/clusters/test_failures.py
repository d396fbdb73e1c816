"""Some deaths, each with one way to start ranks; scripts/failures.py tries them all (docs/failures.md)."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import ROOT
from tests.failures import page, records
from tests.failures.deaths import DEATHS, QUICK, STARTERS, find, left_out
from tests.failures.jobs import Jobs, Outcome
from tests.launcher.clusters.conftest import Cluster


@pytest.mark.parametrize(("death", "starter", "count"), QUICK)
def test_a_death(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path, death: str, starter: str, count: int
) -> None:
    """Nothing is left, the exit code is right, and the first line names rank, host and cause."""
    slurm = request.getfixturevalue("slurm").slurm if starter == "slurm" else None
    # In the time that the page allows only where nothing else runs: here it is a guard against hanging.
    jobs = Jobs(cluster.hosts, tmp_path, cluster.slices, {}, slurm, seconds=60)
    outcome = jobs.run(find(death), starter, count)
    if outcome.problems and outcome.problems[0].startswith("left out: "):
        pytest.skip(outcome.problems[0])
    assert not outcome.problems, f"{outcome.problems}\n{outcome.errors}"


def test_the_table_is_whole() -> None:
    """Every death is tried with every starter, or it is said why not."""
    assert len({death.name for death in DEATHS}) == len(DEATHS) >= 14
    for name, starter, count in QUICK:
        assert starter in STARTERS and not left_out(find(name), starter, count)
    assert {death.victim for death in DEATHS} == {"rank", "launcher", "host", "cable", "start", "before"}


def test_what_is_kept_of_cells(tmp_path: Path) -> None:
    """The last record of each cell counts, and the page says when and of which commit it was tried."""
    old = {
        "death": "SIGKILL", "starter": "ssh", "hosts": 2, "tries": 1, "date": "2026-01-02", "commit": "abc",
        "problems": ["it goes on"], "first_line": "", "code": None, "seconds": 10.0,
    }  # fmt: skip
    other = {**old, "starter": "slurm", "problems": [], "seconds": 3.21}
    (tmp_path / "2026-01-02.jsonl").write_text("".join(f"{json.dumps(one)}\n" for one in (old, other)))
    kept = records.Records(tmp_path)
    assert not kept.is_right("SIGKILL", "ssh", 2) and kept.is_right("SIGKILL", "slurm", 2)
    assert not kept.is_right("SIGKILL", "ssh", 1)
    assert kept.is_right("SIGKILL", "slurm", 2, committed=True)
    (tmp_path / "2026-01-03.jsonl").write_text(json.dumps({**other, "date": "2026-01-03", "commit": "abc+"}))
    changed = records.Records(tmp_path)
    assert changed.is_right("SIGKILL", "slurm", 2)
    assert not changed.is_right("SIGKILL", "slurm", 2, committed=True)
    (tmp_path / "2026-01-03.jsonl").unlink()
    assert "| SIGKILL | not run | not run | not run | 3.2 | **wrong** | not run |" in page.written(kept.last)
    kept.add("SIGKILL", "ssh", 2, 2, Outcome([], f"in {ROOT}/ranks and /tmp/x/y", 1, 0.75))
    again = records.Records(tmp_path)
    assert again.last == kept.last and again.is_right("SIGKILL", "ssh", 2)
    new = again.last["SIGKILL", "ssh", 2]
    assert new["first_line"] == "in ranks and ..." and new["date"] > "2026-01-02"
    text = page.written(again.last)
    assert "| SIGKILL | not run | not run | not run | 3.2 | 0.8 2nd | not run |" in text
    assert "2 cells are right, 0 are wrong" in text
    assert (
        "| 2026-01-02 | abc | 1 |" in text
        and f"| {new['date']} | {new['commit'] or 'not kept'} | 1 |" in text
    )


def test_help() -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "failures.py", "--help"], capture_output=True, text=True,
        timeout=60, check=True,
    )  # fmt: skip
    assert "--records DIR" in done.stdout and "--open" in done.stdout
