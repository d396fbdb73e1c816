"""What changes a model's logits before a token is chosen: penalties, biases, and tokens that may not come."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ranks.tokens.options import SamplingOptions

Row = NDArray[np.float32]
"""(vocabulary,)."""
Ids = NDArray[np.int64]
Changes = NDArray[np.float32]
"""(tokens, 3): of each, what is added to its logit, then the factor by which it is made smaller, and what is
taken off at last."""
ADDED, FACTOR, TAKEN = range(3)


def changed(values: Row, changes: Changes) -> Row:
    """The logits of some tokens with their changes: to the bit what `Penalties.apply` gives."""
    found: Row = values + changes[:, ADDED]
    factors = changes[:, FACTOR]
    found = np.where(found > 0, found / factors, found * factors)
    found -= changes[:, TAKEN]
    return found


class Penalties:
    """The changes for one text as it grows. ``ends``: the tokens that end it, kept back while it is short."""

    def __init__(
        self, options: SamplingOptions, vocabulary: int, prompt: NDArray[np.int64], ends: Sequence[int]
    ) -> None:
        self._repetition = options.repetition_penalty or 1.0
        self._presence = options.presence_penalty or 0.0
        self._frequency = options.frequency_penalty or 0.0
        self._shortest = options.min_new_tokens or 0
        self._ngram = options.no_repeat_ngram or 0
        self._ends = np.array(ends, np.int64)
        self._never, self._not_first, self._first, self._last = (
            np.array(given or (), np.int64)
            for given in (
                options.suppressed,
                options.suppressed_first,
                options.forced_first if len(prompt) == 1 else (),
                options.forced_last,
            )
        )
        self._most = options.max_new_tokens
        bias = options.logit_bias
        self._bias = (np.array(list(bias), np.int64), np.array(list(bias.values()), np.float32))
        self._counts: NDArray[np.float32] | None = None
        self._seen: NDArray[np.bool_] | None = None
        if self._presence or self._frequency:
            self._counts = np.zeros(vocabulary, np.float32)
        if self._repetition != 1.0:
            self._seen = np.zeros(vocabulary, bool)
            self._seen[prompt] = True
        self._read = 0
        self._ids: list[int] = prompt.tolist() if self._ngram else []
        self._followers: dict[tuple[int, ...], set[int]] = {}
        for end in range(self._ngram, len(self._ids) + 1) if self._ngram else ():
            self._note(end)

    @property
    def counts_prompt(self) -> bool:
        """Whether it matters which tokens the prompt has."""
        return self._seen is not None or self._ngram > 0

    @property
    def nothing(self) -> bool:
        """Whether `apply` would change nothing, now and later."""
        idle = self._counts is None and self._seen is None and not self._ngram and not len(self._bias[0])
        forced = (
            len(self._never)
            or len(self._last)
            or (not self._read and len(self._not_first) + len(self._first))
        )
        return idle and not forced and (self._read >= self._shortest or not len(self._ends))

    def apply(self, row: Row, begin: int = 0, ids: Ids | None = None) -> Row:
        """The logits of the vocabulary, of a part of it that begins at a token, or of the tokens ``ids`` (by
        rising id) with all changes; the given ones stay as they are."""
        if self.nothing:
            return row
        row = np.array(row)
        part: slice | Ids = slice(begin, begin + len(row)) if ids is None else ids

        def put(tokens: Ids, value: float) -> None:
            row[_places(tokens, part)[0]] = value

        biased, amounts = self._bias
        places, here = _places(biased, part)
        row[places] += amounts[here]
        if self._seen is not None:
            seen = np.flatnonzero(self._seen[part])
            values = row[seen]
            row[seen] = np.where(values > 0, values / self._repetition, values * self._repetition)
        if self._counts is not None:
            counts = self._counts[part]
            used = np.flatnonzero(counts)
            row[used] -= self._frequency * counts[used] + self._presence
        for tokens in self._held_back:
            put(tokens, -np.inf)
        for tokens in self._forced:
            row[:] = -np.inf
            put(tokens, 0)
        for tokens in self._ruled_out:
            put(tokens, -np.inf)
        return row

    def changes(self, ids: Ids) -> Changes:
        """What `apply` does to the logits of these tokens, as `changed` does it; not where one of some tokens
        is `forced`."""
        found = np.zeros((len(ids), 3), np.float32)
        found[:, FACTOR] = 1
        if not len(ids) or self.nothing:
            return found
        biased, amounts = self._bias
        places, here = _places(biased, ids)
        found[places, ADDED] = amounts[here]
        if self._seen is not None:
            found[self._seen[ids], FACTOR] = self._repetition
        if self._counts is not None:
            counts = self._counts[ids]
            used = np.flatnonzero(counts)
            found[used, TAKEN] = self._frequency * counts[used] + self._presence
        for tokens in (*self._held_back, *self._ruled_out):
            found[_places(tokens, ids)[0], ADDED] = -np.inf
        return found

    @property
    def forced(self) -> bool:
        """Whether one of some tokens has to come now."""
        return bool(self._forced)

    @property
    def _forced(self) -> list[Ids]:
        now = ((self._first, not self._read), (self._last, self._read + 1 == self._most))
        return [tokens for tokens, is_now in now if is_now and len(tokens)]

    @property
    def _held_back(self) -> list[Ids]:
        """What may not come now, unless it is forced."""
        return [self._refused, self._ends] if self._read < self._shortest else [self._refused]

    @property
    def _ruled_out(self) -> list[Ids]:
        """What may not come now in any case."""
        return [self._never] if self._read else [self._never, self._not_first]

    @property
    def _refused(self) -> Ids:
        """The tokens that would make a row of tokens come again."""
        if not self._ngram or len(self._ids) < self._ngram - 1:
            return np.empty(0, np.int64)
        last = tuple(self._ids[len(self._ids) - self._ngram + 1 :])
        return np.array(sorted(self._followers.get(last, ())), np.int64)

    def touched(self) -> Ids:
        """The tokens whose logits `apply` may change now, by rising id."""
        if self.nothing:
            return np.empty(0, np.int64)
        found = [self._bias[0], self._refused, self._never, self._not_first, self._first, self._last]
        if self._read < self._shortest:
            found.append(self._ends)
        if self._seen is not None:
            found.append(np.flatnonzero(self._seen))
        if self._counts is not None:
            found.append(np.flatnonzero(self._counts))
        return np.unique(np.concatenate(found))

    def read(self, token: int) -> None:
        """The text has grown by a token."""
        self._read += 1
        if self._seen is not None:
            self._seen[token] = True
        if self._counts is not None:
            self._counts[token] += 1
        if self._ngram:
            self._ids.append(token)
            if len(self._ids) >= self._ngram:
                self._note(len(self._ids))

    def _note(self, end: int) -> None:
        *first, last = self._ids[end - self._ngram : end]
        self._followers.setdefault(tuple(first), set()).add(last)

    def copy(self) -> Penalties:
        """The same for another text that has begun alike."""
        twin = object.__new__(Penalties)
        twin.__dict__.update(self.__dict__)
        twin._counts = None if self._counts is None else self._counts.copy()
        twin._seen = None if self._seen is None else self._seen.copy()
        twin._ids = list(self._ids)
        twin._followers = {first: set(last) for first, last in self._followers.items()}
        return twin


def _places(tokens: Ids, part: slice | Ids) -> tuple[Ids, NDArray[np.bool_]]:
    """Where tokens stand in a part of the vocabulary, and which of them are in it."""
    if isinstance(part, slice):
        here = (tokens >= part.start) & (tokens < part.stop)
        return tokens[here] - part.start, here
    places = np.minimum(np.searchsorted(part, tokens), len(part) - 1)
    here = part[places] == tokens
    return places[here], here
