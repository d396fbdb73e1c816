"""Weights that the bodies of If, Loop and Scan read, so that processes can share them on a device.

Sessions find shared weights by name, in the graph alone, and ONNX Runtime has one place for each: where the
first node that it comes to reads it. So weights of bodies are put outside, and what nodes on the CPU read,
too, gets a name of its own for these. (Of nodes in one graph or body ONNX Runtime itself does so.)
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING

from sharding.onnx_files.walk import graphs_in, nodes_in, subgraphs

if TYPE_CHECKING:
    import onnx


def put_outside(graph: onnx.GraphProto) -> None:
    """Makes the weights with external data of all bodies weights of ``graph``, under names that nothing else
    has, also in other bodies."""
    taken = {name for inner in graphs_in(graph) for name in _made(inner)}
    for body in _bodies(graph):
        outside = {}
        for index in reversed(range(len(body.initializer))):
            tensor = body.initializer[index]
            if tensor.data_location != tensor.EXTERNAL or _is_input(body, tensor.name):
                continue
            made, old = graph.initializer.add(), tensor.name
            made.CopyFrom(tensor)
            made.name = outside[old] = _unused(old, taken)
            del body.initializer[index]
        _read_as(body, outside)
        for value in body.output:
            if value.name in outside:  # a body must make what it gives
                node = body.node.add(op_type="Identity")
                node.input.append(outside[value.name])
                node.output.append(value.name)


def put_apart(graph: onnx.GraphProto, weights: Collection[str], on_cpu: Collection[str]) -> bool:
    """Gives those of ``weights`` that both nodes of these names ``on_cpu`` and others read a second name for
    the former; whether there are any. Nodes have names of their own."""
    there: set[str] = set()
    elsewhere: set[str] = set()
    for node in nodes_in(graph):
        (there if node.name in on_cpu else elsewhere).update(node.input)
    both = there & elsewhere & set(weights)
    taken = {name for inner in graphs_in(graph) for name in _made(inner)}
    second = {name: _unused(f"{name}_on_cpu", taken) for name in sorted(both)}
    for tensor in [tensor for tensor in graph.initializer if tensor.name in second]:
        made = graph.initializer.add()
        made.CopyFrom(tensor)
        made.name = second[tensor.name]
    _read_as(graph, second, on_cpu)
    return bool(both)


def _bodies(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """All graphs in the nodes of this one, however deep."""
    return graphs_in(*(body for node in graph.node for body in subgraphs(node)))


def _is_input(graph: onnx.GraphProto, name: str) -> bool:
    return any(value.name == name for value in graph.input)


def _made(graph: onnx.GraphProto) -> set[str]:
    """The names that a graph gives to values, as which it then knows no others outside."""
    found = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
    return found.union(*(node.output for node in graph.node))


def _unused(name: str, taken: set[str]) -> str:
    number, found = 1, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def _read_as(
    graph: onnx.GraphProto, names: Mapping[str, str], readers: Collection[str] | None = None
) -> None:
    """Nodes of a graph and of the bodies in it read values by their new ``names``; ``readers``: nodes of
    these names alone. Bodies that have a value of their own by an old name still mean that."""
    for node in graph.node if names else ():
        if readers is None or node.name in readers:
            node.input[:] = [names.get(name, name) for name in node.input]
        for body in subgraphs(node):
            own = _made(body)
            _read_as(body, {old: new for old, new in names.items() if old not in own}, readers)
