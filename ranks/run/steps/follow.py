"""Steps that the ranks make by themselves: rank 0 chooses a token by the logits of each, which all read in
the next one. The launcher is told, and waits for nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ranks.errors import ShardrunError
from ranks.talk.wire import Kind
from ranks.tokens import best
from ranks.tokens.chooser import Chooser

if TYPE_CHECKING:
    from ranks.collectives.broadcast import Spreader
    from ranks.run.steps.parted import Parted
    from ranks.talk.control import Control
    from ranks.talk.reports import RunReport
    from sharding.common.arrays import Array


TOLD_SECONDS = 0.02
"""Between two messages of tokens: nobody reads faster."""


class Lead:
    """What rank 0 does between two steps: it chooses, says whether there is another step, and tells."""

    def __init__(self, run: RunReport, request: int, control: Control) -> None:
        self._run, self._request, self._control = run, request, control
        self.chooser = Chooser.of(run["text"], run["vocabulary"])
        self._made = 0
        self._untold: list[int] = []
        self._told = 0.0
        self.error: str | None = None
        """Why no token could be chosen."""

    def choose(self, logits: Array, shown: Array | None = None) -> tuple[int, bool]:
        """The next token, and whether it is read in another step; ``shown``: what all ranks show of their
        parts of the logits, instead of them."""
        size = self._run["vocabulary"]
        try:
            if shown is not None:
                token = self.chooser.choose_among(shown)
            elif logits.shape[-1] != size:
                raise ShardrunError(
                    f"the model gave logits of {logits.shape[-1]} tokens, but its vocabulary has {size}"
                )
            else:
                token = self.chooser.choose(np.asarray(logits.reshape(-1, size)[-1], np.float32))
        except Exception as error:  # the other ranks wait, and must hear of it
            self.error = str(error) or type(error).__name__
            return -1, False
        self.chooser.read(token)
        self._made += 1
        most = min(self._run["most"], self._control.limit_of(self._request, self._run["ahead"]))
        return token, self._made < most and token not in self.chooser.ends

    def tell(self, token: int) -> None:
        """Sends a token to the launcher, together with those before it that came too soon for a message of
        their own: each one wakes a thread there, which takes a processor from a rank."""
        if token >= 0:
            self._untold.append(token)
        if time.perf_counter() - self._told >= TOLD_SECONDS:
            self.tell_all()

    def tell_all(self) -> None:
        """Sends all that was not sent yet."""
        if self._untold:
            self._control.send(Kind.TOKENS, {"request": self._request, "tokens": self._untold})
        self._untold, self._told = [], time.perf_counter()


def follow(
    step: Callable[[Mapping[str, Array]], Mapping[str, Array]],
    feeds: Mapping[str, Array],
    run: RunReport,
    spreader: Spreader,
    lead: Lead | None,
    *,
    parted: Parted | None = None,
) -> str | None:
    """Makes the steps of a run; why it ended early, if a token could not be chosen. A collective: every rank
    calls it, rank 0 with ``lead``.

    ``feeds``: those of the first step, which reads one token. All steps have the same but for that.
    ``parted``: joins the ranks where a step gives each its part of the logits.
    """
    ids = feeds[run["tokens"]]
    word = np.zeros(2, np.int64)
    chooser = lead.chooser if lead is not None else None
    if parted is not None and chooser is None:
        chooser = Chooser.of(run["text"], run["vocabulary"])
    try:
        while True:
            logits, shown = step(feeds)[run["logits"]], None
            if parted is not None and chooser is not None:
                if logits.shape[-1] * parted.size == run["vocabulary"]:
                    shown = parted.shown(chooser, logits)
                if shown is None or not best.enough(shown):
                    logits, shown = parted.whole(logits), None
            if lead is not None:
                word[:] = lead.choose(logits, shown)
            spreader.broadcast(word)
            token, more = word.tolist()
            if lead is not None:
                lead.tell(token)
            if chooser is not None and lead is None and token >= 0:
                chooser.read(token)
            if not more:
                return lead.error if lead is not None else None
            feeds = {**feeds, run["tokens"]: np.full(ids.shape, token, ids.dtype)}
    finally:
        if lead is not None:
            lead.tell_all()
