"""Pipeline stages: which steps each stage runs, and which values cross from one to another.

Stages are runs of consecutive steps. Steps that compute with the model's inputs and small constants alone,
and cheaply, belong to no run: each stage that needs one repeats it (masks, positions, shape arithmetic), as
it does steps that compute with weights alone. What crosses is sent as it is held after its producer, straight
to each stage that uses it; only a sum that its own stage reduces anyway is sent whole.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from sharding.common.text import counted
from sharding.errors import SliceError
from sharding.graph.values import shape_of, shown_node, subgraphs
from sharding.pipeline.balance import Costs, balanced
from sharding.pipeline.profile import step_seconds
from sharding.pipeline.stage_state import keepers, spans
from sharding.rules.flow import FLOW
from sharding.search.cost import (
    BYTES_PER_SECOND,
    COLLECTIVE_SECONDS,
    NODE_SECONDS,
    reshard_seconds,
)
from sharding.search.randomness import draws
from sharding.search.solve import counted_weights
from sharding.search.steps import Step
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split, held_bytes

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

MAX_CONE = 256
"""Steps that lead to a repeated one, itself included."""


@dataclass(frozen=True)
class Crossing:
    """A value sent from the stage that produces it to one that uses it, as it is held there."""

    value: ir.Value
    source: int
    target: int
    placement: Placement


@dataclass(frozen=True)
class Stages:
    """Who runs what on the pipeline axis."""

    count: int
    of: tuple[int, ...]
    """Per step the first stage that runs it."""
    members: tuple[tuple[int, ...], ...]
    """Per stage its steps in order; one that is repeated is in several."""
    crossings: tuple[Crossing, ...]
    """In the order of their producers."""
    seconds: tuple[float, ...] = (0.0,)
    """Estimated seconds of each stage in one inference, what it receives included."""
    apart: frozenset[str] = frozenset()
    """State inputs that no stage alone can hold: they are fed and returned as any other value is."""

    def output_stages(self, graph: Sequence[Step], outputs: Sequence[ir.Value]) -> list[int]:
        """The stage that returns each of the model's outputs; what no step makes is returned by the first."""
        numbers = {step.node: index for index, step in enumerate(graph)}
        producers = [value.producer() for value in outputs]
        return [0 if node is None else self.of[numbers[node]] for node in producers]

    def sent_by(self, stage: int) -> list[Crossing]:
        """What a stage sends, in the order of its steps."""
        return [crossing for crossing in self.crossings if crossing.source == stage]


def one_stage(graph: Sequence[Step]) -> Stages:
    """No pipeline: all steps in one stage."""
    return Stages(1, (0,) * len(graph), (tuple(range(len(graph))),), ())


@dataclass(frozen=True)
class Wishes:
    """What is known and wanted of stages. ``measured``: seconds of nodes by name; ``demanded``: the stage of
    each step that must be in a given one; ``memory``: the bytes of weights that a stage should keep to."""

    measured: Mapping[str, float] = field(default_factory=dict)
    demanded: Sequence[int | None] = ()
    memory: int | None = None


def plan_stages(
    source: Source,
    graph: Sequence[Step],
    choices: Sequence[int],
    world: int,
    count: int,
    *,
    wishes: Wishes | None = None,
) -> Stages:
    """Cuts the steps into ``count`` stages (see `sharding.pipeline.balance` for what is balanced); ``world``
    is the length of the tensor axis. Raises `SliceError` where the graph has too few cuts, or none that
    leaves a state in one stage which a user has named.
    """
    wishes = wishes or Wishes()
    return _Cutter(source, graph, choices, world, wishes.measured).run(count, wishes.demanded, wishes.memory)


