"""Open lengths of a node's outputs that onnx's inference does not find, and names anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from sharding.graph.shape_values import broadcast
from sharding.graph.symbols import is_made_up
from sharding.graph.values import shape_of
from sharding.rules.base import Dim
from sharding.rules.elementwise import BROADCASTING
from sharding.rules.products import length_of, product, quotient

if TYPE_CHECKING:
    import onnx_ir as ir

Shape = tuple[Dim, ...]


def refine(node: ir.Node) -> set[ir.Value]:
    """Gives a node's outputs the lengths that follow from its inputs; returns those that changed."""
    find = _OPERATORS.get(node.op_type)
    shape = shape_of(node.outputs[0]) if find is not None else None
    if find is None or node.domain or shape is None or not any(map(_unknown, shape)):
        return set()
    if any(attribute.is_ref() for attribute in node.attributes.values()):
        return set()
    shapes = [shape_of(value) for value in node.inputs if value is not None]
    inputs = [own for own in shapes if own is not None]
    found = find(node, inputs, shape) if inputs and len(inputs) == len(shapes) else None
    if found is None or len(found) != len(shape):
        return set()
    import onnx_ir as ir

    changed = set()
    for value in node.outputs:
        before = shape_of(value)
        if before is None or len(before) != len(found):
            continue
        after = [
            new if _unknown(old) and not _unknown(new) else old
            for old, new in zip(before, found, strict=True)
        ]
        if after != list(before):
            value.shape = ir.Shape(after)
            changed.add(value)
    return changed


def _unknown(length: Dim) -> bool:
    return length is None or is_made_up(length)


def _axis(node: ir.Node, rank: int) -> int | None:
    axis = int(node.attributes["axis"].value) if "axis" in node.attributes else 0
    return axis % rank if -rank <= axis < rank else None


def _elementwise(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """A mask cut at a length, added to what has that length, leaves it as long as it is."""
    rank = len(shape)
    if (
        any(len(own) > rank for own in inputs) or "broadcast" in node.attributes
    ):  # other rules, before opset 7
        return None
    padded = [(1,) * (rank - len(own)) + own for own in inputs]
    return [broadcast(column) for column in zip(*padded, strict=True)]


def _concat(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """Equal open lengths one after the other are a product."""
    first, axis = inputs[0], _axis(node, len(inputs[0]))
    if axis is None or any(len(own) != len(first) or own[axis] != first[axis] for own in inputs):
        return None
    both = None if first[axis] is None else product((len(inputs), first[axis]))
    return [*first[:axis], None if both is None else length_of(both), *first[axis + 1 :]]


def _split(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """Equal parts of a product."""
    first, axis = inputs[0], _axis(node, len(inputs[0]))
    if axis is None or len(node.inputs) > 1 or "split" in node.attributes:
        return None
    return [*first[:axis], quotient(product((first[axis],)), (len(node.outputs), ())), *first[axis + 1 :]]


def _conv(node: ir.Node, inputs: list[Shape], shape: Shape) -> list[Dim] | None:
    """With a step of one and as much padding as the kernel takes, an axis stays as long as it is."""
    if len(inputs) == 1:
        return None
    data, kernel = inputs[0], inputs[1][2:]
    axes = len(kernel)
    if len(data) != axes + 2 or len(shape) != axes + 2:
        return None
    steps, spread = _numbers(node, "strides", [1] * axes), _numbers(node, "dilations", [1] * axes)
    pads = _numbers(node, "pads", [0] * (2 * axes))
    mode = node.attributes["auto_pad"].value if "auto_pad" in node.attributes else "NOTSET"
    if mode != "NOTSET" or len(steps) != axes or len(spread) != axes or len(pads) != 2 * axes:
        return None
    same = [
        isinstance(size, int) and steps[i] == 1 and pads[i] + pads[i + axes] == spread[i] * (size - 1)
        for i, size in enumerate(kernel)
    ]
    kept = [length if own else None for length, own in zip(data[2:], same, strict=True)]
    return [data[0], shape[1], *kept]


def _numbers(node: ir.Node, name: str, default: list[int]) -> list[int]:
    return list(node.attributes[name].value) if name in node.attributes else default


_OPERATORS: dict[str, Callable[[ir.Node, list[Shape], Shape], list[Dim] | None]] = {
    **dict.fromkeys((*BROADCASTING, "Add", "Sub", "Mul", "Div", "Sum", "Where"), _elementwise),
    "Concat": _concat,
    "Split": _split,
    "Conv": _conv,
}
