"""Several tokens in one step of the model: guesses are read together with the last token, and checked.

The text is what it would be without guesses: each position's token is chosen by the model's own logits, with
that position's random number. Only where a draft model draws its guesses at random, other random numbers
decide, by which the text has the same distribution.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from launcher.generation.decoder import Decoder, Ids
from launcher.generation.decoder import Sequence as State
from launcher.generation.sample import Done, Sample, Token
from launcher.generation.scoring import read_prompt, scores_of
from ranks.tokens import best, sampling
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Want

LONGEST_MATCH, SHORTEST_MATCH = 3, 1
"""Tokens of the text's end that are looked for earlier in it."""


@dataclass(frozen=True)
class Guess:
    """A token that may come next. ``spread``: the probabilities (vocabulary,) it was drawn by, if it was."""

    id: int
    spread: NDArray[np.float64] | None = None


class Guesser(Protocol):
    """Where guesses come from."""

    def guess(self, ids: list[int], count: int) -> Sequence[Guess]:
        """At most ``count`` tokens that may follow these (prompt and text so far)."""

    def close(self) -> None:
        """Frees what it holds."""


class Lookup:
    """Guesses what followed when the same tokens came before."""

    def __init__(self) -> None:
        self._places: dict[tuple[int, ...], int] = {}
        self._noted = 0

    def guess(self, ids: list[int], count: int) -> Sequence[Guess]:
        """The tokens after the latest earlier place of the longest end of ``ids``."""
        for end in range(self._noted + 1, len(ids)):  # the end itself is no earlier place
            for length in range(SHORTEST_MATCH, min(LONGEST_MATCH, end) + 1):
                self._places[tuple(ids[end - length : end])] = end
        self._noted = len(ids) - 1
        for length in range(min(LONGEST_MATCH, len(ids) - 1), SHORTEST_MATCH - 1, -1):
            place = self._places.get(tuple(ids[len(ids) - length :]))
            if place is not None:
                return [Guess(token) for token in ids[place : place + count]]
        return []

    def close(self) -> None:
        """Nothing is held."""


class Draft:
    """Guesses what a smaller model says."""

    def __init__(self, decoder: Decoder, sample: Sample, prompt: Ids, chunk: int | None) -> None:
        self._state = decoder.sequence()
        self._sample = sample
        self._chunk, self._vocabulary = chunk, decoder.vocabulary
        count = best.most(sample.options.sampling)
        self._want = None if count is None else Want(count)
        self._read: list[int] = []
        self._most = decoder.context

    def guess(self, ids: list[int], count: int) -> Sequence[Guess]:
        """Token by token, as the draft model would go on."""
        if self._most is not None:
            count = min(count, self._most - len(ids))
        if count < 1:
            return []
        scores = self._catch_up(ids)
        guesses = []
        for place in range(count):
            guesses.append(self._choose(scores, place))
            if place + 1 < count:
                self._read.append(guesses[-1].id)
                [scores] = scores_of(self._state, np.array([guesses[-1].id]), [self._want])
        return guesses

    def _catch_up(self, ids: list[int]) -> Scores:
        """Forgets guesses that were wrong, and reads what has come; the logits after it."""
        same = 0
        for ours, theirs in zip(self._read, ids[:-1], strict=False):
            if ours != theirs:
                break
            same += 1
        self._state.rewind(same)
        self._read = list(ids)
        return read_prompt(self._state, np.array(ids[same:], np.int64), self._want, self._chunk)

    def _choose(self, scores: Scores, place: int) -> Guess:
        options = self._sample.options
        if options.greedy:
            return Guess(scores.token(sampling.likeliest(scores.values)))
        found = sampling.candidates(scores.values, options.sampling).among(scores.ids)
        position = len(self._sample.ids) + place
        number = sampling.uniform(self._sample.seed, self._sample.number, position, sampling.DRAFT)
        return Guess(found.pick(number), found.spread(self._vocabulary))

    def close(self) -> None:
        """Frees the draft model's state."""
        self._state.close()


def grow(  # noqa: PLR0917 - what `generate` has
    sample: Sample, state: State, first: Scores, prompt: Ids, guesser: Guesser, most: int
) -> Iterator[Token | Done]:
    """Generates one text; ``first`` are the prompt's logits, ``most`` how many guesses a step may check."""
    start = prompt.tolist()
    yield sample.take(sample.choose(first), first)
    while sample.reason is None:
        ids = [*start, *sample.ids]
        # The last token of all is not read, and so needs no room.
        guesses = guesser.guess(ids, min(most, sample.room - 1)) if sample.room > 1 else []
        read = state.length
        wants = sample.wants_after([item.id for item in guesses])
        if any(item.spread is not None for item in guesses):
            # Whether a guess is right depends on the probabilities of all tokens.
            wants = [want if want is None or want.draw is None else None for want in wants]
        read_now = np.array([ids[-1], *(item.id for item in guesses)], np.int64)
        rows = scores_of(state, read_now, wants, every=True)
        right = 0
        for place, row in enumerate(rows):
            guess = guesses[place] if place < len(guesses) else None
            token, accepted = _settle(sample, row, guess)
            yield sample.take(token, row)
            if sample.reason is not None or not accepted:
                break
            right += 1
        if sample.reason is None:
            state.rewind(read + 1 + right)
    yield sample.done()


def _settle(sample: Sample, row: Scores, guess: Guess | None) -> tuple[int, bool]:
    """The token that comes, and whether it was guessed."""
    if guess is None or guess.spread is None:
        token = sample.choose(row)
        return token, guess is not None and token == guess.id
    values = sample.penalties.apply(row.values, ids=row.ids)
    wanted = sampling.candidates(values, sample.options.sampling).among(row.ids).spread(len(guess.spread))
    number, position = sample.number, len(sample.ids)
    accept = sampling.uniform(sample.seed, number, position, sampling.ACCEPT)
    if accept * guess.spread[guess.id] < wanted[guess.id]:
        return guess.id, True
    # What the guesses give too little of.
    rest = np.maximum(wanted - guess.spread, 0)
    rest = rest if rest.any() else wanted  # both are alike but for rounding
    left = sampling.Candidates(None, np.rint((rest / rest.max()).astype(np.float32) * sampling.UNITS))
    return left.pick(sampling.uniform(sample.seed, number, position)), False
