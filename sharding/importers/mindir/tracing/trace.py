"""Follows a MindIR program from its inputs, and adds what it computes to an ONNX graph.

A graph is evaluated from its result backwards, so what nothing needs is never converted. Calls are followed
(inlined). A call of what ``Switch`` gives becomes an ``If``, a graph that tail calls lead back to a ``Loop``
(`control`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from sharding.errors import ModelError
from sharding.importers.mindir import messages, values
from sharding.importers.mindir.dtypes import ValueProblem
from sharding.importers.mindir.primitives.base import (
    PRIMITIVES,
    Node,
    Operand,
    RefusedError,
    TensorType,
    Value,
    arguments,
)
from sharding.importers.mindir.primitives.complex_numbers import converted, holds_complex, parts_of_array
from sharding.importers.mindir.primitives.fourier import MISCOUNTED, is_open
from sharding.importers.mindir.primitives.operands import Builder
from sharding.importers.mindir.tracing.effects import PERSISTENT, effects, writes_after
from sharding.importers.mindir.tracing.memory import Memory, contents, detached, is_writing, storage
from sharding.importers.mindir.tracing.outcomes import Branch, Choice, Closure, Done, Outcome, Tail, Traced
from sharding.importers.mindir.tracing.program import PASSING, Graph, Prim, Program
from sharding.importers.mindir.tracing.result_types import settled

MOST_NODES = 20_000
"""Uses of primitives in a small file, calls followed; in a large one `MOST_CALLS` times those it has."""
MOST_CALLS = 20
MAX_CALLS = 48
"""Calls within calls; each also nests messages, of which protobuf allows 100."""
_NODE = "node "
"""How storages of nodes' results are called; a number follows."""
_PROBLEMS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    TypeError,
    ValueError,
    ModelError,
)
"""What a conversion raises where operands and settings are not what the primitive takes."""


@dataclass
class Frame:
    """One call of a graph: what its names stand for."""

    graph: Graph
    known: dict[str, Traced]


@dataclass(frozen=True)
class Following:
    """What a tracer does where a graph calls others: these call the tracer again."""

    follow: Callable[[Tracer, Outcome], Traced]
    """An outcome to its value, all calls followed."""
    loop: Callable[..., Traced]
    structure: Mapping[str, Callable[..., Traced]]
    """Primitives that make no node: tuples, loads, the order of effects."""


