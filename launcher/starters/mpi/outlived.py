"""What ends an mpirun that outlives its launcher: a process beside both, where there are several hosts.

Ranks notice by themselves that their launcher was killed, and an mpirun ends with its ranks. But where the
network to one of the hosts is cut by then it waits for its daemon there, and nobody is left who would end it.
This imports next to nothing as long as it only waits.
"""

from __future__ import annotations

import os
import select
import sys

PATIENCE_SECONDS = 5.0
"""How long an mpirun whose launcher has ended may take to end by itself. Ranks notice that at once."""


def main() -> None:
    """Until mpirun or the launcher has ended. The arguments of this program are the launcher's process,
    which started this one, mpirun's, and the name of the variable by which the job's processes are known."""
    launcher, program, name = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    try:
        running = os.pidfd_open(program)
    except (OSError, AttributeError):  # it has ended already, or Linux is older than 5.3
        return
    if os.getppid() == launcher and _lives_longer(launcher, running):
        return  # it sees to what is left
    orderly = select.poll()
    orderly.register(running, select.POLLIN)
    orderly.poll(PATIENCE_SECONDS * 1000)
    from launcher.starters.program import end_left

    # Known by the job's secret, which no other process has: mpirun's number may be another's by now.
    end_left(program, f"{name}={os.environ[name]}")


def _lives_longer(launcher: int, running: int) -> bool:
    """Waits for the end of a process, this one's parent a moment ago, or of mpirun by its pidfd; whether
    mpirun ended first."""
    try:
        above = os.pidfd_open(launcher)
    except ProcessLookupError:
        return False
    both = select.poll()
    both.register(running, select.POLLIN)
    both.register(above, select.POLLIN)
    return above not in dict(both.poll())
