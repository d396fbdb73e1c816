"""The best tokens of a vocabulary that ranks have in parts: each finds its own first, then one of all.

What a rank shows are the tokens that may be chosen, whatever the other ranks have. So the choice among all
that is shown is the one among all scores, to the bit: equal scores, and the order of sums, too.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ranks.tokens import sampling
from ranks.tokens.options import SamplingOptions
from ranks.tokens.penalties import Row

SPARE = 32
"""Tokens beyond the best ones that a rank may show, where several score alike."""
MOST = 4096
"""Where more than so many may be chosen, logits are gathered: that is no slower."""

Shown = NDArray[np.float64]
"""Of a rank: how many tokens it shows (-1: more than have room, or some that are no numbers), their ids, and
their scores."""


def most(options: SamplingOptions) -> int | None:
    """How many tokens may be chosen, 0 for the likeliest alone; None where all scores are needed."""
    if options.greedy:
        return 0
    wanted = options.top_k or 0
    return wanted if 0 < wanted <= MOST else None


def count(options: SamplingOptions, part: int) -> int | None:
    """How many tokens a rank shows of the ``part`` that it has; as `most`."""
    wanted = most(options)
    return wanted if wanted is not None and wanted <= part // 4 else None


def show(scores: Row, begin: int, wanted: int) -> Shown:
    """What a rank shows of the scores (part,) of the tokens from ``begin`` on; ``wanted``: `count`."""
    if not wanted:
        best = int(np.argmax(scores))  # the lowest id of equal ones, and what is no number before all
        return np.array([1, begin + best, scores[best]], np.float64)
    room = wanted + SPARE
    shown = np.zeros(1 + 2 * room)
    shown[0] = -1
    if not scores.max() < np.inf:
        return shown
    ids = np.flatnonzero(scores >= sampling.highest(scores, wanted))
    if len(ids) > room:
        return shown
    shown[0] = len(ids)
    shown[1 : 1 + len(ids)] = begin + ids
    shown[1 + room : 1 + room + len(ids)] = scores[ids]
    return shown


def drawn(scores: Row, begin: int, place: int) -> Shown:
    """What a rank shows where all have drawn one token: that, if it is its own. ``place``: where it stands
    there; -1: it is another rank's."""
    return np.array([1, begin + place, scores[place]] if place >= 0 else [0, 0, 0], np.float64)


def enough(shown: Shown) -> bool:
    """Whether no rank has more tokens to show than have room; ``shown``: as in `together`."""
    return bool((shown[:, 0] >= 0).all())


def together(shown: Shown) -> tuple[NDArray[np.int64], Row]:
    """The tokens that all ranks show, by rising id, and their scores.

    ``shown``: (ranks, ...), a row of `show` for each rank, in the order of their parts."""
    room = (shown.shape[1] - 1) // 2
    counts = shown[:, 0].astype(int)
    ids = np.concatenate([row[1 : 1 + n] for row, n in zip(shown, counts, strict=True)])
    scores = np.concatenate([row[1 + room : 1 + room + n] for row, n in zip(shown, counts, strict=True)])
    return ids.astype(np.int64), scores.astype(np.float32)
