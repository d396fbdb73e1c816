"""Constants as initializers, and the weights that nodes themselves hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.values import replace_by_constant
from sharding.onnx_files.tensors import locate

if TYPE_CHECKING:
    import onnx_ir as ir


def constants_to_initializers(model: ir.Model) -> None:
    """Turns the Constant nodes of the main graph into initializers; one that is an output stays."""
    graph = model.graph
    outputs = set(graph.outputs)
    for node in list(graph):
        tensor = constant_tensor(node)
        if tensor is not None and node.outputs[0] not in outputs:
            replace_by_constant(graph, node.outputs[0], tensor)


def constant_tensor(node: ir.Node) -> ir.TensorProtocol | None:
    """What a Constant node holds; None for strings, and where a function's caller says it."""
    import onnx_ir as ir

    if node.op_type != "Constant" or node.domain:
        return None
    for name, kind in (
        ("value_float", np.float32),
        ("value_floats", np.float32),
        ("value_int", np.int64),
        ("value_ints", np.int64),
    ):
        if (attribute := node.attributes.get(name)) is not None and not attribute.is_ref():
            return ir.tensor(np.asarray(attribute.value, kind))
    attribute = node.attributes.get("value")
    return None if attribute is None or attribute.is_ref() else attribute.as_tensor()


def loaded(name: str, tensor: ir.TensorProtocol, path: Path) -> ir.TensorProtocol:
    """A tensor in memory, wherever the model at ``path`` says that its data lies."""
    import onnx_ir as ir

    if not isinstance(tensor, ir.ExternalTensor):
        return tensor
    return ir.tensor(np.array(locate(name, tensor, path).array()), dtype=tensor.dtype, name=tensor.name)


def load_inner_weights(model: ir.Model, path: Path) -> None:
    """Brings external data of nodes and of control-flow bodies into memory: these are copied as they are."""
    import onnx_ir as ir

    for graph in model.graphs():
        if graph is model.graph:
            continue
        for name, value in graph.initializers.items():
            if isinstance(value.const_value, ir.ExternalTensor):
                value.const_value = loaded(name, value.const_value, path)
    holders: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for holder in holders:
        for node in holder.all_nodes():
            for name, attribute in list(node.attributes.items()):
                if attribute.type == ir.AttributeType.TENSOR and isinstance(
                    attribute.value, ir.ExternalTensor
                ):
                    tensor = loaded(node.name or name, attribute.value, path)
                    node.attributes[name] = ir.AttrTensor(name, tensor)
