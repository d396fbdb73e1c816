"""The types of a graph's values, also behind operators that ONNX itself does not know."""

from __future__ import annotations

from collections.abc import Mapping

import onnx

from ranks.common.tensors import ELEMENT_TYPES
from ranks.precision.schemas import Signature, signature
from ranks.sessions.nodes import is_collective
from sharding.onnx_files.walk import graphs_in

Types = dict[str, str]
"""Value -> its type as schemas write it, such as ``tensor(float)``."""
_BY_NUMBER = {number: f"tensor({name})" for name, (number, _) in ELEMENT_TYPES.items()}


class Typed:
    """The types of the values of each graph of a model."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self.versions = {entry.domain or "": entry.version for entry in model.opset_import}
        self._inferred = _inferred(model)

    def signature(self, node: onnx.NodeProto) -> Signature | None:
        """The node's operator's; None for collectives, which keep their type, and for one that nobody knows,
        such as a function of the model itself."""
        if is_collective(node):
            return None
        domain = "" if node.domain == "ai.onnx" else node.domain
        return signature(domain, node.op_type, self.versions.get(domain, 1))

    def of(self, graph: onnx.GraphProto, outer: Mapping[str, str] | None = None) -> Types:
        """The types of the graph's values and of those around it, as far as they can be told."""
        types: Types = dict(outer or {})
        for value in (*graph.input, *graph.value_info, *graph.output):
            if (number := value.type.tensor_type.elem_type) in _BY_NUMBER:
                types[value.name] = _BY_NUMBER[number]
        for tensor in graph.initializer:
            if tensor.data_type in _BY_NUMBER:
                types[tensor.name] = _BY_NUMBER[tensor.data_type]
        for node in graph.node:
            self._pass(node, types)
        return types

    def _pass(self, node: onnx.NodeProto, types: Types) -> None:
        """Adds the types of the node's outputs."""
        if is_collective(node):
            received = next((item.i for item in node.attribute if item.name == "dtype"), 0)
            given = [types.get(name, "") for name in node.input] or [_BY_NUMBER.get(received, "")]
            for name, found in zip(node.output, given, strict=False):
                if found:
                    types.setdefault(name, found)
            return
        known = self.signature(node)
        bound = bindings(node, known, types) if known is not None else {}
        for index, name in enumerate(node.output):
            if not name or name in types:
                continue
            formal = known.output(index) if known is not None else ""
            found = self._inferred.get(name) or bound.get(formal) or (formal if "(" in formal else "")
            if found:
                types[name] = found


def bindings(node: onnx.NodeProto, known: Signature, types: Mapping[str, str]) -> dict[str, str]:
    """What each type variable of the node's inputs stands for; not those that inputs disagree on."""
    bound: dict[str, str] = {}
    for index, name in enumerate(node.input):
        formal = known.input(index)
        if not name or formal not in known.allowed:
            continue
        found = types.get(name, "")
        bound[formal] = found if bound.get(formal, found) == found else ""
    return {variable: found for variable, found in bound.items() if found}


def _inferred(model: onnx.ModelProto) -> Types:
    """What ONNX's own inference says, of a copy of the model without its weights' data."""
    bare = onnx.ModelProto()
    bare.ir_version = model.ir_version
    bare.opset_import.extend(model.opset_import)
    bare.functions.extend(model.functions)
    bare.graph.node.extend(model.graph.node)
    bare.graph.name = "types"
    inputs = {value.name for value in model.graph.input}
    bare.graph.input.extend(model.graph.input)
    bare.graph.output.extend(model.graph.output)
    for tensor in model.graph.initializer:
        if tensor.name not in inputs:
            value = bare.graph.input.add()
            value.name = tensor.name
            value.type.tensor_type.elem_type = tensor.data_type
            for length in tensor.dims:
                value.type.tensor_type.shape.dim.add().dim_value = length
    try:
        done = onnx.shape_inference.infer_shapes(bare)
    except Exception:  # of several kinds; what can be told is told without it
        return {}
    types: Types = {}
    for graph in graphs_in(done.graph):
        for value in (*graph.value_info, *graph.output):
            if (number := value.type.tensor_type.elem_type) in _BY_NUMBER:
                types[value.name] = _BY_NUMBER[number]
    return types
