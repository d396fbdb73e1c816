"""Bodies of control flow with collectives in them, each as a model that is cut like any other."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ranks.errors import ModelError
from ranks.sessions.cut import Control, Cut, cut
from ranks.sessions.nodes import describe, is_constant, reads
from sharding.onnx_files.messages import AttributeProto, ModelProto, NodeProto, ValueInfoProto

if TYPE_CHECKING:
    import onnx

BRANCHES = ("then_branch", "else_branch")


def cut_with_bodies(
    model: onnx.ModelProto, *, keep_order: bool = False, weights: frozenset[str] = frozenset()
) -> Cut:
    """As `ranks.sessions.cut.cut`, and the bodies of control flow with collectives are cut, too."""
    plan = cut(model, keep_order=keep_order, weights=weights)
    for control in (control for level in plan.controls for control in level):
        control.bodies = [
            cut_with_bodies(_model(model, control, body), keep_order=keep_order, weights=weights)
            for body in _bodies(control)
        ]
    return plan


def _bodies(control: Control) -> list[onnx.GraphProto]:
    node = control.node
    names = BRANCHES if node.op_type == "If" else ("body",)
    found = {item.name: item.g for item in node.attribute if item.type == AttributeProto.GRAPH}
    missing = [name for name in names if name not in found]
    if missing:
        raise ModelError(f"{describe(node)} lacks its attribute {missing[0]!r}.")
    return [found[name] for name in names]


def _model(source: onnx.ModelProto, control: Control, body: onnx.GraphProto) -> onnx.ModelProto:
    """A body with all that it reads from outside: constants as its own, other values as its last inputs, of
    types that are known once what makes them is."""
    model = ModelProto(ir_version=source.ir_version, producer_name=source.producer_name)
    model.opset_import.extend(source.opset_import)
    model.functions.extend(source.functions)
    model.metadata_props.extend(source.metadata_props)
    graph = model.graph
    graph.name = body.name or control.node.name
    holder = NodeProto()
    holder.attribute.add(name="body", type=AttributeProto.GRAPH).g.CopyFrom(body)
    captured = reads(holder)
    constants = {node.output[0]: node for node in source.graph.node if is_constant(node)}
    held = {tensor.name: tensor for tensor in source.graph.initializer}
    sparse = {tensor.values.name: tensor for tensor in source.graph.sparse_initializer}
    graph.input.extend(body.input)
    for name in captured:
        if name in held:
            graph.initializer.append(held[name])
        elif name in sparse:
            graph.sparse_initializer.append(sparse[name])
        elif name in constants:
            graph.node.append(constants[name])
        else:
            graph.input.append(ValueInfoProto(name=name))
    graph.initializer.extend(body.initializer)
    graph.sparse_initializer.extend(body.sparse_initializer)
    graph.node.extend(body.node)
    graph.value_info.extend(body.value_info)
    graph.output.extend(body.output)
    return model
