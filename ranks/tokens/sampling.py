"""Choosing one token of a row of logits: the likeliest, or a random one that a seed decides.

Random numbers are keyed by seed, sample and position, and not drawn one after another: a text is the same
however many others are generated beside it. Probabilities are counted in whole units, whose sums are the same
in any order: a text is the same however many ranks compute it, each of its part (`ranks.tokens.draws`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ranks.errors import ShardrunError
from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import Row

CHOOSE, ACCEPT, DRAFT = 0, 1, 2
"""What a random number is for."""
UNITS = np.float32(2.0**40)
"""Units of the likeliest token. No vocabulary has more than 2 ** 63 of them."""
_BLOCK = 128
_FEW = 512  # values are sorted
_COLDEST = np.finfo(np.float32).tiny


def uniform(seed: int, sample: int, position: int, purpose: int = CHOOSE) -> float:
    """A random number of [0, 1) that depends on these alone."""
    bits = np.random.Philox(key=seed, counter=[0, position, sample, purpose])
    return float(np.random.Generator(bits).random())


def weigh(scores: Row, best: float, temperature: float) -> Row:
    """The probabilities of tokens in units: whole numbers. ``best``: the best score of all."""
    with np.errstate(over="ignore"):
        weights: Row = scores - np.float32(best)
        weights /= max(np.float32(temperature), _COLDEST)  # 0 by 0 is no number
    np.exp(weights, out=weights)
    weights *= UNITS
    return np.rint(weights, out=weights)


def total(whole: Row) -> int:
    """The sum of units."""
    return int(_blocks(whole).sum())


def _blocks(whole: Row) -> NDArray[np.int64]:
    """The sums of blocks: exact as float64, since each is below 2 ** 53."""
    return np.add.reduceat(whole, np.arange(0, len(whole), _BLOCK), dtype=np.float64).astype(np.int64)


def enough(total: int, share: float) -> int:
    """The units that are a share of all."""
    return min(max(1, math.ceil(share * total)), total)


def aim(number: float, total: int) -> int:
    """Which of so many units a number of [0, 1) picks."""
    return int(number * 2**53) * total >> 53


def find(whole: Row, wanted: Sequence[int]) -> list[int]:
    """The places of the tokens that have these units, which are counted from the first token's on."""
    # Sums of blocks first: running sums of a whole vocabulary take half a millisecond.
    ends = np.cumsum(_blocks(whole))
    found = []
    for unit in wanted:
        block = int(np.searchsorted(ends, unit, side="right"))
        begin = block * _BLOCK
        sums = np.cumsum(whole[begin : begin + _BLOCK].astype(np.int64))
        rest = unit - (int(ends[block - 1]) if block else 0)
        found.append(begin + int(np.searchsorted(sums, rest, side="right")))
    return found


@dataclass(frozen=True)
class Candidates:
    """The tokens that may be chosen, by rising id, with their probabilities in units (`weigh`). ``ids`` None:
    all of the vocabulary."""

    ids: NDArray[np.int64] | None
    weights: NDArray[np.float32]

    def pick(self, number: float) -> int:
        """The token that a number of [0, 1) picks."""
        [place] = find(self.weights, [aim(number, total(self.weights))])
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
    weights = weigh(scores, best, options.temperature or 1.0)
    kept: NDArray[np.bool_] | None = None
    if options.top_p is not None and options.top_p < 1:
        kept = _nucleus(weights, options.top_p)
    if options.min_p:
        likely = weights >= np.float32(options.min_p) * UNITS
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


def _nucleus(whole: Row, share: float) -> NDArray[np.bool_]:
    """Which tokens are the fewest, likeliest ones that together have a share of all units."""
    need = enough(total(whole), share)
    # Halves, and not a sort of all: those above `active` are all kept, those below none.
    active, above, count = whole, 0, 0
    while len(active) > _FEW:
        high = np.flatnonzero(active >= active.mean(dtype=np.float64))
        if len(high) in {0, len(active)}:
            break  # all are equal
        upper = active[high]
        sum_upper = total(upper)
        if above + sum_upper >= need:
            active = upper
        else:
            above, count = above + sum_upper, count + len(high)
            active = active[np.flatnonzero(active < upper.min())]
    falling = np.sort(active)[::-1]
    place = int(np.searchsorted(np.cumsum(falling.astype(np.int64)), need - above, side="left"))
    kept: NDArray[np.bool_] = whole > falling[place]
    # Of equal ones at the border, those with the lowest ids.
    equal = np.flatnonzero(whole == falling[place])
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
