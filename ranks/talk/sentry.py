"""What the process beside a rank does (`ranks.talk.guard`): it ends the rank that is stopped for too long.

Most ranks are never stopped, and there are as many of these as ranks: this imports next to nothing, and what
looks at the rank once a second first when that second has passed.
"""

import os
import select
import signal
import sys
import time

LOOK_SECONDS = 1.0


def main() -> None:
    """Until the rank ends. The arguments of this program are the rank's process, the one that started it or
    0, how many seconds it may be stopped, its number and its host."""
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
    while not poll.poll(LOOK_SECONDS * 1000):
        from ranks.common.processes import is_stopped

        now = time.monotonic()
        passed, looked = min(now - looked, 2 * LOOK_SECONDS), now
        counts = is_stopped(pid) and not (launcher and is_stopped(launcher))
        stopped = stopped + passed if counts else 0.0
        if stopped >= limit:
            _say(f"rank {rank} on host {host} did not go on within {limit:g} s", pid)
            signal.pidfd_send_signal(process, signal.SIGKILL)
            return


def _say(what: str, pid: int) -> None:
    import contextlib

    from ranks.common.waiting import in_words

    with contextlib.suppress(OSError):  # nobody reads it any more
        print(f"shardrun: error: {what}: it is {in_words(pid)}.", file=sys.stderr, flush=True)
