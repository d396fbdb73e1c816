"""Picks one option per node so that the whole graph costs least.

Dynamic programming over the nodes in order. A state says how the values that are still needed are placed;
two ways that lead to the same state differ only in what they cost so far, so the cheaper one is kept. A state
is dropped too where the cheapest state could be turned into it by collectives and still cost no more, and at
most `WIDTH` are kept. Layers that repeat meet in few states, so the work grows with the number of nodes.

Costs are compared as (bytes of weights held, seconds): weights are cut wherever that is possible.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.cost import (
    IMPOSSIBLE,
    NODE_SECONDS,
    node_seconds,
    reshard_seconds,
    value_bytes,
    weight_cost,
)
from sharding.fixed import fix
from sharding.placement import PARTIAL, REPLICATED, Placement
from sharding.steps import Step
from sharding.tensors import WeightTensor

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.read import Source

WIDTH = 48
MAX_HELD = 96
"""Values that a state remembers as not whole; what a node makes beyond that counts as gathered at once. Only
graphs of very many parallel branches reach it: without it they would take hours."""
FLOOR_FRACTION = 4096
"""A weight below this part of all weights is no reason for a collective: it is cut where that is free."""
VECTOR_BYTES = 1 << 20
"""Biases and scales (one axis longer than 1) below this size are no reason for a collective either."""
_NUMBERS = {"float", "bfloat", "double", "int4", "uint4", "int8", "uint8", "int2", "uint2"}

Cost = tuple[int, float]
Held = tuple[Placement, ...]
_WHOLE: Held = (REPLICATED,)


def counted_weights(source: Source) -> set[str]:
    """Names of the weights whose bytes a plan must divide; the others are cut only where it costs nothing."""
    numbers = [w for w in source.weights.values() if any(w.dtype.startswith(kind) for kind in _NUMBERS)]
    floor = sum(weight.nbytes for weight in numbers) / FLOOR_FRACTION
    return {weight.name for weight in numbers if weight.nbytes >= floor and not _is_vector(weight)}


def _is_vector(weight: WeightTensor) -> bool:
    return sum(axis > 1 for axis in weight.shape) < 2 and weight.nbytes < VECTOR_BYTES


@dataclass(frozen=True)
class _Value:
    """What the solver knows of one value."""

    size: int
    weight: bool
    counted: bool
    constant: bool
    """Computed from weights alone."""
    static: bool
    """A constant made of counted weights: to gather it at every inference would undo the cut."""
    last_use: int
    """The last step that uses it; of a weight that is an output, the end."""


@dataclass(frozen=True)
class _State:
    cost: Cost
    held: dict[int, Held]
    """By value number; a value that is not here is whole on every rank, a weight that is not here unused."""
    parent: _State | None
    choice: tuple[int, int] | None
    """(step, option)"""


def solve(
    source: Source, graph: list[Step], world: int, fixed: Mapping[ir.Value, Placement] | None = None
) -> list[int]:
    """The number of the chosen option for each step.

    ``fixed``: values that must be brought to a placement as soon as they are produced; the options of the
    steps that produce them are replaced accordingly (see `sharding.fixed`).
    """
    if fixed:
        fix(graph, fixed, world, source.path)
    return _Solver(source, graph, world).run()


class _Solver:
    def __init__(self, source: Source, graph: list[Step], world: int) -> None:
        self.graph, self.world = graph, world
        self.numbers: dict[ir.Value, int] = {}
        self.values: list[_Value] = []
        self._describe(source)
        self.outputs = {self.numbers[value] for value in source.model.graph.outputs}

    def _describe(self, source: Source) -> None:
        model_graph, end = source.model.graph, len(self.graph)
        counted = counted_weights(source)
        last: dict[ir.Value, int] = {}
        for index, step in enumerate(self.graph):
            last.update((value, index) for value in step.inputs if value is not None)
        last.update((value, end) for value in model_graph.outputs if value.is_initializer())

        def add(
            value: ir.Value, *, weight: bool = False, static: bool = False, constant: bool = False
        ) -> None:
            self.numbers[value] = len(self.values)
            size = value_bytes(value)
            is_counted = weight and value.name in counted
            if is_counted:
                size = source.weights[value.name or ""].nbytes
            self.values.append(_Value(size, weight, is_counted, constant, static, last.get(value, -1)))

        for value in model_graph.inputs:
            add(value)
        for value in model_graph.initializers.values():
            add(value, weight=True, static=value.name in counted, constant=True)
        for step in self.graph:
            known = [self.values[self.numbers[value]] for value in step.inputs if value is not None]
            static = any(value.static for value in known) and all(value.constant for value in known)
            constant = bool(known) and all(value.constant for value in known)
            for value in step.node.outputs:
                add(value, static=static, constant=constant)

    def run(self) -> list[int]:
        states = [_State((0, 0.0), {}, None, None)]
        for index, step in enumerate(self.graph):
            states = self._advance(states, index, step)
        best = min(states, key=self._final_cost)
        choices = [0] * len(self.graph)
        state: _State | None = best
        while state is not None:
            if state.choice is not None:
                choices[state.choice[0]] = state.choice[1]
            state = state.parent
        return choices

    def _advance(self, states: list[_State], index: int, step: Step) -> list[_State]:
        inputs = [None if value is None else self.numbers[value] for value in step.inputs]
        outputs = [self.numbers[value] for value in step.node.outputs]
        stays_whole = len(step.options) == 1 and set(step.options[0].outputs) <= {REPLICATED}
        if stays_whole and not any(
            number is not None
            and (self.values[number].counted or any(number in state.held for state in states))
            for number in inputs
        ):
            return states
        seconds = node_seconds(step)
        reached: dict[tuple[tuple[int, Held], ...], _State] = {}
        for state in states:
            for number, option in enumerate(step.options):
                work = (seconds / self.world if option.divides_work else seconds) + option.seconds
                result = self._take(state, inputs, option.inputs)
                if result is None:
                    continue
                (weight_bytes, time), held = result
                time += work
                for output, placement in zip(outputs, option.outputs, strict=True):
                    if placement == REPLICATED:
                        continue
                    held[output] = (placement,)
                    if len(held) > MAX_HELD:
                        (more_bytes, more_time), _ = self._bring(output, held.pop(output), REPLICATED)
                        weight_bytes, time = weight_bytes + more_bytes, time + more_time
                for value in [key for key in held if self.values[key].last_use <= index]:
                    where = held.pop(value)
                    if value in self.outputs:  # what the model returns is needed whole in the end
                        (more_bytes, more_time), _ = self._bring(value, where, REPLICATED)
                        weight_bytes, time = weight_bytes + more_bytes, time + more_time
                key = tuple(sorted(held.items(), key=lambda item: item[0]))
                cost = (weight_bytes, time)
                if key not in reached or cost < reached[key].cost:
                    reached[key] = _State(cost, held, state, (index, number))
        return self._prune(list(reached.values()))

    def _take(
        self, state: _State, inputs: list[int | None], wanted: tuple[Placement, ...]
    ) -> tuple[Cost, dict[int, Held]] | None:
        """The cost so far and the placements after bringing the inputs to where an option wants them."""
        held = dict(state.held)
        weight_bytes, time = state.cost
        for number, placement in zip(inputs, wanted, strict=True):
            if number is None:
                continue
            (more_bytes, more_time), where = self._bring(number, held.get(number), placement)
            if more_time == IMPOSSIBLE:
                return None
            weight_bytes, time = weight_bytes + more_bytes, time + more_time
            if not where or (where == _WHOLE and not self.values[number].weight):
                held.pop(number, None)
            else:
                held[number] = where
        return (weight_bytes, time), held

    def _bring(self, number: int, held: Held | None, wanted: Placement) -> tuple[Cost, Held]:
        """The cost of having a value at a placement too, and where it is then held."""
        value = self.values[number]
        if value.weight:
            return self._bring_weight(value, held or (), wanted)
        held = held or _WHOLE
        if wanted in held:
            return (0, 0.0), held
        seconds, source = min(
            (reshard_seconds(placement, wanted, value.size, self.world), order)
            for order, placement in enumerate(held)
        )
        free = held[source] == REPLICATED or seconds <= NODE_SECONDS  # a local slice
        cost = (0 if free or not value.static else value.size, seconds)
        if free:
            return cost, held
        # A sum is reduced whole, and from then on every part of it is a local slice.
        whole = wanted == REPLICATED or held[source] == PARTIAL
        return cost, _WHOLE if whole else tuple(sorted((*held, wanted), key=str))

    def _bring_weight(self, value: _Value, held: Held, wanted: Placement) -> tuple[Cost, Held]:
        if wanted in held:
            return (0, 0.0), held
        if wanted == PARTIAL:
            return (0, IMPOSSIBLE), held
        if not value.counted:  # what costs nothing need not be remembered
            return (0, 0.0), held
        return weight_cost(value.size, wanted, self.world), tuple(sorted((*held, wanted), key=str))

    def _prune(self, states: list[_State]) -> list[_State]:
        if len(states) <= 1:
            return states
        states.sort(key=self._expected)
        best = states[0]
        kept = [best, *(state for state in states[1:] if not self._reaches(best, state))]
        return kept[:WIDTH]

    def _expected(self, state: _State) -> Cost:
        """The cost so far and of the sums still to be reduced: states that put it off are no cheaper."""
        seconds = sum(
            reshard_seconds(PARTIAL, REPLICATED, self.values[number].size, self.world)
            for number, held in state.held.items()
            if held == (PARTIAL,)
        )
        return state.cost[0], state.cost[1] + seconds

    def _reaches(self, best: _State, other: _State) -> bool:
        """Whether the best state can be turned into the other at no more than the other's cost."""
        weight_bytes, time = best.cost
        for number in best.held.keys() | other.held.keys():
            here, there = best.held.get(number), other.held.get(number)
            if here == there or (there is None and self.values[number].weight):
                continue
            for placement in there or _WHOLE:
                (more_bytes, more_time), here = self._bring(number, here, placement)
                if more_time == IMPOSSIBLE:
                    return False
                weight_bytes, time = weight_bytes + more_bytes, time + more_time
            if (weight_bytes, time) > other.cost:
                return False
        return (weight_bytes, time) <= other.cost

    def _final_cost(self, state: _State) -> Cost:
        result = self._take(state, list(self.outputs), (REPLICATED,) * len(self.outputs))
        return (0, IMPOSSIBLE) if result is None else result[0]
