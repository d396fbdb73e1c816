"""ONNX nodes from attributes by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def make_node(
    op_type: str,
    inputs: Iterable[str],
    outputs: Iterable[str],
    attributes: Mapping[str, object],
    *,
    name: str = "",
    domain: str | None = None,
) -> onnx.NodeProto:
    """A node; attributes that are None are left out. Raises what ONNX does for what no attribute holds.

    Unlike ONNX's own function it takes attributes that are called as one of that function's parameters.
    """
    import onnx

    node = onnx.helper.make_node(op_type, list(inputs), list(outputs), name=name, domain=domain)
    for key, value in sorted(attributes.items()):
        if value is not None:
            node.attribute.append(onnx.helper.make_attribute(key, value))
    return node
