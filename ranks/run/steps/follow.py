"""Steps that the ranks make by themselves: rank 0 chooses a token by the logits of each, or by the best of
them, and all read it in the next one; where it is the likeliest in any case, all find it together. The
launcher is told, and waits for nothing."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from ranks.errors import ShardrunError
from ranks.run.steps.likeliest import BestTokens, Likeliest
from ranks.talk.wire import Kind
from ranks.tokens.chooser import Chooser

if TYPE_CHECKING:
    from ranks.collectives.broadcast import Spreader
    from ranks.run.rank_model import RankModel
    from ranks.talk.control import Control
    from ranks.talk.reports import RunReport
    from ranks.tokens.best import Shown
    from ranks.tokens.penalties import Row
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
        self.seconds = 0.0
        """What the choice took."""

    def choose(self, outputs: Mapping[str, Array], shown: Shown | None) -> tuple[int, bool]:
        """The next token, and whether it is read in another step; ``shown``: what all ranks show of their
        parts of the logits, instead of them."""
        began = time.perf_counter()
        try:
            token = (
                self.chooser.choose(self._row(outputs)) if shown is None else self.chooser.choose_among(shown)
            )
        except Exception as error:  # the other ranks wait, and must hear of it
            self.error = str(error) or type(error).__name__
            return -1, False
        finally:
            self.seconds += time.perf_counter() - began
        more = self.wanted and token not in self.chooser.ends
        self.take(token)
        return token, more

    def _row(self, outputs: Mapping[str, Array]) -> Row:
        logits, size = outputs[self._run["logits"]], self._run["vocabulary"]
        if logits.shape[-1] != size:
            raise ShardrunError(
                f"the model gave logits of {logits.shape[-1]} tokens, but its vocabulary has {size}"
            )
        return np.asarray(logits.reshape(-1, size)[-1], np.float32)

    @property
    def wanted(self) -> bool:
        """Whether there is to be another token after the next one, unless that ends the text."""
        most = min(self._run["most"], self._control.limit_of(self._request, self._run["ahead"]))
        return self._made + 1 < most

    def take(self, token: int) -> None:
        """The text goes on with this token."""
        self.chooser.read(token)
        self._made += 1

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


def follow(  # noqa: PLR0917 - what the run was given
    model: RankModel,
    session: int,
    feeds: Mapping[str, Array],
    run: RunReport,
    spreader: Spreader,
    lead: Lead | None,
) -> str | None:
    """Makes the steps of a run; why it ended early, if a token could not be chosen. A collective: every rank
    calls it, rank 0 with ``lead``.

    ``feeds``: those of the first step, which reads one token. All steps have the same but for that.
    """
    ids = np.array(feeds[run["tokens"]])
    word = np.zeros(2, np.int64)
    chooser = lead.chooser if lead is not None else Chooser.of(run["text"], run["vocabulary"])
    # Where rank 0 has no part of the logits, its word does not travel with the likeliest token.
    together = chooser.takes_likeliest and not model.sequences.apart
    likeliest = Likeliest(run["logits"], run["vocabulary"]) if together else None
    best = BestTokens(run["logits"], run["vocabulary"], chooser)
    try:
        with model.stepping(session, {**feeds, run["tokens"]: ids}) as step:
            while True:
                if likeliest is not None and lead is not None:
                    likeliest.word = float(lead.wanted)
                outputs = step(likeliest or best)
                if likeliest is not None and likeliest.found is not None:
                    token, wanted = likeliest.found
                    more = bool(wanted) and token not in chooser.ends
                    if lead is not None:
                        lead.take(token)
                else:
                    if lead is not None:
                        word[:] = lead.choose(outputs, best.found)
                    spreader.broadcast(word)
                    token, more = word.tolist()
                    if lead is None and more:
                        chooser.read(token)
                if lead is not None:
                    lead.tell(token)
                if not more:
                    return lead.error if lead is not None else None
                ids[...] = token
    finally:
        if lead is not None:
            lead.tell_all()
