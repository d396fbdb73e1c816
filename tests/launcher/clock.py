"""A clock that a test moves by itself."""

from __future__ import annotations


class Clock:
    """Stands in the place of `time`: seconds pass only when the test lets them."""

    now = 100.0

    def monotonic(self) -> float:
        return self.now
