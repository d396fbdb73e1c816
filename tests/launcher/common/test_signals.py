"""The handlers of signals of a command."""

from __future__ import annotations

import os
import signal
import sys
import time

from launcher.common.signals import ENDING


def test_a_forked_child_ends_at_once() -> None:
    """What it would unwind, and close in order, is its parent's."""
    ours, theirs = os.pipe()
    with ENDING.handled():
        child = os.fork()
        if child == 0:
            try:
                os.write(theirs, b"x")
                time.sleep(60)
            finally:
                os._exit(3)
        assert os.read(ours, 1)
        os.kill(child, signal.SIGTERM)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
        assert signal.getsignal(signal.SIGTERM) == ENDING.stop
    os.close(ours)
    os.close(theirs)


def test_handlers_are_as_they_were_afterwards() -> None:
    numbers = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGALRM)
    before, hook = [signal.getsignal(number) for number in numbers], sys.unraisablehook
    with ENDING.handled():
        inside = [signal.getsignal(number) for number in numbers]
        assert inside[0] == inside[3] == ENDING.stop
    assert [signal.getsignal(number) for number in numbers] == before and sys.unraisablehook is hook
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
