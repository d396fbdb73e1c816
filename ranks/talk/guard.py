"""A process beside a rank that something else started: it ends the rank that is stopped for too long.

A stopped rank (SIGSTOP) does nothing any more. Other ranks give it up after their time-out, and end; but
mpirun, srun and torchrun wait for it as long as it likes, and hold its nodes. Where what started the rank is
stopped too (Ctrl-Z), or the whole job with this process (`scontrol suspend`), somebody means it: that time
does not count.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

from ranks.common import settings
from ranks.common.processes import is_stopped
from ranks.common.waiting import in_words

_LOOK_SECONDS = 1.0
_CODE = "import sys; sys.path[0] = sys.argv.pop(1); from ranks.talk.guard import main; main()"
_ROOT = Path(__file__).resolve().parents[2]


class Guard:
    """The process beside this one: one, however often it is asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def stand(self, rank: int, host: str, launcher: int, seconds: float | None = None) -> None:
        """Starts the process. ``launcher``: the process that started the rank, or 0; ``seconds``: how long
        the rank may be stopped, by default as long as one that shardrun starts.

        Does nothing where others watch: a launcher of this project, or run_all.sh.
        """
        others = settings.CONTROL.text() or settings.RUN_ALL.text()
        if sys.platform != "linux" or others or self._process is not None:
            return
        limit = settings.DEFAULT_HANG if seconds is None else seconds
        words = [str(_ROOT), str(os.getpid()), str(launcher), str(limit), str(rank), host]
        with contextlib.suppress(OSError):  # the rank itself will say what is short
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )


GUARD = Guard()
"""This process's, which is one rank."""


def main() -> None:
    """What the process does, until the rank ends."""
    pid, launcher, limit = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
    rank, host = sys.argv[4:6]
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    if os.getppid() != pid:  # it has ended, and another may have its number
        return
    poll = select.poll()
    poll.register(process, select.POLLIN)
    stopped, looked = 0.0, time.monotonic()
    while not poll.poll(_LOOK_SECONDS * 1000):
        now = time.monotonic()
        passed, looked = min(now - looked, 2 * _LOOK_SECONDS), now
        counts = is_stopped(pid) and not (launcher and is_stopped(launcher))
        stopped = stopped + passed if counts else 0.0
        if stopped >= limit:
            with contextlib.suppress(OSError):
                what = f"did not go on within {limit:g} s: it is {in_words(pid)}."
                print(f"shardrun: error: rank {rank} on host {host} {what}", file=sys.stderr, flush=True)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return
