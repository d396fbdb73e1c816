"""The best tokens of logits of which each rank has those of a part of the vocabulary: few numbers travel
instead of all."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np

from ranks.collectives.single import SingleCommunicator
from ranks.tokens import best
from ranks.tokens.draws import drawing, side_by_side
from ranks.tokens.wanted import SHOWN

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.run.steps.parts import Parts
    from ranks.sessions.cut import Collective
    from ranks.tokens.chooser import Chooser
    from ranks.tokens.draws import Drawing
    from ranks.tokens.penalties import Row
    from sharding.common.arrays import Array


_NOTHING = np.full((1, 1), -1.0)


class Gathering:
    """Gathers as many numbers of each rank in every step."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """How long that took, since the step began."""
        self._mine = self._all = np.zeros((0, 0))
        self._group: Communicator | None = None
        self._gather: Callable[[], object] | None = None

    def together(self, numbers: Array | Sequence[float], group: Communicator) -> Array:
        """The numbers of each rank, (ranks, numbers); good until the next time."""
        if self._gather is None or self._group is not group or self._mine.shape[1] != len(numbers):
            self._mine, self._all = np.zeros((1, len(numbers))), np.zeros((group.size, len(numbers)))
            self._group, self._gather = group, group.gathering(self._mine, self._all, 0)
        self._mine[0] = numbers
        began = time.perf_counter()
        self._gather()
        self.seconds += time.perf_counter() - began
        return self._all


class Rounds:
    """Makes draws, for which each rank gathers a few times in every step."""

    def __init__(self) -> None:
        self._gathering: list[Gathering] = []

    @property
    def seconds(self) -> float:
        """How long gathering took, since the step began."""
        return sum(each.seconds for each in self._gathering)

    def forget(self) -> None:
        """A new step begins."""
        for each in self._gathering:
            each.seconds = 0.0

    def make(self, draws: Sequence[Drawing], group: Communicator) -> list[list[int]] | None:
        """What each draw ends with; None where one cannot be made."""

        def gather(turn: int, numbers: Array) -> Array:
            if turn == len(self._gathering):
                self._gathering.append(Gathering())
            return self._gathering[turn].together(numbers, group)

        found = [places for places in side_by_side(draws, gather) if places is not None]
        return found if len(found) == len(draws) else None


class Asked(Protocol):
    """What a step may be asked for instead of an output. Every rank asks alike."""

    output: str

    @property
    def exchanging_seconds(self) -> float:
        """What of the time in `find` was in collectives, since the step began."""

    def find(self, part: Array, group: Communicator) -> bool:
        """Whether this was found from this rank's part of the output and those of the others. A collective,
        with the same result on every rank."""

    def forget(self) -> None:
        """A new step begins."""


@runtime_checkable
class Shared(Asked, Protocol):
    """What may be asked also where ranks have no part of the output: other stages, other copies of the model.
    They hear what was found."""

    found: Array | None
    """What was found, as it travels."""

    def of(self, rows: Sequence[int], count: int) -> Shared:
        """What is asked of these rows of a batch of ``count``, for the copy that has them."""

    def told(self) -> Array:
        """What was found, (ranks, numbers); the first number is negative where nothing was."""

    def hear(self, told: Sequence[Array], rows: Sequence[Sequence[int]] | None = None) -> None:
        """Takes what others have told: each of several copies about its ``rows``, or one group about all."""


_ALONE = SingleCommunicator()


def telling(results: dict[str, Array], asked: Shared | None) -> dict[str, Array]:
    """What the ranks that have an output tell the others of a step: what was found in place of the output, if
    that is enough. An output that they have whole is searched here, for the others have nothing of it."""
    if asked is None or (asked.found is None and asked.output not in results):
        return results
    rest = dict(results)
    if asked.found is not None or asked.find(results[asked.output], _ALONE):
        rest.pop(asked.output, None)
    return {**rest, SHOWN: asked.told()}


def _last_row(part: Array, group: Communicator, size: int) -> Array | None:
    """This rank's part of the last row of an output, as whoever reads the whole output has it; None where the
    ranks do not hold ``size`` floating-point numbers together."""
    width = part.shape[-1]
    if width * group.size != size or (part.dtype.kind != "f" and part.dtype.name != "bfloat16"):
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
        self._gathering = Gathering()

    @property
    def exchanging_seconds(self) -> float:
        return self._gathering.seconds

    def forget(self) -> None:
        self.found, self._gathering.seconds = None, 0.0

    def find(self, part: Array, group: Communicator) -> bool:
        """See `Asked`; ``part``: (..., size / ranks)."""
        row = _last_row(part, group, self.size)
        if row is None:
            return False
        place = int(row.argmax())
        mine = (float(row[place]), float(group.rank * row.size + place), self.word)
        rows = self._gathering.together(mine, group).tolist()
        if not all(math.isfinite(value) for value, _, _ in rows):
            return False  # whoever reads the whole output says what is wrong with it
        self.found = int(max(rows, key=itemgetter(0))[1]), rows[0][2]
        return True


class BestTokens:
    """Asks a step for the tokens that a chooser may choose (`ranks.tokens.best`), or for the one that the
    ranks draw for it (`ranks.tokens.draws`)."""

    def __init__(self, output: str, size: int, chooser: Chooser) -> None:
        """``size``: the tokens of the vocabulary; ``chooser``: has read the same on every rank."""
        self.output, self.size = output, size
        self.found: best.Shown | None = None
        """What all ranks show, a row each; None: the step gave the whole output."""
        self._chooser = chooser
        self._gathering, self._rounds = Gathering(), Rounds()

    @property
    def exchanging_seconds(self) -> float:
        return self._gathering.seconds + self._rounds.seconds

    def forget(self) -> None:
        self.found, self._gathering.seconds = None, 0.0
        self._rounds.forget()

    def find(self, part: Array, group: Communicator) -> bool:
        """See `Asked`; ``part``: (..., size / ranks)."""
        row = _last_row(part, group, self.size)
        if row is None:
            return False
        begin, count = group.rank * row.size, self._chooser.shows(row.size)
        if count is not None:
            shown = self._chooser.show(row, begin, count)
        elif (drawn := self._drawn(row, begin, group)) is not None:
            shown = drawn
        else:
            return False
        everyone = self._gathering.together(shown, group)
        self.found = everyone if best.enough(everyone) else None
        return self.found is not None

    def _drawn(self, row: Row, begin: int, group: Communicator) -> best.Shown | None:
        """What this rank shows where all ranks draw the token; None where it is chosen in another way."""
        draw = self._chooser.draw
        if draw is None:
            return None
        scores = self._chooser.scores(row, begin)
        drawn = self._rounds.make([drawing(scores, group.rank, draw)], group)
        return None if drawn is None else best.drawn(scores, begin, drawn[0][0])

    def of(self, rows: Sequence[int], count: int) -> BestTokens:
        """See `Shared`: there is one row."""
        return self

    def told(self) -> Array:
        return _NOTHING if self.found is None else self.found

    def hear(self, told: Sequence[Array], rows: Sequence[Sequence[int]] | None = None) -> None:
        self.found = told[0] if best.enough(told[0]) else None


def gathered_last(parts: Parts, results: set[str], read: set[str]) -> dict[str, Collective]:
    """Results that are gathered along an axis after all segments, and that nothing else reads: a step can do
    without. Only such as lie on the host."""
    cut = parts.cut
    found: dict[str, Collective] = {}
    for level, collectives in enumerate(cut.collectives if parts.group is not None else ()):
        # What comes later may write where the input of a collective was that should be over.
        ended = not any(segment.outputs for segment in cut.segments[level + 1 :])
        ended = ended and not any(cut.collectives[level + 1 :])
        for c in collectives:
            last = c.op == "AllGather" and ended and c.output in results and c.output not in read
            if last and c.output and c.input and parts.place(c.input) is parts.host:
                found[c.output] = c
    return found
