"""Choosing one token of a row of logits: the likeliest, or a random one that a seed decides.

Random numbers are keyed by seed, sample and position, and not drawn one after another: a text is the same
however many others are generated beside it, and however many ranks compute it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranks.errors import ShardrunError
from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import Row

CHOOSE, ACCEPT, DRAFT = 0, 1, 2
"""What a random number is for."""
_BLOCK = 128
_FEW = 512  # values are sorted


def uniform(seed: int, sample: int, position: int, purpose: int = CHOOSE) -> float:
    """A random number of [0, 1) that depends on these alone."""
    bits = np.random.Philox(key=seed, counter=[0, position, sample, purpose])
    return float(np.random.Generator(bits).random())


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be chosen, by rising id, with weights in proportion to their probabilities.
    ``ids`` None: all of the vocabulary."""

    ids: NDArray[np.int64] | None
    weights: NDArray[np.float32]

    def pick(self, number: float) -> int:
        """The token that a number of [0, 1) picks."""
        # Sums of blocks first: running sums of a whole vocabulary take half a millisecond.
        starts = np.arange(0, len(self.weights), _BLOCK)
        blocks = np.cumsum(np.add.reduceat(self.weights, starts), dtype=np.float64)
        aim = number * blocks[-1]
        block = min(int(np.searchsorted(blocks, aim, side="right")), len(blocks) - 1)
        begin = int(starts[block])
        sums = np.cumsum(self.weights[begin : begin + _BLOCK], dtype=np.float64)
        rest = aim - (blocks[block - 1] if block else 0.0)
        place = begin + min(int(np.searchsorted(sums, rest, side="right")), len(sums) - 1)
        while not self.weights[place]:  # the last ones may have no weight at all
            place -= 1
        return place if self.ids is None else int(self.ids[place])

    def among(self, ids: NDArray[np.int64] | None) -> Candidates:
        """The same where the row of logits was one of these tokens."""
        if ids is None:
            return self
        return Candidates(ids if self.ids is None else ids[self.ids], self.weights)

    def spread(self, vocabulary: int) -> NDArray[np.float64]:
        """The probabilities (vocabulary,)."""
        whole = np.zeros(vocabulary)
        whole[slice(None) if self.ids is None else self.ids] = self.weights
        whole /= whole.sum()
        return whole


def candidates(scores: Row, options: SamplingOptions) -> Candidates:
    """What a row of logits leaves to choose from, by temperature, top-k, top-p and min-p, in this order."""
    ids: NDArray[np.int64] | None = None
    best = float(scores.max())
    check_finite(best)
    count = options.top_k or 0
    if 0 < count < len(scores):
        ids = np.flatnonzero(scores >= highest(scores, count))
        scores = scores[ids]
    weights: Row = scores - np.float32(best)
    weights /= np.float32(options.temperature or 1.0)
    np.exp(weights, out=weights)
    kept: NDArray[np.bool_] | None = None
    if options.top_p is not None and options.top_p < 1:
        kept = _nucleus(weights, options.top_p)
    if options.min_p:
        likely = weights >= np.float32(options.min_p)  # the likeliest has weight 1
        kept = likely if kept is None else kept & likely
    if kept is None:
        return Candidates(ids, weights)
    places = np.flatnonzero(kept)
    return Candidates(places if ids is None else ids[places], weights[places])


def highest(values: Row, count: int) -> np.float32:
    """The ``count``-th highest value."""
    if count * 4 * _BLOCK < len(values):
        # As many values as blocks, or more, reach the lowest of so many blocks' maxima: few are left.
        maxima = np.maximum.reduceat(values, np.arange(0, len(values), _BLOCK))
        values = values[values >= np.partition(maxima, len(maxima) - count)[len(maxima) - count]]
    return np.partition(values, len(values) - count)[len(values) - count]  # type: ignore[no-any-return]


def _nucleus(weights: Row, share: float) -> NDArray[np.bool_]:
    """Which weights are the fewest, largest ones that together have a share of all."""
    enough = share * float(weights.sum(dtype=np.float64))
    # Halves, and not a sort of all: those above `active` are all kept, those below none.
    active, above, count = weights, 0.0, 0
    while len(active) > _FEW:
        high = np.flatnonzero(active >= active.mean(dtype=np.float64))
        if len(high) in {0, len(active)}:
            break  # all are equal
        upper = active[high]
        sum_upper = float(upper.sum(dtype=np.float64))
        if above + sum_upper >= enough:
            active = upper
        else:
            above, count = above + sum_upper, count + len(high)
            active = active[np.flatnonzero(active < upper.min())]
    falling = np.sort(active)[::-1]
    place = int(np.searchsorted(above + np.cumsum(falling, dtype=np.float64), enough, side="left"))
    place = min(place, len(falling) - 1)
    kept: NDArray[np.bool_] = weights > falling[place]
    # Of equal ones at the border, those with the lowest ids.
    equal = np.flatnonzero(weights == falling[place])
    kept[equal[: count + place + 1 - int(np.count_nonzero(kept))]] = True
    return kept


def check_finite(best: float) -> None:
    """Raises `ShardrunError` where the best logit of a row is none."""
    if not np.isfinite(best):
        raise ShardrunError(
            f"the model's logits are not finite (the largest is {best}): no token can be chosen; float16 "
            "weights may have overflowed"
        )


def likeliest(scores: Row) -> int:
    """The token with the highest score; of equal ones that with the lowest id."""
    token = int(np.argmax(scores))
    check_finite(float(scores[token]))
    return token


def top(values: Row, count: int) -> NDArray[np.int64]:
    """The ids of the ``count`` highest values, best first; of equal ones the lowest ids."""
    count = min(count, len(values))
    if not count:
        return np.empty(0, np.int64)
    ids = np.flatnonzero(values >= highest(values, count))
    order: NDArray[np.int64] = ids[np.argsort(-values[ids], kind="stable")][:count]
    return order
