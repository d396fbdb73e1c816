"""Operators that work along one axis: every other axis may be split."""

from __future__ import annotations

from collections.abc import Sequence

from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import axis_attribute, constant, normalized, option, partial_option, splits


def others(node: NodeView, axes: Sequence[int]) -> list[Option]:
    """The first input and every output split on an axis that is none of these."""
    return [
        option(node, {0: split}, split) for split in splits(node, node.shapes[0]) if split.axis not in axes
    ]


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(node: NodeView) -> list[Option]:
    """Along ``axis``; before opset 13 over ``axis`` and all axes after it, flattened."""
    shape = node.shapes[0]
    if shape is None:
        return []
    axis = axis_attribute(node, -1 if node.version >= 13 else 1, len(shape))
    if axis is None:
        return []
    return others(node, (axis,) if node.version >= 13 else range(axis, len(shape)))


@rule("TopK")
def top_k(node: NodeView) -> list[Option]:
    """Values and indices along ``axis``."""
    shape = node.shapes[0]
    axis = None if shape is None else axis_attribute(node, -1, len(shape))
    return [] if axis is None else others(node, (axis,))


@rule("CumSum")
def cumulative_sum(node: NodeView) -> list[Option]:
    """Along the axis that the second input names; a sum of summands."""
    shape, axis = node.shapes[0], constant(node, 1)
    if shape is None or axis is None or axis.size != 1:
        return []
    along = normalized(int(axis.reshape(-1)[0]), len(shape))
    return [] if along is None else others(node, (along,)) + partial_option(node)


@rule("Trilu")
def triangle(node: NodeView) -> list[Option]:
    """Triangles of the last two axes; a selection of elements."""
    shape = node.shapes[0]
    if shape is None:
        return []
    return others(node, range(max(len(shape) - 2, 0), len(shape))) + partial_option(node)
