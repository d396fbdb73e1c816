"""Beam search: the texts of highest probability, several kept at a time.

The scores, and when a search stops, are those of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from launcher.generation import sampling
from launcher.generation.decoder import Decoder, Ids, Logits, Sequence
from launcher.generation.options import GenerateOptions
from launcher.generation.penalties import Penalties
from launcher.generation.sample import Completion, Done, Limits, Reason, Shown
from launcher.generation.text.tokenizer import Tokenizer


@dataclass
class Beam:
    """A text that still grows."""

    score: float
    """The sum of its log-probabilities."""
    ids: list[int]
    penalties: Penalties
    shown: Shown


@dataclass(frozen=True)
class _Finished:
    score: float
    ids: list[int]
    reason: Reason
    shown: Shown


@dataclass
class Search:
    """The state of one search."""

    options: GenerateOptions
    limits: Limits
    tokenizer: Tokenizer | None
    beams: list[Beam]
    finished: list[_Finished] = field(default_factory=list)
    over: bool = False

    @property
    def width(self) -> int:
        """The number of beams."""
        return self.options.beams or 1

    def advance(self, logits: list[Logits]) -> list[int]:
        """Goes on by one token by the logits of each beam; of which beam each new one is a continuation."""
        totals = np.stack(
            [
                beam.penalties.apply(sampling.log_softmax(row[0])) + np.float32(beam.score)
                for beam, row in zip(self.beams, logits, strict=True)
            ]
        )
        vocabulary = totals.shape[1]
        flat = totals.reshape(-1)
        best = sampling.top(flat, max(2, 1 + len(self.limits.ends)) * self.width)
        going: list[Beam] = []
        parents: list[int] = []
        for rank, place in enumerate(best):
            parent, token = divmod(int(place), vocabulary)
            score = float(flat[place])
            if not np.isfinite(score):
                continue
            reason, shown = self._ended(parent, token)
            if reason is not None:
                if rank < self.width:
                    self._finish(_Finished(score, [*self.beams[parent].ids, token], reason, shown))
            elif len(going) < self.width:
                beam = self.beams[parent]
                penalties = beam.penalties.copy()
                penalties.read(token)
                going.append(Beam(score, [*beam.ids, token], penalties, shown))
                parents.append(parent)
        self.beams = going
        self.over = self._is_over()
        return parents

    def _ended(self, parent: int, token: int) -> tuple[Reason | None, Shown]:
        beam = self.beams[parent]
        if token in self.limits.ends:
            return "end", beam.shown
        shown = beam.shown
        if self.options.stop:
            shown = Shown(self.tokenizer, self.options.stop)
            for earlier in (*beam.ids, token):
                shown.add(earlier)
            if shown.stopped:
                return "stop", shown
        return ("length" if len(beam.ids) + 1 >= self.limits.most else None), shown

    def _finish(self, found: _Finished) -> None:
        full = len(self.finished) >= self.width
        if full and self.options.early_stopping == "true":
            return
        self.finished.append(self._weighed(found))
        self.finished.sort(key=lambda item: -item.score)
        del self.finished[self.width :]

    def _weighed(self, found: _Finished) -> _Finished:
        score = found.score / len(found.ids) ** self._power
        return _Finished(score, found.ids, found.reason, found.shown)

    @property
    def _power(self) -> float:
        return 1.0 if self.options.length_penalty is None else self.options.length_penalty

    def _is_over(self) -> bool:
        if not self.beams:
            return True
        full = len(self.finished) >= self.width
        if not full:
            return False
        if self.options.early_stopping == "true":
            return True
        length = len(self.beams[0].ids)
        if self.options.early_stopping == "never" and self._power > 0:
            length = self.limits.most
        possible: float = self.beams[0].score / length**self._power
        return possible <= self.finished[-1].score


def search(  # noqa: PLR0917 - what `generate` has
    decoder: Decoder,
    sequence: Sequence,
    logits: Logits,
    prompt: Ids,
    options: GenerateOptions,
    limits: Limits,
    tokenizer: Tokenizer | None,
) -> list[Done]:
    """The best texts of a search that begins with a prompt's sequence, which it closes, and logits."""
    penalties = Penalties(options, decoder.vocabulary, prompt, sorted(limits.ends))
    found = Search(options, limits, tokenizer, [Beam(0.0, [], penalties, Shown(tokenizer, options.stop))])
    sequences = [sequence]
    rows = [logits]
    try:
        while True:
            parents = found.advance(rows)
            if found.over:
                break
            sequences = _follow(sequences, parents)
            rows = decoder.step_many(sequences, np.array([beam.ids[-1] for beam in found.beams], np.int64))
    finally:
        for item in sequences:
            item.close()
    return [_done(number, item, found) for number, item in enumerate(found.finished[: options.returned])]


def _follow(sequences: list[Sequence], parents: list[int]) -> list[Sequence]:
    """The states of the new beams: one continuation takes its parent's, each other one a copy of it."""
    taken: set[int] = set()
    following = []
    for parent in parents:
        following.append(sequences[parent].fork() if parent in taken else sequences[parent])
        taken.add(parent)
    for place, item in enumerate(sequences):
        if place not in taken:
            item.close()
    return following


def _done(number: int, item: _Finished, found: Search) -> Done:
    shown = Shown(found.tokenizer, found.options.stop)
    ids = item.ids[:-1] if item.reason == "end" else item.ids
    for token in ids:
        shown.add(token)
    shown.end()
    completion = Completion(number, item.ids, shown.text, item.reason, score=item.score)
    return Done(number, shown.text or "", completion)
