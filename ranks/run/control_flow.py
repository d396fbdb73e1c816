"""Drives control flow whose bodies hold collectives: each body is a program, and all ranks take the same way.

Before a branch is taken, and before each turn of a loop, the ranks compare what decides it. Ranks that found
different answers (they were given different inputs, say) would wait for one another for ever; all of them
refuse instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ranks.collectives.base import Communicator
from ranks.collectives.buffers import Memory
from ranks.errors import ModelError
from ranks.sessions.cut import Control
from ranks.sessions.nodes import describe

if TYPE_CHECKING:
    from ranks.weights.updated.bound import BoundWeights
    from sharding.common.arrays import Array, DType

_INT64 = 7


class Body(Protocol):
    """A program: `ranks.run.program.Program`."""

    communication_seconds: float

    def run(self, feeds: Sequence[Array]) -> list[Array]:
        """Runs it on its inputs in order."""

    def all_weights(self) -> list[BoundWeights]:
        """The variable weights of its sessions, and of the bodies in it."""


@dataclass(frozen=True)
class Driven:
    """A control-flow node as `drive` takes it."""

    control: Control
    bodies: Sequence[Body]
    agreement: Agreement
    stacked: Sequence[tuple[DType, tuple[int, ...]]] = ()
    """Of a loop's stacked outputs the type and shape of one element, unknown axes 0: what no turn leaves."""

    def all_weights(self) -> list[BoundWeights]:
        """The variable weights of its bodies."""
        return [bound for body in self.bodies for bound in body.all_weights()]

    @property
    def communication_seconds(self) -> float:
        """Seconds in the collectives of its bodies so far."""
        return sum(body.communication_seconds for body in self.bodies)

    def run(self, values: Mapping[str, Array]) -> list[Array]:
        """Its outputs, given what it reads by name."""
        return _DRIVERS[self.control.node.op_type](self, values)

    def operand(self, values: Mapping[str, Array], index: int) -> Array | None:
        """An input of the node itself, None where it is left out."""
        given = self.control.node.input
        return values[given[index]] if index < len(given) and given[index] else None

    def captured(self, values: Mapping[str, Array], body: int, formal: int) -> list[Array]:
        """What a body reads from outside, in the order of its inputs after the formal ones."""
        return [values[name] for name in self.control.bodies[body].inputs[formal:]]

    def number(self, name: str, default: int) -> int:
        """A whole number among the attributes."""
        return next((item.i for item in self.control.node.attribute if item.name == name), default)

    def numbers(self, name: str, count: int) -> list[int]:
        """A list among the attributes; zeros where it is left out."""
        found = next((list(item.ints) for item in self.control.node.attribute if item.name == name), [])
        return found or [0] * count


class Agreement:
    """Compares numbers between the ranks of a group."""

    def __init__(self, group: Communicator | None, memory: Memory) -> None:
        self._group = group if group is not None and group.size > 1 else None
        self._memory = memory
        if self._group is not None:
            self._mine = memory.allocate((1, 1), _INT64, exchanged=True)
            self._all = memory.allocate((self._group.size, 1), _INT64, exchanged=True)

    def check(self, control: Control, what: str, number: int, shown: Callable[[int], object] = int) -> None:
        """Raises `ModelError` on every rank where the ranks' numbers differ. A collective."""
        if self._group is None:
            return
        self._memory.load(self._mine, np.array([[number]], np.int64))
        self._group.all_gather(self._mine, self._all, 0)
        found = self._memory.fetch(self._all)[:, 0].tolist()
        other = next((rank for rank, item in enumerate(found) if item != found[0]), None)
        if other is not None:
            raise ModelError(
                f"The ranks disagree at {describe(control.node)}: {what} is {shown(found[0])} on rank 0 of "
                f"the group and {shown(found[other])} on rank {other}; give all ranks the same inputs."
            )


def _truth(driven: Driven, value: Array, what: str) -> bool:
    if value.size != 1:
        raise ModelError(
            f"{describe(driven.control.node)}: {what} must be one truth value, but has the shape "
            f"{list(value.shape)}."
        )
    return bool(value.reshape(-1)[0])


