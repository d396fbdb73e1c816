"""Beam search: the texts of highest probability, several kept at a time.

The scores, and when a search stops, are those of transformers.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from launcher.generation.decoder import Decoder, Ids, Sequence
from launcher.generation.options import GenerateOptions
from launcher.generation.sample import Completion, Done, Limits, Reason, Shown
from launcher.generation.scoring import read_prompt, scores_of_each
from launcher.generation.text.tokenizer import Tokenizer
from ranks.tokens import sampling
from ranks.tokens.penalties import Penalties
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Want


@dataclass
class Beam:
    """A text that still grows."""

    score: float
    """The sum of its log-probabilities."""
    ids: list[int]
    penalties: Penalties


@dataclass(frozen=True)
class _Finished:
    score: float
    ids: list[int]
    reason: Reason


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

    @property
    def _considered(self) -> int:
        """How many continuations of all beams are looked at: enough where as many as may be end."""
        return max(2, 1 + len(self.limits.ends)) * self.width

    @property
    def wants(self) -> list[Want]:
        """What the next token of each beam needs of the model's logits."""
        return [self._want(beam) for beam in self.beams]

    def _want(self, beam: Beam) -> Want:
        return Want(self._considered, beam.penalties.touched(), logs=True, slack=abs(beam.score))

    def advance(self, rows: list[Scores]) -> list[int]:
        """Goes on by one token by the logits of each beam; of which beam each new one is a continuation."""
        totals = [
            beam.penalties.apply(row.logs(), ids=row.ids) + np.float32(beam.score)
            for beam, row in zip(self.beams, rows, strict=True)
        ]
        ends = np.cumsum([len(part) for part in totals])
        flat = np.concatenate(totals)
        best = sampling.top(flat, self._considered)
        ended: list[_Finished] = []
        going: list[Beam] = []
        parents: list[int] = []
        for rank, place in enumerate(best):
            parent = int(np.searchsorted(ends, place, side="right"))
            token = rows[parent].token(int(place - ends[parent]) + len(totals[parent]))
            score = float(flat[place])
            if not np.isfinite(score):
                continue
            ids = [*self.beams[parent].ids, token]
            reason = self._ended(ids)
            if reason is not None:
                if rank < self.width:
                    ended.append(self._weighed(score, ids, reason))
            elif len(going) < self.width:
                penalties = self.beams[parent].penalties.copy()
                penalties.read(token)
                going.append(Beam(score, ids, penalties))
                parents.append(parent)
        self.beams = going
        # All that end in one step are compared; where they come too late, none is.
        if not (len(self.finished) >= self.width and self.options.early_stopping == "true"):
            self.finished = sorted([*self.finished, *ended], key=lambda item: -item.score)[: self.width]
        self.over = self._is_over()
        return parents

    def _ended(self, ids: list[int]) -> Reason | None:
        if ids[-1] in self.limits.ends:
            return "end"
        if self.options.stop:
            shown = Shown(self.tokenizer, self.options.stop, self.limits.before)
            for token in ids:
                shown.add(token)
            shown.end()
            if shown.stopped:
                return "stop"
        return "length" if len(ids) >= self.limits.most else None

    def _weighed(self, score: float, ids: list[int], reason: Reason) -> _Finished:
        return _Finished(score / len(ids) ** self._power, ids, reason)

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
    prompt: Ids,
    options: GenerateOptions,
    limits: Limits,
    tokenizer: Tokenizer | None,
) -> list[Done]:
    """The best texts of a search that reads a prompt with a new sequence, which it closes."""
    penalties = Penalties(options.sampling, decoder.vocabulary, prompt, sorted(limits.ends))
    found = Search(options, limits, tokenizer, [Beam(0.0, [], penalties)])
    sequences = [sequence]
    try:
        rows = [read_prompt(sequence, prompt, found.wants[0], options.chunk)]
        while True:
            parents = found.advance(rows)
            if found.over:
                break
            sequences = _follow(sequences, parents)
            ids = np.array([beam.ids[-1] for beam in found.beams], np.int64)
            rows = scores_of_each(decoder, sequences, ids, found.wants)
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
    shown = Shown(found.tokenizer, found.options.stop, found.limits.before)
    ids = item.ids[:-1] if item.reason == "end" else item.ids
    for token in ids:
        shown.add(token)
    shown.end()
    completion = Completion(number, item.ids, shown.text, item.reason, score=item.score)
    return Done(number, shown.text or "", completion)
