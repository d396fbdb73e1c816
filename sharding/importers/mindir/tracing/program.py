"""A MindIR message by names: graphs, primitives and constants, and which graphs call which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sharding.errors import ModelError
from sharding.importers.mindir import messages

REFERENCE = "REF::"
PASSING = frozenset({"Depend", "Load"})
"""Primitives that give their first input."""


@dataclass(frozen=True)
class Prim:
    """An operation with its attributes; many nodes share one."""

    op_type: str
    message: messages.Primitive


class Graph:
    """One graph. ``nodes``: those that compute, by the name of what they give."""

    def __init__(self, message: messages.Graph, path: Path) -> None:
        self.name: str = message.name
        self.message = message
        self.inputs: list[str] = [item.name for item in message.input]
        if len(message.output) != 1:
            raise ModelError(
                f"{path} is not valid: its graph {self.name[:80]!r} has {len(message.output)} outputs; "
                "expected one (several results are one tuple)."
            )
        self.output: str = message.output[0].name
        self.nodes: dict[str, messages.Node] = {}
        for node in message.node:
            if node.op_type == "Constant":
                continue
            if len(node.output) != 1 or node.output[0] in self.nodes:
                raise ModelError(
                    f"{path} is not valid: node {node.name[:80]!r} of graph {self.name[:80]!r} gives "
                    f"{list(node.output)[:3]}; expected one name of its own."
                )
            self.nodes[node.output[0]] = node


class Program:
    """All graphs of a file. Raises `ModelError` where names are used twice or an output is missing."""

    def __init__(self, model: messages.Model, path: Path) -> None:
        self.path = path
        self.prims: dict[str, Prim] = {}
        for item in model.primitives:
            self.prims.setdefault(item.name, Prim(item.op_type, item))
        self.main = Graph(model.graph, path)
        self.graphs: dict[str, Graph] = {}
        for message in model.functions:
            if message.name in self.graphs:
                raise ModelError(f"{path} is not valid: it has two graphs named {message.name[:80]!r}.")
            self.graphs[message.name] = Graph(message, path)
        self.graphs.setdefault(self.main.name, self.main)
        self.constants: dict[str, messages.Node] = {}
        for message in (model.graph, *model.functions):
            for node in message.node:
                if node.op_type == "Constant" and len(node.output) == 1:
                    self.constants.setdefault(node.output[0], node)

    def prim_of(self, node: messages.Node) -> Prim | None:
        """The primitive that a node uses; None where it calls a graph or a closure."""
        return self.prims.get(self.callee(node))

    @staticmethod
    def callee(node: messages.Node) -> str:
        """What a node uses or calls: the key of a primitive, a graph's name, or a closure's."""
        return str(node.op_type).removeprefix(REFERENCE)

    @cached_property
    def next_graphs(self) -> dict[str, frozenset[str]]:
        """For each graph, those that its result is the result of (by tail calls); "" where it may also be a
        value of its own."""
        return {name: frozenset(self._after(graph)) for name, graph in self.graphs.items()}

    def result_node(self, graph: Graph) -> tuple[str, messages.Node | None]:
        """The name of a graph's result and the node that gives it (None for an input), behind what passes."""
        name = graph.output
        for _ in range(len(graph.nodes) + 1):
            node = graph.nodes.get(name)
            prim = self.prim_of(node) if node is not None else None
            if node is None or prim is None or prim.op_type not in PASSING or not len(node.input):
                return name, node
            name = node.input[0]
        raise ModelError(
            f"{self.path} is not valid: graph {graph.name[:80]!r} computes its result from itself."
        )

    def _after(self, graph: Graph) -> Iterator[str]:
        _, node = self.result_node(graph)
        if node is None or self.prim_of(node) is not None:
            yield ""
        elif (callee := self.callee(node)) in self.graphs:
            yield callee
        else:
            yield from self._closures(graph, callee)

    def _closures(self, graph: Graph, name: str) -> Iterator[str]:
        """The graphs that a closure value may be."""
        waiting, seen = [name], set()
        while waiting:
            name = waiting.pop()
            if name in seen:
                continue
            seen.add(name)
            node = graph.nodes.get(name)
            prim = self.prim_of(node) if node is not None else None
            if node is None:
                yield name if name in self.graphs else ""
            elif prim is not None and prim.op_type == "Partial" and len(node.input):
                waiting.append(node.input[0])
            elif prim is not None and prim.op_type in {"Switch", "SwitchLayer"}:
                waiting.extend(node.input[1:])
            elif prim is not None and prim.op_type in {"MakeTuple", "make_list"}:
                waiting.extend(node.input)
            elif prim is not None and prim.op_type in PASSING and len(node.input):
                waiting.append(node.input[0])
            else:
                yield ""

    def reached(self, starts: frozenset[str], stops: frozenset[str], without: str = "") -> dict[str, int]:
        """The graphs that tail calls lead to from ``starts``, in order, not beyond ``stops`` nor through
        ``without``; "" where a result can be a value."""
        found: dict[str, int] = {}
        waiting = sorted(starts)
        for name in waiting:
            if name in found or (name == without and name):
                continue
            found[name] = len(found)
            if name and name not in stops:
                waiting.extend(sorted(self.next_graphs.get(name, ())))
        return found

    def is_recursive(self, name: str, stops: frozenset[str]) -> bool:
        """Whether tail calls of this graph lead back to it, not through ``stops``: a loop of its own."""
        return name in self.reached(self.next_graphs.get(name, frozenset()), stops)

    def exits(self, name: str, stops: frozenset[str]) -> frozenset[str]:
        """The graphs outside the loop of this graph that it goes on with."""
        inside = [item for item in self.reached(frozenset({name}), stops) if item and item not in stops]
        loop = {
            item for item in inside if name in self.reached(self.next_graphs.get(item, frozenset()), stops)
        }
        return frozenset(
            after for item in loop for after in self.next_graphs.get(item, ()) if after and after not in loop
        )

    def join(self, one: frozenset[str], other: frozenset[str], stops: frozenset[str]) -> str | None:
        """The first graph that both ways lead to however they go on, or else the one without which they
        have nothing in common but where they end; None where there is none."""
        first, second = self.reached(one, stops), self.reached(other, stops)
        common = [name for name in first if name and name not in stops and name in second]
        partial = None
        for name in common:
            past = self.reached(one, stops, name), self.reached(other, stops, name)
            ends = {*past[0], *past[1]}
            if "" not in ends and not ends & stops:
                return name
            if partial is None and not any(item in past[0] and item in past[1] for item in common):
                partial = name
        return partial
