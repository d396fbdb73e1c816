"""What ONNX Runtime has copied between host and device in a graph that it wrote, taken out again: how it is
to be read is for whoever loads the graph."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

import numpy as np

from ranks.weights.device.bodies import read_as, size_of
from sharding.onnx_files.external import place_of
from sharding.onnx_files.walk import graphs_in, subgraphs

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import Array

_BEGIN = 4096


def without_copy_nodes(graph: onnx.GraphProto) -> None:
    """Removes the copies between host and device that ONNX Runtime put in: loading puts them in anew, and
    stumbles over names that are there already."""
    outputs = {value.name for value in graph.output}
    names: dict[str, str] = {}
    kept = []
    for node in graph.node:
        if node.op_type not in {"MemcpyFromHost", "MemcpyToHost"} or node.domain not in {"", "ai.onnx"}:
            kept.append(node)
            continue
        source, target = names.get(node.input[0], node.input[0]), node.output[0]
        if target in outputs and source not in outputs and _is_made_here(graph, source):
            names[source] = target
            names = {old: target if new == source else new for old, new in names.items()}
        elif target in outputs:
            node.op_type = "Identity"
            kept.append(node)
        else:
            names[target] = source
    del graph.node[:]
    graph.node.extend(kept)
    _rename(graph, names)
    for node in graph.node:
        for inner in subgraphs(node):
            without_copy_nodes(inner)


def _is_made_here(graph: onnx.GraphProto, name: str) -> bool:
    return any(name in node.output for node in graph.node if not node.op_type.startswith("Memcpy"))


def _rename(graph: onnx.GraphProto, names: Mapping[str, str]) -> None:
    if not names:
        return
    for inner in graphs_in(graph):
        for node in inner.node:
            node.input[:] = [names.get(name, name) for name in node.input]
            node.output[:] = [names.get(name, name) for name in node.output]
        for value in inner.value_info:
            value.name = names.get(value.name, value.name)


def without_copied_weights(graph: onnx.GraphProto, names: Collection[str], data: Array) -> None:
    """Gives those of these weights that have equal bytes one name: ONNX Runtime writes what it has copied
    from one place to another as two weights. ``data``: the file of them all, as bytes."""
    outside = {value.name for value in (*graph.input, *graph.output)}
    seen: dict[object, list[onnx.TensorProto]] = {}
    other: dict[str, str] = {}
    for tensor in graph.initializer:
        if tensor.name not in names:
            continue
        mine = _bytes(tensor, data)
        alike = seen.setdefault((tensor.data_type, *tensor.dims, mine[:_BEGIN].tobytes()), [])
        same = next((one for one in alike if np.array_equal(_bytes(one, data), mine)), None)
        if same is None or tensor.name in outside:
            alike.append(tensor)
        else:
            other[tensor.name] = same.name
    read_as(graph, other)
    for index in reversed(range(len(graph.initializer))):
        if graph.initializer[index].name in other:
            del graph.initializer[index]


def _bytes(tensor: onnx.TensorProto, data: Array) -> Array:
    offset = place_of(tensor).offset
    return data[offset : offset + size_of(tensor)]
