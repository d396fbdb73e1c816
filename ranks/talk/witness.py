"""What the process beside a rank waits for: the rank's end (`ranks.collectives.absence`).

Most of them see none, and are killed as soon as the rank has joined. So this imports next to nothing: a host
with many ranks starts as many of these.
"""

import os
import select
import sys
import threading
import time

END = b"end"
"""The rank's word that it is about to end."""
_AFTER = 8.0  # seconds: Slurm's process on a host ends with the last task there
_LONGEST = 1 << 16


def witness() -> list[bytes]:
    """Waits until the rank has ended, or says that it will. Gives what else it has said, in lines.

    The arguments of this program are descriptors of processes: the rank's, and if there is one, that of what
    started it, which this process does not outlive by much.
    """
    process, *launcher = map(int, sys.argv[1:])
    for watched in launcher:
        threading.Thread(target=_end_with, args=(watched,), daemon=True).start()
    poll, said = select.poll(), b""
    poll.register(process, select.POLLIN)
    poll.register(0, select.POLLIN)
    while True:
        ready = {descriptor for descriptor, _ in poll.poll()}
        if 0 in ready:
            data = os.read(0, _LONGEST)
            said += data
            if not data:
                poll.unregister(0)
            if data and END not in said.splitlines():
                continue  # all that it has said counts, also where it has ended by now
        if process in ready or END in said.splitlines():
            return [line for line in said.splitlines() if line != END]


def _end_with(launcher: int) -> None:
    poll = select.poll()
    poll.register(launcher, select.POLLIN)
    poll.poll()
    time.sleep(_AFTER)
    os._exit(0)
