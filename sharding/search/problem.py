"""A graph as numbers: what the search for a plan reads at every step, computed once.

Values and placements are numbered. A cost is one whole number, so that sums are exact and equal plans tie:
bytes of weights held times `BYTE`, plus picoseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.graph.sizes import Sizes
from sharding.graph.values import shape_of
from sharding.onnx_files.tensors import WeightTensor
from sharding.reading.head import before_logits
from sharding.search.branches import paths
from sharding.search.cost import IMPOSSIBLE, NODE_SECONDS, node_seconds, reshard_seconds, weight_cost
from sharding.search.steps import Step
from sharding.slices.placement import PARTIAL, REPLICATED, Placement

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

SMALL_SHARE = 100
"""The smallest weights, together at most one part in so many of all weights, are no reason for a collective:
they are cut where that is free. A rank then holds at most so much more than its part."""
VECTOR_BYTES = 1 << 20
"""Biases and scales (one axis longer than 1) below this size are no reason for a collective either."""
_NUMBERS = {"float", "bfloat", "double", "int4", "uint4", "int8", "uint8", "int2", "uint2"}

BYTE = 1 << 64
"""The cost of holding one byte of weights: more than any number of picoseconds."""
NEVER = 1 << 160
"""The cost of what cannot be done."""

Held = tuple[int, ...]
"""The numbers of the placements at which a value is held."""
WHOLE, SUM = 0, 1
"""The numbers of the placements replicated and partial."""
WHOLE_ONLY: Held = (WHOLE,)
ANYWHERE = -1
"""Of an output, instead of a placement: it may stay where it is made, but for a sum."""


def counted_weights(source: Source) -> set[str]:
    """Names of the weights whose bytes a plan must divide; the others are cut only where it costs nothing."""
    numbers = [w for w in source.weights.values() if any(w.dtype.startswith(kind) for kind in _NUMBERS)]
    allowed = sum(weight.nbytes for weight in numbers) // SMALL_SHARE
    floor, sizes = 0, Counter(weight.nbytes for weight in numbers if not _is_vector(weight))
    for size, count in sorted(sizes.items()):  # weights of one size alike: layers repeat
        allowed -= size * count
        if allowed < 0:
            floor = size
            break
    return {weight.name for weight in numbers if weight.nbytes >= floor > 0 and not _is_vector(weight)}


def _is_vector(weight: WeightTensor) -> bool:
    return sum(axis > 1 for axis in weight.shape) < 2 and weight.nbytes < VECTOR_BYTES


def picoseconds(seconds: float) -> int:
    """A time as a cost."""
    return NEVER if seconds == IMPOSSIBLE else round(seconds * 1e12)


@dataclass(frozen=True)
class Value:
    """What the search knows of one value."""

    size: int
    weight: bool = False
    counted: bool = False
    constant: bool = False
    """Computed from weights alone."""
    static: bool = False
    """A constant made of counted weights: to gather it at every inference would undo the cut."""
    output: int | None = None
    """For an output of the model that is no weight, the placement at which it is needed: whole, or, where the
    next step takes it as its ranks hold it, `ANYWHERE`."""
    free: bool = False
    """A state's input: ranks may hold any part of it at no cost."""
    last_use: int = -1
    """The last step that uses it; the end, for a weight that is an output."""


@dataclass(frozen=True)
class Choice:
    """One option of a step: the placements of its inputs and outputs, and what the work costs."""

    inputs: Held
    outputs: Held
    work: int
    number: int
    """Among all options of the step."""


