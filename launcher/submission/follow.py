"""Following a job that was handed in: its log, why it waits, how it ended, and Ctrl-C, which cancels it."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from launcher.common.interrupts import held_back
from launcher.errors import LaunchError, RankFailedError
from launcher.submission.base import JobSystem, Status, Submission
from launcher.submission.tails import Tail

log = logging.getLogger(__name__)

FIRST_PAUSE, LONGEST_PAUSE = 0.2, 3.0
"""Seconds between two questions to the job system: few while the job is young."""
SILENT_SECONDS = 300.0
"""How long a job system may not answer before nobody waits for it any more."""
CANCEL_SECONDS = 60.0
SETTLE_SECONDS = 0.5
"""How long the log must not have grown when the job has ended."""


class Follower:
    """Follows one job. ``show`` gets each line that it prints, ``tell`` what is to be known of it."""

    def __init__(
        self,
        system: JobSystem,
        submission: Submission,
        number: str,
        show: Callable[[str], None],
        tell: Callable[[str], None],
    ) -> None:
        self._system, self._number = system, number
        self._tail: Tail = system.tails(submission, number)
        self._show, self._tell = show, tell
        self._said = ""

    def follow(self) -> int:
        """Returns the job's exit code when it has ended.

        Raises `RankFailedError` where something else than its own exit ended it, and `LaunchError` where the
        job system does not know it any more.
        """
        status = self._until_done()
        try:
            self._system.finish(self._number)
        except LaunchError as error:
            log.warning("job %s: %s", self._number, error)
        if status.phase == "unknown":
            raise LaunchError(
                f"{self._system.name} does not know job {self._number} any more, and how it ended is not "
                "known: see its log."
            )
        if status.code is None or status.why:
            raise RankFailedError(f"job {self._number} {status.why or 'ended without an exit code'}.")
        return status.code

    def _until_done(self) -> Status:
        pause, silent = FIRST_PAUSE, 0.0
        while True:
            began = time.monotonic()
            try:
                status = self._system.status(self._number)
            except LaunchError as error:
                silent += time.monotonic() - began + pause
                if silent > SILENT_SECONDS:
                    raise
                self._say(f"{self._system.name} does not answer and is asked again: {error}")
                status = Status("waiting")
            else:
                silent = 0.0
                if status.phase == "waiting" and status.why:
                    self._say(f"job {self._number} waits: {status.why}")
            self._shown(self._tail.lines())
            if status.phase in {"done", "unknown"}:
                self._settle()
                return status
            time.sleep(pause)
            pause = min(pause * 1.3, LONGEST_PAUSE) if status.phase == "waiting" else FIRST_PAUSE * 2

    def _settle(self) -> None:
        """Shows what the log still gets: where it lies on a file system of the network, it comes late."""
        quiet = 0.0
        while quiet < SETTLE_SECONDS:
            lines = self._tail.lines()
            self._shown(lines)
            quiet = 0.0 if lines else quiet + 0.1
            time.sleep(0.1)
        self._shown(self._tail.rest())

    def cancel(self) -> None:
        """Cancels the job and waits until it is gone, or says that it may not be."""
        self._tell(f"cancelling job {self._number}")
        try:
            with held_back():
                self._system.cancel(self._number)
            deadline = time.monotonic() + CANCEL_SECONDS
            while time.monotonic() < deadline:
                self._shown(self._tail.lines())
                if self._system.status(self._number).phase in {"done", "unknown"}:
                    self._shown(self._tail.rest())
                    return
                time.sleep(FIRST_PAUSE)
            log.warning("job %s still ends", self._number)
        except LaunchError as error:
            log.warning("job %s may still run: %s", self._number, error)

    def close(self) -> None:
        """Ends what shows the log."""
        self._tail.close()

    def _say(self, text: str) -> None:
        if text != self._said:
            self._said = text
            self._tell(text)

    def _shown(self, lines: list[str]) -> None:
        for line in lines:
            self._show(line)
