"""What watches a rank that something else started: it ends the rank that is stopped, or stands still, for too
long.

A stopped rank (SIGSTOP) does nothing any more. Other ranks give it up after their time-out, and end; but
mpirun, srun and torchrun wait for it as long as it likes, and hold its nodes. Where what started the rank is
stopped too (Ctrl-Z), or the whole job with this process (`scontrol suspend`), somebody means it: that time
does not count. That takes a process beside the rank; whether its work stands still a thread in it sees.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from typing import NoReturn

from ranks.common import settings
from ranks.common.pulse import STANDS_STILL, Pulse
from ranks.talk import small
from ranks.talk.sentry import LOOK_SECONDS
from ranks.talk.stacks import own


class Guard:
    """The process beside this one, and the thread in it: one of each, however often they are asked for."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._pulse: Pulse | None = None

    def feel(self, rank: int, host: str, seconds: float | None = None) -> None:
        """Starts a thread that ends this process where its work stands still for so long, by default as long
        as for one that shardrun starts. Does nothing under a launcher of this project, which asks itself."""
        if settings.CONTROL.text() or self._pulse is not None:
            return
        limit = settings.DEFAULT_HANG if seconds is None else seconds
        self._pulse = Pulse()
        told = self._pulse, limit, f"rank {rank} on host {host}"
        with contextlib.suppress(RuntimeError):  # no more threads: the rank itself will say so
            threading.Thread(target=_feel, args=told, name="shardrun pulse", daemon=True).start()

    def stand(self, rank: int, host: str, launcher: int, seconds: float | None = None) -> None:
        """Starts the process. ``launcher``: the process that started the rank, or 0; ``seconds``: how long
        the rank may be stopped, by default as long as one that shardrun starts.

        Does nothing where others watch: a launcher of this project, or run_all.sh.
        """
        others = settings.CONTROL.text() or settings.RUN_ALL.text()
        if sys.platform != "linux" or others or self._process is not None:
            return
        limit = settings.DEFAULT_HANG if seconds is None else seconds
        words = [str(os.getpid()), str(launcher), str(limit), str(rank), host]
        with contextlib.suppress(OSError):  # the rank itself will say what is short
            self._process = subprocess.Popen(
                small.command("ranks.talk.sentry", "sentry.main()", *words),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
            )


GUARD = Guard()
"""This process's, which is one rank."""


def _feel(pulse: Pulse, limit: float, where: str) -> NoReturn:
    still, looked = 0.0, time.monotonic()
    while still < limit:
        time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        passed, looked = min(now - looked, 2 * LOOK_SECONDS), now
        still = still + passed if pulse.beat().still else 0.0
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"shardrun: error: {where} {STANDS_STILL.format(limit)}", file=sys.stderr, flush=True)
        print(own(), end="", file=sys.stderr, flush=True)
    os._exit(1)
