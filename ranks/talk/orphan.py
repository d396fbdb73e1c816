"""The end of a rank whose launcher was killed: mpirun, srun, torchrun or run_all.sh, started by a user.

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
import time
from typing import NoReturn

from ranks.common import sources
from ranks.common.processes import status
from ranks.common.settings import CONTROL, RUN_ALL
from ranks.talk.connect import EXIT_ORPHANED
from sharding.common.text import parse_whole

_LAUNCHERS = frozenset(
    (
        *("mpirun", "mpiexec", "orterun", "prterun", "prte", "orted", "prted", "mpiexec.hydra"),
        *("hydra_pmi_proxy", "hydra_bstrap_pr", "pmi_proxy", "slurmstepd", "srun"),
    )
)
"""As the kernel names them, with 15 characters."""
_LINGER_SECONDS = 1.5
_FARTHEST = 16  # ancestors that are looked at: between may be shells, or a tool that measures


@functools.cache
def end_with_launcher() -> int:
    """Ends this process when the launcher that started it on this host ends. Gives that one's process; 0, and
    does nothing, without one."""
    if CONTROL.text():
        return 0
    found = _launcher()
    if found is None:
        return 0
    pid, name = found
    who = f"{name} (process {pid})"
    with contextlib.suppress(OSError, AttributeError):  # Linux is older than 5.3
        try:
            watched = os.pidfd_open(pid)
        except ProcessLookupError:
            _end(who)
        threading.Thread(target=_wait, args=(watched, who), name="shardrun orphan", daemon=True).start()
    return pid


def _wait(watched: int, who: str) -> None:
    poll = select.poll()
    poll.register(watched, select.POLLIN)
    poll.poll()
    if not sys.is_finalizing():
        _end(who)


def _end(who: str) -> NoReturn:
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"shardrun: error: {who}, which started this rank, has ended", file=sys.stderr, flush=True)
    os._exit(EXIT_ORPHANED)


def _launcher() -> tuple[int, str] | None:
    """The nearest ancestor that starts ranks, and its name."""
    if run_all := parse_whole(RUN_ALL.text().partition(":")[0]):
        return run_all, "run_all.sh"
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


def say_done(rank: int) -> None:
    """Tells run_all.sh, if that started this rank, that it ends because it is done."""
    _note(f"{rank}\n")


def say_spoken() -> None:
    """Tells run_all.sh, if that started this rank, that it has said why it ends."""
    _note(f"said {os.environ.get(sources.RANK, '')}\n")


def _note(line: str) -> None:
    run_all, number = (parse_whole(part) for part in RUN_ALL.text().partition(":")[::2])
    if run_all is not None and number is not None:
        # Its own descriptor: ours of that number may be closed, or another file that the rank has opened.
        with contextlib.suppress(OSError), open(f"/proc/{run_all}/fd/{number}", "ab") as done:  # noqa: PTH123
            done.write(line.encode())


def let_others_tell(seconds: float) -> None:
    """Waits, where another rank is the cause, until what started both has seen that one's end, said so and
    ended this one: who ends first is the job's answer. ``seconds``: for how long it may still be there."""
    if RUN_ALL.text() or end_with_launcher():
        time.sleep(seconds + _LINGER_SECONDS)
