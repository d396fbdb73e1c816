"""How far a long task is: a bar on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator

from ranks.common.progress import Progress, progress

EVERY = 30.0
"""Seconds between two lines."""


class Pace:
    """Counts what is ``done``; ``before``: what of it was done by an earlier run."""

    def __init__(self, what: str, total: int | None, *, quiet: bool = False) -> None:
        """``what``: such as ``files``; ``total``: None where nobody knows."""
        self._what, self.total, self._quiet = what, total, quiet
        self.done = self.before = 0
        self._began = self._said = time.monotonic()
        self._update: Progress | None = None

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return time.monotonic() - self._began

    @property
    def rate(self) -> float:
        """How many a second, without those of an earlier run."""
        return (self.done - self.before) / max(self.seconds, 1e-9)

    def text(self) -> str:
        """Such as ``1200 of 5000 files, 85.3 files/s, 45 s left``."""
        parts = [
            f"{self.done} {self._what}" if self.total is None else f"{self.done} of {self.total} {self._what}"
        ]
        if self.done > self.before:
            parts.append(f"{self.rate:.3g} {self._what}/s")
            if self.total is not None and self.total > self.done:
                parts.append(f"{duration((self.total - self.done) / self.rate)} left")
        return ", ".join(parts)

    @contextlib.contextmanager
    def shown(self) -> Iterator[Pace]:
        """Shows it while the block runs."""
        if self._quiet:
            yield self
            return
        with progress("", text=self.text) as update:
            self._update = update
            yield self

    def step(self, *, before: bool = False) -> None:
        """One more is done."""
        self.done += 1
        self.before += before
        if self._update is not None:
            self._update(self.done, self.total or self.done)
        elif not self._quiet and time.monotonic() - self._said >= EVERY:
            self._said = time.monotonic()
            print(f"shardrun: {self.text()}", file=sys.stderr, flush=True)


def duration(seconds: float) -> str:
    """A time to wait, in words: the two largest units at most."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s" if whole < 600 else f"{round(whole / 60)} min"
    return f"{whole // 3600} h {whole % 3600 // 60} min" if whole < 86400 else f"{round(whole / 3600)} h"
