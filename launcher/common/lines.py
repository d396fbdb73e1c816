"""How lines of ranks are shown: each with its rank and host before it, or as a JSON object."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection
from typing import Literal

StreamName = Literal["stdout", "stderr"]


class Shown:
    """How lines are shown. ``size``: how many ranks there are; a single one's lines have no mark."""

    def __init__(
        self,
        size: int = 1,
        host: Callable[[int], str] | None = None,
        tee: Collection[int] | None = None,
        *,
        as_json: bool = False,
    ) -> None:
        """``tee``: the ranks whose lines are shown; None for all."""
        self._size, self._host, self._tee, self._json = size, host or (lambda rank: ""), tee, as_json
        self._width = 0

    def shows(self, rank: int) -> bool:
        """Whether lines of a rank are shown."""
        return self._tee is None or rank in self._tee

    @property
    def bare(self) -> bool:
        """Whether standard output is shown as it comes, a single rank's."""
        return self._size == 1 and not self._json

    def line(self, rank: int, name: StreamName, text: str) -> str:
        """A line as it is shown, with its end."""
        if self._json:
            return json.dumps(record(rank, self._host(rank), name, text)) + "\n"
        if self.bare and name == "stdout":
            return text
        if self._size > 1:
            mark = f"[{rank}@{self._host(rank)}]"
            self._width = max(self._width, len(mark))
            text = f"{mark:<{self._width}} {text}"
        return text if text.endswith("\n") else text + "\n"


def record(rank: int | None, host: str, name: StreamName | None, text: str) -> dict[str, object]:
    """A line as JSON; ``name``: the stream, where it is known."""
    return {
        "time": round(time.time(), 3),
        "rank": rank,
        "host": host,
        "stream": name,
        "line": text.rstrip("\r\n"),
    }
