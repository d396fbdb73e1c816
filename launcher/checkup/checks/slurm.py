"""Slurm, where it is installed: its nodes, and by what srun tells MPI of ranks."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from launcher.common.programs import ask, last_line
from ranks.common import sources

_SECONDS = 5.0


def _run(asked: Asked) -> Iterator[Finding]:
    if shutil.which("sinfo") is None:
        yield Finding("ok", "not installed here; only `shardrun submit --slurm` and srun need it")
        return
    try:
        done = ask("sinfo", "--noheader", "--format=%P %D %t", seconds=_SECONDS)
        why = last_line(done) if done.returncode else ""
    except OSError as error:
        why = str(error)
    if why:
        advice = "see that slurmctld runs, and SLURM_CONF, if you use Slurm"
        yield Finding("warn", f"installed, but it does not answer ({why})", advice)
        return
    parts = [line.split() for line in done.stdout.splitlines() if len(line.split()) == 3]
    shown = ", ".join(f"{name.rstrip('*')}: {count} {state}" for name, count, state in parts)
    usable = any(state.rstrip("*~#!%$@^-+") in {"idle", "mix", "alloc"} for _, _, state in parts)
    job = os.environ.get(sources.SLURM_JOB_ID)
    inside = f"; this is job {job}" if job else ""
    if usable:
        yield Finding("ok", f"{shown}{_kinds()}{inside}")
    else:
        yield Finding("warn", f"no node can take a job ({shown or 'none is known'})", "see `sinfo -R`")


def _kinds() -> str:
    try:
        done = ask("srun", "--mpi=list", seconds=_SECONDS)
    except OSError:
        return ""
    words = re.findall(r"\b(none|pmi2|pmix)\b", done.stdout + done.stderr)
    return f"; srun --mpi: {', '.join(dict.fromkeys(words))}" if words else ""


CHECK = Check("Slurm", 11, _run)
