"""Weights that several steps use: every layer of ALBERT, every time step of an LSTM that was unrolled.

The search pays for a weight where it is used first, so the first use alone would decide how it is cut. Here
each use first gets a weight of its own: that graph has no such ties, and its plan costs no more than any plan
of the real graph. The placement that most uses want is then pinned, and the real graph is searched once more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass, replace

from sharding.search.branches import Path, most_at_once, ways
from sharding.search.problem import WHOLE, Held, Problem, Value

MANY = 4
"""Uses of one weight by a single row from which on its cut must pay: so many collectives, one after the
other, can take longer than what the ranks save by it."""
MAX_WISHES = 2
"""Rounds of uses whose wishes are tried, besides those of most uses."""

Pins = dict[int, int]
"""Number of a constant value -> the number of the placement at which it is wanted."""


@dataclass(frozen=True)
class _Use:
    """A step that uses constants, and the steps on constants alone that lead to them, in order."""

    step: int
    cone: tuple[int, ...]
    roots: frozenset[int]
    """The counted weights that it depends on by constants alone."""


class Reuse:
    """The counted weights of a problem that more than one step uses, directly or transposed, cast, ..."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        roots, uses = _uses(problem)
        counts = Counter(root for use in uses for root in use.roots)
        returned = [value.output is not None and value.constant for value in problem.values]
        kept = set(problem.weight_outputs).union(*(roots[n] for n in roots if returned[n]))
        self.roots = roots
        self.counts = {root: count for root, count in counts.items() if count > 1 and root not in kept}
        """Weight -> its uses."""
        self.uses = [use for use in uses if not use.roots.isdisjoint(self.counts)]

    def apart(self) -> tuple[Problem, list[int]]:
        """The problem with a weight for each use, and the step of this problem that each of its steps is."""
        problem = self.problem
        apart = copy(problem)
        apart.values = list(problem.values)
        by_step = {use.step: use for use in self.uses}
        shared = {value for use in self.uses for value in self._constants(use)}
        steps: list[int] = []
        inputs: list[tuple[int | None, ...]] = []
        outputs: list[tuple[int, ...]] = []
        for index in range(len(problem.choices)):
            use = by_step.get(index)
            if use is None and shared.issuperset(problem.outputs[index]) and problem.outputs[index]:
                continue  # written before each of its uses
            numbers: dict[int, int] = {}
            for value in self._constants(use) if use else ():
                old = problem.values[value]
                size = max(1, old.size // self.counts[value]) if value in self.counts else old.size
                numbers[value] = len(apart.values)
                apart.values.append(replace(old, size=size))
            for step in (*(use.cone if use else ()), index):
                steps.append(step)
                inputs.append(tuple(None if n is None else numbers.get(n, n) for n in problem.inputs[step]))
                outputs.append(tuple(numbers.get(n, n) for n in problem.outputs[step]))
        apart.inputs, apart.outputs = inputs, outputs
        apart.choices = [problem.choices[step] for step in steps]
        apart.values = _with_last_uses(apart)
        return apart, steps

    def _constants(self, use: _Use) -> list[int]:
        """What a use has of its own: the weights in question, and what is made of them."""
        problem = self.problem
        made = [value for step in use.cone for value in problem.outputs[step]]
        return [*(root for root in use.roots if root in self.counts), *made]

    def wishes(self, steps: Sequence[int], choices: Sequence[int]) -> Iterator[Pins]:
        """What to pin, the most promising first, given the choices for `apart`'s problem: what most uses of
        each weight want; then what most rounds want, where round n is the n-th use of every weight."""
        problem = self.problem
        wanted: list[dict[int, int]] = []
        cone: dict[int, int] = {}
        ends = {use.step for use in self.uses}
        for step, choice in zip(steps, choices, strict=True):
            option = problem.option(step, choice)
            for number, placement in zip(problem.inputs[step], option.inputs, strict=True):
                if number is not None and problem.values[number].constant:
                    cone[number] = placement
            if step in ends:
                wanted.append(cone)
                cone = {}
        votes: dict[int, Counter[int]] = {}
        rounds: list[Pins] = []
        for use, places in zip(self.uses, wanted, strict=True):
            for number in self._constants(use):
                if number in places:
                    own = votes.setdefault(number, Counter())
                    if sum(own.values()) == len(rounds):
                        rounds.append({})
                    rounds[sum(own.values())][number] = places[number]
                    own[places[number]] += 1
        majority = {number: own.most_common(1)[0][0] for number, own in votes.items()}
        full = Counter(tuple(sorted(pins.items())) for pins in rounds if len(pins) == len(votes))
        common = [dict(pins) for pins, _ in full.most_common(MAX_WISHES)]
        yield majority
        yield from (pins for pins in common if pins != majority)

    def ways(self) -> Iterator[tuple[Problem, list[int]]]:
        """The problem of each way through its branches alone, and the step of this problem that each of its
        steps is. A branch is mostly the whole model, with the same weights as the other."""
        problem = self.problem
        for steps in ways(problem.paths):
            made = {number for step in steps for number in problem.outputs[step]}
            gone = {number for outputs in problem.outputs for number in outputs} - made
            way = copy(problem)
            way.inputs = [tuple(None if n in gone else n for n in problem.inputs[step]) for step in steps]
            way.outputs = [problem.outputs[step] for step in steps]
            way.choices = [problem.choices[step] for step in steps]
            way.paths = [() for _ in steps]
            way.rows = [problem.rows[step] for step in steps]
            way.values = _with_last_uses(way)
            yield way, steps

    def wanted(self, steps: Sequence[int], choices: Sequence[int]) -> Pins:
        """How these choices use each constant that they use in one way only."""
        problem, found = self.problem, dict[int, set[int]]()
        for step, choice in zip(steps, choices, strict=True):
            option = problem.option(step, choice)
            for number, placement in zip(problem.inputs[step], option.inputs, strict=True):
                if number is not None and problem.values[number].constant:
                    found.setdefault(number, set()).add(placement)
        return {number: placements.pop() for number, placements in found.items() if len(placements) == 1}

    def pinned(self, pins: Pins) -> Problem:
        """The problem in which constants are used as is wished, by each step that can."""
        pinned = copy(self.problem)
        pinned.choices = [
            [option for option in options if _agrees(inputs, option.inputs, pins)] or options
            if len(options) > 1
            else options
            for inputs, options in zip(self.problem.inputs, self.problem.choices, strict=True)
        ]
        return pinned

    def held_whole(self, *, by_all: bool) -> Problem | None:
        """The problem in which each weight that many steps use for a single row is held whole, and counts for
        nothing; None where there is none. ``by_all``: every rank does all that is done with them."""
        problem = self.problem
        wide = {root for use in self.uses if problem.rows[use.step] != 1 for root in use.roots}
        places: dict[int, list[Path]] = {root: [] for root in self.counts}
        for use in self.uses:
            for root in use.roots.intersection(places):
                places[root].append(problem.paths[use.step])
        free = {root for root, used in places.items() if most_at_once(used) >= MANY and root not in wide}
        if not free:
            return None
        made = {number for number, roots in self.roots.items() if roots <= free}
        freed = self.pinned(dict.fromkeys(made, WHOLE))
        freed.values = [
            replace(value, counted=False, static=False) if number in made else value
            for number, value in enumerate(problem.values)
        ]
        if by_all:
            freed.choices = list(freed.choices)
            for use in self.uses:
                if not use.roots.isdisjoint(free):
                    freed.choices[use.step] = freed.choices[use.step][:1]
        return freed


def _uses(problem: Problem) -> tuple[dict[int, frozenset[int]], list[_Use]]:
    """The counted weights in each constant that is made of some; and the steps that use such constants
    together with other values."""
    roots = {number: frozenset({number}) for number, value in enumerate(problem.values) if value.counted}
    cones: dict[int, tuple[int, ...]] = {}
    found = []
    for index, (inputs, outputs) in enumerate(zip(problem.inputs, problem.outputs, strict=True)):
        constants = [number for number in inputs if number in roots]
        if not constants:
            continue
        own = frozenset[int]().union(*(roots[number] for number in constants if number is not None))
        cone = tuple(sorted({step for number in constants for step in cones.get(number or 0, ())}))
        if all(problem.values[number].constant for number in outputs):
            for number in outputs:
                roots[number], cones[number] = own, (*cone, index)
        else:
            found.append(_Use(index, cone, own))
    return roots, found


def _agrees(inputs: Sequence[int | None], wanted: Held, pins: Pins) -> bool:
    return all(
        number is None or pins.get(number, placement) == placement
        for number, placement in zip(inputs, wanted, strict=True)
    )


def _with_last_uses(problem: Problem) -> list[Value]:
    last: dict[int, int] = {}
    for index, inputs in enumerate(problem.inputs):
        last.update((number, index) for number in inputs if number is not None)
    last.update((number, len(problem.inputs)) for number in problem.weight_outputs)
    return [replace(value, last_use=last.get(number, -1)) for number, value in enumerate(problem.values)]
