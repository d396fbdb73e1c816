"""Ranks that something else started, led by rank 0: `launcher.lead`, in scripts under mpirun."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from sharding import slice_model
from tests.launcher import cli_tools
from tests.ranks import state_models

PROGRAM = Path(__file__).with_name("led_program.py")


COLD = "This rank has a cold."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("led")
    for form, save in state_models.FORMS.items():
        save(place / f"{form}.onnx")
    for ranks in (2, 4):
        slice_model(place / "joined.onnx", ranks, place / f"slices{ranks}")
    return place


def led(folder: Path, what: str, ranks: int = 2, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*cli_tools.mpirun(ranks), sys.executable, PROGRAM, folder, what]
    return cli_tools.run(command, folder, **environ)


@pytest.mark.timeout(120)
@pytest.mark.parametrize("ranks", [1, 2])
def test_state_stays_and_texts_are_those_of_the_whole_model(folder: Path, ranks: int) -> None:
    """Also steps that no rank can compute leave all as it was."""
    done = led(folder, "all", ranks)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(lines) == len(state_models.FORMS)
    for form, (sessions, *texts) in zip(state_models.FORMS, lines, strict=True):
        assert len(sessions["good"]) == 10 and all(sessions["good"])
        assert ("indices" in sessions["refused"]) == (form != "streaming")
        assert all(all(item.values()) and len(item) == 4 for item in texts)
        assert len(texts) == (form != "streaming")


@pytest.mark.timeout(60)
def test_a_leader_that_is_idle_is_waited_for(folder: Path) -> None:
    """Longer than any one collective may take: the work may wait for a person."""
    done = led(folder, "idle", SHARDRUN_TIMEOUT="5")
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["0 True", "1 None"]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("raises", "ConfigError: the work went wrong"),
        ("killed", "RankFailedError: Rank 1"),
    ],
)
def test_what_goes_wrong_ends_all_ranks(folder: Path, what: str, message: str) -> None:
    done = led(folder, what, SHARDRUN_TIMEOUT="30")
    assert done.returncode != 0
    assert "True" not in done.stdout
    if what == "killed":  # mpirun may end rank 0 before it can say so
        assert message in done.stderr or "signal 9" in done.stderr
        return
    assert message in done.stderr


@pytest.mark.timeout(90)
@pytest.mark.parametrize(
    ("collectives", "what", "ranks", "why"),
    [
        ("shm", "alone", 2, COLD),
        ("shm", "alone, the leader", 2, COLD),
        ("mpi", "alone", 2, COLD),
        ("gloo", "alone, the leader", 2, COLD),
        ("gloo", "no memory", 4, "MemoryError: none left."),
    ],
)
def test_a_rank_that_alone_cannot_compute_tells_the_others(
    folder: Path, collectives: str, what: str, ranks: int, why: str
) -> None:
    """Nobody waits for a time-out, and all name the first cause. What no rank can compute ends nothing."""
    if collectives == "gloo":
        pytest.importorskip("torch.distributed")
    done = led(folder, what, ranks, SHARDRUN_TIMEOUT="60", SHARDRUN_COLLECTIVES=collectives)
    odd = int(what != "alone, the leader")
    assert done.returncode != 0 and "None" not in done.stdout and "True" not in done.stdout
    lines = {int(line[0]): line[2:] for line in done.stdout.splitlines()}
    assert sorted(lines) == list(range(ranks))
    for rank, line in lines.items():
        wanted = f"{why} Other ranks could compute" if rank == odd else f"Rank {odd} could not go on: {why}"
        assert line.startswith(wanted)
