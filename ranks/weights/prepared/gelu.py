"""Gelu in the form that torch's exporter writes, which ONNX Runtime's own fusion does not know.

ONNX Runtime fuses ``(x * 0.5) * (1 + erf(x / sqrt(2)))`` and ``(x * (1 + erf(x / sqrt(2)))) * 0.5`` into its
operator Gelu (its pass GeluFusion); ``torch.onnx.export(dynamo=True)`` writes
``x * (0.5 * (1 + erf(x / sqrt(2))))``. The formula: Hendrycks and Gimpel, "Gaussian Error Linear Units".
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sharding.onnx_files.walk import mentioned, subgraphs
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx

_FLOAT = 1  # TensorProto.FLOAT; ONNX Runtime's Gelu on the CPU takes no other type in all its versions


def fuse_gelu(model: onnx.ModelProto) -> int:
    """Puts one Gelu in the place of each such chain of five nodes in the main graph; how many.

    Their constants stay. Nothing is changed where a value in between is used elsewhere, or is an output.
    """
    if not any(entry.domain == MICROSOFT for entry in model.opset_import):
        return 0  # ONNX Runtime declares it in each graph that it writes
    graph = _Graph(model.graph)
    chains = [chain for node in model.graph.node if (chain := _chain(node, graph)) is not None]
    last = {chain.nodes[-1].output[0]: chain for chain in chains}
    gone = {node.output[0] for chain in chains for node in chain.nodes[:-1]}
    for index in reversed(range(len(model.graph.node)) if chains else ()):
        node = model.graph.node[index]
        name = node.output[0] if node.output else ""
        if name in gone:
            del model.graph.node[index]
        elif name in last:
            del node.input[:], node.attribute[:]
            node.input.append(last[name].source)
            node.op_type, node.domain = "Gelu", MICROSOFT
    return len(chains)


@dataclass(frozen=True)
class _Chain:
    source: str
    nodes: tuple[onnx.NodeProto, ...]


class _Graph:
    """Who makes and who takes each value of a graph, and its scalar constants."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.makers = {name: node for node in graph.node for name in node.output}
        self.scalars = {t.name: t for t in graph.initializer if t.data_type == _FLOAT and not t.dims}
        self.takers: dict[str, list[onnx.NodeProto]] = {}
        self.held = {value.name for value in graph.output}
        for node in graph.node:
            for name in node.input:
                self.takers.setdefault(name, []).append(node)
            for inner in subgraphs(node):
                self.held.update(value.name for value in inner.output)
                self.held.update(name for deeper in inner.node for name in mentioned(deeper))

    def constant(self, name: str) -> float:
        """The value of a float32 scalar; not a number where it is none."""
        from onnx import numpy_helper

        tensor = self.scalars.get(name)
        if tensor is None or tensor.data_location == tensor.EXTERNAL:
            return math.nan
        return float(numpy_helper.to_array(tensor))

    def only_taker(self, node: onnx.NodeProto, kind: str) -> onnx.NodeProto | None:
        """The one node that takes a node's value, if it is of this kind."""
        takers = self.takers.get(node.output[0], [])
        if len(takers) != 1 or node.output[0] in self.held or not _is(takers[0], kind):
            return None
        return takers[0]

    def other(self, node: onnx.NodeProto, constant: float) -> str | None:
        """The input of a node with two beside this constant."""
        for one, two in (node.input, reversed(node.input)):
            if np.isclose(self.constant(two), constant, rtol=1e-6, atol=0):
                return one
        return None


def _chain(erf: onnx.NodeProto, graph: _Graph) -> _Chain | None:
    """The chain that an Erf is in."""
    scaled = graph.makers.get(erf.input[0]) if _is(erf, "Erf") else None
    if scaled is None or graph.only_taker(scaled, "Erf") is None:
        return None
    source = None
    if _is(scaled, "Div") and np.isclose(graph.constant(scaled.input[1]), math.sqrt(2), rtol=1e-6, atol=0):
        source = scaled.input[0]
    elif _is(scaled, "Mul"):
        source = graph.other(scaled, 1 / math.sqrt(2))
    added = graph.only_taker(erf, "Add")
    halved = graph.only_taker(added, "Mul") if added is not None else None
    product = graph.only_taker(halved, "Mul") if halved is not None else None
    if not source or added is None or halved is None or product is None:
        return None
    if graph.other(added, 1.0) != erf.output[0] or graph.other(halved, 0.5) != added.output[0]:
        return None
    if sorted(product.input) != sorted((source, halved.output[0])):
        return None
    return _Chain(source, (scaled, erf, added, halved, product))


def _is(node: onnx.NodeProto, kind: str) -> bool:
    return node.op_type == kind and node.domain in ("", "ai.onnx")
