"""What a placement of a value will cost later, estimated backwards through the graph.

The search keeps only so many states at a time. Which of them are worth keeping shows only where values meet
again: keys may be split in many ways at no cost, until they are multiplied with the queries. For each value
and placement this estimates what must still be paid because of it, beyond the value's best placement, as if
each value were alone: all other activations are thought to be where an option wants them.
"""

from __future__ import annotations

from sharding.search.problem import NEVER, WHOLE, Held, Problem

Regrets = dict[int, int]
"""Placement -> cost beyond that of the best placement."""


class Lookahead:
    """Regrets of the inputs of each step (before and after it) and of its outputs."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.candidates = self._candidates()
        self.now: dict[int, Regrets] = {}
        self._sums: dict[int, Regrets] = {}
        self.before: list[dict[int, Regrets]] = [{} for _ in problem.choices]
        self.after: list[dict[int, Regrets]] = [{} for _ in problem.choices]
        for index in range(len(problem.choices) - 1, -1, -1):
            self._step(index)

    def _candidates(self) -> list[list[int]]:
        """For each value, the placements in which it may be held."""
        problem = self.problem
        found: list[dict[int, None]] = [{} if value.weight else {WHOLE: None} for value in problem.values]
        for inputs, outputs, choices in zip(problem.inputs, problem.outputs, problem.choices, strict=True):
            for choice in choices:
                for number, placement in zip(inputs, choice.inputs, strict=True):
                    if number is not None:
                        found[number][placement] = None
                for number, placement in zip(outputs, choice.outputs, strict=True):
                    found[number][placement] = None
        return [list(placements) for placements in found]

    def _regrets(self, number: int) -> Regrets:
        """What each placement of the value with this number costs after the present step."""
        known = self.now.get(number)
        if known is None:
            known = {}
            if self.problem.values[number].output is not None:
                known = {p: self.problem.end(number, (p,)) for p in self.candidates[number]}
            self.now[number] = known
        return known

    def _step(self, index: int) -> None:
        problem = self.problem
        values, inputs, choices = problem.values, problem.inputs[index], problem.choices[index]
        produced = [self._regrets(number) for number in problem.outputs[index]]
        self.after[index] = dict(zip(problem.outputs[index], produced, strict=True))
        places: dict[int, list[int]] = {}
        for place, number in enumerate(inputs):
            if number is not None and (not values[number].weight or values[number].counted):
                places.setdefault(number, []).append(place)
        costs = []
        for choice in choices:
            cost = choice.work + sum(
                known.get(p, 0) for known, p in zip(produced, choice.outputs, strict=True)
            )
            for number, where in places.items():
                if values[number].weight:
                    cost += self._weight(number, (), choice.inputs, where)
            costs.append(cost)
        for number, where in places.items():
            if len(choices) == 1 and len(self.candidates[number]) == 1:
                continue
            self.after[index][number] = self._regrets(number)
            self._add(number, where, index, costs)
            self.before[index][number] = self.now[number]

    def _weight(self, number: int, held: Held, inputs: Held, places: list[int]) -> int:
        cost = 0
        for place in places:
            more, held = self.problem.bring(number, held, inputs[place])
            cost += more
        return cost

    def _add(self, number: int, places: list[int], index: int, costs: list[int]) -> None:
        """Adds what this step costs, by the placement of one of its inputs."""
        problem, weight = self.problem, self.problem.values[number].weight
        here: Regrets = {}
        for placement in self.candidates[number]:
            best = NEVER
            for choice, cost in zip(problem.choices[index], costs, strict=True):
                if cost >= best:
                    continue
                held: Held = (placement,)
                moved = cost - self._weight(number, (), choice.inputs, places) if weight else cost
                for place in places:
                    more, held = problem.bring(number, held, choice.inputs[place])
                    moved += more
                best = min(best, moved)
            here[placement] = best
        later = self._sums.get(number) or self._regrets(number)
        together = {p: cost + later.get(p, 0) for p, cost in here.items()}
        least = min(together.values())
        together = {p: cost - least for p, cost in together.items()}
        several = number in self._sums or problem.values[number].output is not None
        self._sums[number] = together
        if several and not weight:  # moved once, used by all
            closed = {
                p: min(
                    cost if p == q else problem.bring(number, (p,), q)[0] + cost
                    for q, cost in together.items()
                )
                for p in together
            }
            together = closed
        self.now[number] = together
