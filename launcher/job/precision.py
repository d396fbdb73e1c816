"""Precision on the command line and in job files: the mode of the target, and an execution plan."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from ranks.common.targets import MODES

if TYPE_CHECKING:
    from launcher.job.job import Job
    from ranks.precision.request import Asked

_MOST = 100_000  # bytes: a plan goes to the ranks as one argument, of which Linux takes 128 kB
_TYPE = re.compile(r"(?:data_?type\s*:\s*)?(float16|float32)", re.IGNORECASE)


def parse_entry(text: str) -> tuple[str, str]:
    """Reads ``NAME=float16``; the name may hold equals signs. Raises `ConfigError`."""
    name, _, kind = text.rpartition("=")
    match = _TYPE.fullmatch(kind.strip())
    if not name.strip() or match is None:
        raise ConfigError(
            f"--execution-plan {text}: expected NAME=float16 or NAME=float32, with the name of a node or of "
            "a type of operators"
        )
    return name.strip(), match[1].lower()


def parse_plan(texts: Iterable[str]) -> dict[str, str]:
    """Reads the entries of a plan. Raises `ConfigError`, also for a name that is given twice."""
    entries: dict[str, str] = {}
    for text in texts:
        name, kind = parse_entry(text)
        if entries.setdefault(name, kind) != kind:
            raise ConfigError(f"--execution-plan {text}: {name!r} is given twice, with two types")
    return entries


def asked(job: Job) -> Asked | None:
    """What a job asks for; None where it leaves the model as it is."""
    from ranks.precision.request import Asked

    return Asked(job.precision_mode or "", tuple(job.execution_plan.items())) or None


def check(job: Job) -> None:
    """Raises `ConfigError` for a mode that the target does not have, and for a plan that is too long."""
    mode, allowed = job.precision_mode, MODES[job.target]
    if mode is not None and mode not in allowed:
        raise ConfigError(
            f"--precision-mode {mode} is no mode of the target {job.target}: expected one of "
            f"{', '.join(allowed)}"
        )
    found = asked(job)
    if found is not None and len(found.to_text()) > _MOST:
        raise ConfigError(
            f"--execution-plan: the plan has {len(found.plan)} entries, together longer than {_MOST} "
            "characters; name types of operators instead of single nodes"
        )


def computed(asked: Asked | None, target: str) -> set[str]:
    """The types shorter than float32 that a model is made to compute in, for tolerances."""
    mode, plan = (asked.mode, asked.plan) if asked is not None else ("", ())
    half = target != "cpu" and mode not in {"", "enforce_fp32", "enforce_origin"}
    if half or any(kind == "float16" for _, kind in plan):
        return {"float16"}
    # CUDA's provider multiplies float32 as TF32 unless it is told not to.
    return {"tf32"} if target == "gpu" and mode != "enforce_fp32" else set()
