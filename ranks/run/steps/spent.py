"""What a serving rank spends its time on, and how much memory it takes."""

from __future__ import annotations

import mmap
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ranks.run.rank_model import RankModel
    from ranks.talk.reports import WorkReport


class Spent:
    """Seconds since a rank was ready."""

    def __init__(self, model: RankModel) -> None:
        self._model = model
        self._waiting = self._passing = self._working = 0.0

    def waited(self, began: float) -> None:
        """A request was waited for from ``began`` until now."""
        self._waiting += time.perf_counter() - began

    def add(self, began: float, passed: float) -> None:
        """A request was worked on from ``began`` until now; by ``passed`` the inputs had come to this rank
        (readings of `time.perf_counter`, as all of these)."""
        self._passing += passed - began
        self._working += time.perf_counter() - passed

    def told(self) -> WorkReport:
        """All of it."""
        exchanging = self._model.stats.communication_seconds
        return {
            "computing": max(0.0, self._working - exchanging),
            "communicating": self._passing + exchanging,
            "waiting": self._waiting,
            "state_bytes": self._model.state_bytes,
            "memory_bytes": _resident(),
        }


def _resident() -> int:
    """Bytes of this process that lie in memory; 0 where the kernel does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * mmap.PAGESIZE
    except (OSError, ValueError, IndexError):
        return 0
