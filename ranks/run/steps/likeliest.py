"""The highest element of an output of which each rank has a part: three numbers travel instead of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.run.steps.parts import Parts
    from ranks.sessions.cut import Collective
    from sharding.common.arrays import Array


class Likeliest:
    """Asks a step for the place of the highest element in the last row of an output. Every rank asks."""

    def __init__(self, output: str, size: int) -> None:
        """``size``: the elements of a row."""
        self.output, self.size = output, size
        self.word = 0.0
        """What this rank has to say besides."""
        self.found: tuple[int, float] | None = None
        """The place, of equal ones the first, and rank 0's word; None: the step gave the whole output."""
        self._mine = np.zeros((1, 3))
        self._all = self._mine
        self._exchange: Callable[[], object] | None = None

    def find(self, part: Array, group: Communicator) -> bool:
        """Whether the place was found from this rank's ``part`` (..., size / ranks) and those of the others.
        A collective, with the same result on every rank."""
        width = part.shape[-1]
        if width * group.size != self.size or part.dtype.kind != "f":
            return False
        if self._exchange is None:
            self._all = np.zeros((group.size, 3))
            self._exchange = group.gathering(self._mine, self._all, 0)
        row = part.reshape(-1, width)[-1]
        place = int(row.argmax())
        self._mine[0] = row[place], group.rank * width + place, self.word
        self._exchange()
        rows = self._all.tolist()
        if not all(math.isfinite(value) for value, _, _ in rows):
            return False  # whoever reads the whole output says what is wrong with it
        self.found = int(max(rows, key=itemgetter(0))[1]), rows[0][2]
        return True


def gathered_last(parts: Parts, results: set[str], read: set[str]) -> dict[str, Collective]:
    """Results that are gathered along an axis after all segments, and that nothing else reads: a step can do
    without. Only such as lie on the host."""
    cut = parts.cut
    found = {}
    for level, collectives in enumerate(cut.collectives if parts.group is not None else ()):
        ended = not any(segment.outputs for segment in cut.segments[level + 1 :])
        for c in collectives:
            last = c.op == "AllGather" and ended and c.output in results and c.output not in read
            if last and c.output and c.input and parts.place(c.input) is parts.host:
                found[c.output] = c
    return found
