"""Operators that work along one axis: every other axis may be split."""

from __future__ import annotations

from collections.abc import Sequence

from sharding.onnx_files.attributes import integer
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import (
    absent,
    axis_attribute,
    constant,
    normalized,
    option,
    partial_option,
    splits,
)
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split


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
    along = _named_axis(node)
    return [] if along is None else others(node, (along,)) + partial_option(node)


@rule("CumProd")
def cumulative_product(node: NodeView) -> list[Option]:
    """Along the axis that the second input names."""
    along = _named_axis(node)
    return [] if along is None else others(node, (along,))


def _named_axis(node: NodeView) -> int | None:
    shape, axis = node.shapes[0], constant(node, 1)
    if shape is None or axis is None or axis.size != 1:
        return None
    return normalized(int(axis.reshape(-1)[0]), len(shape))


@rule("ReverseSequence")
def reverse_sequence(node: NodeView) -> list[Option]:
    """Reverses each sequence along ``time_axis``; its length is one per place on ``batch_axis``."""
    shape = node.shapes[0]
    if shape is None:
        return []
    batch, time = axis_attribute(node, 1, len(shape), "batch_axis"), integer(node.attributes, "time_axis", 0)
    return [
        option(node, {0: split} | ({1: Split(0, split.blocks)} if split.axis == batch else {}), split)
        for split in splits(node, shape)
        if split.axis != time
    ]


@rule("Compress")
def compress(node: NodeView) -> list[Option]:
    """Chosen places of ``axis``; without it of all elements in a row."""
    shape = node.shapes[0]
    if shape is None or node.attributes.get("axis") is None:
        return []
    axis = axis_attribute(node, 0, len(shape))
    return [] if axis is None else others(node, (axis,)) + partial_option(node)


@rule("Det")
def matrices(node: NodeView) -> list[Option]:
    """Computes on matrices, which lie on the last two axes: any other axis may be split."""
    shape = node.shapes[0]
    return [] if shape is None else others(node, range(max(len(shape) - 2, 0), len(shape)))


rule("Inverse", domain=MICROSOFT)(matrices)


@rule("DFT")
def fourier_transform(node: NodeView) -> list[Option]:
    """Along one axis (an attribute up to opset 19, then the third input).

    The last axis holds real and imaginary parts.
    """
    shape = node.shapes[0]
    if shape is None:
        return []
    along = integer(node.attributes, "axis", 1)
    if node.version >= 20:
        value = constant(node, 2)
        if value is None and not absent(node, 2):
            return []
        along = -2 if value is None else int(value.reshape(-1)[0])
    axis = normalized(along, len(shape))
    if axis is None:
        return []
    return others(node, (axis, len(shape) - 1)) + partial_option(node)


@rule("STFT")
def short_time_fourier_transform(node: NodeView) -> list[Option]:
    """Signals [batch, length, 1 or 2]."""
    shape = node.shapes[0]
    return [] if shape is None else others(node, range(1, len(shape))) + partial_option(node)


@rule("Trilu")
def triangle(node: NodeView) -> list[Option]:
    """Triangles of the last two axes; a selection of elements."""
    shape = node.shapes[0]
    if shape is None:
        return []
    return others(node, range(max(len(shape) - 2, 0), len(shape))) + partial_option(node)


rule("Trilu", domain=MICROSOFT)(triangle)
