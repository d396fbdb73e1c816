"""A rank model cut at its collectives into segments.

A collective's *level* is the number of collectives on the longest path that leads to it. Segment k holds what
runs between the collectives of level k-1 and those of level k, so that independent collectives share one cut
and run back to back. Every node runs as early as it can, except where running later lets fewer values cross a
cut.

Collectives are nodes of the domain ``com.microsoft`` (the names and attributes of ONNX Runtime's collective
operators: ``AllReduce``, ``AllGather``, ``AllToAll``) and of ``shardrun`` (``Broadcast``, ``Send``,
``Recv``). An ``AllGather`` without ``axis`` has the axis 1, the default of ONNX Runtime's schema. The schema
fills the attribute in before the kernel is made, so the kernel's own default, 0, never shows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypedDict, cast

import onnx

from ranks.common.tensors import element_dtype
from ranks.errors import ModelError
from sharding.onnx_files.walk import nodes_in, subgraphs

MICROSOFT = "com.microsoft"
SHARDRUN = "shardrun"
DEFAULT_ATTRIBUTES: Mapping[tuple[str, str], Mapping[str, object]] = {
    (MICROSOFT, "AllReduce"): {},
    (MICROSOFT, "AllGather"): {"axis": 1, "group_size": None},
    (MICROSOFT, "AllToAll"): {"group_size": None},
    (SHARDRUN, "Broadcast"): {"root": 0},
    (SHARDRUN, "Send"): {"peer": ..., "announce": 0},
    (SHARDRUN, "Recv"): {"peer": ..., "dtype": ..., "shape": ..., "announce": 0},
}
"""Per collective its attributes and their defaults; ``...``: must be given; None: the group's size."""
POINT_TO_POINT = frozenset({"Send", "Recv"})
MAX_AXES = 13
"""The most axes of a value that is sent: its shape travels in 16 numbers, three of which say other things."""


class Attributes(TypedDict, total=False):
    """A collective's attributes: those that `DEFAULT_ATTRIBUTES` names."""

    axis: int
    group_size: int | None
    root: int
    peer: int
    announce: int
    dtype: int
    shape: tuple[int, ...]


@dataclass(frozen=True)
class Collective:
    """One collective of one tensor. ``Send`` has no output, ``Recv`` no input."""

    op: str
    input: str | None
    output: str | None
    attributes: Attributes
    level: int

    def signature(self) -> tuple[object, ...]:
        """What every rank of a group must agree on."""
        return (self.op, *sorted(self.attributes.items()))


@dataclass
class Segment:
    """What runs between two cuts; one without outputs is empty and needs no session."""

    nodes: list[onnx.NodeProto] = field(default_factory=list)
    inputs: list[str] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


@dataclass
class Cut:
    """Segments and collectives in order of execution: segment k, then ``collectives[k]``."""

    model: onnx.ModelProto
    segments: list[Segment]
    collectives: list[list[Collective]]
    inputs: list[str]
    outputs: list[str]
    weights: frozenset[str] = frozenset()
    """Inputs of the graph that are no inputs of the model: variable weights, there from the start."""

    @property
    def mail(self) -> list[Collective]:
        """What this rank sends and receives, in order."""
        return [c for level in self.collectives for c in level if c.op in POINT_TO_POINT]

    def signatures(self) -> list[tuple[object, ...]]:
        """The group's collectives in order of execution (not ``Send`` and ``Recv``, which concern two
        ranks)."""
        return [c.signature() for level in self.collectives for c in level if c.op not in POINT_TO_POINT]

    @property
    def point_to_point(self) -> bool:
        """Whether this rank sends or receives."""
        return any(c.op in POINT_TO_POINT for level in self.collectives for c in level)


def cut(model: onnx.ModelProto, *, keep_order: bool = False, weights: frozenset[str] = frozenset()) -> Cut:
    """Cuts a rank model, whose external data need not be loaded.

    ``keep_order`` runs the collectives exactly in the file's order (more segments at times); ranks whose
    models differ in structure, as those that send and receive do, need it to meet in the same order.
    ``weights``: inputs of the graph that are variable weights.

    Raises `ModelError` for collectives in subgraphs or functions, unknown attributes, values that nothing
    produces, values produced twice and nodes out of order.
    """
    return _Cutter(model, keep_order, weights).cut()


