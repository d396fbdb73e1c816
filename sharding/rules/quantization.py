"""Quantized tensors: scales and zero points per tensor stay whole, those per axis are cut with it."""

from __future__ import annotations

from sharding.placement import PARTIAL, Placement, Split
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import absent, axis_attribute, option, shape_of, splits


@rule("QuantizeLinear", "DequantizeLinear")
def quantize(node: NodeView) -> list[Option]:
    """Not the blocked form."""
    shape, scale = node.shapes[0], shape_of(node, 1)
    if shape is None or scale is None or len(scale) > 1 or node.attributes.get("block_size", 0):
        return []
    axis = axis_attribute(node, 1, len(shape)) if len(scale) == 1 and scale[0] != 1 else None
    if axis is None and len(scale) == 1 and scale[0] != 1:
        return []
    options = []
    for split in splits(node, shape):
        parts: dict[int, Placement] = {0: split}
        if split.axis == axis:
            parts |= {i: Split(0, split.blocks) for i in (1, 2) if not absent(node, i)}
        options.append(option(node, parts, split))
    return options


@rule("MatMulInteger")
def matmul_integer(node: NodeView) -> list[Option]:
    """Two-dimensional weights, the left zero point one number: columns, rows (a partial sum) or rows of A."""
    a, b = node.shapes[0], node.shapes[1]
    left, right = shape_of(node, 2), shape_of(node, 3)
    if a is None or b is None or len(a) < 2 or len(b) != 2:
        return []
    if not absent(node, 2) and left not in ([], [1], (), (1,)):
        return []
    options = []
    for blocks in node.blocks(b[1]):
        parts: dict[int, Placement] = {1: Split(1, blocks)}
        if not absent(node, 3):
            if right is None or len(right) > 1:
                continue
            if len(right) == 1 and right[0] != 1:
                parts[3] = Split(0, blocks)
        options.append(option(node, parts, Split(len(a) - 1, blocks)))
    for blocks in node.blocks(b[0]):
        options.append(option(node, {0: Split(len(a) - 1, blocks), 1: Split(0, blocks)}, PARTIAL))
    for axis in range(len(a) - 1):
        options += [option(node, {0: split}, split) for split in splits(node, a, (axis,))]
    return options
