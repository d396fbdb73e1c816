"""Products of matrices with what is added to them, as one operator."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx import NodeProto

from sharding.onnx_files.walk import mentioned, subgraphs


def with_biases(nodes: list[NodeProto], vectors: frozenset[str], kept: Iterable[str]) -> list[NodeProto]:
    """The nodes, a Gemm that nothing but the addition of a vector reads being one with that; in bodies too.

    ``vectors``: the constants and weights with one axis; ``kept``: what is read from outside of the nodes.
    """
    uses = Counter([*kept, *(name for node in nodes for name in mentioned(node))])
    open_products = {
        node.output[0]: node
        for node in nodes
        if node.op_type == "Gemm" and len(node.input) == 2 and uses[node.output[0]] == 1
    }
    found = []
    for node in nodes:
        for body in subgraphs(node):
            inner = with_biases(list(body.node), vectors, [item.name for item in body.output])
            del body.node[:]
            body.node.extend(inner)
        if node.op_type == "Add":
            pairs = ((node.input[0], node.input[1]), (node.input[1], node.input[0]))
            for product, bias in pairs:
                if product in open_products and bias in vectors:
                    gemm = open_products[product]
                    gemm.input.append(bias)
                    gemm.output[0] = node.output[0]
                    node = gemm  # noqa: PLW2901 - where the sum was, its operands are there
                    break
        found.append(node)
    places = {id(node): place for place, node in enumerate(found)}  # of what is there twice, the last
    return [node for place, node in enumerate(found) if places[id(node)] == place]
