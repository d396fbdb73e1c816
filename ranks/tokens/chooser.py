"""Chooses the tokens of one text, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ranks.errors import ShardrunError
from ranks.talk.reports import TextReport
from ranks.tokens import best, sampling
from ranks.tokens.draws import Draw
from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import ADDED, Ids, Penalties, Row
from ranks.tokens.wanted import Want


class Chooser:
    """One text as far as its next token depends on it. Wherever it runs, the same logits give the same
    tokens."""

    def __init__(
        self,
        options: SamplingOptions,
        vocabulary: int,
        prompt: NDArray[np.int64],
        ends: Iterable[int],
        number: int = 0,
    ) -> None:
        """``ends``: the tokens that end the text; ``number``: which of a prompt's samples it is."""
        self.options, self.number = options, number
        self.ends = sorted(ends)
        self.penalties = Penalties(options, vocabulary, prompt, self.ends)
        self.prompt = prompt
        self.ids: list[int] = []
        """What was chosen so far."""
        self.allowed: Ids | None = None
        """The only tokens that may come next, by rising id; None: all. Whoever sets it chooses each token
        here: it is not told elsewhere."""
        self._vocabulary = vocabulary

    @property
    def takes_likeliest(self) -> bool:
        """Whether each token, from now on, is the one with the highest logit, whatever came before."""
        return self.options.greedy and self.penalties.nothing

    def choose(self, row: Row, ids: Ids | None = None) -> int:
        """The next token by the model's logits (vocabulary,), or by those of the tokens ``ids`` that `want`
        says. Raises `ShardrunError` where none can be chosen."""
        scores = self.penalties.apply(row, ids=ids)
        if self.allowed is not None:
            # What is left is the same, in the same order, whether all logits are here or some.
            if ids is None:
                scores, ids = scores[self.allowed], self.allowed
            else:
                here = np.isin(ids, self.allowed, assume_unique=True)
                scores, ids = scores[here], ids[here]
            if not len(scores) or scores.max() == -np.inf:
                raise ShardrunError(
                    "no token can come next: those that the form of the text allows are impossible, or ruled "
                    "out by other options"
                )
        place = self._of(scores)
        return place if ids is None else int(ids[place])

    @property
    def number_now(self) -> float:
        """The random number that picks the next token, where one does."""
        assert self.options.seed is not None
        return sampling.uniform(self.options.seed, self.number, len(self.ids))

    @property
    def draw(self) -> Draw | None:
        """How the next token is drawn by ranks that have parts of its scores; None: in another way."""
        if self.options.greedy:
            return None
        return Draw.of(self.options, self._vocabulary, self.number_now)

    def want(self, logprobs: int | None = None) -> Want | None:
        """What the choice of the next token needs of the logits; None where it needs all. ``logprobs``: how
        many of the likeliest tokens are to be told with their log-probabilities."""
        count, also, draw = best.most(self.options), self.penalties.touched(), None
        others = np.empty(0, np.int64)
        if self.allowed is not None and len(self.allowed) <= best.MOST:
            count, also = 0, self.allowed
        elif self.allowed is not None:
            rest = np.ones(self._vocabulary, bool)
            rest[self.allowed] = False
            others = np.flatnonzero(rest)
            also = np.union1d(also, others)
        if count is None and self.penalties.forced:
            count = 0  # one of those: no other may come
        elif count is None:
            draw = self.draw
            if draw is None:
                return None
            changes = self.penalties.changes(also)
            changes[np.searchsorted(also, others), ADDED] = -np.inf
            count, draw = 0, replace(draw, changes=changes)
        if len(also) > best.MOST:
            return None
        if logprobs is None:
            return Want(count, also, draw=draw)
        return Want(max(count, logprobs, 1), also, logs=True, draw=draw)

    def wants_after(self, guesses: Sequence[int], logprobs: int | None = None) -> list[Want | None]:
        """`want` now, and after each of these guesses for the next tokens."""
        twin = self.copy(self.number)
        wants = [twin.want(logprobs)]
        for guess in guesses:
            twin.read(guess)
            wants.append(twin.want(logprobs))
        return wants

    def shows(self, part: int) -> int | None:
        """`ranks.tokens.best.count` for a rank that has so many tokens of the vocabulary."""
        return best.count(self.options, part)

    def show(self, part: Row, begin: int, count: int) -> best.Shown:
        """The ``count`` best tokens of a part of the logits, which begins at a token."""
        return best.show(self.penalties.apply(part, begin), begin, count)

    def scores(self, part: Row, begin: int) -> Row:
        """By which ranks draw: of a part of the logits, which begins at a token."""
        return self.penalties.apply(part, begin)

    def choose_among(self, shown: best.Shown) -> int:
        """The next token by what all ranks `show`, as `choose` by all logits, where that is enough."""
        ids, scores = best.together(shown)
        place = self._of(scores) if len(ids) > 1 else sampling.likeliest(scores)
        return int(ids[place])

    def _of(self, scores: Row) -> int:
        if self.options.greedy:
            return sampling.likeliest(scores)
        return sampling.candidates(scores, self.options).pick(self.number_now)

    def read(self, token: int) -> None:
        """The text goes on with this token."""
        self.penalties.read(token)
        self.ids.append(token)

    def copy(self, number: int) -> Chooser:
        """The same for another sample of the prompt."""
        twin = object.__new__(Chooser)
        twin.__dict__.update(self.__dict__)
        twin.penalties, twin.ids, twin.number = self.penalties.copy(), list(self.ids), number
        return twin

    def told(self) -> TextReport:
        """All of it, to go on elsewhere; the prompt only where tokens of it count."""
        prompt: Sequence[int] = self.prompt.tolist() if self.penalties.counts_prompt else []
        return {
            "options": self.options.to_json(),
            "number": self.number,
            "ends": self.ends,
            "prompt": list(prompt),
            "ids": self.ids,
        }

    @classmethod
    def of(cls, report: TextReport, vocabulary: int) -> Chooser:
        """What `told` gave. The text has begun."""
        prompt = np.array(report["prompt"], np.int64)
        options = SamplingOptions.from_json(report["options"])
        chooser = cls(options, vocabulary, prompt, report["ends"], report["number"])
        for token in report["ids"]:
            chooser.read(token)
        return chooser
