"""An mpirun whose launcher was killed does not stay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.starters.mpi.handle import MpirunHandle
from ranks.common.settings import JOB
from ranks.talk import small
from tests.launcher.processes import MARK, marked, wait_until

SECONDS = 20.0
# A launcher, which starts what stands for its mpirun, in a session of its own, and what is beside it.
LAUNCHER = """
import json, os, subprocess, sys, time
mpirun, beside, order = json.loads(sys.argv[1])
started = subprocess.Popen(mpirun, env={**os.environ, **order}, start_new_session=True)
beside = [word.replace("LAUNCHER", str(os.getpid())).replace("MPIRUN", str(started.pid)) for word in beside]
other = subprocess.Popen(beside, start_new_session=True)
print(started.pid, other.pid, flush=True)
time.sleep(600)
"""
DEAF = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open("deaf", "w").close()
time.sleep(600)
"""


def launched(
    folder: Path, mpirun: str, job: str, patience: float = 0.2
) -> tuple[subprocess.Popen[str], int, int]:
    """A launcher of the job ``ours``, a script in the place of its mpirun, which belongs to ``job``, and what
    stands beside both."""
    code = f"outlived.PATIENCE_SECONDS = {patience}; outlived.main()"
    beside = small.command("launcher.starters.mpi.outlived", code, "LAUNCHER", "MPIRUN", JOB.name)
    words = json.dumps([[sys.executable, "-c", mpirun], beside, {JOB.name: job}])
    launcher = subprocess.Popen(
        [sys.executable, "-c", LAUNCHER, words], stdout=subprocess.PIPE, text=True, cwd=folder,
        env={**os.environ, JOB.name: "ours"},
    )  # fmt: skip
    assert launcher.stdout is not None
    started, other = map(int, launcher.stdout.readline().split())
    assert mpirun != DEAF or wait_until((folder / "deaf").exists, SECONDS)
    return launcher, started, other


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except OSError:
        return False


@pytest.fixture
def ended() -> Iterator[list[int]]:
    """Processes that are killed at the end."""
    found: list[int] = []
    yield found
    for pid in found:
        if runs(pid):
            os.kill(pid, signal.SIGKILL)


def test_it_is_ended_when_it_does_not_end_by_itself(tmp_path: Path, ended: list[int]) -> None:
    launcher, mpirun, beside = launched(tmp_path, DEAF, "ours")
    ended += [mpirun, beside]
    time.sleep(0.5)
    assert runs(mpirun) and runs(beside)
    launcher.kill()
    launcher.wait()
    assert wait_until(lambda: not runs(mpirun), SECONDS) and wait_until(lambda: not runs(beside), SECONDS)


def test_it_has_time_to_end_by_itself(tmp_path: Path, ended: list[int]) -> None:
    script = "import time; time.sleep(1.5); open('done', 'w')"
    launcher, mpirun, beside = launched(tmp_path, script, "ours", patience=60)
    ended += [mpirun, beside]
    launcher.kill()
    launcher.wait()
    assert wait_until(lambda: not runs(beside), SECONDS) and (tmp_path / "done").exists()


def test_what_is_another_job_s_is_let_alone(tmp_path: Path, ended: list[int]) -> None:
    """mpirun's number may be another's by then."""
    launcher, mpirun, beside = launched(tmp_path, DEAF, "another")
    ended += [mpirun, beside]
    launcher.kill()
    launcher.wait()
    assert wait_until(lambda: not runs(beside), SECONDS) and runs(mpirun)


def test_it_ends_with_its_mpirun(tmp_path: Path, ended: list[int]) -> None:
    launcher, mpirun, beside = launched(tmp_path, DEAF, "ours")
    ended += [mpirun, beside, launcher.pid]
    os.kill(mpirun, signal.SIGKILL)
    assert wait_until(lambda: not runs(beside), SECONDS) and launcher.poll() is None
    launcher.kill()
    launcher.wait()


@pytest.mark.parametrize("far", [False, True])
def test_only_jobs_of_several_hosts_have_one(far: bool, tmp_path: Path, ended: list[int]) -> None:
    mark = uuid.uuid4().hex
    environment = {**os.environ, JOB.name: "ours", MARK: mark}
    handle = MpirunHandle([sys.executable, "-c", "input()"], environment, "openmpi", None, far=far)
    try:
        beside = [pid for pid, words in marked(mark).items() if "outlived.main" in words]
        ended += beside
        assert len(beside) == far
    finally:
        handle.kill()
        for pipe in handle.pipes:
            os.close(pipe.descriptor)
        handle.close()
    assert wait_until(lambda: not marked(mark), SECONDS)
