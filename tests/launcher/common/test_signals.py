"""The handlers of signals of a command."""

from __future__ import annotations

import os
import signal
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
