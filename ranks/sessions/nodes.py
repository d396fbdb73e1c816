"""What a node of an ONNX message is and reads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypedDict, cast

from ranks.common.tensors import element_dtype
from ranks.errors import ModelError
from sharding.onnx_files.messages import AttributeProto
from sharding.onnx_files.walk import nodes_in, subgraphs
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN

if TYPE_CHECKING:
    import onnx

DEFAULT_ATTRIBUTES: Mapping[tuple[str, str], Mapping[str, object]] = {
    (MICROSOFT, "AllReduce"): {},
    (MICROSOFT, "AllGather"): {"axis": 1, "group_size": None},
    (MICROSOFT, "AllToAll"): {"group_size": None},
    (OWN_DOMAIN, "Broadcast"): {"root": 0},
    (OWN_DOMAIN, "Send"): {"peer": ..., "announce": 0},
    (OWN_DOMAIN, "Recv"): {"peer": ..., "dtype": ..., "shape": ..., "announce": 0},
}
"""Per collective its attributes and their defaults; ``...``: must be given; None: the group's size."""
POINT_TO_POINT = frozenset({"Send", "Recv"})
CONTROL_FLOW = (("", "If"), ("", "Loop"), ("", "Scan"))
"""Operators in whose bodies collectives may lie."""
MAX_AXES = 13
"""The most axes of a value that is sent: its shape travels in 16 numbers, three of which say other things."""


class Attributes(TypedDict, total=False):
    """A collective's attributes: those that `DEFAULT_ATTRIBUTES` names."""

    axis: int
    group_size: int | None
    root: int
    peer: int
    announce: int
    dtype: int
    shape: tuple[int, ...]


def is_collective(node: onnx.NodeProto) -> bool:
    """Whether a node is one that ranks run together."""
    return (node.domain, node.op_type) in DEFAULT_ATTRIBUTES


def has_collectives(model: onnx.ModelProto) -> bool:
    """Whether a model holds a collective anywhere, subgraphs and functions included."""
    return any(map(is_collective, nodes_in(model.graph, *model.functions)))


def is_constant(node: onnx.NodeProto) -> bool:
    """Whether a node is an initializer in another form; each segment that reads it gets a copy."""
    return node.op_type == "Constant" and node.domain in ("", "ai.onnx") and not node.input


def describe(node: onnx.NodeProto) -> str:
    """A node as errors name it."""
    name = node.name or next((output for output in node.output if output), "")
    return f"{node.op_type} node {name!r}"


def reads(node: onnx.NodeProto) -> list[str]:
    """The values a node reads, those that its subgraphs take from outside included."""
    names = [name for name in node.input if name]
    for graph in subgraphs(node):
        own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
        own |= {tensor.values.name for tensor in graph.sparse_initializer}
        for inner in graph.node:
            names.extend(name for name in reads(inner) if name not in own)
            own.update(inner.output)
        names.extend(value.name for value in graph.output if value.name not in own)
    return list(dict.fromkeys(names))


def attributes_of(node: onnx.NodeProto) -> Attributes:
    """A collective's attributes, defaults filled in; `ModelError` for what it does not know or lacks."""
    defaults = DEFAULT_ATTRIBUTES[node.domain, node.op_type]
    found: dict[str, object] = {}
    for attribute in node.attribute:
        if attribute.name not in defaults:
            raise ModelError(
                f"{describe(node)} has the attribute {attribute.name!r}, which {node.op_type} does not know."
            )
        expected = AttributeProto.INTS if attribute.name == "shape" else AttributeProto.INT
        if attribute.type != expected:
            kind = AttributeProto.AttributeType.Name(expected)
            raise ModelError(f"Attribute {attribute.name!r} of {describe(node)} must be of type {kind}.")
        found[attribute.name] = tuple(attribute.ints) if attribute.name == "shape" else attribute.i
    for name, default in defaults.items():
        if name not in found:
            if default is ...:
                raise ModelError(f"{describe(node)} lacks its attribute {name!r}.")
            found[name] = default
    if node.op_type in POINT_TO_POINT:
        _check_mail(node, cast("Attributes", found))
    return cast("Attributes", found)  # each name with a value of its type, by the checks above


def _check_mail(node: onnx.NodeProto, attributes: Attributes) -> None:
    """What only a sender and a receiver must say."""
    announce, shape = attributes["announce"], attributes.get("shape", ())
    if announce not in {0, 1}:
        raise ModelError(f"Attribute 'announce' of {describe(node)} must be 0 or 1, but is {announce}.")
    if any(dim < -1 for dim in shape) or (-1 in shape and not announce):
        raise ModelError(
            f"Attribute 'shape' of {describe(node)} is {list(shape)}: lengths must be at least 0, or -1 "
            "where they are announced (announce=1)."
        )
    if len(shape) > MAX_AXES:
        raise ModelError(f"{describe(node)} receives {len(shape)} axes; at most {MAX_AXES} are possible.")
    if "dtype" in attributes and element_dtype(attributes["dtype"]).hasobject:
        raise ModelError(f"{describe(node)} receives dtype {attributes['dtype']}, which cannot be sent.")
