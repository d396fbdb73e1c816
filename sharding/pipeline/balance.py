"""Where to cut a chain of steps into pipeline stages: dynamic programming over the cut points.

The slowest stage sets the pace of micro-batches, so its time is made as short as possible: the time of its
steps, and of receiving the values that it needs. But a pipeline also saves memory: no stage may hold more
than ``1 + SLACK`` times the average bytes of weights, or, where no cuts allow that, than the least possible.
Of the cuts within `TIE` of the shortest time, those that send least are taken.
"""

from __future__ import annotations

from collections.abc import Hashable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

SLACK = 0.5
"""A large embedding is looked up in no time: held to the average, its stage would have little to do."""
TIE = 0.02
MAX_CUTS = 1024
"""Cut points that are looked at; of more, the cheapest of each neighbourhood."""
_NEIGHBOURS = 4

Matrix = NDArray[np.float64]


class Costs:
    """What cutting a chain costs: seconds of its steps, weights that they hold, values that cross."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seconds = np.zeros(length)
        self.bounds: dict[int, int] = {}
        """Step -> the stage that it must be in."""
        self._weights: dict[Hashable, tuple[int, list[int]]] = {}
        self._crossing = np.zeros(length + 1)
        self._forbidden = np.zeros(length + 1, np.int64)

    def use(self, weight: Hashable, size: int, step: int) -> None:
        """A step holds a weight (or part) of this size; steps are told in order."""
        uses = self._weights.setdefault(weight, (size, []))[1]
        if not uses or uses[-1] != step:
            uses.append(step)

    def crosses(self, start: int, end: int, seconds: float | None) -> None:
        """A value made by step ``start`` is last used by step ``end``; None: it cannot be sent."""
        change: NDArray[np.float64] | NDArray[np.int64] = (
            self._forbidden if seconds is None else self._crossing
        )
        change[start] += 1 if seconds is None else seconds
        change[end] -= 1 if seconds is None else seconds

    def crossing_seconds(self) -> Matrix:
        """Per step the seconds of sending on what is needed after it."""
        return np.maximum(np.cumsum(self._crossing)[: self.length], 0.0)

    def usable(self) -> list[int]:
        """The steps after which a cut is possible."""
        forbidden = np.cumsum(self._forbidden)[: self.length]
        return [step for step in range(self.length - 1) if forbidden[step] == 0]

    def weight_bytes(self, cuts: list[int]) -> Matrix:
        """[i, j]: bytes held by a stage of the steps after cut i to cut j, of cuts in order; each once."""
        bounds = np.asarray(cuts)
        single = np.zeros(self.length)
        total = np.zeros((len(cuts), len(cuts)))
        for size, uses in self._weights.values():
            single[uses[0]] += size
            for before, here in pairwise(uses):
                # A stage that starts after the previous use holds the weight again, for this one.
                first = np.searchsorted(bounds, before)
                last = np.searchsorted(bounds, here)
                total[first:last, last:] += size
        summed = np.concatenate([[0.0], np.cumsum(single)])
        found: Matrix = total + summed[bounds + 1][None, :] - summed[bounds + 1][:, None]
        return found


def balanced(costs: Costs, stages: int, memory: int | None = None) -> tuple[list[int], list[float]] | None:
    """The steps after which to cut, and each stage's seconds; None where the bounds allow no cuts.

    ``memory``: bytes of weights that no stage may exceed, where that is possible.
    """
    crossing = costs.crossing_seconds()
    cuts = [-1, *_looked_at(costs.usable(), crossing, set(costs.bounds)), costs.length - 1]
    received = np.asarray([0.0, *(crossing[cut] for cut in cuts[1:-1]), 0.0])
    work = np.concatenate([[0.0], np.cumsum(costs.seconds)])[np.asarray(cuts) + 1]
    times = work[None, :] - work[:, None] + received[:, None]
    weights = costs.weight_bytes(cuts)
    backward = np.tril(np.ones(times.shape, bool))
    allowed = [~backward & _within(cuts, costs.bounds, stage) for stage in range(stages)]

    least = _path([np.where(ok, weights, np.inf) for ok in allowed], np.maximum)
    if least is None:
        return None
    limit = (1 + SLACK) * weights[0, -1] / stages
    limit = max(least[0], limit if memory is None else min(limit, memory))
    allowed = [ok & (weights <= limit) for ok in allowed]
    fastest = _path([np.where(ok, times, np.inf) for ok in allowed], np.maximum)
    assert fastest is not None
    allowed = [ok & (times <= (1 + TIE) * fastest[0]) for ok in allowed]
    passed = np.broadcast_to(received[:, None], times.shape)
    chosen = _path([np.where(ok, passed, np.inf) for ok in allowed], np.add)
    assert chosen is not None
    points = chosen[1]
    return [cuts[point] for point in points[1:-1]], [float(times[a, b]) for a, b in pairwise(points)]


def _looked_at(usable: list[int], crossing: Matrix, bounds: set[int]) -> list[int]:
    if len(usable) <= MAX_CUTS:
        return usable
    size = -(-len(usable) * _NEIGHBOURS // MAX_CUTS)
    near = [usable[start : start + size] for start in range(0, len(usable), size)]
    cheap = {cut for group in near for cut in sorted(group, key=lambda cut: crossing[cut])[:_NEIGHBOURS]}
    demanded = {cut for step in bounds for cut in (step - 1, step) if cut in set(usable)} if bounds else set()
    return sorted(cheap | demanded)


def _within(cuts: list[int], bounds: dict[int, int], stage: int) -> NDArray[np.bool_]:
    """[i, j]: whether the steps after cut i to cut j may be this stage."""
    others = np.zeros(cuts[-1] + 2)
    for step, wanted in bounds.items():
        others[step + 1] += wanted != stage
    summed = np.cumsum(others)[np.asarray(cuts) + 1]
    return np.asarray(summed[None, :] == summed[:, None])


def _path(layers: list[Matrix], combine: np.ufunc) -> tuple[float, list[int]] | None:
    """The cheapest path from the first to the last point with one edge of each layer, and its cost."""
    size = len(layers[0])
    best = np.full(size, np.inf)
    best[0] = 0.0
    came: list[NDArray[np.intp]] = []
    for edges in layers:
        reached = combine(best[:, None], edges)
        came.append(np.argmin(reached, axis=0))
        best = np.min(reached, axis=0)
    if not np.isfinite(best[-1]):
        return None
    points = [size - 1]
    for origin in reversed(came):
        points.append(int(origin[points[-1]]))
    return float(best[-1]), points[::-1]
