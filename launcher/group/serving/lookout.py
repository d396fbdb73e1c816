"""Who looks for stopped ranks while answers are waited for: one of the threads that wait."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

from launcher.group.halted import Watch

if TYPE_CHECKING:
    from launcher.group.watch import Job


class Lookout:
    """Looks for stopped ranks as long as no answer comes."""

    def __init__(self) -> None:
        self._looking = threading.Lock()
        self._moved = 0.0
        self._watch: tuple[float, Watch] | None = None

    def moved(self) -> None:
        """An answer has come, or the first request is on its way."""
        self._moved = time.monotonic()

    def look(self, job: Job) -> None:
        """Every second by each thread that waits: one of them is enough."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            moved = self._moved
            if self._watch is None or self._watch[0] != moved:
                self._watch = moved, Watch(job.patience, job.hang, job.seen)
            job.look(self._watch[1])
        finally:
            self._looking.release()
