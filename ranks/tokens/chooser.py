"""Chooses the tokens of one text, one after another."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from ranks.errors import ShardrunError
from ranks.talk.reports import TextReport
from ranks.tokens import best, sampling
from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import Ids, Penalties, Row
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

    def want(self, logprobs: int | None = None, guesses: Sequence[int] = ()) -> Want | None:
        """What the choice of the next token needs of the logits, also after these ``guesses`` for the tokens
        before it; None where it needs all. ``logprobs``: how many of the likeliest tokens are to be told with
        their log-probabilities."""
        count, also = best.most(self.options), self.penalties.touched(guesses)
        if self.allowed is not None:
            count, also = self._wanted_of(self.allowed, count, also)
        if count is None or also is None:
            return None
        return Want(count, also) if logprobs is None else Want(max(count, logprobs, 1), also, logs=True)

    def _wanted_of(self, allowed: Ids, count: int | None, also: Ids | None) -> tuple[int | None, Ids | None]:
        """The same where few tokens are allowed, or few are not."""
        if len(allowed) <= best.MOST:
            return 0, allowed
        others = np.ones(self._vocabulary, bool)
        others[allowed] = False
        return count, None if also is None else np.union1d(also, np.flatnonzero(others))

    def shows(self, part: int) -> int | None:
        """`ranks.tokens.best.count` for a rank that has so many tokens of the vocabulary."""
        return best.count(self.options, part)

    def show(self, part: Row, begin: int, count: int) -> best.Shown:
        """The ``count`` best tokens of a part of the logits, which begins at a token."""
        return best.show(self.penalties.apply(part, begin), begin, count)

    def choose_among(self, shown: best.Shown) -> int:
        """The next token by what all ranks `show`, as `choose` by all logits, where that is enough."""
        ids, scores = best.together(shown)
        return int(ids[self._of(scores)])

    def _of(self, scores: Row) -> int:
        if self.options.greedy:
            return sampling.likeliest(scores)
        assert self.options.seed is not None
        number = sampling.uniform(self.options.seed, self.number, len(self.ids))
        return sampling.candidates(scores, self.options).pick(number)

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
