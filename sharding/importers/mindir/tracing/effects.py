"""Which nodes have effects besides their result, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.importers.mindir.primitives.base import PRIMITIVES
from sharding.importers.mindir.tracing.memory import is_writing
from sharding.importers.mindir.tracing.program import Graph, Program

if TYPE_CHECKING:
    from sharding.importers.mindir.messages import Node
    from sharding.importers.mindir.tracing.trace import Tracer

PERSISTENT = "it changes a parameter while it runs, which ONNX has no way to say"
_ORDERED = frozenset({"Load", "TensorMove"})
"""Primitives whose place in the order of effects says what they read."""
_TUPLES = frozenset({"MakeTuple", "make_list", "MakeList"})
_WRITING = ("Assign", "Inplace", "ScatterUpdate", "ScatterNdUpdate", "ScatterAdd", "ScatterNdAdd")
_READING = ("View", "Detach", "Embedding", "BatchNorm", "InstanceNorm")
"""Ends of the names of those that say that they write, but nothing that a result depends on: views, lookups
(whose conversion refuses the setting with which they write), and running moments."""


def effects(program: Program, graph: Graph, node: Node) -> list[str]:
    """What an UpdateState follows: the state before, what may be changed in place, and what was read."""
    found = list(node.input[:1])
    waiting, seen = list(reversed(node.input[1:])), set()
    while waiting:
        name = waiting.pop()
        item = graph.nodes.get(name)
        if item is None or name in seen:
            continue
        seen.add(name)
        prim = program.prim_of(item)
        if prim is not None and prim.op_type in _TUPLES:
            waiting.extend(reversed(item.input))
        elif prim is None or prim.op_type in _ORDERED or is_writing(prim.op_type):
            found.append(name)
    return found


def writes_after(program: Program, graph: Graph, call: Node) -> bool:
    """Whether a graph changes something in place after the call whose result is its own."""
    name = graph.output
    while (node := graph.nodes.get(name)) is not None and node is not call:
        state = graph.nodes.get(node.input[1]) if len(node.input) > 1 else None
        seen = 0
        while state is not None and call.output[0] not in state.input and seen <= len(graph.nodes):
            if len(effects(program, graph, state)) > 1:
                return True
            state = graph.nodes.get(state.input[0]) if len(state.input) else None
            seen += 1
        name = node.input[0]
    return False


def check_writes(tracer: Tracer) -> None:
    """Notes operations that change weights: what reads them later would need the new value."""
    program = tracer.program
    for graph in {id(item): item for item in (program.main, *program.graphs.values())}.values():
        for node in graph.nodes.values():
            prim = program.prim_of(node)
            if prim is None or is_writing(prim.op_type):
                continue
            unknown = prim.op_type not in PRIMITIVES and prim.op_type.startswith(_WRITING)
            writes = tracer.attributes_of(prim).get("side_effect_mem") is True
            if unknown or (writes and not prim.op_type.endswith(_READING)):
                tracer.refuse(f"{prim.op_type}: {PERSISTENT}", node.domain)
