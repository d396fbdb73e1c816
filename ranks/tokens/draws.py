"""Random choices among tokens of which each rank has a part: exact, and the same on any number of ranks.

Probabilities are whole units (`ranks.tokens.sampling`), whose sums no order changes. So ranks tell each other
a few sums instead of their logits, and the token that a random number picks is, to the bit, the one that it
picks where one rank has all. The border of top-p is found by its digits: in each round every rank tells how
many units its tokens have by their next digits, and only those at the border have further ones.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ranks.tokens import sampling
from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import FACTOR, Changes, Ids, Row

_DIGITS = ((20, 127 << 3, 321), (13, 0, 128), (6, 0, 128), (0, 0, 64))
"""Of units as float32, whose bits are in the order of the numbers: how far to shift them, what to take off,
and how many different digits there are. The first ones are those of 1 to 2 ** 40: the exponent, and three
bits more."""

Sums = NDArray[np.int64]
Numbers = NDArray[np.float64]
Drawing = Generator[Numbers, Numbers, "list[int] | None"]
"""One rank's part in a draw: what it tells, then is sent what each rank tells (ranks, numbers). It ends with
the places of the tokens among its own, -1 for those of other ranks; None where no score is the best."""


@dataclass(frozen=True)
class Draw:
    """A choice of tokens by random numbers of [0, 1): one for each number, independent of each other."""

    temperature: float
    numbers: tuple[float, ...]
    top_p: float = 1.0
    """1: all tokens may come."""
    min_p: float = 0.0
    changes: Changes = field(default_factory=lambda: np.empty((0, 3), np.float32))
    """What is done to the logits of tokens that are named elsewhere, before anything else."""

    @classmethod
    def of(cls, options: SamplingOptions, vocabulary: int, number: float) -> Draw | None:
        """What these options say; None where the token is the likeliest one, or among the best few."""
        if options.greedy or 0 < (options.top_k or 0) < vocabulary:
            return None
        return cls(options.temperature or 1.0, (number,), _share(options.top_p), options.min_p or 0.0)

    def plus(self, before: Ids, after: Ids) -> Draw:
        """The same where more tokens are named, which do not change; both by rising id."""
        changes = np.zeros((len(after), 3), np.float32)
        changes[:, FACTOR] = 1
        changes[np.searchsorted(after, before)] = self.changes
        return replace(self, changes=changes)


def _share(top_p: float | None) -> float:
    return 1.0 if top_p is None else min(top_p, 1.0)


def drawing(scores: Row, rank: int, draw: Draw) -> Drawing:
    """Draws by the scores (part,) of a rank's tokens, in the order of ranks. A collective."""
    best = float((yield np.array([scores.max()], np.float64)).max())
    if not np.isfinite(best):
        return None
    units = sampling.weigh(scores, best, draw.temperature)
    least = float(np.float32(draw.min_p) * sampling.UNITS)
    places = np.flatnonzero(units >= np.float32(least)) if least else None
    few = units if places is None else units[places]
    likely = sampling.total(few) if len(few) else 0
    if draw.top_p < 1:
        places, few = None, units
        kept = yield from _nucleus(units, rank, draw.top_p, (least, likely))
    else:
        told = _whole((yield _told(np.array([likely]))))
        kept = _Kept(told[:, 0].copy(), 0.0)
    ends = np.cumsum(kept.of_ranks)
    before = int(ends[rank] - kept.of_ranks[rank])
    aims = [sampling.aim(number, int(ends[-1])) for number in draw.numbers]
    mine = [int(np.searchsorted(ends, aim, side="right")) == rank for aim in aims]
    if not any(mine):
        return [-1] * len(aims)
    wanted = [aim - before for aim, is_mine in zip(aims, mine, strict=True) if is_mine]
    found = iter(sampling.find(kept.among(few), wanted))
    return [
        int(next(found) if places is None else places[next(found)]) if is_mine else -1 for is_mine in mine
    ]


@dataclass(frozen=True)
class _Kept:
    """What may be drawn."""

    of_ranks: Sums
    """The units of each rank."""
    least: float
    """Tokens of fewer units may not."""
    ties: int | None = None
    """So many of this rank's tokens of just as many units may; None: all."""

    def among(self, units: Row) -> Row:
        """The units of this rank's tokens; 0 for those that may not be drawn."""
        if not self.least:
            return units
        own = np.where(units >= np.float32(self.least), units, np.float32(0))
        if self.ties is not None:
            own[np.flatnonzero(units == np.float32(self.least))[self.ties :]] = 0
        return own


def _nucleus(
    units: Row, rank: int, share: float, likely: tuple[float, int]
) -> Generator[Numbers, Numbers, _Kept]:
    """The fewest, likeliest tokens that together have a share of all units, of equal ones those with the
    lowest ids. ``likely``: the units that each token must have, and this rank's of all that have them."""
    digits, inside = units.view(np.int32), units
    kept = of_ranks = np.zeros(0, np.int64)
    need = above = border = 0
    for shift, first, count in _DIGITS:
        # Tokens without units are among those of one unit, where they count for nothing.
        own = np.maximum((digits >> shift) - first, 0) if first else (digits >> shift) & (count - 1)
        # Exact as float64: all of one sum have the same exponent.
        sums = np.bincount(own, inside, count).astype(np.int64)
        told = _whole((yield _told(np.append(sums, likely[1]) if first else sums)))
        if first:
            of_ranks, told = told[:, -1].copy(), told[:, :-1]
            kept = np.zeros(len(told), np.int64)
            need = sampling.enough(int(told.sum()), share)
        falling = np.cumsum(told.sum(axis=0)[::-1])
        digit = count - 1 - int(np.searchsorted(falling, need - above, side="left"))
        kept = kept + told[:, digit + 1 :].sum(axis=1)
        above, equal = int(kept.sum()), told[:, digit].copy()
        border |= (first + digit) << shift
        here = own == digit
        digits, inside = digits[here], inside[here]
    each = int(np.array(border, np.int32).view(np.float32))
    if each < likely[0]:
        return _Kept(of_ranks, likely[0])
    counts = equal // each
    before = np.cumsum(counts) - counts
    taken = np.clip(-((above - need) // each) - before, 0, counts)
    return _Kept(kept + taken * each, float(each), int(taken[rank]))


def _told(sums: Sums) -> Numbers:
    """Whole numbers as they travel, to the bit."""
    return sums.astype(np.int64).view(np.float64)


def _whole(told: Numbers) -> Sums:
    return told.view(np.int64)


def side_by_side(
    draws: Sequence[Drawing], gather: Callable[[int, Numbers], Numbers]
) -> list[list[int] | None]:
    """Makes several draws at once: what each ends with. A collective.

    ``gather``: gives the numbers of each rank (ranks, numbers) in a round, which are good until the next."""
    going = {place: (one, next(one)) for place, one in enumerate(draws)}
    ended: dict[int, list[int] | None] = {}
    turn = 0
    while going:
        everyone = gather(turn, np.concatenate([told for _, told in going.values()]))
        begin, further = 0, {}
        for place, (one, told) in going.items():
            answer = everyone[:, begin : begin + len(told)]
            begin += len(told)
            try:
                further[place] = one, one.send(answer)
            except StopIteration as end:
                ended[place] = end.value
        going, turn = further, turn + 1
    return [ended[place] for place in range(len(draws))]
