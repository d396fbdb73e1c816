"""What nodes are but for names: what is found out about one node holds for all that are like it.

The layers of a model repeat, and its nodes are gone through again and again while it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.common.arrays import Array, DType

    Content: TypeAlias = tuple[DType, tuple[int, ...], bytes]
    """An array's element type, shape and bytes."""

LARGEST = 1024
"""Elements of a tensor that is an attribute."""


@dataclass(frozen=True)
class Alike:
    """A node of ONNX's own operators without names."""

    op_type: str
    attributes: tuple[tuple[str, int, object], ...]
    """Name, type and value of each; a tensor's value is its content."""
    inputs: tuple[bool, ...]
    """Which are there."""
    outputs: tuple[bool, ...]
    """Which are made."""

    def message(self) -> onnx.NodeProto:
        """A node like it, with the inputs ``i0``, ``i1``, ... and the outputs ``o0``, ``o1``, ..."""
        import onnx
        import onnx_ir as ir

        message = onnx.NodeProto(
            op_type=self.op_type,
            input=[f"i{index}" if there else "" for index, there in enumerate(self.inputs)],
            output=[f"o{index}" if made else "" for index, made in enumerate(self.outputs)],
        )
        for name, number, value in self.attributes:
            kind = ir.AttributeType(number)
            plain = ir.tensor(array_of(value)) if kind == ir.AttributeType.TENSOR else value  # type: ignore[arg-type]
            message.attribute.append(ir.serde.serialize_attribute(ir.Attr(name, kind, plain)))
        return message


def alike(node: ir.Node) -> Alike | None:
    """The node without names; None where an attribute is neither numbers, texts nor a small tensor."""
    attributes = []
    for name, item in node.attributes.items():
        plain = None if item.is_ref() else _plain(item)
        if plain is None:
            return None
        attributes.append((name, int(item.type), plain))
    return Alike(
        node.op_type,
        tuple(attributes),
        tuple(bool(value is not None and value.name) for value in node.inputs),
        tuple(bool(value.name) for value in node.outputs),
    )


def _plain(attribute: ir.Attr) -> object:
    import onnx_ir as ir

    value = attribute.value
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        near = not isinstance(tensor, ir.ExternalTensor) and tensor.size <= LARGEST
        return content(tensor.numpy()) if near else None
    if isinstance(value, list | tuple):
        return tuple(value) if all(map(_is_comparable, value)) else None
    return value if _is_comparable(value) else None


def _is_comparable(value: object) -> bool:
    """Whether it is a number or a text that equals no other: 0 and -0 are equal."""
    return isinstance(value, int | str) or (isinstance(value, float) and repr(value) != "-0.0")


def content(array: Array) -> Content | None:
    """What two equal arrays have in common; None for one of texts."""
    return None if array.dtype.kind in "OSU" else (array.dtype, array.shape, array.tobytes())


def array_of(known: Content) -> Array:
    """An array of its own with this content."""
    dtype, shape, data = known
    array: Array = np.ndarray(shape, dtype, bytearray(data))
    return array
