"""Where the state of a model lies in its pipeline: one stage runs all steps that read or give it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sharding.search.steps import Step


def spans(graph: Sequence[Step], main: Sequence[int], state: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """For each state, first and last place among the ``main`` steps of those that one stage must run, which
    alone holds it. ``state``: output by input."""
    found: dict[str, list[int]] = {}
    of_output = {made: taken for taken, made in state.items()}
    for number, index in enumerate(main):
        step = graph[index]
        for value in step.inputs:
            if value is not None and value.name and value.name in state and value.is_graph_input():
                found.setdefault(value.name, []).append(number)
        for value in step.node.outputs:
            taken = of_output.get(value.name or "")
            if taken is not None and value.is_graph_output():
                found.setdefault(taken, []).append(number)
    return {name: (min(numbers), max(numbers)) for name, numbers in found.items()}


def keepers(
    graph: Sequence[Step], stage_of_main: Mapping[int, int], state: Mapping[str, str]
) -> dict[int, int]:
    """Steps that are no main ones, such as a constant's, and give a state's next value: the stage of each,
    which is that of the state's readers."""
    of_output = {made: taken for taken, made in state.items()}
    holders = {
        value.name: stage
        for index, stage in stage_of_main.items()
        for value in graph[index].inputs
        if value is not None and value.name in state and value.is_graph_input()
    }
    found: dict[int, int] = {}
    for index, step in enumerate(graph):
        for value in step.node.outputs if index not in stage_of_main else ():
            holder = holders.get(of_output.get(value.name or "", ""))
            if holder is not None and value.is_graph_output():
                found[index] = holder
    return found
