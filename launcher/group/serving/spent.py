"""What ranks spent on the requests that they answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranks.talk.reports import StatsReport


@dataclass(eq=False, repr=False)
class Spent:
    """Seconds as `launcher.group.group.Group` has them. ``answered``: those that were
    computed since the ranks started; ``of_ranks``: what each rank said last of its work."""

    run_seconds: float = 0.0
    communication_seconds: float = 0.0
    segment_seconds: float = 0.0
    waiting_seconds: float = 0.0
    choosing_seconds: float = 0.0
    answered: int = 0
    of_ranks: dict[int, Mapping[str, object]] = field(default_factory=dict)
    _asked: set[int] = field(default_factory=set)
    """Ranks that were asked of their work, and have not said it yet."""

    def ask(self, ranks: int) -> bool:
        """Whether the ranks are to be asked of their work now: not before all have answered the last time, or
        what lies before a rank that computes, or stands still, would fill its connection."""
        if self._asked:
            return False
        self._asked = set(range(ranks))
        return True

    def told(self, rank: int, work: Mapping[str, object]) -> None:
        """A rank has said what it has done."""
        self.of_ranks[rank] = work
        self._asked.discard(rank)

    def renew(self) -> None:
        """There are other ranks now."""
        self.answered, self.of_ranks, self._asked = 0, {}, set()

    def add(self, fields: Mapping[str, object]) -> None:
        """Counts rank 0's answer."""
        if "stats" in fields:
            self.answered += 1
            stats = cast("StatsReport", fields["stats"])
            self.communication_seconds = stats["communication_seconds"]
            self.segment_seconds = stats["segment_seconds"]
            self.waiting_seconds = stats["waiting_seconds"]
            self.choosing_seconds = stats["choosing_seconds"]
            self.run_seconds += cast("float", fields["seconds"])