class Tracer:
    """Evaluates graphs. ``refusals`` collects what has no conversion: reason to layers."""

    def __init__(self, program: Program, builder: Builder, following: Following) -> None:
        self.program = program
        self.following = following
        self.builder = builder
        self.refusals: dict[str, list[str]] = {}
        self.globals: dict[str, Traced] = {}
        """What names stand for everywhere: the weights."""
        self.weights: set[str] = set()
        """The names that weights have in ONNX."""
        self.active: set[str] = set()
        """Graphs that are being followed: a call of one of these is a loop's, or recursion."""
        self.count = 0
        graphs = {id(graph): graph for graph in (program.main, *program.graphs.values())}
        self.most = max(MOST_NODES, MOST_CALLS * sum(len(graph.nodes) for graph in graphs.values()))
        self.writes = any(is_writing(prim.op_type) for prim in program.prims.values())
        """Whether anything is changed in place; where nothing is, the order of effects has no meaning."""
        self.memory = Memory()
        """What was changed up to the node that is evaluated."""
        self.trusts_lengths = True
        """Whether the lengths are true that the file declares."""
        self._depth = 0
        self._constants: dict[str, Traced] = {}
        self._attributes: dict[str, dict[str, Operand]] = {}

    # Graphs

    def run(self, name: str, arguments: Sequence[Traced]) -> Outcome:
        """One graph up to its result."""
        graph = self.program.graphs[name]
        if len(arguments) != len(graph.inputs):
            raise self.invalid(
                f"graph {name[:80]!r} takes {len(graph.inputs)} arguments, but gets {len(arguments)}"
            )
        held = [contents(item, self.memory) for item in arguments]
        return self.outcome(Frame(graph, dict(zip(graph.inputs, held, strict=True))))

    def run_main(self, inputs: Sequence[Traced]) -> Outcome:
        """The main graph up to its result."""
        graph = self.program.main
        with self.inside(graph.name):
            return self.outcome(Frame(graph, dict(zip(graph.inputs, inputs, strict=True))))

    def outcome(self, frame: Frame) -> Outcome:
        """The result of a frame, calls at its end not yet followed."""
        _, node = self.program.result_node(frame.graph)
        if (
            node is None
            or self.program.prim_of(node) is not None
            or (self.writes and writes_after(self.program, frame.graph, node))
        ):
            value = self.evaluated(frame, frame.graph.output)
            return Done(contents(value, self.memory), self.memory)
        callee = self.program.callee(node)
        if callee in self.program.graphs:
            operands = self.evaluate_all(frame, node.input)
            return Tail(callee, tuple(operands), self.memory)
        closure, *arguments = self.evaluate_all(frame, [callee, *node.input])
        return self.applied(closure, tuple(arguments))

    def applied(self, callee: Traced, arguments: tuple[Traced, ...]) -> Outcome:
        """The call of a closure."""
        if isinstance(callee, Closure):
            return Tail(callee.graph, (*callee.arguments, *arguments), self.memory)
        if isinstance(callee, Choice):
            then, otherwise = self.applied(callee.then, arguments), self.applied(callee.otherwise, arguments)
            return Branch(callee.condition, then, otherwise)
        raise self.invalid("a node calls what is no graph")

    def evaluated(self, frame: Frame, name: str) -> Traced:
        """What one name stands for."""
        return self.evaluate_all(frame, [name])[0]

    def evaluate_all(self, frame: Frame, names: Iterable[str]) -> list[Traced]:
        """What names stand for; the nodes that they need are evaluated in order, without recursion."""
        wanted = list(names)
        waiting = [(name, False) for name in reversed(wanted)]
        open_nodes: set[str] = set()
        while waiting:
            name, ready = waiting.pop()
            node = frame.graph.nodes.get(name)
            if node is None or name in frame.known:
                continue
            if ready:
                open_nodes.discard(name)
                frame.known[name] = self._node(frame, node)
                continue
            if name in open_nodes:
                raise self.invalid(f"node {name[:80]!r} needs its own result")
            open_nodes.add(name)
            waiting.append((name, True))
            waiting.extend((item, False) for item in reversed(self._needed(frame, node)))
        return [self._lookup(frame, name) for name in wanted]

    def _needed(self, frame: Frame, node: messages.Node) -> list[str]:
        prim = self.program.prim_of(node)
        if prim is None:
            callee = self.program.callee(node)
            names = list(node.input) if callee in self.program.graphs else [callee, *node.input]
        elif prim.op_type in PASSING:
            names = list(node.input[: 2 if self.writes else 1])
        elif prim.op_type == "UpdateState":
            names = effects(self.program, frame.graph, node) if self.writes else []
        else:
            names = list(node.input)
        return [name for name in names if name not in frame.known]

    def _lookup(self, frame: Frame, name: str) -> Traced:
        if name in frame.known:
            return frame.known[name]
        if name in self.globals:
            return self.globals[name]
        if name in self.program.constants:
            return self._constant(name)
        if name in self.program.graphs:
            return Closure(name)
        raise self.invalid(f"graph {frame.graph.name[:80]!r} reads {name[:80]!r}, which nothing gives")

    def _constant(self, name: str) -> Traced:
        if name not in self._constants:
            node = self.program.constants[name]
            try:
                items = [values.attribute(item) for item in node.attribute if item.name == "value"]
            except ValueProblem as problem:
                raise self.invalid(f"constant {name[:80]!r}: {problem}") from None
            if len(items) != 1:
                raise self.invalid(f"constant {name[:80]!r} has {len(items)} values; expected one")
            self._constants[name] = self._operand(items[0])
        return self._constants[name]

    def _operand(self, item: Traced) -> Traced:
        if isinstance(item, np.ndarray):
            return parts_of_array(self.builder, item) if item.dtype.kind == "c" else self.builder.const(item)
        if isinstance(item, tuple):
            return tuple(self._operand(inner) for inner in item)
        return item

    # Nodes

    def _node(self, frame: Frame, node: messages.Node) -> Traced:
        self.count += 1
        if self.count > self.most:
            raise ModelError(
                f"{self.program.path} computes more than {self.most} operations when its graphs are "
                "followed: too many to convert."
            )
        prim = self.program.prim_of(node)
        names = _used(node, prim)
        operands = [self._lookup(frame, name) for name in names]
        if prim is None:
            callee = self.program.callee(node)
            if callee in self.program.graphs:
                return self.finish(Tail(callee, tuple(operands), self.memory))
            return self.finish(self.applied(self._lookup(frame, callee), tuple(operands)))
        self.builder.layer = node.domain[:200] or prim.op_type
        types = self._types(node)
        structural = self.following.structure.get(prim.op_type)
        try:
            if structural is not None:
                return structural(self, operands)
            if is_writing(prim.op_type):
                return self._write(node, prim, operands, types)
            return self.own(self._primitive(node, prim, operands, types))
        except RefusedError as refused:
            self.refuse(f"{prim.op_type}: {refused}", node.domain)
        except _PROBLEMS as problem:
            what = " ".join(str(problem).split())[:200]
            self.refuse(
                f"{prim.op_type}: its operands or settings are not what it takes "
                f"({type(problem).__name__}: {what})",
                node.domain,
            )
        return self._placeholder(types)

    def _primitive(
        self, node: messages.Node, prim: Prim, operands: list[Traced], types: Sequence[TensorType | None]
    ) -> Traced:
        known = PRIMITIVES.get(prim.op_type)
        if known is None:
            self.refuse(f"{prim.op_type}: no conversion", node.domain)
            return self._placeholder(types)
        attributes = self.attributes_of(prim)
        positional, settings = self.builder.typed(known, *arguments(known, operands, attributes))
        context = Node(prim.op_type, node.domain, attributes, tuple(types), self.version)
        if any(holds_complex(item) for item in positional):
            result = converted(self.builder, known, context, positional, settings)
        else:
            result = known.convert(self.builder, context, *positional, **settings)
        if prim.op_type in MISCOUNTED and any(is_open(item) for item in (result, *positional)):
            self.trusts_lengths = False
        return settled(self, result, types) if known.declared else result

    def _write(
        self, node: messages.Node, prim: Prim, operands: list[Traced], types: Sequence[TensorType | None]
    ) -> Value:
        """A primitive that changes its first operand: that holds the result from here on."""
        held = [contents(item, self.memory) for item in operands]
        target = held[0] if held else None
        if not isinstance(target, Value):
            raise RefusedError("it changes what is no tensor")
        if storage(target) in self.weights:
            raise RefusedError(PERSISTENT)
        result = self.builder.value(self._primitive(node, prim, held, types), target.dtype)
        self.memory = self.memory.written(target, result)
        return self.memory.now(target)

    def own(self, result: Traced) -> Traced:
        """A result in a storage of its own, where anything is changed in place."""
        return detached(result, f"{_NODE}{self.count}") if self.writes else result

    def is_inner(self, first: Value, made: set[str], since: int) -> bool:
        """Whether a storage, by what it held at first, is one of a body that was begun at ``since`` nodes."""
        if first.storage.startswith(_NODE):
            return int(first.storage.removeprefix(_NODE).partition(".")[0]) > since
        return first.name in made

    version = 3

    def attributes_of(self, prim: Prim) -> dict[str, Operand]:
        key = prim.message.name
        if key not in self._attributes:
            found = {}
            for item in prim.message.attribute:
                try:
                    found[item.name] = values.attribute(item)
                except ValueProblem:  # of no use to an operation, such as a graph
                    continue
            self._attributes[key] = found
        return self._attributes[key]

    def _types(self, node: messages.Node) -> tuple[TensorType | None, ...]:
        for item in node.attribute:
            if item.name == "shape":
                try:
                    return values.result_types(item)
                except ValueProblem as problem:
                    raise self.invalid(f"the result of node {node.name[:80]!r}: {problem}") from None
        return ()

    def _placeholder(self, types: Sequence[TensorType | None]) -> Traced:
        """What stands for the result of an operation without conversion, so that all of them are found."""
        made = [
            Value(self.builder.fresh("unknown"), kind.dtype, kind.shape) if kind else None for kind in types
        ]
        return made[0] if len(made) == 1 else tuple(made)

    def refuse(self, reason: str, layer: str) -> None:
        """Notes that something has no conversion."""
        layers = self.refusals.setdefault(reason, [])
        if layer not in layers and len(layers) < 1000:
            layers.append(layer)

    def invalid(self, what: str) -> ModelError:
        """The error for a file that contradicts itself."""
        return ModelError(f"{self.program.path} is not a valid MindIR file: {what}.")

    def finish(self, outcome: Outcome) -> Traced:
        """The value of an outcome, all calls followed."""
        with self.nested():
            return self.following.follow(self, outcome)

    @contextmanager
    def nested(self) -> Iterator[None]:
        """One call or body deeper. Raises `ModelError` where that is too deep."""
        if self._depth >= MAX_CALLS:
            raise ModelError(
                f"{self.program.path} has calls or branches nested more than {MAX_CALLS} deep: too deep for "
                "ONNX."
            )
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    @contextmanager
    def inside(self, graph: str) -> Iterator[None]:
        """While a graph is evaluated."""
        new = graph not in self.active
        self.active.add(graph)
        try:
            yield
        finally:
            if new:
                self.active.discard(graph)


def _used(node: messages.Node, prim: Prim | None) -> list[str]:
    if prim is not None and prim.op_type in PASSING:
        return list(node.input[:1])
    return [] if prim is not None and prim.op_type == "UpdateState" else list(node.input)