class _Cutter:
    def __init__(
        self,
        source: Source,
        graph: Sequence[Step],
        choices: Sequence[int],
        world: int,
        measured: Mapping[str, float],
    ) -> None:
        self.source, self.graph, self.world = source, graph, world
        self.options = [step.options[choice] for step, choice in zip(graph, choices, strict=True)]
        self.produced = {value: i for i, step in enumerate(graph) for value in step.node.outputs}
        self.estimates = step_seconds(graph, measured, source.sizes)
        self.counted = counted_weights(source)
        self.state = {pair.input: pair.output for pair in source.state}
        self.cones = self._cones()
        self.main = [index for index, cone in enumerate(self.cones) if cone is None]
        """The steps that are in one stage only."""

    def run(self, count: int, demanded: Sequence[int | None], memory: int | None) -> Stages:
        if count == 1:
            return replace(one_stage(self.graph), seconds=(float(self._costs().seconds.sum()),))
        self._order_by(demanded)
        cuts, seconds = self._cuts(count, demanded, memory)
        stage_of_main = dict.fromkeys(self.main, 0)
        stage = 0
        for place, index in enumerate(self.main):
            stage_of_main[index] = stage
            if stage < len(cuts) and place == cuts[stage]:
                stage += 1
        return self._stages(stage_of_main, count, seconds)

    def _cuts(
        self, count: int, demanded: Sequence[int | None], memory: int | None
    ) -> tuple[list[int], list[float]]:
        """The places after which to cut, and each stage's seconds. Where a state stands in the way of every
        cut, those that reach farthest are let go."""
        while True:
            costs = self._costs()
            for place, index in enumerate(self.main):
                stage = demanded[index] if demanded else None
                if stage is not None:
                    costs.bounds[place] = stage
            try:
                cuts = self._balanced(costs, count, memory)
            except SliceError:
                if not self.state:
                    raise
            else:
                if lost := sorted(self.source.asked.difference(self.state)):
                    raise self._scattered(lost[0], count)
                return cuts
            found = spans(self.graph, self.main, self.state)
            free = [name for name in self.state if name not in self.source.asked] or list(self.state)
            far = sorted(free, key=lambda name: found.get(name, (0, 0))[0] - found.get(name, (0, 0))[1])
            for name in far[: (len(far) + 1) // 2]:
                del self.state[name]

    def _scattered(self, name: str, count: int) -> SliceError:
        made = next(pair.output for pair in self.source.state if pair.input == name)
        return SliceError(
            f"{self.source.path}: no cut into {counted(count, 'pipeline stage')} leaves what reads {name!r} "
            f"and what gives {made!r} in one stage, which alone can keep that state, as `--state "
            f"{name}={made}` asks: choose fewer stages, or leave it out."
        )

    def _order_by(self, demanded: Sequence[int | None]) -> None:
        """Brings the steps of a demanded stage before those of later ones: the graph may list branches of
        several stages in turn. A step without a demand goes as early as what it reads allows."""
        if not demanded:
            return
        earliest = [0] * len(self.graph)
        for index, step in enumerate(self.graph):
            before = [earliest[self.produced[value]] for value in step.inputs if value in self.produced]
            earliest[index] = max([demanded[index] or 0, *before])
        self.main.sort(key=lambda index: earliest[index])  # stable: the graph's order within a stage

    def _balanced(self, costs: Costs, count: int, memory: int | None) -> tuple[list[int], list[float]]:
        usable = costs.usable()
        if len(usable) >= count - 1 and (found := balanced(costs, count, memory)) is not None:
            return found
        path = self.source.path
        if costs.bounds:
            raise SliceError(
                f"{path} cannot be cut into {counted(count, 'pipeline stage')} as its annotations say: "
                f"stages must be runs of consecutive nodes, between which only tensors of known type and "
                f"rank pass."
            )
        raise SliceError(
            f"{path} can be cut at {counted(len(usable), 'place')} only, too few for "
            f"{counted(count, 'pipeline stage')}: between stages only tensors of known type and rank can "
            f"pass{self._whole_bodies()}; choose fewer stages."
        )

    def _whole_bodies(self) -> str:
        """For errors: that a stage runs control flow as a whole, where there is some."""
        names = {shown_node(step.node): None for step in self.graph if step.node.domain == FLOW}
        return f", and a stage runs {' and '.join(list(names)[:3])} as a whole" if names else ""

    # What is repeated.

    def _cones(self) -> list[frozenset[int] | None]:
        """For each step, the steps to repeat with it, itself included; None if only one stage runs it."""
        cones: list[frozenset[int] | None] = []
        constant: list[bool] = []
        for index, step in enumerate(self.graph):
            before = [self.produced[value] for value in step.inputs if value in self.produced]
            inner = [cones[number] for number in before if not self._measures_state(self.graph[number])]
            constant.append(
                bool(step.inputs)
                and all(
                    value is None
                    or value.is_initializer()
                    or (value in self.produced and constant[self.produced[value]])
                    for value in step.inputs
                )
            )
            cone: frozenset[int] | None = None
            if (
                not any(item is None for item in inner)
                and not self._reads_state(step)
                and self._may_repeat(step)
            ):
                cone = frozenset({index}.union(*(item for item in inner if item is not None)))
                held = any(self._reads_counted(self.graph[number]) for number in cone)
                cheap = not held and self._cheap(step, cone)
                if len(cone) > MAX_CONE or not (constant[index] or cheap):
                    cone = None
            cones.append(cone)
        return cones

    def _reads_state(self, step: Step) -> bool:
        """Whether a step reads what one stage alone holds."""
        return any(
            value is not None and value.name in self.state and value.is_graph_input() for value in step.inputs
        )

    def _measures_state(self, step: Step) -> bool:
        """Whether a step gives a state's lengths, which are sent rather than what is computed from them."""
        return step.node.op_type in {"Shape", "Size"} and not step.node.domain and self._reads_state(step)

    def _reads_counted(self, step: Step) -> bool:
        """Whether a step reads a weight whose bytes count: to repeat it would be to hold it in each stage."""
        names = [value.name for value in step.inputs if value is not None and value.is_initializer()]
        return any(name in self.counted for name in names)

    def _may_repeat(self, step: Step) -> bool:
        functions = self.source.model.functions
        opaque = any(True for _ in subgraphs(step.node)) or step.node.op_identifier() in functions
        opaque = opaque or step.node.domain == FLOW
        return not opaque and not draws(step.node, functions)

    def _cheap(self, step: Step, cone: frozenset[int]) -> bool:
        """Whether computing it again takes no longer than receiving it."""
        again = sum(self.estimates[number] + NODE_SECONDS for number in cone)
        size = sum(self.source.sizes.bytes(value) for value in step.node.outputs)
        return again <= COLLECTIVE_SECONDS + size / BYTES_PER_SECOND

    # What the cuts cost.

    def _uses(self, index: int) -> list[tuple[ir.Value, Placement]]:
        """What a step and the repeated steps behind it read."""
        found: list[tuple[ir.Value, Placement]] = []
        waiting, seen = [index], set()
        while waiting:
            number = waiting.pop()
            if number in seen:
                continue
            seen.add(number)
            for value, placement in zip(self.graph[number].inputs, self.options[number].inputs, strict=True):
                if value is None:
                    continue
                found.append((value, placement))
                producer = self.produced.get(value)
                if producer is not None and self.cones[producer] is not None:
                    waiting.append(producer)
        return found

    def _costs(self) -> Costs:
        place = {index: number for number, index in enumerate(self.main)}
        costs = Costs(len(self.main))
        stays = set(self.state.values())
        outputs = {value for value in self.source.model.graph.outputs if value.name not in stays}
        held: dict[ir.Value, set[Placement]] = {}
        ends: dict[ir.Value, int] = {}
        for number, index in enumerate(self.main):
            option = self.options[index]
            seconds = self.estimates[index] / (self.world if option.divides_work else 1) + option.seconds
            for value, placement in self._uses(index):
                if value.is_initializer():
                    size = held_bytes(self.source.weights[value.name or ""].nbytes, placement, self.world)
                    costs.use((value.name, placement), size, number)
                elif (producer := self.produced.get(value)) in place and producer is not None:
                    ends[value] = number
                    there = held[value]
                    if placement not in there:
                        size = self.source.sizes.bytes(value)
                        seconds += min(reshard_seconds(start, placement, size, self.world) for start in there)
                        there.add(placement)
            for value, placement in zip(self.graph[index].node.outputs, option.outputs, strict=True):
                held[value] = {placement}
                if value in outputs:  # what the model returns is needed whole
                    held[value].add(REPLICATED)
                    seconds += reshard_seconds(
                        placement, REPLICATED, self.source.sizes.bytes(value), self.world
                    )
            costs.seconds[number] = seconds
        for value, end in ends.items():
            start = place[self.produced[value]]
            size = self.source.sizes.bytes(value)
            if any(isinstance(where, Split) for where in held[value]):
                size //= self.world
            seconds = COLLECTIVE_SECONDS + size / BYTES_PER_SECOND
            costs.crosses(start, end, seconds if _can_cross(value) else None)
        for start, end in spans(self.graph, self.main, self.state).values():
            if start < end:
                costs.crosses(start, end, None)
        for start, end in self._bodies(place):
            costs.crosses(start, end, None)  # a stage runs control flow as a whole
        return costs

    def _bodies(self, place: Mapping[int, int]) -> list[tuple[int, int]]:
        """For each opened control-flow node its first and last place among the main steps."""
        found: dict[int, list[int]] = {}
        for index, number in place.items():
            node = self.graph[index].node
            if node.domain == FLOW:
                found.setdefault(node.attributes["region"].as_int(), []).append(number)
        return [(min(numbers), max(numbers)) for numbers in found.values()]

    # The result.

    def _stages(self, stage_of_main: dict[int, int], count: int, seconds: list[float]) -> Stages:
        members: list[set[int]] = [set() for _ in range(count)]
        for index, stage in stage_of_main.items():
            members[stage].add(index)
            for value, _ in self._uses(index):
                producer = self.produced.get(value)
                if producer is not None and self.cones[producer] is not None:
                    members[stage].add(producer)
        kept = keepers(self.graph, stage_of_main, self.state)
        for index, stage in kept.items():
            members[stage].update({index, *(self.cones[index] or ())})
        everywhere = set().union(*members)
        members[0].update(index for index in range(len(self.graph)) if index not in everywhere)
        # Steps of which nothing but the model's outputs is made, with what leads to them.
        members[0].update(
            number for index in list(members[0]) if (cone := self.cones[index]) is not None for number in cone
        )
        of = [count] * len(self.graph)
        for stage in reversed(range(count)):
            for index in members[stage]:
                of[index] = stage
        for index, stage in kept.items():
            of[index] = stage
        ordered = tuple(tuple(sorted(steps)) for steps in members)
        apart = frozenset(pair.input for pair in self.source.state).difference(self.state)
        crossings = self._crossings(stage_of_main, count)
        return Stages(count, tuple(of), ordered, crossings, tuple(seconds), apart)

    def _crossings(self, stage_of_main: dict[int, int], count: int) -> tuple[Crossing, ...]:
        found: list[Crossing] = []
        readers: dict[ir.Value, dict[int, set[Placement]]] = {}
        for index, stage in stage_of_main.items():
            for value, placement in self._uses(index):
                if self.produced.get(value) in stage_of_main:
                    readers.setdefault(value, {}).setdefault(stage, set()).add(placement)
        outputs = set(self.source.model.graph.outputs)
        for index, here in stage_of_main.items():
            for value, placement in zip(
                self.graph[index].node.outputs, self.options[index].outputs, strict=True
            ):
                stages = readers.get(value, {})
                reduced = value in outputs or any(where != PARTIAL for where in stages.get(here, ()))
                sent = REPLICATED if placement == PARTIAL and reduced else placement
                found += [
                    Crossing(value, here, there, sent) for there in range(here + 1, count) if there in stages
                ]
        return tuple(found)


def _can_cross(value: ir.Value) -> bool:
    """Tensors of numbers of known rank: neither sequences, optionals nor strings."""
    import onnx_ir as ir

    known = isinstance(value.type, ir.TensorType) and value.dtype is not None
    return known and value.dtype != ir.DataType.STRING and shape_of(value) is not None
