"""The deaths: what is done, what the job must then say and end with; scripts/failures.py tries them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Victim = Literal["rank", "launcher", "host", "cable", "start", "before"]

MPIS = {"mpich": "mpirun (MPICH)", "intel": "mpirun (Intel MPI)"}
"""The starters whose MPI is not the one that is installed beside this Python."""
STARTERS = ("local", "mpirun (Open MPI)", *MPIS.values(), "slurm", "ssh", "scripts")
HOSTS = (1, 2)
HANG_SECONDS = 6
"""The hang time-out of the jobs, and how long those wait for ranks that never start."""
START_SECONDS = 0.5
"""A cable that is cut at the start is cut so long after it."""
SECONDS = 10.0
"""Within so many seconds of a death nothing of the job may be left."""


@dataclass(frozen=True)
class Death:
    """One death. In ``says``, a pattern of the first line, ``{rank}`` and ``{host}`` are the victim's."""

    name: str
    victim: Victim
    how: str = ""
    says: str = ""
    codes: tuple[int, ...] = (1,)
    script_codes: tuple[int, ...] = ()
    """What `run_all.sh` on the victim's host ends with, where that is something else."""
    hangs: bool = False
    """The job is not over before its hang time-out is."""
    lives: bool = False
    """The job is not to end."""
    hosts: tuple[int, ...] = HOSTS
    cut: bool = False
    """The cable of the other host is cut in the same moment."""

    @property
    def own_script_codes(self) -> tuple[int, ...]:
        return self.script_codes or self.codes


_RANK = r"shardrun: error: rank {rank} on host {host}"
_ALONE = "the launcher is on that host, and dies with it"

DEATHS = (
    Death("exits with 7", "rank", "exit", rf"{_RANK} ended with exit code 7\b", script_codes=(7,)),
    Death(
        "uncaught exception",
        "rank",
        "exception",
        r"shardrun: (internal )?error: rank {rank} on host {host}: .*a mistake in the model",
        script_codes=(1, 2),
    ),
    Death("`os._exit(0)`", "rank", "success", rf"{_RANK} ended with exit code 0 before it was done"),
    Death("leaves a child", "rank", "child", rf"{_RANK} ended with exit code 3\b", script_codes=(3,)),
    Death("SIGKILL", "rank", "SIGKILL", rf"{_RANK} was killed by SIGKILL\b", script_codes=(137,)),
    Death("SIGSEGV", "rank", "SIGSEGV", rf"{_RANK} was killed by SIGSEGV\b", script_codes=(139,)),
    Death(
        "SIGSTOP",
        "rank",
        "SIGSTOP",
        r".*\brank {rank} on host {host}\b.* stopped\b.*SIGSTOP",
        hangs=True,
        script_codes=(137,),
    ),
    Death("stands still", "rank", "lock", rf"{_RANK} has stood still for", hangs=True),
    Death(
        "out of memory", "rank", "memory", rf"{_RANK} was killed by SIGKILL\b.*memory", script_codes=(137,)
    ),
    Death("host killed", "host", "", r"shardrun: error: .*\bhost {host}\b", hosts=(2,)),
    Death("cable cut", "cable", "cut", r"shardrun: error: .*\bhost {host}\b", hosts=(2,)),
    Death(
        "cable cut, restored after 14 s",
        "cable",
        "restored",
        r"shardrun: error: .*\bhost {host}\b",
        hosts=(2,),
    ),
    Death("cable cut, restored after 2 s", "cable", "blink", lives=True, hosts=(2,)),
    Death("launcher SIGTERM", "launcher", "SIGTERM", "shardrun: terminated", (143,)),
    Death("launcher SIGINT", "launcher", "SIGINT", "shardrun: interrupted", (130,)),
    Death("launcher SIGHUP", "launcher", "SIGHUP", "shardrun: hung up", (129,)),
    Death("launcher SIGKILL", "launcher", "SIGKILL", "", (-9, 137)),
    Death("launcher SIGKILL, cable cut", "launcher", "SIGKILL", "", (-9, 137), hosts=(2,), cut=True),
    Death("disk full", "rank", "disk", rf"{_RANK}: .*No space left on device", script_codes=(1, 2)),
    Death(
        "port taken",
        "before",
        "port",
        r"shardrun: error: .*Port \d+ .*\b(taken|in use)\b",
        (1, 2),
        hosts=(1, 2),
    ),
    Death("cable cut at the start", "start", "cut", r"shardrun: error: .*\bhost {host}\b", hosts=(2,)),
    Death("never starts", "before", "never", r"shardrun: error: .*\b[Rr]ank {rank}\b", hangs=True),
)


QUICK = (
    ("SIGKILL", "scripts", 1),
    ("SIGKILL", "mpirun (Open MPI)", 2),
    ("`os._exit(0)`", "slurm", 2),
    ("SIGSTOP", "scripts", 1),
    ("stands still", "ssh", 2),
    ("uncaught exception", "ssh", 2),
    ("launcher SIGHUP", "ssh", 2),
    ("launcher SIGKILL", "scripts", 2),
    ("out of memory", "local", 1),
)
"""Cells that the tests try; the rest takes too long for each change."""


def find(name: str) -> Death:
    return next(death for death in DEATHS if death.name == name)


def left_out(death: Death, starter: str, hosts: int) -> str:
    """Why a cell of the table cannot be; "" where it can."""
    if starter == "local" and hosts > 1:
        return "local starts ranks on its own host"
    if hosts not in death.hosts:
        return _ALONE
    if death.how == "port" and starter == "scripts" and hosts == 1:
        return "run_all.sh takes a free port"
    return ""
