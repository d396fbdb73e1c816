"""What an operator rule is: it states facts about one operator, and knows no solver and no file.

A rule is a function ``rule(node: NodeView) -> list[Option]`` registered for (domain, op type) with ``@rule``.
"All inputs replicated, all outputs replicated, node unchanged" is always possible and is added by the solver:
rules list only what else the operator can do. Each option is a claim that can be proved by running it: cut
the inputs as it says, run what ``emit`` writes for each rank, put the outputs together by their placements,
and get the whole result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from sharding.common.arrays import Array, DType
from sharding.slices.placement import Placement

Dim = int | str | None
"""An axis length: known, a symbol (equal symbols are equal lengths), or unknown."""
Value: TypeAlias = object
"""A value of the graph that an emitter writes, None where an optional one is absent: opaque to a rule, which
only hands it on."""
Values: TypeAlias = Sequence[Value]


@dataclass(frozen=True)
class NodeView:
    """What a rule may know of a node; nothing in it depends on the rank."""

    op_type: str
    domain: str
    version: int
    """Opset version of the node's domain."""
    world: int
    attributes: Mapping[str, object]
    """Plain Python values (int, float, str, list, numpy array)."""
    shapes: Sequence[Sequence[Dim] | None]
    """One per input; None where the rank is unknown or the optional input is absent."""
    dtypes: Sequence[DType | None]
    constants: Sequence[Array | None]
    """The value of each input that is a small constant (shape arithmetic, axes, pads)."""
    present: Sequence[bool]
    output_shapes: Sequence[Sequence[Dim] | None]
    block_counts: Mapping[int, Sequence[int]] = field(default_factory=dict)
    """Axis length -> block counts above 1 that occur in this graph at that length, found by
    ``rules.blocks.block_counts``; rules that pass an axis through offer these besides the plain split."""

    def blocks(self, dim: Dim) -> list[int]:
        """The block counts to offer for an axis of this length: 1 and the graph's own, where divisible."""
        if not isinstance(dim, int):
            return []
        return [count for count in (1, *self.block_counts.get(dim, ())) if self.divisible(dim, count)]

    def divisible(self, dim: Dim, blocks: int = 1) -> bool:
        """Whether an axis of this length can be split: it is known, and a multiple of world * blocks."""
        return isinstance(dim, int) and dim > 0 and dim % (self.world * blocks) == 0


class Emitter(Protocol):
    """Writes rank ``rank``'s copy of a node into that rank's graph."""

    rank: int
    world: int
    version: int
    """Version of the default opset, whatever the node's domain."""

    def copy(self, inputs: Values, **attributes: object) -> list[Value]:
        """The node itself with these inputs; keyword arguments replace attributes. Returns its outputs."""

    def op(
        self, op_type: str, inputs: Values, *, outputs: int = 1, domain: str = "", **attributes: object
    ) -> list[Value]:
        """A further node. Returns its outputs."""

    def constant(self, value: Array) -> Value:
        """A constant value (equal constants are stored once)."""


Emit = Callable[[Emitter, Values], Values]
"""(emitter, this rank's inputs, None where absent) -> this rank's outputs, one per output of the node."""


@dataclass(frozen=True)
class Option:
    """One way to run an operator on parts of its inputs."""

    inputs: tuple[Placement, ...]
    """What each input must be (REPLICATED for absent ones)."""
    outputs: tuple[Placement, ...]
    emit: Emit | None = None
    """None: the node unchanged."""
    divides_work: bool = True
    """Whether each rank does about 1/world of the operator's arithmetic."""
    seconds: float = 0.0
    """Estimated seconds of one inference besides that arithmetic: of collectives that ``emit`` writes."""


Rule = Callable[[NodeView], list[Option]]
RULES: dict[tuple[str, str], Rule] = {}
GIVES: dict[tuple[str, str], Sequence[int]] = {}
"""Of operators that onnx knows nothing of: for each output, the input whose type and shape it has."""


def rule(*op_types: str, domain: str = "", gives: Sequence[int] = ()) -> Callable[[Rule], Rule]:
    """Registers a rule for these operators; ``gives`` as in `GIVES`."""

    def register(function: Rule) -> Rule:
        for op_type in op_types:
            RULES[domain, op_type] = function
            if gives:
                GIVES[domain, op_type] = tuple(gives)
        return function

    return register
