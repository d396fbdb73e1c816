"""The ranks of a group: those that it was started with, and others in their place where they are lost."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from launcher.common.restarts import CALM_SECONDS, pause
from launcher.errors import LaunchError, RankFailedError, ShardrunError
from launcher.group.requests import Requests
from launcher.starters import cause
from sharding.common.text import counted

if TYPE_CHECKING:
    from launcher.group.starting import StartedJob
    from launcher.group.watch import Job
    from ranks.common.progress import Progress

log = logging.getLogger(__name__)

State = Literal["ready", "restarting", "failed", "closed"]


class Crew:
    """Ranks, and what they are asked. ``restarts``: how often they were started again."""

    def __init__(
        self,
        begin: Callable[[int], StartedJob],
        timeout: float,
        most: int = 0,
        progress: Progress | None = None,
    ) -> None:
        """``begin``: starts ranks, given how often they were started before; ``timeout``: seconds until they
        must be ready; ``most``: how often in a row they are started again where they answer nothing.

        Raises what starting raises."""
        self.restarts = self._in_row = 0
        self._begin, self._timeout, self._most = begin, timeout, most
        self._recent: list[float] = []
        self._closing = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._owner = os.getpid()
        self.job = self._begun = begin(0)
        """The ranks that are there, or were last; and those that were started last."""
        atexit.register(self.job.close)
        try:
            self._wait(self.job, progress)
        except BaseException:
            self.job.close()
            raise
        finally:
            atexit.unregister(self.job.close)
        self.requests = Requests(self.job, self._lost if most else None)
        self.requests.check()  # since they were ready
        atexit.register(self.close)

    @property
    def state(self) -> State:
        """How the ranks are."""
        if self._closing.is_set():
            return "closed"
        if self.requests.down is None:
            return "ready"
        return "restarting" if self.requests.ended is None else "failed"

    def close(self) -> None:
        """Ends the ranks, and starts none again; returns when none is left. Safe to call twice. In a forked
        child it does nothing: the ranks are the parent's."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        self._closing.set()
        self.requests.close()
        with self._lock:
            job = self._begun
        job.close()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()  # which closes what it has started since
        self.requests.closed()

    def _wait(self, job: StartedJob, progress: Progress | None = None) -> None:
        def ready() -> bool:
            if progress is not None:
                progress(job.loaded(), job.world_size)
            return len(job.ready) == job.world_size

        job.wait_for(ready, self._timeout, "The ranks were not ready")

    def _lost(self, job: Job) -> None:
        """The ranks of a job are lost. Waits for nothing: a lock is held."""
        thread = threading.Thread(target=self._work, args=(job,), name="shardrun restart", daemon=True)
        try:
            self._thread = thread
            thread.start()
        except (RuntimeError, MemoryError) as error:
            self._thread = None
            self.requests.end(cause.shortage(error))

    def _work(self, job: Job) -> None:
        try:
            self._start_again(job)
        except Exception as error:  # else whoever waits for these ranks would wait for ever
            self.requests.end(LaunchError(f"The ranks could not be started again: {error}"))

    def _start_again(self, job: Job) -> None:
        failure = job.failure
        assert failure is not None
        if self.requests.spent.answered:
            self._in_row = 0
        while True:
            job.close()
            again = self._in_row < self._most and not self._closing.is_set()
            if isinstance(failure, RankFailedError) and failure.usage and self._in_row:
                again = False  # what they load has become wrong
            if not again or not self._paused(failure):
                break
            try:
                job = self._begin(self.restarts)
                with self._lock:
                    self._begun = job
                if self._closing.is_set():
                    job.close()
                self._wait(job)
            except (RankFailedError, LaunchError) as error:
                failure = error
            except Exception as error:  # such as a model that is not there any more
                failure = LaunchError(f"The ranks could not be started again: {error}")
                if not isinstance(error, ShardrunError):
                    failure = cause.shortage(error)
            else:
                self.job = job
                self.requests.attach(job)
                return
        times = counted(self._in_row, "time")
        tried = f"\nThe ranks were started again {times}, and answered nothing." if self._in_row else ""
        self.requests.end(_with(failure, tried))

    def _paused(self, failure: RankFailedError | LaunchError) -> bool:
        """Waits before the next start; False where there is to be none."""
        self._in_row += 1
        self.restarts += 1
        now = time.monotonic()
        self._recent = [*(at for at in self._recent if now - at < CALM_SECONDS), now]
        # Also where they have answered in between: who asks what kills them may ask again and again.
        seconds = pause(max(self._in_row, len(self._recent)))
        why = str(failure).splitlines()[0].partition(". ")[0].rstrip(".")
        log.warning(
            "%s: the ranks are started again%s (%d of at most %d times in a row)",
            why, f" in {seconds:g} s" if seconds else "", self._in_row, self._most,
        )  # fmt: skip
        return not self._closing.wait(seconds)


def _with(error: RankFailedError | LaunchError, more: str) -> RankFailedError | LaunchError:
    """The same error that says more."""
    if isinstance(error, LaunchError):
        return LaunchError(f"{error}{more}")
    fields = ("rank", "host", "details", "code", "usage")
    return RankFailedError(f"{error}{more}", **{name: getattr(error, name) for name in fields})
