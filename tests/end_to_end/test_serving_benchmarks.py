"""benchmarks/serving.py and benchmarks/soak.py, small: they run, and what they check holds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def ran(name: str, out: Path, *arguments: object) -> Any:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / name), *map(str, arguments), "--json", str(out)],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(out.read_text())


@pytest.mark.timeout(200)
def test_a_server_beside_its_ranks(tmp_path: Path) -> None:
    rows = ran("serving.py", tmp_path / "rows.json", "--quick", "--ranks", 1)
    found = {row["contestant"] for row in rows}
    assert found == {
        "group.predict", "nothing, binary", "bare, binary", "serve, JSON", "serve, binary", "serve, gRPC"
    }  # fmt: skip
    assert len(rows) == 2 * len(found) and {row["clients"] for row in rows} == {1, 4}
    for row in rows:
        assert 0 < row["p50"] <= row["p90"] <= row["p99"] and row["rate"] > 0 and row["used"] >= 0
        assert row["contestant"] != "group.predict" or (row["part"], row["more"]) == (1, 0)


@pytest.mark.timeout(200)
def test_no_answer_is_wrong_or_lost_while_ranks_are_killed(tmp_path: Path) -> None:
    found = ran("soak.py", tmp_path / "soak.json", "--requests", 300, "--kills", 2, "--clients", 4)
    assert (found["right"], found["wrong"], found["lost"], found["kills"]) == (300, [], [], 2)
    assert len(found["memory"]) == 10 and found["memory"][-1]["processes"] == 2
