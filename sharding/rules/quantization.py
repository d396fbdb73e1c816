"""Numbers to integers and back, and integer products whose sums are exact.

Scales and zero points per tensor stay whole, those per axis and per block are cut with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sharding.onnx_files.attributes import integer
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import Shape, absent, axis_attribute, dim, option, shape_of, splits
from sharding.rules.conv import Layout, convolution
from sharding.rules.matmul import product
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import REPLICATED, Partial, Placement, Split


@rule("QuantizeLinear", "DequantizeLinear")
def quantize(node: NodeView) -> list[Option]:
    """One scale for all, one per place on ``axis``, or one per block of places (opset 21)."""
    shape, scale = node.shapes[0], shape_of(node, 1)
    if shape is None or scale is None:
        return []
    block = integer(node.attributes, "block_size", 0)
    if block:
        return _blocked(node, shape, scale, block)
    by_axis = len(scale) == 1 and scale[0] != 1
    axis = axis_attribute(node, 1) if by_axis else None
    if len(scale) > 1 or (by_axis and axis is None):
        return []
    return [
        option(
            node,
            {0: split} | dict.fromkeys((1, 2) if split.axis == axis else (), Split(0, split.blocks)),
            split,
        )
        for split in splits(node, shape)
        if split.axis != axis or isinstance(scale[0], int)  # an open length may be 1
    ]


rule("QuantizeLinear", "DequantizeLinear", domain=MICROSOFT)(quantize)


def _blocked(node: NodeView, shape: Shape, scale: Shape, block: int) -> list[Option]:
    """The scales have the tensor's axes, ``axis`` divided by the block size: ranks hold whole blocks."""
    axis = axis_attribute(node, 1)
    if axis is None or len(scale) != len(shape):
        return []
    options = []
    for split in splits(node, shape):
        length, count = shape[split.axis], scale[split.axis]
        if split.axis == axis and not (
            isinstance(length, int)
            and isinstance(count, int)
            and length == count * block
            and node.divisible(count, split.blocks)
        ):
            continue
        options.append(option(node, dict.fromkeys((0, 1, 2), split), split))
    return options


# DynamicQuantizeLinear has no rule: its scale is that of the whole tensor. `sharding.rewrite` takes it apart.


@rule("MatMulInteger")
def matmul_integer(node: NodeView) -> list[Option]:
    """A, B and their zero points, of A one or one per row, of B one or one per column; sums of int32."""
    return quantized_product(node, {0: [2], 1: [3]}, linear=True)


@rule("MatMulInteger16", domain=MICROSOFT)
def matmul_integer16(node: NodeView) -> list[Option]:
    """A, B; sums of int32."""
    return quantized_product(node, {0: [], 1: []}, linear=True)


def quantized_product(node: NodeView, operands: dict[int, list[int]], *, linear: bool) -> list[Option]:
    """The options of a product of two quantized operands: {operand: scale and zero point}, left one first.

    ``linear``: whether parts of the summed axis give summands (not where the result is rounded).
    """
    left, right = operands
    kind = np.dtype(np.int32 if linear else np.int8)
    shapes = [node.shapes[left], node.shapes[right]]
    view = replace(node, shapes=shapes, dtypes=[kind, kind], present=[True, True])
    options = []
    for found in product(view):
        if isinstance(found.outputs[0], Partial) and not linear:
            continue
        placed: dict[int, Placement | None] = dict(zip((left, right), found.inputs, strict=True))
        for operand, from_end in ((left, 2), (right, 1)):
            for index in operands[operand]:
                placed[index] = _parameter(node, operand, index, placed[operand], from_end)
        known = {index: where for index, where in placed.items() if where is not None}
        if len(known) == len(placed):
            options.append(option(node, known, found.outputs))
    return options


def _parameter(
    node: NodeView, operand: int, index: int, placement: Placement | None, from_end: int
) -> Placement | None:
    """How a scale or zero point goes with its operand; None where that is not known.

    One number, one per row (column) of the operand, ``from_end`` axes from its end, or of the same rank.
    """
    if absent(node, index) or not isinstance(placement, Split):
        return REPLICATED
    shape, whole = shape_of(node, index), shape_of(node, operand)
    if shape is None or whole is None:
        return None
    if all(length == 1 for length in shape):
        return REPLICATED
    if len(shape) == 1 and placement.axis != len(whole) - from_end:
        return REPLICATED
    length = shape[0] if len(shape) == 1 else dim(shape, placement.axis)
    # An open length may be 1.
    if len(shape) not in {1, len(whole)} or not isinstance(length, int):
        return None
    if len(shape) == 1:
        return Split(0, placement.blocks)
    return REPLICATED if length == 1 else placement


@rule("ConvInteger")
def conv_integer(node: NodeView) -> list[Option]:
    """X, W and their zero points, of W one or one per output channel; sums of int32."""
    return convolution(node, Layout(per_channel=(3,), bias=None))


def vectors(node: NodeView, indices: Sequence[int], split: Split) -> dict[int, Split]:
    """Those of these inputs that have more than one value, cut as ``split`` on their only axis."""
    shapes = {index: shape_of(node, index) or () for index in indices}
    return {i: Split(0, split.blocks) for i, shape in shapes.items() if len(shape) == 1 and shape[0] != 1}
