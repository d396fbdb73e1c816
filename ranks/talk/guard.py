"""What watches a rank that something else started: it ends the rank that is stopped, or stands still, for too
long.

A stopped rank (SIGSTOP) does nothing any more. Other ranks give it up after their time-out, and end; but
mpirun, srun and torchrun wait for it as long as it likes, and hold its nodes. Where what started the rank is
stopped too (Ctrl-Z), or the whole job with this process (`scontrol suspend`), somebody means it: that time
does not count. That takes a process beside the rank; whether its work stands still a thread in it sees.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import select
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NoReturn

from ranks.common import settings
from ranks.common.processes import is_stopped
from ranks.common.pulse import STANDS_STILL, Pulse
from ranks.common.waiting import in_words

_LOOK_SECONDS = 1.0
_CODE = "import sys; sys.path[0] = sys.argv.pop(1); from ranks.talk.guard import main; main()"
_ROOT = Path(__file__).resolve().parents[2]


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
        words = [str(_ROOT), str(os.getpid()), str(launcher), str(limit), str(rank), host]
        with contextlib.suppress(OSError):  # the rank itself will say what is short
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, *words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )


GUARD = Guard()
"""This process's, which is one rank."""


def _feel(pulse: Pulse, limit: float, where: str) -> NoReturn:
    still, looked = 0.0, time.monotonic()
    while still < limit:
        time.sleep(_LOOK_SECONDS)
        now = time.monotonic()
        passed, looked = min(now - looked, 2 * _LOOK_SECONDS), now
        still = still + passed if pulse.beat().still else 0.0
    with contextlib.suppress(OSError, ValueError, AttributeError):
        print(f"shardrun: error: {where} {STANDS_STILL.format(limit)}", file=sys.stderr, flush=True)
        faulthandler.dump_traceback(sys.stderr, all_threads=True)
    os._exit(1)


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