class _Cutter:
    def __init__(self, model: onnx.ModelProto, keep_order: bool, weights: frozenset[str]) -> None:
        self.model = model
        self.weights = weights
        self.keep_order = keep_order
        graph = model.graph
        self.constants = {tensor.name for tensor in graph.initializer}
        self.constants |= {tensor.values.name for tensor in graph.sparse_initializer}
        self.constants |= {name for node in graph.node if is_constant(node) for name in node.output}
        given = [value.name for value in graph.input if value.name not in self.constants]
        self.inputs = [name for name in given if name not in weights]
        self.outputs = [value.name for value in graph.output]
        self.collectives: list[list[Collective]] = []
        self.ready: dict[str, int] = dict.fromkeys(given, 0)
        """Value -> first segment in which it can be read."""
        self.nodes: list[onnx.NodeProto] = []
        self.reads: list[list[str]] = []
        self.earliest: list[int] = []

    def cut(self) -> Cut:
        self._reject_hidden_collectives()
        self._assign_levels()
        self._drop_unused()
        segments = self._segments(self._settle())
        return Cut(self.model, segments, self.collectives, self.inputs, self.outputs, self.weights)

    def _reject_hidden_collectives(self) -> None:
        for function in self.model.functions:
            for node in nodes_in(function):
                if is_collective(node):
                    raise ModelError(
                        f"Function {function.name} holds the collective {describe(node)}: inline the model's "
                        f"functions before running it on several ranks."
                    )
        for node in self.model.graph.node:
            for inner in nodes_in(*subgraphs(node)):
                if is_collective(inner):
                    raise ModelError(
                        f"The collective {describe(inner)} lies in a subgraph of {describe(node)}; "
                        f"collectives may "
                        f"lie only in the model's main graph."
                    )

    def _assign_levels(self) -> None:
        floor = 0
        constants = [node for node in self.model.graph.node if is_constant(node)]
        produced = set(self.ready) | self.constants
        if len(produced) < len(self.ready) + len(constants) + len(self.model.graph.initializer):
            raise ModelError("Two of the model's inputs, initializers and constants have the same name.")
        for node in self.model.graph.node:
            if is_constant(node):
                continue
            names = reads(node)
            for name in names:
                if name not in produced:
                    raise ModelError(
                        f"{describe(node)} reads {name!r}, which is no input or initializer and which no "
                        f"node before "
                        f"it produces: the model is incomplete or its nodes are not in topological order."
                    )
            for name in filter(None, node.output):
                if name in produced:
                    raise ModelError(f"{describe(node)} produces {name!r}, which exists already.")
                produced.add(name)
            level = max((self.ready.get(name, 0) for name in names), default=0)
            if not is_collective(node):
                self.nodes.append(node)
                self.reads.append([name for name in names if name not in self.constants])
                self.earliest.append(level)
            else:
                if self.keep_order:
                    level = floor = max(level, floor)
                while len(self.collectives) <= level:
                    self.collectives.append([])
                self.collectives[level].extend(_collectives(node, level))
                level += 1
            self.ready.update((name, level) for name in node.output if name)
        for name in self.outputs:
            if name not in produced:
                raise ModelError(f"Output {name!r} of the model is produced by no node.")

    def _drop_unused(self) -> None:
        """Forgets nodes that lead to no output and no collective (which runs whoever reads it: peers wait
        for it)."""
        wanted = set(self.outputs) | {c.input for level in self.collectives for c in level if c.input}
        keep = []
        for index in range(len(self.nodes) - 1, -1, -1):
            if not wanted.isdisjoint(self.nodes[index].output):
                wanted.update(self.reads[index])
                keep.append(index)
        keep.reverse()
        self.nodes = [self.nodes[i] for i in keep]
        self.reads = [self.reads[i] for i in keep]
        self.earliest = [self.earliest[i] for i in keep]

    def _settle(self) -> list[int]:
        """The segment of each node: its earliest, or the latest possible where that lets fewer values cross.

        On a tie a node that follows a collective stays with what produces its input (fusion), and one that
        depends on the inputs alone moves to what reads it.
        """
        end = len(self.collectives)
        reads_at: dict[str, list[int]] = defaultdict(list)
        """Value -> the segments in which it is read; an output of the model is read after everything."""
        for name in self.outputs:
            reads_at[name].append(end)
        for level in self.collectives:
            for collective in level:
                if collective.input:
                    reads_at[collective.input].append(collective.level)
        for names, level_of_node in zip(self.reads, self.earliest, strict=True):
            for name in names:
                reads_at[name].append(level_of_node)
        inner = {name for node in self.nodes for name in node.output if name}
        inner |= {c.output for level in self.collectives for c in level if c.output}
        exchanged = {c.input for level in self.collectives for c in level}
        chosen = list(self.earliest)
        for index in range(len(self.nodes) - 1, -1, -1):
            now = chosen[index]
            read = [reads_at[name] for name in self.nodes[index].output if reads_at.get(name)]
            latest = min(map(min, read), default=now)
            if latest <= now:
                continue
            saved = sum(max(levels) == latest for levels in read)
            added = 0
            for name in set(self.reads[index]) & inner:
                others = list(reads_at[name])
                others.remove(now)
                if max(others, default=0) < latest:
                    # A value that is still needed after its collective costs a copy, too.
                    added += 2 if name in exchanged else 1
            if saved > added or (saved == added and now == 0):
                chosen[index] = latest
                for name in self.reads[index]:
                    reads_at[name].remove(now)
                    reads_at[name].append(latest)
        return chosen

    def _segments(self, chosen: Sequence[int]) -> list[Segment]:
        segments = [Segment() for _ in range(len(self.collectives) + 1)]
        home: dict[str, int] = {}
        needed: set[str] = set(self.outputs)
        needed.update(c.input for level in self.collectives for c in level if c.input)
        for node, reads, index in zip(self.nodes, self.reads, chosen, strict=True):
            segment = segments[index]
            segment.nodes.append(node)
            for name in reads:
                if home.get(name) != index:
                    segment.inputs.append(name)
                    needed.add(name)
            home.update((name, index) for name in node.output if name)
        for name, index in home.items():
            if name in needed:
                segments[index].outputs.append(name)
        segments[-1].outputs.extend(name for name in dict.fromkeys(self.outputs) if name in self.constants)
        for level, collectives in enumerate(self.collectives):
            constants = (c.input for c in collectives if c.input in self.constants)
            segments[level].outputs.extend(name for name in dict.fromkeys(constants) if name)
        for segment in segments:
            segment.inputs = list(dict.fromkeys(segment.inputs))
        self.collectives.append([])
        return segments


