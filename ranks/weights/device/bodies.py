"""Where the weights of a graph are read, in its bodies (those of If, Loop and Scan) as outside of them.

Sessions find shared weights by name, in the graph alone, so that weights of bodies are put outside
(`put_outside`); and they know one place for each name, so that a reader can be given another (`reads`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranks.devices import dlpack
from sharding.onnx_files.walk import graphs_in, subgraphs

if TYPE_CHECKING:
    import onnx


@dataclass(frozen=True)
class Read:
    """A place where a weight is read: an input of a node, or, without one, what its name is known by outside
    of the model. ``kind``: the node's type of operator, or words for the other."""

    weight: str
    node: onnx.NodeProto | None
    index: int
    kind: str


def put_outside(graph: onnx.GraphProto) -> None:
    """Makes the weights with external data of all bodies weights of ``graph``, under names that nothing else
    has, also in other bodies."""
    taken = names_in(graph)
    for body in graphs_in(*(body for node in graph.node for body in subgraphs(node))):
        outside = {}
        for index in reversed(range(len(body.initializer))):
            tensor = body.initializer[index]
            if tensor.data_location != tensor.EXTERNAL or tensor.name in _inputs(body):
                continue
            made, old = graph.initializer.add(), tensor.name
            made.CopyFrom(tensor)
            made.name = outside[old] = unused(old, taken)
            del body.initializer[index]
        read_as(body, outside)
        for value in body.output:
            if value.name in outside:  # a body must make what it gives
                node = body.node.add(op_type="Identity")
                node.input.append(outside[value.name])
                node.output.append(value.name)


def reads(graph: onnx.GraphProto, names: Collection[str]) -> Iterator[Read]:
    """Where these values of ``graph`` are read, in an order that depends on nothing but the graph. Bodies
    that have a value of their own by such a name mean that.

    A weight that is an input, too, may be replaced under its name alone: all its readers count as one.
    """
    inputs = _inputs(graph) & set(names)
    yield from (Read(name, None, 0, "an input of the model") for name in sorted(inputs))
    rest = frozenset(names) - inputs
    yield from (
        Read(value.name, None, 0, "an output of the model") for value in graph.output if value.name in rest
    )
    yield from _by_nodes(graph, rest)


def read_as(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    """Nodes of a graph and of the bodies in it read values by their new ``names``."""
    for read in list(_by_nodes(graph, frozenset(names))):
        assert read.node is not None
        read.node.input[read.index] = names[read.weight]


def declare(graph: onnx.GraphProto) -> None:
    """Has bodies say of which type the weights are that they read from outside: of what is in a BeamSearch
    ONNX Runtime 1.23 does not see it."""
    import onnx

    held = {tensor.name: tensor for tensor in graph.initializer}
    for body in graphs_in(*(body for node in graph.node for body in subgraphs(node))):
        known = _made(body) | {value.name for value in body.value_info}
        for name in dict.fromkeys(name for node in body.node for name in node.input):
            if name in held and name not in known:
                kind, lengths = held[name].data_type, held[name].dims
                body.value_info.append(onnx.helper.make_tensor_value_info(name, kind, lengths))


def names_in(graph: onnx.GraphProto) -> set[str]:
    """The names that a graph and the bodies in it give to values."""
    return {name for inner in graphs_in(graph) for name in _made(inner)}


def unused(name: str, taken: set[str]) -> str:
    """A name like this one that is not among ``taken``, where it now is."""
    number, found = 1, name
    while found in taken:
        found, number = f"{name}_{number}", number + 1
    taken.add(found)
    return found


def size_of(tensor: onnx.TensorProto) -> int:
    """Bytes of a weight of one of `dlpack.TYPES`."""
    return math.prod(tensor.dims) * dlpack.width(tensor.data_type)


def _by_nodes(graph: onnx.GraphProto, names: frozenset[str]) -> Iterator[Read]:
    for node in graph.node if names else ():
        for index, name in enumerate(node.input):
            if name in names:
                yield Read(name, node, index, node.op_type)
        for body in subgraphs(node):
            yield from _by_nodes(body, names - _made(body))


def _inputs(graph: onnx.GraphProto) -> set[str]:
    return {value.name for value in graph.input}


def _made(graph: onnx.GraphProto) -> set[str]:
    """The names that a graph gives to values, as which it then knows no others outside."""
    found = _inputs(graph) | {tensor.name for tensor in graph.initializer}
    return found.union(*(node.output for node in graph.node))
