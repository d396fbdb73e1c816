"""Operators that work along one axis: every other axis may be split."""

from __future__ import annotations

from sharding.onnx_files.attributes import integer
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import (
    absent,
    axis_attribute,
    constant,
    kept,
    normalized,
    option,
    others,
    partial_option,
    rank_of,
    splits,
)
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split


@rule("Softmax", "LogSoftmax", "Hardmax")
def softmax(node: NodeView) -> list[Option]:
    """Along ``axis``; before opset 13 over ``axis`` and all axes after it, flattened."""
    return softmax_of(node, node.version)


def softmax_of(node: NodeView, opset: int) -> list[Option]:
    """The options of a Softmax of that opset."""
    axis = axis_attribute(node, -1 if opset >= 13 else 1)
    return others(node, axis) if opset >= 13 else kept(node, range(axis or 0))


@rule("TopK")
def top_k(node: NodeView) -> list[Option]:
    """Values and indices along ``axis``."""
    return others(node, axis_attribute(node, -1))


@rule("CumSum")
def cumulative_sum(node: NodeView) -> list[Option]:
    """Along the axis that the second input names; a sum of summands."""
    along = _named_axis(node)
    return [] if along is None else others(node, along) + partial_option(node)


@rule("CumProd")
def cumulative_product(node: NodeView) -> list[Option]:
    """Along the axis that the second input names."""
    return others(node, _named_axis(node))


def _named_axis(node: NodeView) -> int | None:
    axis = constant(node, 1)
    return None if axis is None or axis.size != 1 else normalized(int(axis.reshape(-1)[0]), rank_of(node))


@rule("ReverseSequence")
def reverse_sequence(node: NodeView) -> list[Option]:
    """Reverses each sequence along ``time_axis``; its length is one per place on ``batch_axis``."""
    batch, time = axis_attribute(node, 1, "batch_axis"), integer(node.attributes, "time_axis", 0)
    return [
        option(node, {0: split} | ({1: Split(0, split.blocks)} if split.axis == batch else {}), split)
        for split in splits(node, node.shapes[0])
        if split.axis != time
    ]


@rule("Compress")
def compress(node: NodeView) -> list[Option]:
    """Chosen places of ``axis``; without it of all elements in a row."""
    axis = None if node.attributes.get("axis") is None else axis_attribute(node, 0)
    return [] if axis is None else others(node, axis) + partial_option(node)


@rule("Det")
def matrices(node: NodeView) -> list[Option]:
    """Computes on matrices, which lie on the last two axes: any other axis may be split."""
    return kept(node, range((rank_of(node) or 0) - 2))


rule("Inverse", domain=MICROSOFT)(matrices)


@rule("DFT")
def fourier_transform(node: NodeView) -> list[Option]:
    """Along one axis (an attribute up to opset 19, then the third input).

    The last axis holds real and imaginary parts.
    """
    along = integer(node.attributes, "axis", 1)
    if node.version >= 20:
        value = constant(node, 2)
        if value is None and not absent(node, 2):
            return []
        along = -2 if value is None else int(value.reshape(-1)[0])
    axis = normalized(along, rank_of(node))
    return [] if axis is None else others(node, axis, -1) + partial_option(node)


@rule("STFT")
def short_time_fourier_transform(node: NodeView) -> list[Option]:
    """Signals [batch, length, 1 or 2]."""
    return [] if rank_of(node) is None else kept(node, (0,)) + partial_option(node)


@rule("Trilu")
def triangle(node: NodeView) -> list[Option]:
    """Triangles of the last two axes; a selection of elements."""
    return [] if rank_of(node) is None else matrices(node) + partial_option(node)


rule("Trilu", domain=MICROSOFT)(triangle)