def _branch(driven: Driven, values: Mapping[str, Array]) -> list[Array]:
    given = driven.operand(values, 0)
    assert given is not None
    condition = _truth(driven, given, "the condition")
    driven.agreement.check(driven.control, "the condition", condition, bool)
    chosen = 0 if condition else 1
    return driven.bodies[chosen].run(driven.captured(values, chosen, 0))


def _loop(driven: Driven, values: Mapping[str, Array]) -> list[Array]:
    control = driven.control
    count, first = driven.operand(values, 0), driven.operand(values, 1)
    turns = None if count is None else int(count.reshape(-1)[0])
    going = first is None or _truth(driven, first, "the condition")
    carried = [values[name] for name in control.node.input[2:]]
    driven.agreement.check(control, "the number of turns", -1 if turns is None else max(turns, 0))
    captured = driven.captured(values, 0, 2 + len(carried))
    stacks: list[list[Array]] = [[] for _ in driven.stacked]
    turn = 0
    while True:
        driven.agreement.check(control, f"the condition of turn {turn}", going, bool)
        if not going or (turns is not None and turn >= turns):
            break
        given = [np.array(turn, np.int64), np.array(going), *carried, *captured]
        condition, *found = driven.bodies[0].run(given)
        going = _truth(driven, condition, "the body's condition")
        carried = found[: len(carried)]
        for stack, element in zip(stacks, found[len(carried) :], strict=True):
            stack.append(element)
        turn += 1
    if not turn:
        carried = [array.copy() for array in carried]
    return [*carried, *(_stacked(driven, index, stack, 0) for index, stack in enumerate(stacks))]


def _scan(driven: Driven, values: Mapping[str, Array]) -> list[Array]:
    control = driven.control
    count = driven.number("num_scan_inputs", 1)
    given = [values[name] for name in control.node.input]
    states, scanned = given[: len(given) - count], given[len(given) - count :]
    axes = driven.numbers("scan_input_axes", count)
    backward = driven.numbers("scan_input_directions", count)
    lengths = {array.shape[axis] for array, axis in zip(scanned, axes, strict=True)}
    if len(lengths) != 1:
        raise ModelError(
            f"{describe(control.node)}: its scanned inputs have the lengths {sorted(lengths)}; they must be "
            "equally long."
        )
    (turns,) = lengths
    driven.agreement.check(control, "the number of turns", turns)
    captured = driven.captured(values, 0, len(given))
    stacks: list[list[Array]] = [[] for _ in driven.stacked]
    for turn in range(turns):
        elements = [
            array.take(turns - 1 - turn if back else turn, axis)
            for array, axis, back in zip(scanned, axes, backward, strict=True)
        ]
        found = driven.bodies[0].run([*states, *elements, *captured])
        states = found[: len(states)]
        for stack, element in zip(stacks, found[len(states) :], strict=True):
            stack.append(element)
    if not turns:
        states = [array.copy() for array in states]
    outer = driven.numbers("scan_output_axes", len(stacks))
    reverse = driven.numbers("scan_output_directions", len(stacks))
    return [
        *states,
        *(
            _stacked(driven, index, stack[::-1] if reverse[index] else stack, outer[index])
            for index, stack in enumerate(stacks)
        ),
    ]


def _stacked(driven: Driven, index: int, elements: Sequence[Array], axis: int) -> Array:
    if elements:
        try:
            return np.stack(elements, axis)
        except ValueError:
            raise ModelError(
                f"{describe(driven.control.node)}: its stacked output {index} has other shapes in other "
                f"turns: {', '.join(sorted({str(list(item.shape)) for item in elements})[:4])}."
            ) from None
    dtype, shape = driven.stacked[index]
    axis %= len(shape) + 1
    return np.empty((*shape[:axis], 0, *shape[axis:]), dtype)


_DRIVERS: Mapping[str, Callable[[Driven, Mapping[str, Array]], list[Array]]] = {
    "If": _branch,
    "Loop": _loop,
    "Scan": _scan,
}
