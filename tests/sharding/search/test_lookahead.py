"""What the search estimates of later steps, where the estimate is exact: along a chain of steps.

The measure is every way of going on from there, tried one by one.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from sharding.reading.read import read_model
from sharding.search.lookahead import Lookahead
from sharding.search.problem import NEVER, Held, Problem
from sharding.search.steps import steps
from tests.sharding import graphs

CHAIN = "a = MatMul(x, w1) b = Relu(a) c = MatMul(b, w2) d = Add(c, bias) y = Tanh(d)"


def _rest(problem: Problem, index: int, held: dict[int, Held]) -> int:
    """The least cost of the steps from this one on, with values held so."""
    if index == len(problem.choices):
        return sum(problem.end(number, where) for number, where in held.items())
    least = NEVER
    for choice in problem.choices[index]:
        now, cost = dict(held), choice.work
        for number, wanted in zip(problem.inputs[index], choice.inputs, strict=True):
            if number is not None:
                more, now[number] = problem.bring(number, now.get(number, ()), wanted)
                cost += more
        now |= {n: (place,) for n, place in zip(problem.outputs[index], choice.outputs, strict=True)}
        least = min(least, cost if cost >= NEVER else cost + _rest(problem, index + 1, now))
    return least


@pytest.mark.parametrize("ranks", [2, 4])
def test_a_regret_is_what_a_placement_costs_more_than_the_best(ranks: int, tmp_path: Path) -> None:
    weights = {"w1": graphs.array(32, 64), "w2": graphs.array(64, 16), "bias": graphs.array(16)}
    text = f"g (float[n, 32] x) => (float[n, 16] y) {{ {CHAIN} }}"
    source = read_model(graphs.save(tmp_path / "m.onnx", text, weights))
    problem = Problem(source, steps(source, ranks), ranks)
    lookahead, apart = Lookahead(problem), 0
    for index, outputs in enumerate(problem.outputs):
        (number,) = outputs
        costs = {p: _rest(problem, index + 1, {number: (p,)}) for p in lookahead.candidates[number]}
        least = min(costs.values())
        regrets = {place: cost - least for place, cost in costs.items() if cost < NEVER}
        found = lookahead.after[index][number]
        assert {place: found[place] - min(found.values()) for place in regrets} == regrets
        apart += len(set(regrets.values())) - 1
    assert apart  # or all placements would cost the same, and nothing were compared