def is_collective(node: onnx.NodeProto) -> bool:
    """Whether a node is one that ranks run together."""
    return (node.domain, node.op_type) in DEFAULT_ATTRIBUTES


def has_collectives(model: onnx.ModelProto) -> bool:
    """Whether a model holds a collective anywhere, subgraphs and functions included."""
    return any(map(is_collective, nodes_in(model.graph, *model.functions)))


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is an initializer in another form; each segment that reads it gets a copy."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx") and not node.input


def describe(node: onnx.NodeProto) -> str:
    """A node as errors name it."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{node.op_type} node {name!r}"


def _collectives(node: onnx.NodeProto, level: int) -> list[Collective]:
    """The node's collectives: one per tensor, for AllReduce and its like take several."""
    inputs, outputs = list(node.input), list(node.output)
    wanted_inputs = 0 if node.op_type == "Recv" else max(len(inputs), 1)
    wanted_outputs = 0 if node.op_type == "Send" else max(len(outputs), 1)
    paired = node.op_type in POINT_TO_POINT or len(inputs) == len(outputs)
    if len(inputs) != wanted_inputs or len(outputs) != wanted_outputs or not paired or "" in inputs + outputs:
        raise ModelError(
            f"{describe(node)} has {len(inputs)} inputs and {len(outputs)} outputs, but takes one output per "
            f"input "
            f"(Send no output, Recv no input)."
        )
    attributes = _attributes(node)
    if node.op_type == "Send":
        return [Collective("Send", name, None, attributes, level) for name in inputs]
    if node.op_type == "Recv":
        return [Collective("Recv", None, name, attributes, level) for name in outputs]
    return [
        Collective(node.op_type, source, target, attributes, level)
        for source, target in zip(inputs, outputs, strict=True)
    ]


def _attributes(node: onnx.NodeProto) -> Attributes:
    defaults = DEFAULT_ATTRIBUTES[node.domain, node.op_type]
    found: dict[str, object] = {}
    for attribute in node.attribute:
        if attribute.name not in defaults:
            raise ModelError(
                f"{describe(node)} has the attribute {attribute.name!r}, which {node.op_type} does not know."
            )
        expected = onnx.AttributeProto.INTS if attribute.name == "shape" else onnx.AttributeProto.INT
        if attribute.type != expected:
            kind = onnx.AttributeProto.AttributeType.Name(expected)
            raise ModelError(f"Attribute {attribute.name!r} of {describe(node)} must be of type {kind}.")
        found[attribute.name] = tuple(attribute.ints) if attribute.name == "shape" else attribute.i
    for name, default in defaults.items():
        if name not in found:
            if default is ...:
                raise ModelError(f"{describe(node)} lacks its attribute {name!r}.")
            found[name] = default
    if node.op_type in POINT_TO_POINT:
        _check_mail(node, cast("Attributes", found))
    return cast("Attributes", found)  # each name with a value of its type, by the checks above


def _check_mail(node: onnx.NodeProto, attributes: Attributes) -> None:
    """What only a sender and a receiver must say."""
    announce, shape = attributes["announce"], attributes.get("shape", ())
    if announce not in {0, 1}:
        raise ModelError(f"Attribute 'announce' of {describe(node)} must be 0 or 1, but is {announce}.")
    if any(dim < -1 for dim in shape) or (-1 in shape and not announce):
        raise ModelError(
            f"Attribute 'shape' of {describe(node)} is {list(shape)}: lengths must be at least 0, or -1 "
            "where they are announced (announce=1)."
        )
    if len(shape) > MAX_AXES:
        raise ModelError(f"{describe(node)} receives {len(shape)} axes; at most {MAX_AXES} are possible.")
    if "dtype" in attributes and element_dtype(attributes["dtype"]).hasobject:
        raise ModelError(f"{describe(node)} receives dtype {attributes['dtype']}, which cannot be sent.")


def reads(node: onnx.NodeProto) -> list[str]:
    """The values a node reads, those that its subgraphs take from outside included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own |= {tensor.values.name for tensor in graph.sparse_initializer}
        for inner in graph.node:
            names.extend(name for name in reads(inner) if name not in own)
            own.update(inner.output)
        names.extend(value.name for value in graph.output if value.name not in own)
    return list(dict.fromkeys(names))
