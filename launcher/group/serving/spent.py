"""What ranks spent on the requests that they answered."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranks.talk.reports import StatsReport


@dataclass
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
