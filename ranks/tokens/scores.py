"""The logits of one position: of all tokens, or of those alone that what comes next can depend on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranks.tokens.penalties import Row

_UNITS = np.float32(2.0**40)
"""Of which a sum of probabilities is a whole number: its parts give the same one in any order."""


def total(row: Row, highest: float) -> int:
    """The sum of what is proportional to the probabilities of a row's tokens, or of a part of them: 2 ** 40
    for one with the ``highest`` logit of all, which is finite."""
    return int(np.rint(np.exp(row - np.float32(highest)) * _UNITS).astype(np.int64).sum())


@dataclass(frozen=True)
class Norm:
    """What makes logits log-probabilities: the highest one of all tokens, and the sum of `total`."""

    highest: float
    total: int

    @classmethod
    def of(cls, row: Row) -> Norm:
        """That of the logits (vocabulary,)."""
        highest = float(row.max())
        return cls(highest, total(row, highest) if np.isfinite(highest) else 0)

    def logs(self, row: Row) -> Row:
        """The log-probabilities of logits; none are numbers where the highest logit is none."""
        if not self.total:
            return np.full(row.shape, np.nan, np.float32)
        shifted: Row = row - np.float32(self.highest)
        shifted -= np.float32(np.log(self.total / float(_UNITS)))
        return shifted


@dataclass(frozen=True)
class Scores:
    """Logits (n,) and the tokens they are of, by rising id. ``ids`` None: all of the vocabulary, in order;
    ``norm``: where these are not all, and log-probabilities were asked for. ``drawn``: the tokens that ranks
    have drawn, by the random numbers that picked them."""

    values: Row
    ids: NDArray[np.int64] | None = None
    norm: Norm | None = None
    drawn: Mapping[float, int] | None = None

    def logs(self) -> Row:
        """The log-probabilities of these tokens."""
        assert self.norm is not None or self.ids is None
        return (self.norm or Norm.of(self.values)).logs(self.values)

    def token(self, place: int) -> int:
        """The id of the token at a place among these."""
        return place if self.ids is None else int(self.ids[place])

    def place(self, token: int) -> int:
        """Where a token stands, which must be one of these."""
        return token if self.ids is None else int(np.searchsorted(self.ids, token))
