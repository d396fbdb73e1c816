"""Types and shapes of what passes the markers of opened bodies (`sharding.rules.flow`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.rules.base import Dim

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir


def infer(node: ir.Node) -> dict[str, onnx.TypeProto]:
    """The types of a marker's outputs by name; of what a loop carries only what was known when its body was
    opened, for the first value does not say what later ones are."""
    import onnx

    if node.op_type == "Carry" and "axes" in node.attributes and node.outputs[0].dtype is not None:
        axes = [
            int(axis) if axis.isdigit() else axis or None for axis in node.attributes["axes"].as_strings()
        ]
        kind = onnx.helper.make_tensor_type_proto(int(node.outputs[0].dtype), axes)
        return {node.outputs[0].name or "": kind}
    source = {"Leave": 1, "Last": 1, "Stack": 1, "Enter": 0, "Element": 0}.get(node.op_type)
    if source is None or node.inputs[source] is None:
        return {}
    value = node.inputs[source]
    assert value is not None
    shape: Sequence[Dim] | None = shape_of(value)
    if node.op_type == "Leave":
        shape = joined(shape, shape_of(node.inputs[2]))
    elif node.op_type in {"Element", "Stack"} and shape is not None:
        axis = node.attributes["axis"].as_int()
        lengths = list(shape)
        if node.op_type == "Stack":
            lengths.insert(axis if axis >= 0 else axis + len(lengths) + 1, None)
        else:
            del lengths[axis]
        shape = lengths
    output = node.outputs[0]
    if value.dtype is None or not output.name:
        return {}
    return {output.name: onnx.helper.make_tensor_type_proto(int(value.dtype), shape)}


def joined(a: Sequence[Dim] | None, b: Sequence[Dim] | None) -> tuple[Dim, ...] | None:
    """What holds of both; None where they differ in rank, or one is not known."""
    if a is None or b is None or len(a) != len(b):
        return None
    return tuple(x if x == y else None for x, y in zip(a, b, strict=True))
