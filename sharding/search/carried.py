"""What loops carry from turn to turn must be placed alike in all turns.

The search decides on each step by itself: on how a value enters the first turn, and on how the body gives it
for the next one. Where the two differ, each is tried for both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy

from sharding.rules.flow import FLOW
from sharding.search.problem import WHOLE, Problem
from sharding.search.steps import Step

_ENDS: Mapping[str, tuple[str, int]] = {"Carry": ("outputs", 0), "Back": ("inputs", 0), "Last": ("inputs", 1)}
"""Of each marker of a carried value where its placement stands."""

Key = tuple[int, int]
"""The number of a loop, and that of a value that it carries."""


def carried_ways(problem: Problem, graph: Sequence[Step], choices: Sequence[int]) -> list[Problem]:
    """The problem with carried values pinned, in the ways that are worth a search; none where the choices
    are right already."""
    ends: dict[Key, dict[str, int]] = {}
    for index, step in enumerate(graph):
        if step.node.domain == FLOW and step.node.op_type in _ENDS:
            key = (step.node.attributes["region"].as_int(), step.node.attributes["index"].as_int())
            ends.setdefault(key, {})[step.node.op_type] = index
    offered = {
        index: {_placed(problem, graph, index, c) for c in range(len(graph[index].options))}
        for steps in ends.values()
        for index in steps.values()
    }
    chosen = {
        key: {op_type: _placed(problem, graph, index, choices[index]) for op_type, index in steps.items()}
        for key, steps in ends.items()
    }
    if all(len(set(placements.values())) == 1 for placements in chosen.values()):
        return []
    ways = []
    for op_type in ("Carry", "Back"):
        way = copy(problem)
        way.choices = list(problem.choices)
        for key, steps in ends.items():
            wanted = chosen[key].get(op_type, WHOLE)
            if not all(wanted in offered[index] for index in steps.values()):
                wanted = WHOLE
            for index in steps.values():
                way.choices[index] = [
                    choice
                    for choice in problem.choices[index]
                    if _placed(problem, graph, index, choice.number) == wanted
                ]
        ways.append(way)
    return ways


def _placed(problem: Problem, graph: Sequence[Step], index: int, number: int) -> int:
    side, place = _ENDS[graph[index].node.op_type]
    choice = problem.option(index, number)
    return (choice.outputs if side == "outputs" else choice.inputs)[place]
