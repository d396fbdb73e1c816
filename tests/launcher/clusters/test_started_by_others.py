"""`shardrun run` as the tasks of an srun that a user started: dead ranks hold no allocation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.clusters import NAMES, ROOT
from tests.failures.jobs import HOOK
from tests.launcher.cli_tools import environment
from tests.launcher.clusters.conftest import Cluster
from tests.launcher.processes import wait_until

_SECONDS = 60


@pytest.mark.parametrize("collectives", ["gloo", "mpi"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_a_rank_that_is_gone(slurm: Cluster, tmp_path: Path, collectives: str, how: signal.Signals) -> None:
    """Without `srun -K`, by which Slurm itself would end the others; where ranks meet is not said."""
    assert slurm.slurm is not None
    plugin = "none" if collectives == "gloo" else "pmix"
    srun = ["salloc", "--quiet", "--nodes=2", "--ntasks=2", "srun", "--kill-on-bad-exit=0", f"--mpi={plugin}"]
    words = ["run", slurm.slices, "--repeat", 10**9, "--collectives", collectives]
    limits = ["--timeout", 60, "--hang-timeout", 3]
    more = {
        "SHARDRUN_CACHE": str(slurm.folder / "cache"),
        "SHARDRUN_JOB": "0123456789abcdef" * 2,
        "FAILURES_FOLDER": str(tmp_path),
        "PYTHONPATH": f"{ROOT}{os.pathsep}{HOOK}",
    }
    command = slurm.hosts.command(
        NAMES[0], [*srun, sys.executable, "-m", "launcher.cli", *words, *limits],
        **more, **slurm.slurm.environment,
    )  # fmt: skip
    started = subprocess.Popen(
        command, cwd=slurm.folder, env=environment(), stdin=subprocess.DEVNULL, text=True,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    try:
        at_work = [tmp_path / f"busy_{rank}" for rank in range(2)]
        assert wait_until(lambda: all(path.exists() for path in at_work), _SECONDS)
        (victim,) = slurm.ranks(NAMES[1])
        os.kill(victim, how)
        _, said = started.communicate(timeout=_SECONDS)
    finally:
        started.kill()
        started.wait()
    assert started.returncode != 0
    if how == signal.SIGSTOP:
        assert f"rank 1 on host {NAMES[1]} did not go on within 3 s: it is process" in said, said
    assert wait_until(lambda: not slurm.ranks(), 10), (slurm.ranks(), said)
    slurm.slurm.idle()


def two_tasks(slurm: Cluster, path: Path, script: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """``script``, kept at ``path``, as two tasks of srun on two hosts."""
    assert slurm.slurm is not None
    path.write_text(script)
    srun = ["salloc", "--quiet", "--nodes=2", "--ntasks=2", "srun", *flags, "sh", path]
    return subprocess.run(
        slurm.hosts.command(NAMES[0], srun, **slurm.slurm.environment),
        cwd=ROOT, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
        timeout=2 * _SECONDS, check=False,
    )  # fmt: skip


def test_a_rank_that_ends_before_it_has_joined(slurm: Cluster, tmp_path: Path) -> None:
    """As where a host lacks a file: the other rank would wait for it for as long as it may load."""
    command = f"exec {sys.executable} -m launcher.cli run --collectives gloo --timeout 3000"
    script = f"[ $SLURM_PROCID = 1 ] && {command} {tmp_path}/missing.onnx\n{command} {slurm.slices} --quiet\n"
    done = two_tasks(slurm, tmp_path / "task.sh", script, "--kill-on-bad-exit=0", "--mpi=none")
    assert done.returncode != 0
    assert "missing.onnx: no such file" in done.stderr
    gone = f"Rank 1 on host {NAMES[1]} ended before all ranks had joined: see what it said."
    assert f"rank 0 on host {NAMES[0]}: {gone}" in done.stderr, done.stderr
    slurm.slurm.idle()


def test_a_rank_of_another_host_that_never_joins(slurm: Cluster, tmp_path: Path) -> None:
    """It ends with exit code 0, for which `srun -K` ends no other, and nothing reaches a rank in MPI_Init."""
    words = f"--collectives mpi --timeout 3 {slurm.slices} --quiet"
    script = f"[ $SLURM_PROCID = 1 ] && exit 0\nexec {sys.executable} -m launcher.cli run {words}\n"
    done = two_tasks(slurm, tmp_path / "task.sh", script, "-K", "--mpi=pmix")
    assert done.returncode == 1
    waited = f"rank 0 on host {NAMES[0]} has waited 3 s in MPI_Init for the other rank: look for one that"
    assert f"shardrun: error: {waited}" in done.stderr, done.stderr
    slurm.slurm.idle()
