"""The end of a rank whose launcher was killed: mpirun, srun or torchrun, started by a user.

A killed mpirun ends nothing: its ranks would run on, and wait for each other, with nobody to see it. Ranks
that this project starts itself notice by their control socket (`ranks.talk.control`).
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import sys
import threading

from ranks.common import sources
from ranks.common.processes import status
from ranks.common.settings import CONTROL
from ranks.talk.control import EXIT_ORPHANED

_LAUNCHERS = frozenset(
    (
        *("mpirun", "mpiexec", "orterun", "prterun", "prte", "orted", "prted", "mpiexec.hydra"),
        *("hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "slurmstepd", "srun"),
    )
)
"""As the kernel names them, with 15 characters."""
_FARTHEST = 16  # ancestors that are looked at: between may be shells, or a tool that measures


@functools.cache
def end_with_launcher() -> None:
    """Ends this process when the launcher that started it on this host ends. Does nothing without one."""
    if CONTROL.text():
        return
    found = _launcher()
    if found is None:
        return
    pid, name = found
    with contextlib.suppress(OSError, AttributeError):  # it ended just now, or Linux is older than 5.3
        watched = os.pidfd_open(pid)
        arguments = (watched, f"{name} (process {pid})")
        threading.Thread(target=_wait, args=arguments, name="shardrun orphan", daemon=True).start()


def _wait(watched: int, who: str) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    if sys.is_finalizing():
        return
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"shardrun: error: {who}, which started this rank, has ended", file=sys.stderr, flush=True)
    os._exit(EXIT_ORPHANED)


def _launcher() -> tuple[int, str] | None:
    """The nearest ancestor that starts ranks, and its name."""
    if os.environ.get(sources.TORCHELASTIC_RUN_ID):
        return os.getppid(), "torchrun"
    pid = os.getpid()
    for _ in range(_FARTHEST):
        now = status(pid)
        if now is None:
            return None
        if now.name in _LAUNCHERS:
            return pid, now.name
        pid = now.parent
        if pid <= 1:
            return None
    return None
