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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ranks.errors import ModelError
from ranks.sessions.nodes import (
    CONTROL_FLOW,
    POINT_TO_POINT,
    Attributes,
    attributes_of,
    describe,
    is_collective,
    is_constant,
    reads,
)
from sharding.onnx_files.walk import nodes_in, subgraphs

if TYPE_CHECKING:
    import onnx


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
class Control:
    """An If, Loop or Scan with collectives in its bodies, which the ranks drive together."""

    node: onnx.NodeProto
    reads: list[str]
    """What it and its bodies read that is computed, and the constants among its own inputs."""
    level: int
    bodies: list[Cut] = field(default_factory=list)
    """Each takes what the node gives it and then what it reads from outside (`ranks.sessions.bodies`)."""

    @property
    def outputs(self) -> list[str]:
        """The values that it makes."""
        return [name for name in self.node.output if name]

    @property
    def carried(self) -> int:
        """Of a loop how many values it carries from turn to turn."""
        if self.node.op_type == "Loop":
            return len(self.node.input) - 2
        scanned = next((item.i for item in self.node.attribute if item.name == "num_scan_inputs"), 0)
        return len(self.node.input) - scanned

    def signature(self) -> tuple[object, ...]:
        """What every rank of a group must agree on."""
        return (self.node.op_type, *(tuple(body.signatures()) for body in self.bodies))


@dataclass
class Cut:
    """Segments and collectives in order of execution: segment k, then ``collectives[k]``, ``controls[k]``."""

    model: onnx.ModelProto
    segments: list[Segment]
    collectives: list[list[Collective]]
    controls: list[list[Control]]
    inputs: list[str]
    outputs: list[str]
    weights: frozenset[str] = frozenset()
    """Inputs of the graph that are no inputs of the model: variable weights, there from the start."""

    @property
    def mail(self) -> list[Collective]:
        """What this rank sends and receives, in order."""
        return [c for level in self.collectives for c in level if c.op in POINT_TO_POINT]

    @property
    def sessions(self) -> int:
        """How many sessions it takes, those of the bodies in it too."""
        bodies = (body for controls in self.controls for control in controls for body in control.bodies)
        return sum(bool(one.outputs) for one in self.segments) + sum(body.sessions for body in bodies)

    def signatures(self) -> list[tuple[object, ...]]:
        """The group's collectives in order of execution (not ``Send`` and ``Recv``, which concern two
        ranks), those in bodies too."""
        found: list[tuple[object, ...]] = []
        for level, controls in zip(self.collectives, self.controls, strict=True):
            found += [c.signature() for c in level if c.op not in POINT_TO_POINT]
            found += [control.signature() for control in controls]
        return found

    def everywhere(self) -> Iterator[Collective]:
        """All collectives, those in bodies too."""
        for level, controls in zip(self.collectives, self.controls, strict=True):
            yield from level
            for control in controls:
                for body in control.bodies:
                    yield from body.everywhere()

    def count(self) -> int:
        """The collectives of one inference: of branches those of the longest, of a loop those of one turn."""
        return sum(map(len, self.collectives)) + sum(
            max((body.count() for body in control.bodies), default=0)
            for controls in self.controls
            for control in controls
        )

    @property
    def point_to_point(self) -> bool:
        """Whether this rank sends or receives."""
        return any(c.op in POINT_TO_POINT for level in self.collectives for c in level)


