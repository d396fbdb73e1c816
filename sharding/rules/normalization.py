"""Normalizations, in their inference form."""

from __future__ import annotations

from functools import partial

import numpy as np

from sharding.onnx_files.attributes import integer, integers
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    axis_attribute,
    dim,
    option,
    partial_option,
    shape_of,
    splits,
)
from sharding.slices.placement import Placement, Split


@rule("LayerNormalization", "RMSNormalization")
def layer_normalization(node: NodeView) -> list[Option]:
    """Normalizes over ``axis`` and all axes after it: the axes before it may be split."""
    shape = node.shapes[0]
    if shape is None:
        return []
    axis = axis_attribute(node, -1, len(shape))
    if axis is None:
        return []
    for index in (1, 2):
        parameter = shape_of(node, index)
        # A scale with leading axes of its own would have to be split with the input.
        if not absent(node, index) and (parameter is None or len(parameter) > len(shape) - axis):
            return []
    return [option(node, {0: split}, split) for split in splits(node, shape, range(axis))]


@rule("BatchNormalization")
def batch_normalization(node: NodeView) -> list[Option]:
    """Channels (axis 1) with their statistics, or any other axis; not the training form.

    It is a scale and a shift of each channel: summands are scaled by all, and shifted on the first rank.
    """
    shape = node.shapes[0]
    training = node.attributes.get("training_mode", 0) or len(node.output_shapes) != 1
    if (
        shape is None
        or len(shape) < 2
        or training
        or node.version < 7
        or not node.attributes.get("spatial", 1)
    ):
        return []
    options = [
        option(node, {0: split} | (_parameters(split, range(1, 5)) if split.axis == 1 else {}), split)
        for split in splits(node, shape)
    ]
    channels = dim(node.shapes[2], 0)
    if isinstance(channels, int):
        options += partial_option(node, (0,), partial(_shift_once, node, channels))
    return options


def _shift_once(node: NodeView, channels: int, e: Emitter, values: Values) -> list[Value]:
    if e.rank == 0:
        return e.copy(values)
    bias, mean = (e.constant(np.zeros(channels, dtype=node.dtypes[i])) for i in (2, 3))
    return e.copy([values[0], values[1], bias, mean, values[4]])


def _parameters(split: Split, indices: range) -> dict[int, Placement]:
    """One value per channel, cut as the channels are."""
    return {index: Split(0, split.blocks) for index in indices}


@rule("InstanceNormalization")
def instance_normalization(node: NodeView) -> list[Option]:
    """Each channel of each batch element by itself: both axes may be split."""
    shape = node.shapes[0]
    if shape is None or len(shape) < 3:
        return []
    return [
        option(node, {0: split} | (_parameters(split, range(1, 3)) if split.axis == 1 else {}), split)
        for split in splits(node, shape, (0, 1))
    ]


@rule("GroupNormalization")
def group_normalization(node: NodeView) -> list[Option]:
    """The batch axis; or the channels where each rank gets whole groups."""
    shape = node.shapes[0]
    groups = integer(node.attributes, "num_groups", 0)
    if shape is None or len(shape) < 3 or groups < 1:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, shape, (0,))]
    for blocks in node.blocks(dim(shape, 1)):
        if groups % (node.world * blocks) == 0:
            split = Split(1, blocks)
            options.append(
                option(
                    node,
                    {0: split} | _parameters(split, range(1, 3)),
                    split,
                    lambda e, values: e.copy(values, num_groups=groups // e.world),
                )
            )
    return options


@rule("LpNormalization")
def lp_normalization(node: NodeView) -> list[Option]:
    """All axes but the normalized one."""
    shape = node.shapes[0]
    axis = None if shape is None else axis_attribute(node, -1, len(shape))
    if shape is None or axis is None:
        return []
    return [option(node, {0: split}, split) for split in splits(node, shape) if split.axis != axis]


@rule("MeanVarianceNormalization")
def mean_variance_normalization(node: NodeView) -> list[Option]:
    """All axes but the normalized ones."""
    shape = node.shapes[0]
    if shape is None:
        return []
    named = integers(node.attributes, "axes", (0, 2, 3))
    axes = {axis % len(shape) for axis in named} if shape else set()
    return [option(node, {0: split}, split) for split in splits(node, shape) if split.axis not in axes]


@rule("LRN")
def local_response_normalization(node: NodeView) -> list[Option]:
    """Sums over neighbouring channels: all axes but the channels."""
    return [option(node, {0: split}, split) for split in splits(node, node.shapes[0]) if split.axis != 1]
