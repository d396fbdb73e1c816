"""What `shardrun run` makes of its flags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from launcher.commands import run
from launcher.tasks import run as task


@pytest.mark.parametrize(
    ("words", "tee", "show"),
    [
        ([], None, "table"),
        (["--json"], None, "json"),
        (["--quiet"], (), "nothing"),
        (["--tee", "1"], (1,), "table"),
        (["--quiet", "--tee", "1"], (), "nothing"),
    ],
)
def test_a_quiet_run_shows_no_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], tee: tuple[int, ...] | None, show: str
) -> None:
    model = tmp_path / "m.onnx"
    model.touch()
    done: list[tuple[Any, str]] = []
    monkeypatch.setattr(task, "external_identity", lambda job: None)
    monkeypatch.setattr(task, "run_group", lambda job, shown: done.append((job, shown)))
    assert run._run(cli.build_parser("run").parse_args(["run", str(model), "--ranks", "2", *words])) == 0
    ((job, shown),) = done
    assert (job.tee, shown) == (tee, show)
