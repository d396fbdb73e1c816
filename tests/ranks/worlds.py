"""Starts worlds of ranks as a person or a launcher does, and collects how each rank ended."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.copies import Copies

PROGRAM = Path(__file__).with_name("collectives_program.py")
ROOT = Path(__file__).resolve().parents[2]
TIMEOUT = 120  # seconds for a whole world
SETTINGS = {
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    # Freed arrays stay with the process: getting their pages anew took half of the time of the cases.
    "MALLOC_TRIM_THRESHOLD_": str(1 << 28),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 28),
}


def mpirun() -> str | None:
    """The mpirun beside this Python, or of the machine."""
    beside = Path(sys.executable).with_name("mpirun")
    return str(beside) if beside.exists() else shutil.which("mpirun")


@dataclass
class Ended:
    """How one rank ended: its exit status (None under mpirun, which has one for all) and what it reported."""

    status: int | None
    reports: dict[str, Any]
    errors: str


@dataclass
class World:
    """The ranks' ends, and mpirun's status where it started them."""

    ranks: list[Ended]
    status: int | None

    def __str__(self) -> str:
        """What became of every rank: the one that tells of a failure is often not the one that has it."""
        return "\n".join(
            f"rank {rank}: status {ended.status}, reported {ended.reports}\n{ended.errors}"
            for rank, ended in enumerate(self.ranks)
        )


@functools.cache
def copies(*, torch: bool) -> Copies:
    """Copies of a process that has imported what ranks need, with torch or without."""
    more = ["torch.distributed"] if torch else []
    modules = ["numpy", "ml_dtypes", "ranks.run.executor", *more]
    return Copies(modules, {**os.environ, **SETTINGS}, shared=True)


def run(
    backend: str,
    size: int,
    scenario: str,
    *,
    launcher: str = "shell",
    timeout: float = 60,
    environ: dict[str, str] | None = None,
    program: Path = PROGRAM,
    copied: bool | None = None,
    **options: Any,
) -> World:
    """Runs ``scenario`` of the program on ``size`` ranks; kills what is left after `TIMEOUT` seconds.

    ``copied``: ranks are copies of a process that has imported what they need, instead of new ones; by
    default over shared memory and Gloo.
    """
    copied = backend in {"gloo", "shm"} if copied is None else copied
    with tempfile.TemporaryDirectory() as folder:
        base = {
            **os.environ,
            **SETTINGS,
            "SHARDRUN_COLLECTIVES": backend,
            "SHARDRUN_TIMEOUT": str(timeout),
            **(environ or {}),
        }
        command = [sys.executable, str(program), folder, scenario, json.dumps(options)]
        if launcher == "mpirun":
            found = mpirun()
            assert found is not None
            as_root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            flags = ["-n", str(size), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
            statuses = _finish([_start([found, *flags, *command], {**base, **as_root}, folder, "mpirun")])
        else:
            job = secrets.token_hex(16)
            started: list[Any] = []
            server = copies(torch=backend != "shm") if copied else None
            for rank in range(size):
                who = {"RANK": rank, "WORLD_SIZE": size, "LOCAL_RANK": rank, "SHARDRUN_JOB": job}
                variables = {**base, **{name: str(value) for name, value in who.items()}}
                if server is not None:
                    output = Path(folder, f"rank{rank}.err")
                    started.append(server.start(command[1:], variables, output=output, leave=True))
                else:
                    started.append(_start(command, variables, folder, f"rank{rank}"))
            statuses = _finish(started)
        ranks = [
            Ended(
                statuses[rank] if launcher == "shell" else None,
                _reports(Path(folder, f"report{rank}.jsonl")),
                _text(Path(folder, "mpirun.err" if launcher == "mpirun" else f"rank{rank}.err")),
            )
            for rank in range(size)
        ]
        return World(ranks, statuses[0] if launcher == "mpirun" else None)


def _start(command: list[str], environ: dict[str, str], folder: str, name: str) -> subprocess.Popen[bytes]:
    with Path(folder, f"{name}.err").open("wb") as errors:
        return subprocess.Popen(
            command,
            env=environ,
            stdout=errors,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )


def _finish(processes: list[Any]) -> list[int]:
    try:
        return [process.wait(TIMEOUT) for process in processes]
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _reports(path: Path) -> dict[str, Any]:
    reports: dict[str, Any] = {}
    for line in _text(path).splitlines():
        reports.update(json.loads(line))
    return reports


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
