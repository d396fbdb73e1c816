"""The search for a plan of a model with state: with state free, and again where that needs exchanges."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from sharding.planning.emit import emit_rank
from sharding.search.solve import solve
from sharding.search.states import place, settle, wishes
from sharding.search.steps import Step
from sharding.slices.placement import Placement

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source


def solve_with_state(
    source: Source,
    graph: list[Step],
    world: int,
    fixed: Mapping[ir.Value, Placement] | None = None,
    whole: Collection[str] = (),
) -> list[int]:
    """The number of the chosen option for each step; arguments as those of `sharding.search.solve.solve`."""
    found = settle(source, graph, solve(source, graph, world, fixed, whole=whole), world)
    wanted = wishes(source, graph, found, world)
    if not wanted:
        return found
    needed = count_collectives(source, graph, found, world)
    # In parts, or as it lies now: what is free to end anywhere ends in parts, though what reads it in the
    # next step wants it whole. What is demanded stands in the graph's options by now.
    lies = place(source, graph, found, world)
    for held in (wanted, lies) if lies != wanted else (wanted,):
        again = settle(source, graph, solve(source, graph, world, whole=whole, held=held), world)
        if count_collectives(source, graph, again, world) < needed:
            return again
    return found


def count_collectives(source: Source, graph: Sequence[Step], choices: Sequence[int], world: int) -> int:
    """The collectives of an inference with these choices."""
    held = place(source, graph, choices, world)
    return len(emit_rank(source, graph, choices, 0, world, state=held).collectives)
