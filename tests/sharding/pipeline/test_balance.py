"""Cuts of chains of steps: as trying every cut finds them."""

from __future__ import annotations

import itertools
import random
from itertools import pairwise

import pytest

from sharding.pipeline.balance import SLACK, TIE, Costs, balanced


class Chain:
    """A chain of steps as it is, from which costs are told and counted again by hand."""

    def __init__(self, seed: int, length: int) -> None:
        draw = random.Random(seed)
        self.length = length
        self.seconds = [draw.choice([0.0, 1.0, 2.0, 5.0]) for _ in range(length)]
        self.weights = [
            (draw.randint(1, 9), sorted({draw.randrange(length) for _ in range(draw.choice([1, 1, 2, 3]))}))
            for _ in range(length)
        ]
        self.values = []
        for _ in range(length):
            start = draw.randrange(length - 1)
            seconds = None if draw.random() < 0.1 else draw.choice([0.1, 0.5, 2.0])
            self.values.append((start, draw.randint(start + 1, length - 1), seconds))
        self.bounds = {draw.randrange(length): draw.randrange(2)} if draw.random() < 0.4 else {}

    def costs(self) -> Costs:
        costs = Costs(self.length)
        costs.seconds[:] = self.seconds
        costs.bounds = self.bounds
        for step in range(self.length):
            for number, (size, uses) in enumerate(self.weights):
                if step in uses:
                    costs.use(number, size, step)
                    costs.use(number, size, step)  # twice in a step is once
        for start, end, seconds in self.values:
            costs.crosses(start, end, seconds)
        return costs

    def sent(self, cut: int) -> float:
        return sum(seconds or 0 for start, end, seconds in self.values if start <= cut < end)

    def ways(self, stages: int) -> list[tuple[float, float, float, tuple[int, ...]]]:
        """Of all cuts that may be: the slowest stage's seconds, the most weights, the seconds of sending."""
        found = []
        for cuts in itertools.combinations(range(self.length - 1), stages - 1):
            if any(s is None and start <= cut < end for cut in cuts for start, end, s in self.values):
                continue
            parts = [range(a + 1, b + 1) for a, b in pairwise([-1, *cuts, self.length - 1])]
            if any(step not in parts[stage] for step, stage in self.bounds.items()):
                continue
            received = [0.0, *map(self.sent, cuts)]
            times = [sum(self.seconds[i] for i in part) + r for part, r in zip(parts, received, strict=True)]
            held = [sum(size for size, uses in self.weights if set(uses) & set(part)) for part in parts]
            found.append((max(times), max(held), sum(received), cuts))
        return found


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("memory", [None, 12])
def test_the_best_of_all_cuts(seed: int, stages: int, memory: int | None) -> None:
    chain = Chain(seed, 7)
    found, ways = balanced(chain.costs(), stages, memory), chain.ways(stages)
    if not ways:
        assert found is None
        return
    assert found is not None
    limit = (1 + SLACK) * sum(size for size, _ in chain.weights) / stages
    limit = max(min(held for _, held, _, _ in ways), limit if memory is None else min(limit, memory))
    fitting = [way for way in ways if way[1] <= limit + 1e-9]
    near = [way for way in fitting if way[0] <= (1 + TIE) * min(fitting)[0] + 1e-9]
    mine = next(way for way in ways if way[3] == tuple(found[0]))
    assert mine in near
    assert mine[2] == pytest.approx(min(way[2] for way in near))
    assert max(found[1]) == pytest.approx(mine[0]) and len(found[1]) == stages


def test_more_stages_than_steps() -> None:
    assert balanced(Costs(2), 3) is None
    assert balanced(Costs(3), 3) == ([0, 1], [0.0, 0.0, 0.0])
    assert balanced(Costs(3), 1) == ([], [0.0])


@pytest.mark.parametrize("seed", range(10))
def test_weights_of_each_part_of_a_chain(seed: int) -> None:
    """Each counts once, however many of the part's steps use it."""
    chain, cuts = Chain(seed, 9), [-1, 0, 1, 3, 4, 6, 8]
    found = chain.costs().weight_bytes(cuts)
    for (i, a), (j, b) in itertools.combinations(enumerate(cuts), 2):
        held = sum(size for size, uses in chain.weights if any(a < use <= b for use in uses))
        assert found[i, j] == held, (a, b)


@pytest.mark.parametrize("seed", range(10))
def test_where_a_chain_may_be_cut_and_what_is_sent_there(seed: int) -> None:
    chain = Chain(seed, 9)
    costs = chain.costs()
    kept = [(start, end) for start, end, seconds in chain.values if seconds is None]
    assert costs.usable() == [cut for cut in range(8) if not any(a <= cut < b for a, b in kept)]
    assert costs.crossing_seconds().tolist() == pytest.approx([chain.sent(cut) for cut in range(9)])
