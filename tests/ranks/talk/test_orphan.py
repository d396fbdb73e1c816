"""Ranks of an mpirun that a user started, and that is killed: they end, whatever they do."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from ranks.talk import orphan
from tests.launcher.cli_tools import environment
from tests.launcher.processes import LIMIT, MARK, marked, wait_until
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import need

PROGRAM = """
import sys, time
from pathlib import Path
from ranks.run import group
world = group.join()
world.barrier()
Path(sys.argv[1], f"ready{world.rank}").touch()
if sys.argv[2] == "waiting" and world.rank == 0:
    world.barrier()
time.sleep(120)
"""


@pytest.mark.parametrize(
    ("collectives", "mode"), [("auto", "waiting"), ("auto", "asleep"), ("mpi", "asleep")]
)
@pytest.mark.parametrize("through", ["", "a shell"])
def test_ranks_end_with_a_killed_mpirun(tmp_path: Path, collectives: str, mode: str, through: str) -> None:
    need("mpi")
    program = [sys.executable, "-c", PROGRAM, str(tmp_path), mode]
    if through:
        program = ["sh", "-c", '"$@"; exit $?', "sh", *program]
    mark = uuid.uuid4().hex
    environ = environment(**{MARK: mark, "SHARDRUN_COLLECTIVES": collectives, "TMPDIR": str(tmp_path)})
    command = [str(worlds.mpirun()), "-n", "2", "--oversubscribe", *program]
    with (tmp_path / "said").open("wb") as said:
        started = subprocess.Popen(command, env=environ, stdout=said, stderr=said, start_new_session=True)
    try:
        ready = [tmp_path / "ready0", tmp_path / "ready1"]
        assert wait_until(lambda: all(path.exists() for path in ready), 60), (tmp_path / "said").read_text()
        started.kill()
        started.wait()
        assert wait_until(lambda: not marked(mark), LIMIT), marked(mark)
    finally:
        for pid in marked(mark):
            os.kill(pid, signal.SIGKILL)
        started.kill()
        started.wait()


@pytest.mark.parametrize("ends", [False, True])
def test_a_rank_that_ends_anyway_does_not_end_as_an_orphan(
    ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of its launcher, which comes as often first, changes neither its exit code nor what it says."""
    reader, writer = os.pipe()
    os.close(writer)
    told: list[str] = []
    monkeypatch.setattr(orphan, "_end", told.append)
    monkeypatch.setattr(orphan, "sys", SimpleNamespace(is_finalizing=lambda: ends))
    orphan._wait(reader, "mpirun (process 7)")
    os.close(reader)
    assert told == ([] if ends else ["mpirun (process 7)"])
