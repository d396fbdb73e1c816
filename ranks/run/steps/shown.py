"""What a step is asked for by whoever chooses tokens elsewhere, and what ranks show of their logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, cast

import numpy as np

from ranks.run.steps.likeliest import Gathering, Rounds
from ranks.tokens import wanted
from ranks.tokens.draws import drawing

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.talk.reports import AskReport
    from sharding.common.arrays import Array


class Rows:
    """Asks a step for the best tokens of rows of logits: a `ranks.run.steps.likeliest.Shared`."""

    found: Array | None
    """What all ranks show (ranks, numbers); None: the step gave the whole output."""

    def __init__(self, ask: wanted.Ask) -> None:
        self._highest, self._best, self._rounds = Gathering(), Gathering(), Rounds()
        self.renew(ask)

    def renew(self, ask: wanted.Ask) -> None:
        """The next step is asked for this."""
        self.output, self.ask, self.found = ask.output, ask, None
        self._logs = any(want.logs for want in ask.wants)
        self._alike = all(want.width == 3 and not want.count for want in ask.wants)
        self._of: dict[tuple[int, ...], Rows] = {}

    @property
    def exchanging_seconds(self) -> float:
        return self._highest.seconds + self._best.seconds + self._rounds.seconds

    def forget(self) -> None:
        self.found, self._highest.seconds, self._best.seconds = None, 0.0, 0.0
        self._rounds.forget()

    def find(self, part: Array, group: Communicator) -> bool:
        """See `Asked`; ``part``: (rows, positions, vocabulary / ranks)."""
        ask, width = self.ask, part.shape[-1]
        if width * group.size != ask.vocabulary or not all(want.fits(width) for want in ask.wants):
            return False
        if part.dtype.kind != "f" and part.dtype.name != "bfloat16":
            return False
        rows = ask.chosen(part)
        if len(rows) != len(ask.wants):
            return False
        highest = np.zeros(len(rows))
        if self._logs:
            highest = self._highest.together(rows.max(axis=1), group).max(axis=0)
            if not np.isfinite(highest).all():
                return False  # whoever reads the whole output says what is wrong with it
        begin = group.rank * width
        if self._alike:
            mine = wanted.likeliest(rows, begin).reshape(-1)
        else:
            drawn = self._drawn(rows, begin, group)
            if drawn is None:
                return False
            told = zip(rows, ask.wants, highest.tolist(), drawn, strict=True)
            mine = np.concatenate([wanted.show(row, begin, *others) for row, *others in told])
        everyone = self._best.together(mine, group)
        self.found = everyone if wanted.enough(everyone, ask.wants) else None
        return self.found is not None

    def _drawn(self, rows: Array, begin: int, group: Communicator) -> list[list[int]] | None:
        """The places of the tokens that are drawn of each row; None where this cannot be done."""
        draws = [
            (place, drawing(want.scores(row, begin), group.rank, want.draw))
            for place, (row, want) in enumerate(zip(rows, self.ask.wants, strict=True))
            if want.draw is not None
        ]
        found: list[list[int]] = [[] for _ in rows]
        made = self._rounds.make([draw for _, draw in draws], group)
        if made is None:
            return None
        for (place, _), places in zip(draws, made, strict=True):
            found[place] = places
        return found

    def of(self, rows: Sequence[int], count: int) -> Rows:
        if len(rows) == count:
            return self
        key = tuple(rows)
        if key not in self._of:
            each = len(self.ask.wants) // count
            wants = [want for row in rows for want in self.ask.wants[row * each : (row + 1) * each]]
            self._of[key] = Rows(replace(self.ask, wants=wants))
        return self._of[key]

    def told(self) -> Array:
        return wanted.nothing(self.ask.wants) if self.found is None else self.found

    def hear(self, told: Sequence[Array], rows: Sequence[Sequence[int]] | None = None) -> None:
        one = told[0] if rows is None or len(told) == 1 else wanted.joined(told, rows, self.ask.wants)
        starts = np.cumsum([0, *(want.width for want in self.ask.wants[:-1])])
        self.found = one if (one[0, starts] >= 0).any() else None


class Asking:
    """The rows that a model's steps were last asked for: most steps are asked for the same, and then nothing
    is made anew."""

    def __init__(self) -> None:
        self._report: object = None
        self._rows: Rows | None = None

    def rows(self, fields: Mapping[str, object], tensors: dict[str, Array]) -> Rows | None:
        """What a message asks for, if it does; what is not an input of the model is taken from the
        tensors."""
        report = cast("AskReport | None", fields.get("asked"))
        if report is None:
            return None
        own = not tensors.keys().isdisjoint(wanted.OWN)
        if self._rows is None or own or report != self._report:
            # What cannot be read leaves nothing behind, which the next message would be taken to ask for.
            self._report = None
            ask = wanted.Ask.of(report, tensors)
            if self._rows is None:
                self._rows = Rows(ask)
            self._rows.renew(ask)
            self._report = None if own else report
        return self._rows


def shown(outputs: dict[str, Array], rows: Rows | None) -> dict[str, Array]:
    """The outputs of a step, with what the ranks show instead of one of them."""
    if rows is None or rows.found is None:
        return outputs
    return {**outputs, wanted.SHOWN: rows.found.copy()}
