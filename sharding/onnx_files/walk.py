"""The way through an ONNX message: graphs, functions, and the graphs in the attributes of their nodes.

Of a model as `onnx_ir` has it, see `sharding.graph.values.subgraphs`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, overload

if TYPE_CHECKING:
    import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes, whatever type an attribute says it has."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


@overload
def graphs_in(*roots: onnx.GraphProto) -> Iterator[onnx.GraphProto]: ...
@overload
def graphs_in(
    *roots: onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]: ...
def graphs_in(
    *roots: onnx.GraphProto | onnx.FunctionProto,
) -> Iterator[onnx.GraphProto | onnx.FunctionProto]:
    """Each graph or function, and then all graphs in its nodes, however deep.

    What is inside is looked for only once the caller is done with what is around it, and may have changed it.
    """
    for root in roots:
        yield root
        for node in root.node:
            yield from graphs_in(*subgraphs(node))


def nodes_in(*roots: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.NodeProto]:
    """The nodes of graphs and functions and of all graphs in them."""
    for graph in graphs_in(*roots):
        yield from graph.node


def nodes_in_turn(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """The nodes of a graph in order, each followed by those of the graphs in it."""
    for node in graph.node:
        yield node
        for inner in subgraphs(node):
            yield from nodes_in_turn(inner)


def tensors_in(*roots: onnx.GraphProto | onnx.FunctionProto) -> Iterator[onnx.TensorProto]:
    """All tensors that graphs and functions hold, and those in the attributes of their nodes."""
    from sharding.onnx_files.messages import FunctionProto

    for graph in graphs_in(*roots):
        if not isinstance(graph, FunctionProto):  # which has none
            yield from graph.initializer
            for sparse in graph.sparse_initializer:
                yield from (sparse.values, sparse.indices)
        for node in graph.node:
            for attribute in node.attribute:
                if attribute.HasField("t"):
                    yield attribute.t
                yield from attribute.tensors


def mentioned(node: onnx.NodeProto) -> Iterator[str]:
    """Every name that a node reads, or that the graphs in it read and return: among them the values that they
    take from outside."""
    yield from node.input
    for graph in subgraphs(node):
        yield from (value.name for value in graph.output)
        for inner in graph.node:
            yield from mentioned(inner)
