"""Values that must be brought to a placement as soon as they are produced.

The reshard becomes part of the producing node's options, so that the solver counts it with the node and the
rank's graph gets it from the option: neither knows of demands.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from sharding.errors import SliceError
from sharding.graph.sizes import Sizes
from sharding.graph.symbols import shown_shape
from sharding.graph.values import shape_of, shown_node
from sharding.rules.base import Emit, Emitter, Option, Value, Values
from sharding.search.cost import IMPOSSIBLE, reshard_seconds
from sharding.search.reshard import reshard, with_collectives
from sharding.search.steps import Step, fits
from sharding.slices.placement import PARTIAL, REPLICATED, Placement

if TYPE_CHECKING:
    import onnx_ir as ir


def fix(
    graph: Sequence[Step],
    fixed: Mapping[ir.Value, Placement],
    world: int,
    path: object,
    sizes: Sizes,
) -> None:
    """Replaces the options of the nodes that produce ``fixed`` values by ones that end at these placements.

    Inputs and weights among them are ignored: they are whole on every rank, or read from a file, so each use
    takes what it needs. Raises `SliceError` for a placement that a value cannot have.
    """
    for step in graph:
        wanted = [fixed.get(value) for value in step.node.outputs]
        if any(placement is not None for placement in wanted):
            step.options = [_ending_at(step, option, wanted, world, sizes) for option in step.options]
            step.options = [option for option in step.options if option.seconds < IMPOSSIBLE]
            if not step.options:
                raise SliceError(f"{path}: {_impossible(step, wanted, world)}")


def _ending_at(
    step: Step, option: Option, wanted: Sequence[Placement | None], world: int, sizes: Sizes
) -> Option:
    outputs = list(option.outputs)
    moves: list[tuple[int, ir.Value, Placement, Placement]] = []
    seconds = option.seconds
    for index, (value, target) in enumerate(zip(step.node.outputs, wanted, strict=True)):
        if target is None or target == outputs[index]:
            continue
        if not value.name or not (target == REPLICATED or fits(target, value, world)):
            seconds = IMPOSSIBLE
        seconds += reshard_seconds(outputs[index], target, sizes.bytes(value), world)
        moves.append((index, value, outputs[index], target))
        outputs[index] = target
    if not moves:
        return option
    return replace(
        option, outputs=tuple(outputs), seconds=seconds, emit=partial(_moved, option.emit, tuple(moves))
    )


def _moved(
    emit: Emit | None,
    moves: Sequence[tuple[int, ir.Value, Placement, Placement]],
    emitter: Emitter,
    values: Values,
) -> list[Value]:
    e = with_collectives(emitter)
    produced = list(e.copy(values) if emit is None else emit(e, values))
    for index, value, source, target in moves:
        outer, e.moving = e.moving, value
        produced[index] = reshard(e, produced[index], source, target, shape_of(value) or ())
        e.moving = outer
    return produced


def _impossible(step: Step, wanted: Sequence[Placement | None], world: int) -> str:
    for value, target in zip(step.node.outputs, wanted, strict=True):
        if target is None or target == REPLICATED:
            continue
        if target == PARTIAL:
            why = f"{shown_node(step.node)} cannot make it as summands"
        elif not fits(target, value, world):
            why = f"its shape {list(shown_shape(value) or ())} does not divide so over {world} ranks"
        else:
            continue
        return f"value {value.name!r} cannot be brought to {target}: {why}."
    return f"the outputs of {shown_node(step.node)} cannot be placed as demanded."
