"""What a step is asked for by whoever chooses tokens elsewhere, and what ranks show of their logits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, cast

import numpy as np

from ranks.tokens import wanted

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.talk.reports import AskReport
    from sharding.common.arrays import Array


class Rows:
    """Asks a step for the best tokens of rows of logits: a `ranks.run.steps.likeliest.Asked`."""

    def __init__(self, ask: wanted.Ask) -> None:
        self.output, self.ask = ask.output, ask
        self.found: Array | None = None
        """What all ranks show (ranks, numbers); None: the step gave the whole output."""
        self._logs = any(want.logs for want in ask.wants)
        self._alike = all(want.width == 3 and not want.count for want in ask.wants)
        self._mine = np.zeros((1, sum(want.width for want in ask.wants)))
        self._all = self._mine
        self._exchange: Callable[[], object] | None = None

    def forget(self) -> None:
        """See `Asked`."""
        self.found = None

    def find(self, part: Array, group: Communicator) -> bool:
        """See `Asked`; ``part``: (rows, positions, vocabulary / ranks)."""
        ask, width = self.ask, part.shape[-1]
        if width * group.size != ask.vocabulary or not all(want.fits(width) for want in ask.wants):
            return False
        if part.dtype.kind != "f" and part.dtype.name != "bfloat16":
            return False
        chosen = part if ask.every or part.ndim < 3 else part[..., -1, :]
        if chosen.size != len(ask.wants) * width:
            return False
        # As whoever reads the whole output.
        rows = np.asarray(chosen.reshape(-1, width), np.float32)
        highest = np.zeros(len(rows))
        if self._logs:
            maxima = np.zeros((group.size, len(rows)))
            group.all_gather(rows.max(axis=1).astype(np.float64)[None], maxima)
            highest = maxima.max(axis=0)
            if not np.isfinite(highest).all():
                return False  # whoever reads the whole output says what is wrong with it
        begin = group.rank * width
        if self._alike:
            self._mine[0] = wanted.likeliest(rows, begin).reshape(-1)
        else:
            told = zip(rows, ask.wants, highest.tolist(), strict=True)
            self._mine[0] = np.concatenate([wanted.show(row, begin, want, best) for row, want, best in told])
        if self._exchange is None:
            self._all = np.zeros((group.size, self._mine.shape[1]))
            self._exchange = group.gathering(self._mine, self._all, 0)
        self._exchange()
        self.found = self._all if wanted.enough(self._all, ask.wants) else None
        return self.found is not None


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
        if self._rows is None or wanted.ALSO in tensors or report != self._report:
            # What cannot be read leaves nothing behind, which the next message would be taken to ask for.
            self._report, own = None, wanted.ALSO in tensors
            self._rows = Rows(wanted.Ask.of(report, tensors))
            self._report = None if own else report
        return self._rows


def shown(outputs: dict[str, Array], rows: Rows | None) -> dict[str, Array]:
    """The outputs of a step, with what the ranks show instead of one of them."""
    if rows is None or rows.found is None:
        return outputs
    return {**outputs, wanted.SHOWN: rows.found.copy()}
