"""Limits of the shell: open files, processes, addresses, locked memory."""

from __future__ import annotations

import resource
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from sharding.common.limits import threads_advice
from sharding.common.text import human_bytes

_FEW_FILES, _TOO_FEW_FILES = 1024, 256


def _run(asked: Asked) -> Iterator[Finding]:
    files = _soft(resource.RLIMIT_NOFILE)
    found = f"open files {'unlimited' if files is None else files}"
    if files is not None and files < _FEW_FILES:
        advice = "`ulimit -n 4096`: a rank opens some 30 files, and one for each that it talks to"
        yield Finding("fail" if files < _TOO_FEW_FILES else "warn", found, advice)
    else:
        yield Finding("ok", found)
    if advice := threads_advice():
        yield Finding("fail", "threads and processes", advice)
    for name, number in (
        ("addresses (-v)", resource.RLIMIT_AS),
        ("files' sizes (-f)", resource.RLIMIT_FSIZE),
    ):
        if (limit := _soft(number)) is not None:
            yield Finding("warn", f"{name} {human_bytes(limit)}", "`ulimit` holds models down: raise it")


def _soft(number: int) -> int | None:
    limit, _ = resource.getrlimit(number)
    return None if limit == resource.RLIM_INFINITY else limit


CHECK = Check("limits", 8, _run)
