"""The best tokens of logits of which each rank has those of a part of the vocabulary: few numbers travel
instead of all."""

from __future__ import annotations

import math
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ranks.tokens import best

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.run.steps.parts import Parts
    from ranks.sessions.cut import Collective
    from ranks.tokens.chooser import Chooser
    from sharding.common.arrays import Array


class Asked(Protocol):
    """What a step may be asked for instead of an output. Every rank asks alike."""

    output: str

    def find(self, part: Array, group: Communicator) -> bool:
        """Whether this was found from this rank's part of the output and those of the others. A collective,
        with the same result on every rank."""

    def forget(self) -> None:
        """A new step begins."""


def _last_row(part: Array, group: Communicator, size: int) -> Array | None:
    """This rank's part of the last row of an output, as whoever reads the whole output has it; None where the
    ranks do not hold ``size`` floating-point numbers together."""
    width = part.shape[-1]
    if width * group.size != size or part.dtype.kind != "f":
        return None
    return np.asarray(part.reshape(-1, width)[-1], np.float32)


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

    def forget(self) -> None:
        """See `Asked`."""
        self.found = None

    def find(self, part: Array, group: Communicator) -> bool:
        """See `Asked`; ``part``: (..., size / ranks)."""
        row = _last_row(part, group, self.size)
        if row is None:
            return False
        if self._exchange is None:
            self._all = np.zeros((group.size, 3))
            self._exchange = group.gathering(self._mine, self._all, 0)
        place = int(row.argmax())
        self._mine[0] = row[place], group.rank * row.size + place, self.word
        self._exchange()
        rows = self._all.tolist()
        if not all(math.isfinite(value) for value, _, _ in rows):
            return False  # whoever reads the whole output says what is wrong with it
        self.found = int(max(rows, key=itemgetter(0))[1]), rows[0][2]
        return True


class BestTokens:
    """Asks a step for the tokens that a chooser may choose (`ranks.tokens.best`)."""

    def __init__(self, output: str, size: int, chooser: Chooser) -> None:
        """``size``: the tokens of the vocabulary; ``chooser``: has read the same on every rank."""
        self.output, self.size = output, size
        self.found: best.Shown | None = None
        """What all ranks show, a row each; None: the step gave the whole output."""
        self._chooser = chooser
        self._mine = self._all = np.zeros((0, 0))
        self._exchange: Callable[[], object] | None = None

    def forget(self) -> None:
        """See `Asked`."""
        self.found = None

    def find(self, part: Array, group: Communicator) -> bool:
        """See `Asked`; ``part``: (..., size / ranks)."""
        row = _last_row(part, group, self.size)
        count = None if row is None else self._chooser.shows(row.size)
        if row is None or count is None:
            return False
        shown = self._chooser.show(row, group.rank * row.size, count)
        if self._exchange is None:
            self._mine, self._all = np.zeros((1, len(shown))), np.zeros((group.size, len(shown)))
            self._exchange = group.gathering(self._mine, self._all, 0)
        self._mine[0] = shown
        self._exchange()
        if best.enough(self._all):
            self.found = self._all
        return self.found is not None


def gathered_last(parts: Parts, results: set[str], read: set[str]) -> dict[str, Collective]:
    """Results that are gathered along an axis after all segments, and that nothing else reads: a step can do
    without. Only such as lie on the host, of a model that all ranks have a part of each layer of: else some
    would not hear what was found."""
    cut = parts.cut
    found: dict[str, Collective] = {}
    if parts.mail is not None:
        return found
    for level, collectives in enumerate(cut.collectives if parts.group is not None else ()):
        # What comes later may write where the input of a collective was that should be over.
        ended = not any(segment.outputs for segment in cut.segments[level + 1 :])
        ended = ended and not any(cut.collectives[level + 1 :])
        for c in collectives:
            last = c.op == "AllGather" and ended and c.output in results and c.output not in read
            if last and c.output and c.input and parts.place(c.input) is parts.host:
                found[c.output] = c
    return found
