"""Tokens that ranks choose and read on by themselves, as their reader finds them."""

from __future__ import annotations

import contextlib
from collections import deque
from typing import TYPE_CHECKING

from launcher.errors import LaunchError, RankFailedError, ShardrunError

if TYPE_CHECKING:
    from launcher.group.requests import Requests
    from launcher.group.serving.asked import Asked
    from launcher.group.watch import Job


class RanksRun:
    """Tokens that ranks choose and read on by themselves, as they come.

    Any other request ends it after the step under way: what was chosen by then still comes from here.
    """

    def __init__(self, requests: Requests, job: Job) -> None:
        self._requests, self.job = requests, job
        self.asked: Asked | None = None
        self.tokens: deque[int] = deque()
        self.came = 0
        """Tokens so far, taken or not."""
        self.ended, self.made = False, 0
        self.error: ShardrunError | None = None

    def next(self) -> int | None:
        """The next token; None after the last. Raises as `Group.predict` does."""
        while True:
            ended = self.ended  # first: what has come by then is there
            if self.tokens:
                return self.tokens.popleft()
            if ended:
                if self.error is not None:
                    raise self.error
                return None
            self.job.wait_for(lambda: bool(self.tokens) or self.ended, None, "")

    def extend(self, most: int) -> None:
        """Lets it make so many steps in all, unless it has ended or another request ends it now."""
        if not self.ended:
            self._requests.extend(self, most)

    def close(self) -> int:
        """Ends it after the step under way; how many steps were made, their tokens taken or not."""
        if not self.ended:
            with contextlib.suppress(RankFailedError, LaunchError):  # which the next request says
                self._requests.halt(self)
                self.job.wait_for(lambda: self.ended, None, "")
        return self.made

    def end(self, made: int, error: ShardrunError | None) -> None:
        """For `Requests`, which holds the job's lock: nothing more comes."""
        # The end last: who reads it holds no lock.
        self.error, self.made, self.ended = error, made, True