def cut(model: onnx.ModelProto, *, keep_order: bool = False, weights: frozenset[str] = frozenset()) -> Cut:
    """Cuts a rank model, whose external data need not be loaded.

    ``keep_order`` runs the collectives exactly in the file's order (more segments at times); ranks whose
    models differ in structure, as those that send and receive do, need it to meet in the same order.
    ``weights``: inputs of the graph that are variable weights.

    Control flow with collectives in its bodies is cut out, too; `ranks.sessions.bodies` cuts the bodies.

    Raises `ModelError` for collectives in functions and in bodies of other nodes, unknown attributes, values
    that nothing produces, values produced twice and nodes out of order.
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
        self.controls: list[list[Control]] = []
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
        return Cut(
            self.model, segments, self.collectives, self.controls, self.inputs, self.outputs, self.weights
        )

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
                driven = (node.domain, node.op_type) in CONTROL_FLOW
                if is_collective(inner) and not (driven and inner.op_type not in POINT_TO_POINT):
                    raise ModelError(
                        f"The collective {describe(inner)} lies in a subgraph of {describe(node)}: a Send or "
                        f"Recv may lie only in the model's main graph, other collectives also in bodies of "
                        f"{', '.join(op for _, op in CONTROL_FLOW)}."
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
            driven = any(map(is_collective, nodes_in(*subgraphs(node))))
            if not is_collective(node) and not driven:
                self.nodes.append(node)
                self.reads.append([name for name in names if name not in self.constants])
                self.earliest.append(level)
            else:
                if self.keep_order:
                    level = floor = max(level, floor)
                while len(self.collectives) <= level:
                    self.collectives.append([])
                    self.controls.append([])
                if driven:
                    read = [
                        name
                        for name in names
                        if name in node.input or name not in self.constants | self.weights
                    ]
                    if held := self.weights.intersection(node.input):
                        raise ModelError(
                            f"{describe(node)} itself reads the variable weight {min(held)!r}: only weights "
                            f"that bodies compute with can be variable."
                        )
                    self.controls[level].append(Control(node, read, level))
                else:
                    self.collectives[level].extend(_collectives(node, level))
                level += 1
            self.ready.update((name, level) for name in node.output if name)
        for name in self.outputs:
            if name not in produced:
                raise ModelError(f"Output {name!r} of the model is produced by no node.")

    def _drop_unused(self) -> None:
        """Forgets nodes that lead to no output and no collective (which runs whoever reads it: peers wait
        for it)."""
        wanted = set(self.outputs) | self._exchanged()
        keep = []
        for index in range(len(self.nodes) - 1, -1, -1):
            if not wanted.isdisjoint(self.nodes[index].output):
                wanted.update(self.reads[index])
                keep.append(index)
        keep.reverse()
        self.nodes = [self.nodes[i] for i in keep]
        self.reads = [self.reads[i] for i in keep]
        self.earliest = [self.earliest[i] for i in keep]

    def _exchanged(self) -> set[str]:
        """What collectives and control flow between segments read."""
        read = {c.input for level in self.collectives for c in level if c.input}
        return read | {name for level in self.controls for control in level for name in control.reads}

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
        for control in (control for controls in self.controls for control in controls):
            for name in control.reads:
                reads_at[name].append(control.level)
        for names, level_of_node in zip(self.reads, self.earliest, strict=True):
            for name in names:
                reads_at[name].append(level_of_node)
        inner = {name for node in self.nodes for name in node.output if name}
        inner |= {c.output for level in self.collectives for c in level if c.output}
        inner |= {name for level in self.controls for control in level for name in control.outputs}
        exchanged = self._exchanged()
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
        needed = set(self.outputs) | self._exchanged()
        for node, names, index in zip(self.nodes, self.reads, chosen, strict=True):
            segment = segments[index]
            segment.nodes.append(node)
            for name in names:
                if home.get(name) != index:
                    segment.inputs.append(name)
                    needed.add(name)
            home.update((name, index) for name in node.output if name)
        for name, index in home.items():
            if name in needed:
                segments[index].outputs.append(name)
        segments[-1].outputs.extend(name for name in dict.fromkeys(self.outputs) if name in self.constants)
        for level, collectives in enumerate(self.collectives):
            read = [c.input for c in collectives]
            read += [name for control in self.controls[level] for name in control.reads]
            constants = (name for name in dict.fromkeys(read) if name in self.constants)
            segments[level].outputs.extend(name for name in constants if name)
        for segment in segments:
            segment.inputs = list(dict.fromkeys(segment.inputs))
        self.collectives.append([])
        self.controls.append([])
        return segments


def _collectives(node: onnx.NodeProto, level: int) -> list[Collective]:
    """The node's collectives: one per tensor, for AllReduce and its like take several."""
    inputs, outputs = list(node.input), list(node.output)
    wanted_inputs = 0 if node.op_type == "Recv" else max(len(inputs), 1)
    wanted_outputs = 0 if node.op_type == "Send" else max(len(outputs), 1)
    paired = node.op_type in POINT_TO_POINT or len(inputs) == len(outputs)
    if len(inputs) != wanted_inputs or len(outputs) != wanted_outputs or not paired or "" in inputs + outputs:
        raise ModelError(
            f"{describe(node)} has {len(inputs)} inputs and {len(outputs)} outputs, but takes one output per "
            "input (Send no output, Recv no input)."
        )
    attributes = attributes_of(node)
    if node.op_type == "Send":
        return [Collective("Send", name, None, attributes, level) for name in inputs]
    if node.op_type == "Recv":
        return [Collective("Recv", None, name, attributes, level) for name in outputs]
    return [
        Collective(node.op_type, source, target, attributes, level)
        for source, target in zip(inputs, outputs, strict=True)
    ]