class Problem:
    """The values, steps and costs of one graph on ``world`` ranks."""

    def __init__(
        self,
        source: Source,
        graph: Sequence[Step],
        world: int,
        whole: Collection[str] = (),
        held: Mapping[str, Placement] | None = None,
    ) -> None:
        self.world = world
        self.counted = counted_weights(source).difference(whole)
        self._numbers: dict[Placement, int] = {REPLICATED: WHOLE, PARTIAL: SUM}
        self._placements: list[Placement] = [REPLICATED, PARTIAL]
        self._brought: dict[tuple[tuple[int, bool, bool], Held, int], tuple[int, Held]] = {}
        self._used: dict[tuple[int, int], int] = {}
        self.numbers: dict[ir.Value, int] = {}
        self.values: list[Value] = []
        self._describe(source, graph, held or {})
        self.begun: dict[int, Held] = {
            self.numbers[value]: (self._number(held[value.name or ""]),)
            for value in source.model.graph.inputs
            if held and value.name in held
        }
        """Where inputs are held at first that are not whole."""
        self.inputs = [
            tuple(None if value is None else self.numbers[value] for value in step.inputs) for step in graph
        ]
        self.outputs = [tuple(self.numbers[value] for value in step.node.outputs) for step in graph]
        self.paths = paths(graph)
        self.choices = [self._choices(step, node_seconds(step, source.sizes)) for step in graph]
        self.rows = [_rows(step, source.sizes) for step in graph]
        """For each step, how many rows it multiplies with a weight for one row of a batch; 0 where it looks
        up rows of the weight."""
        self.weight_outputs = [
            self.numbers[value] for value in source.model.graph.outputs if value.is_initializer()
        ]

    def _describe(self, source: Source, graph: Sequence[Step], held: Mapping[str, Placement]) -> None:
        model_graph, end = source.model.graph, len(graph)
        counted, outputs = self.counted, set(model_graph.outputs)
        # Joined before, they would always be joined whole; logits are, only where a step is asked for all.
        late = before_logits(source)
        stays = {pair.output for pair in source.state}
        given = {pair.input for pair in source.state}
        last: dict[ir.Value, int] = {}
        for index, step in enumerate(graph):
            last.update((value, index) for value in step.inputs if value is not None)
        last.update((value, end) for value in outputs if value.is_initializer())

        def add(
            value: ir.Value, *, weight: bool = False, static: bool = False, constant: bool = False
        ) -> None:
            self.numbers[value] = len(self.values)
            is_counted = weight and value.name in counted
            size = source.weights[value.name or ""].nbytes if is_counted else source.sizes.bytes(value)
            if value in late:
                size = max(size, source.sizes.bytes(late[value]))
            output = None
            if value in outputs and not weight:
                output = ANYWHERE if value.name in stays else WHOLE
                if (value.name or "") in held:
                    output = self._number(held[value.name or ""])
            free = not weight and value.is_graph_input() and value.name in given
            use = last.get(value, -1)
            self.values.append(Value(size, weight, is_counted, constant, static, output, free, use))

        for value in model_graph.inputs:
            add(value)
        for value in model_graph.initializers.values():
            add(value, weight=True, static=value.name in counted, constant=True)
        for step in graph:
            known = [self.values[self.numbers[value]] for value in step.inputs if value is not None]
            constant = bool(known) and all(value.constant for value in known)
            static = constant and any(value.static for value in known)
            for value in step.node.outputs:
                add(value, static=static, constant=constant)

    def _choices(self, step: Step, seconds: float) -> list[Choice]:
        return [
            Choice(
                tuple(self._number(placement) for placement in option.inputs),
                tuple(self._number(placement) for placement in option.outputs),
                picoseconds((seconds / self.world if option.divides_work else seconds) + option.seconds),
                number,
            )
            for number, option in enumerate(step.options)
        ]

    def _number(self, placement: Placement) -> int:
        number = self._numbers.get(placement)
        if number is None:
            number = self._numbers[placement] = len(self._placements)
            self._placements.append(placement)
        return number

    def end(self, number: int, held: Held | None) -> int:
        """The cost of having an output as it is needed."""
        wanted = self.values[number].output
        if wanted is None or held is None:
            return 0
        if wanted == ANYWHERE:
            wanted = WHOLE if SUM in held else held[0]
        return self.bring(number, held, wanted)[0]

    def option(self, step: int, number: int) -> Choice:
        """An option of a step by its number: where choices are pinned, not all are there."""
        return next(choice for choice in self.choices[step] if choice.number == number)

    def cuts(self, choices: Sequence[int]) -> bool:
        """Whether the chosen options cut a weight whose bytes count."""
        return any(
            number is not None and self.values[number].counted and placement != WHOLE
            for step, (inputs, choice) in enumerate(zip(self.inputs, choices, strict=True))
            for number, placement in zip(inputs, self.option(step, choice).inputs, strict=True)
        )

    def bring(self, number: int, held: Held | None, wanted: int) -> tuple[int, Held]:
        """The cost of having a value at a placement too, and where it is then held."""
        value = self.values[number]
        if value.weight:
            return self._bring_weight(value, held or (), wanted)
        held = held or WHOLE_ONLY
        if wanted in held:
            return 0, held
        key = ((value.size, value.static, value.free), held, wanted)
        found = self._brought.get(key)
        if found is None:
            found = self._brought[key] = self._move(value, held, wanted)
        return found

    def _bring_weight(self, value: Value, held: Held, wanted: int) -> tuple[int, Held]:
        if wanted in held:
            return 0, held
        if wanted == SUM:
            return NEVER, held
        if not value.counted:  # what costs nothing need not be remembered
            return 0, held
        key = (value.size, wanted)
        cost = self._used.get(key)
        if cost is None:
            size, seconds = weight_cost(value.size, self._placements[wanted], self.world)
            cost = self._used[key] = size * BYTE + picoseconds(seconds)
        return cost, tuple(sorted((*held, wanted)))

    def _move(self, value: Value, held: Held, wanted: int) -> tuple[int, Held]:
        target = self._placements[wanted]
        seconds, source = min(
            (reshard_seconds(self._placements[number], target, value.size, self.world), number)
            for number in held
        )
        cost = 0 if value.free and source == WHOLE else picoseconds(seconds)
        if source == WHOLE or seconds <= NODE_SECONDS:  # a local slice, free again at the next use
            return cost, held
        if value.static:
            cost += value.size * BYTE
        # A sum is reduced whole, and from then on every part of it is a local slice.
        whole = wanted == WHOLE or source == SUM
        return cost, WHOLE_ONLY if whole else tuple(sorted((*held, wanted)))


def _rows(step: Step, sizes: Sizes) -> int:
    """The rows of what a step computes with besides constants: all axes but the first and the last."""
    if step.node.op_type.startswith("Gather"):
        return 0
    shapes = [shape_of(value) for value in step.inputs if value is not None and not value.is_initializer()]
    return max((sizes.count((1, *shape[1:-1])) for shape in shapes if shape), default=1)
