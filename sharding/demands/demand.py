"""What a step is told: the placements that its inputs and outputs must have, and the options that agree."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sharding.errors import SliceError
from sharding.rules.base import Option
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.search.steps import Step

MAX_SHOWN = 6


@dataclass
class Demand:
    """Placements by the position of the input or output."""

    inputs: dict[int, Placement] = field(default_factory=dict)
    outputs: dict[int, Placement] = field(default_factory=dict)
    exact: bool = False
    """Whether an option that gives just these outputs comes before one whose output is then moved."""


def meet(
    step: Step, demand: Demand, where: str, error: Callable[[str], SliceError] = SliceError
) -> dict[ir.Value, Placement]:
    """Leaves a step only the options that agree, and returns the outputs that must be brought to their
    placement after it.

    An option agrees with a demand on an output if it ends there, or with summands that are then reduced;
    where there is no such option, one that splits the work and whose output is then moved. ``where`` begins
    the message of the error for what is impossible.
    """
    options = [option for option in step.options if _takes(option, demand.inputs)]
    if not options:
        raise error(f"{where}: {_refused_input(step, demand)}")
    direct = [option for option in options if _gives(option, demand.outputs)]
    if not direct:
        # A node that does all of its work on every rank and throws most of it away is not what was asked for.
        direct = [option for option in options if option.divides_work]
    if not direct:
        raise error(f"{where}: {_refused_output(step, options, demand)}")
    exact = [option for option in direct if _gives(option, demand.outputs, sums=False)]
    step.options = exact if exact and demand.exact else direct
    if len(exact) == len(step.options):
        return {}
    return {step.node.outputs[index]: placement for index, placement in demand.outputs.items()}


def _takes(option: Option, inputs: dict[int, Placement]) -> bool:
    return all(option.inputs[index] == placement for index, placement in inputs.items())


def _gives(option: Option, outputs: dict[int, Placement], *, sums: bool = True) -> bool:
    return all(
        option.outputs[index] == placement or (sums and option.outputs[index] == PARTIAL)
        for index, placement in outputs.items()
    )


def _refused_input(step: Step, demand: Demand) -> str:
    for index, placement in demand.inputs.items():
        offered = [option.inputs[index] for option in step.options]
        if placement not in offered:
            name = name_of(step.inputs[index])
            return f"it cannot take {name!r} {in_words(placement)}; it can take it {_choices(offered)}"
    both = " and ".join(
        f"{name_of(step.inputs[index])!r} {in_words(placement)}" for index, placement in demand.inputs.items()
    )
    return f"it cannot take {both} together"


def _refused_output(step: Step, options: Sequence[Option], demand: Demand) -> str:
    for index, placement in demand.outputs.items():
        offered = [option.outputs[index] for option in options]
        if placement not in offered:
            return (
                f"it cannot produce {name_of(step.node.outputs[index])!r} {in_words(placement)}; "
                f"it can produce it {_choices(offered)}"
            )
    return "it cannot produce its outputs so"


def _choices(placements: Sequence[Placement]) -> str:
    texts = list(dict.fromkeys(in_words(placement) for placement in placements))
    return " or ".join(texts[:MAX_SHOWN]) + (", or otherwise" if len(texts) > MAX_SHOWN else "")


def name_of(value: ir.Value | None) -> str:
    """A value's name, empty where there is none."""
    return "" if value is None else value.name or ""


def in_words(placement: Placement) -> str:
    """A placement for an error message."""
    if placement == REPLICATED:
        return "whole"
    if not isinstance(placement, Split):
        return "as summands"
    blocks = f" in {placement.blocks} blocks" if placement.blocks > 1 else ""
    copies = f", {placement.copies} ranks each part" if placement.copies > 1 else ""
    return f"split on axis {placement.axis}{blocks}{copies}"


def label_of(node: ir.Node) -> str:
    """How an error names a node."""
    return (
        f"node {node.name!r} ({node.op_type})"
        if node.name
        else f"the {node.op_type} that makes {first_output(node)!r}"
    )


def first_output(node: ir.Node) -> str:
    """The name of a node's first output that has one: it names the node, for no other produces it."""
    return next((value.name for value in node.outputs if value.name), "")
