"""One rank's graph: every node's chosen option written out, and reshards where placements differ."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from sharding.common.names import Names, all_names
from sharding.graph.reduced import Reduced
from sharding.graph.symbols import all_known, shown, shown_shape
from sharding.graph.values import bodies, captured_names, initializer, onnx_attributes, shape_of
from sharding.onnx_files.tensors import dtype_name
from sharding.pipeline.stages import Crossing, Stages, one_stage
from sharding.planning.rank_graph import Collective, HeldWeight, RankGraph
from sharding.planning.regroup import regroup
from sharding.reading.head import AXIS, find_head
from sharding.rules.base import Dim, Option
from sharding.search.cost import reshard_seconds
from sharding.search.reshard import COLLECTIVES, local_shape, reshard, slice_axis
from sharding.search.states import Placed
from sharding.search.steps import Step
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN
from sharding.slices.placement import REPLICATED, Partial, Placement
from sharding.slices.state import LOGITS_FROM

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array
    from sharding.reading.read import Source

    Given: TypeAlias = Any
    """What rules hand on without a look at it: an `ir.Value`, or None where an input is absent."""


BODY_NAMES = {"then_branch": "then", "else_branch": "else"}
"""Attributes that hold branches, as people are told of them; any other body is that of a turn."""


def emit_rank(
    source: Source,
    graph: Sequence[Step],
    choices: Sequence[int],
    rank: int,
    world: int,
    *,
    stages: Stages | None = None,
    stage: int = 0,
    state: Placed | None = None,
) -> RankGraph:
    """Builds the graph of a stage's rank from the chosen option of each step: ``rank`` of ``world`` counts
    the tensor group. The same collectives, in the same order, come out for every rank of the group.

    ``state``: the names of inputs and outputs that ranks take and give as they hold them. Every stage has
    all inputs, and the outputs that it makes."""
    stages = stages or one_stage(graph)
    state = state or {}
    emitter = RankEmitter(source, rank, world, stage, state)
    for crossing in sorted(stages.crossings, key=lambda item: item.source):  # stable: then by producer
        if crossing.target == stage:
            emitter.receive(crossing)
    for index in stages.members[stage]:
        emitter.step(graph[index], graph[index].options[choices[index]])
    outputs = source.model.graph.outputs
    if stages.count > 1:
        places = stages.output_stages(graph, outputs)
        outputs = [value for value, place in zip(outputs, places, strict=True) if place == stage]
    return emitter.finish(outputs, sorted(stages.sent_by(stage), key=lambda item: item.target))


class RankEmitter:
    """Implements `sharding.rules.base.Emitter` and `sharding.search.reshard.CollectiveEmitter`."""

    def __init__(
        self, source: Source, rank: int, world: int, stage: int = 0, state: Placed | None = None
    ) -> None:
        import onnx_ir as ir

        self.ir = ir
        self.rank, self.world, self.stage, self.head = rank, world, stage, find_head(source)
        self.source = source
        self.version = source.model.opset_imports.get("", 1)
        self.names = Names(all_names(source.model))
        self.node_names = Names()
        self.nodes: list[ir.Node] = []
        self.collectives: dict[ir.Node, Collective] = {}
        self.constants: dict[tuple[str, tuple[int, ...], bytes], ir.Value] = {}
        self.arithmetic: dict[tuple[str, tuple[ir.Value | None, ...], int], list[ir.Value]] = {}
        self.held: dict[ir.Value, dict[Placement, ir.Value]] = {}
        self.weights: dict[ir.Value, dict[Placement, ir.Value]] = {}
        self.node: ir.Node | None = None
        self.moving: ir.Value | None = None
        edges = (*source.model.graph.inputs, *source.model.graph.outputs)
        self.state = {value: state[value.name or ""] for value in edges if state and value.name in state}
        """State inputs and outputs, and the placement at which they have the model's name for them."""
        self.reduced = Reduced()
        self.inputs = [self._given(value) for value in source.model.graph.inputs]

    def _given(self, value: ir.Value) -> ir.Value:
        axes, placement = shown_shape(value), self.state.get(value, REPLICATED)
        shape = None if axes is None else self.ir.Shape(local_shape(axes, placement, self.world))
        copy = self.ir.Value(name=value.name, type=value.type, shape=shape, doc_string=value.doc_string)
        self.held[value] = {placement: copy}
        return copy

    # What a rule's emit may call.

    def copy(self, inputs: Sequence[Given], **attributes: object) -> list[Given]:
        """The present node with these inputs; keyword arguments replace attributes."""
        node = self.node
        assert node is not None
        kept = {name: item for name, item in node.attributes.items() if name not in attributes}
        items = [*kept.values(), *self._attributes(attributes)]
        return self._add((node.domain, node.op_type), list(inputs), items, len(node.outputs), node)

    def op(
        self,
        op_type: str,
        inputs: Sequence[Given],
        *,
        outputs: int = 1,
        domain: str = "",
        **attributes: object,
    ) -> list[Given]:
        """A further node. Shape arithmetic that stands in the graph already is used again: every layer of a
        model divides the same shapes."""
        if domain or attributes or not any(self._is_index_constant(value) for value in inputs):
            return self._add((domain, op_type), list(inputs), self._attributes(attributes), outputs)
        key = (op_type, tuple(inputs), outputs)
        if key not in self.arithmetic:
            self.arithmetic[key] = self._add((domain, op_type), list(inputs), [], outputs)
        return list(self.arithmetic[key])

    def _is_index_constant(self, value: ir.Value | None) -> bool:
        return value is not None and value.const_value is not None and value.dtype == self.ir.DataType.INT64

    def constant(self, value: Array) -> ir.Value:
        """A constant; equal ones are stored once."""
        array = np.ascontiguousarray(value).reshape(np.shape(value))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self.constants:
            tensor = self.ir.Tensor(array, name=self.names.fresh("shardrun/constant"))
            self.constants[key] = initializer(tensor.name, tensor)
        return self.constants[key]

    def collective(self, op_type: str, value: Given, shape: Sequence[Dim], **attributes: int) -> ir.Value:
        """A collective on the value being moved; its input and output get their type and shape."""
        assert self.moving is not None
        shape = tuple(map(shown, shape))
        output: ir.Value = self.op(op_type, [value], domain=MICROSOFT, **attributes)[0]
        produced = list(shape)
        if op_type == "AllGather":
            axis = attributes["axis"]
            length = produced[axis]
            assert isinstance(length, int)
            produced[axis] = length * self.world
        for item, axes in ((value, shape), (output, produced)):
            item.type, item.shape = self.moving.type, self.ir.Shape(self._axes(self.moving, axes) or ())
        if value.name is None:
            value.name = self.names.fresh(f"{self.moving.name}/sent")
        output.name = self.names.fresh(f"{self.moving.name}/{op_type}")
        kind, name = dtype_name(self.moving.dtype), self.moving.name or ""
        self.collectives[self.nodes[-1]] = Collective(op_type, name, kind, tuple(shape), self.stage)
        return output

    # The graph.

    def receive(self, crossing: Crossing) -> None:
        """What an earlier stage sends: held from now on as it was held there."""
        value, shape = crossing.value, self._sent_shape(crossing)
        assert value.dtype is not None
        received = self.op(
            "Recv",
            [],
            domain=OWN_DOMAIN,
            peer=crossing.source,
            dtype=int(value.dtype),
            shape=[axis if isinstance(axis, int) else -1 for axis in shape],
            announce=int(not all_known(shape)),
        )[0]
        self.held[value] = {crossing.placement: self._adopt(value, crossing.placement, received)}

    def send(self, crossing: Crossing) -> None:
        """Sends this rank's part of a value to the rank at the same place of a later stage's group."""
        value, shape = crossing.value, self._sent_shape(crossing)
        held = self.get(value, crossing.placement)
        peer, announce = crossing.target, int(not all_known(shape))
        self.op("Send", [held], outputs=0, domain=OWN_DOMAIN, peer=peer, announce=announce)
        name, kind = value.name or "", dtype_name(value.dtype)
        self.collectives[self.nodes[-1]] = Collective("Send", name, kind, shape, self.stage)

    def _sent_shape(self, crossing: Crossing) -> tuple[Dim, ...]:
        shape = self._axes(crossing.value, shown_shape(crossing.value))
        assert shape is not None, "only values of known rank cross"
        return local_shape(shape, crossing.placement, self.world)

    def step(self, step: Step, option: Option) -> None:
        """Writes one node as its option says."""
        node = self.node = step.node
        inputs = [
            None if value is None else self.get(value, placement)
            for value, placement in zip(step.inputs, option.inputs, strict=True)
        ][: len(node.inputs)]
        if self.head is not None and node is self.head.node:
            inputs[0] = self._from_position(inputs[0])
        for index in self.reduced.too_long(node, step.view, option):
            inputs[index] = self._first_of_last(node.inputs[index], inputs[index])
        produced: list[Given] = self.copy(inputs) if option.emit is None else list(option.emit(self, inputs))
        if not self.reduced.note(node, step.view, option):
            produced = [self._first_of_last(node.outputs[0], produced[0])]
        for value, placement, local in zip(node.outputs, option.outputs, produced, strict=True):
            self.held[value] = {placement: self._adopt(value, placement, local)}

    def _first_of_last(self, value: ir.Value | None, held: Given) -> Given:
        """What a value is that has the length 1 on its last axis, also where that came out longer."""
        return slice_axis(self, held, len(shape_of(value) or ()) - 1, 0, 1)

    def _from_position(self, hidden: ir.Value | None) -> ir.Value:
        """Hidden states from the first position on of which logits are wanted."""
        kind = self.ir.TensorType(self.ir.DataType.INT64)
        start = self.ir.Value(name=LOGITS_FROM, type=kind, shape=self.ir.Shape([1]))
        self.inputs.append(start)
        end, axes = (self.constant(np.asarray([number])) for number in (np.iinfo(np.int64).max, AXIS))
        cut: ir.Value = self._add(("", "Slice"), [hidden, start, end, axes], [], 1)[0]
        return cut

    def _axes(self, value: ir.Value, axes: Sequence[Dim] | None) -> Sequence[Dim] | None:
        return axes if self.head is None else self.head.shape(value, axes)

    def get(self, value: ir.Value, placement: Placement) -> ir.Value:
        """This rank's part of a value at a placement, resharded once and then reused."""
        if value.is_initializer():
            return self._weight(value, placement)
        held = self.held[value]
        if placement not in held:
            size = self.source.sizes.bytes(value)
            start = min(held, key=lambda there: reshard_seconds(there, placement, size, self.world))
            if isinstance(start, Partial) and placement != REPLICATED:
                self.get(value, REPLICATED)
                start = REPLICATED
            shape = shape_of(value)
            assert shape is not None, "only values of known rank are ever split or summed"
            self._write_zero_point(held[start].producer())
            outer, self.moving = self.moving, value
            moved = reshard(self, held[start], start, placement, shape)
            self.moving = outer
            assert isinstance(moved, self.ir.Value)
            held[placement] = self._adopt(value, placement, moved)
        return held[placement]

    def _write_zero_point(self, node: ir.Node | None) -> None:
        """Gives a DequantizeLinear of one scale the zero point that it leaves out, before its output is cut.

        ONNX Runtime before 1.28 repeats it behind Slice, Reshape and the like: without a zero point as uint8,
        whatever the type was, so that all below zero became zero."""
        if node is None or (node.domain, node.op_type) != ("", "DequantizeLinear"):
            return
        data, scale, *zero = node.inputs
        kinds = {self.ir.DataType.INT8: np.int8, self.ir.DataType.INT16: np.int16}
        kind = None if data is None or data.dtype is None else kinds.get(data.dtype)
        if kind is not None and scale is not None and shape_of(scale) == () and zero in ([], [None]):
            node.resize_inputs(3)
            node.replace_input_with(2, self.constant(np.zeros((), kind)))

    def _weight(self, value: ir.Value, placement: Placement) -> ir.Value:
        parts = self.weights.setdefault(value, {})
        if placement not in parts:
            shape = local_shape(shape_of(value) or (), placement, self.world)
            parts[placement] = self.ir.Value(type=value.type, shape=self.ir.Shape(shape))
        return parts[placement]

    def _adopt(self, value: ir.Value, placement: Placement, local: ir.Value) -> ir.Value:
        """Names this rank's part of a value: a whole one as in the model, so that subgraphs find it; of a
        state, what is taken and given."""
        if not value.name:  # an optional output that is left out
            local.name = ""
            return local
        wanted = value.name
        named = local.name is not None or local.producer() is None
        if placement == self.state.get(value, REPLICATED):
            if named and local.name != wanted and not self._renamed(local):
                local = self.op("Identity", [local])[0]
            local.name = wanted
        elif not named:
            local.name = self.names.fresh(f"{wanted}/{placement}")
        shape = self._axes(value, shown_shape(value))
        if local.producer() is not None:
            local.type = value.type
            local.shape = None if shape is None else self.ir.Shape(local_shape(shape, placement, self.world))
        return local

    def _renamed(self, local: ir.Value) -> bool:
        """Whether a value has only the name that its collective gave it, which nothing else refers to."""
        producer = local.producer()
        return producer is not None and producer.domain == MICROSOFT and len(local.uses()) == 0

    def finish(self, returned: Sequence[ir.Value], sent: Sequence[Crossing] = ()) -> RankGraph:
        """The finished graph: outputs whole, but for state, nodes that nothing needs removed, weights
        named."""
        outputs = [self.get(value, self.state.get(value, REPLICATED)) for value in returned]
        for crossing in sent:
            self.send(crossing)
        weights: list[HeldWeight] = []
        for value in self.source.model.graph.initializers.values():
            parts = sorted(self.weights.get(value, {}).items(), key=lambda item: item[0] != REPLICATED)
            for number, (placement, part) in enumerate(parts):
                part.name = self.names.fresh(f"{value.name}/{placement}") if number else value.name
                weights.append(HeldWeight(part, value.name or "", placement))
        for node in self.nodes:
            for output in node.outputs:
                if output.name is None:
                    output.name = self.names.fresh(f"{node.name}/output")
        nodes = self._needed(outputs)
        used = {value for node in nodes for value in node.inputs} | set(outputs)
        captured = {name for node in nodes for name in captured_names(node)}
        nodes, outputs = regroup(nodes, outputs, self.inputs)
        return RankGraph(
            self.inputs,
            outputs,
            nodes,
            [held for held in weights if held.value in used or held.value.name in captured],
            [value for value in self.constants.values() if value in used],
            list(self._in_turn(nodes, "")),
        )

    def _in_turn(self, nodes: Iterable[ir.Node], within: str) -> Iterator[Collective]:
        """The collectives in the order of the finished nodes."""
        for node in nodes:
            if node in self.collectives:
                yield replace(self.collectives[node], within=within)
            for name, body in bodies(node):
                place = f"{node.name} ({BODY_NAMES.get(name, 'turn')})"
                yield from self._in_turn(body, f"{within}, {place}" if within else place)

    def _needed(self, outputs: Sequence[ir.Value]) -> list[ir.Node]:
        """Nodes that lead to an output or a collective: every rank must take part in each collective.

        What is sent must be received too, even where the rank's own nodes do not use it."""
        wanted: set[ir.Value] = set(outputs)
        names: set[str] = set()
        kept = []
        for node in reversed(self.nodes):
            collective = node.domain == MICROSOFT and node.op_type in COLLECTIVES
            joins = collective or node.domain == OWN_DOMAIN
            if not joins and not any(value in wanted or value.name in names for value in node.outputs):
                continue
            kept.append(node)
            wanted.update(value for value in node.inputs if value is not None)
            names.update(captured_names(node))
        return kept[::-1]

    def _add(
        self,
        kind: tuple[str, str],
        inputs: list[ir.Value | None],
        attributes: Sequence[ir.Attr],
        outputs: int,
        model: ir.Node | None = None,
    ) -> list[ir.Value]:
        domain, op_type = kind
        node = self.ir.Node(
            domain,
            op_type,
            inputs,
            attributes,
            overload=model.overload if model else "",
            num_outputs=outputs,
            name=self.node_names.fresh((model.name if model else None) or f"shardrun/{op_type}"),
            doc_string=model.doc_string if model else None,
            metadata_props=dict(model.metadata_props) if model else None,
        )
        self.nodes.append(node)
        return list(node.outputs)

    def _attributes(self, attributes: dict[str, object]) -> list[ir.Attr]:
        plain = {
            name: self.ir.Tensor(item) if isinstance(item, np.ndarray) else item
            for name, item in attributes.items()
            if not (isinstance(item, list) and not item)
        }
        empty = [self.ir.AttrInt64s(name, []) for name in attributes if name not in plain]
        return [*onnx_attributes(plain), *empty]
