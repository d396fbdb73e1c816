"""Normalizations, in their inference form."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from sharding.onnx_files.attributes import integer, integers
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    axis_attribute,
    dim,
    divided,
    kept,
    option,
    others,
    partial_option,
    rank_of,
    shape_of,
    splits,
)
from sharding.slices.placement import Split


@rule("LayerNormalization", "RMSNormalization")
def layer_normalization(node: NodeView) -> list[Option]:
    """Normalizes over ``axis`` and all axes after it: the axes before it may be split."""
    axis, rank = axis_attribute(node, -1), rank_of(node)
    if axis is None or rank is None:
        return []
    for index in (1, 2):
        parameter = shape_of(node, index)
        # A scale with leading axes of its own would have to be split with the input.
        if not absent(node, index) and (parameter is None or len(parameter) > rank - axis):
            return []
    return kept(node, range(axis))


@rule("BatchNormalization")
def batch_normalization(node: NodeView) -> list[Option]:
    """Channels (axis 1) with their statistics, or any other axis; not the training form.

    It is a scale and a shift of each channel: summands are scaled by all, and shifted on the first rank.
    """
    training = node.attributes.get("training_mode", 0) or len(node.output_shapes) != 1
    if (rank_of(node) or 0) < 2 or training or node.version < 7 or not node.attributes.get("spatial", 1):
        return []
    options = [_by_channel(node, split, range(1, 5)) for split in splits(node, node.shapes[0])]
    channels = dim(node.shapes[2], 0)
    if isinstance(channels, int):
        options += partial_option(node, (0,), partial(_shift_once, node, channels))
    return options


def _shift_once(node: NodeView, channels: int, e: Emitter, values: Values) -> list[Value]:
    if e.rank == 0:
        return e.copy(values)
    bias, mean = (e.constant(np.zeros(channels, dtype=node.dtypes[i])) for i in (2, 3))
    return e.copy([values[0], values[1], bias, mean, values[4]])


def _by_channel(node: NodeView, split: Split, vectors: range) -> Option:
    """The first input split, and what has one value per channel as the channels are."""
    own = dict.fromkeys(vectors if split.axis == 1 else (), Split(0, split.blocks))
    return option(node, {0: split, **own}, split)


@rule("InstanceNormalization")
def instance_normalization(node: NodeView) -> list[Option]:
    """Each channel of each batch element by itself: both axes may be split."""
    axes = (0, 1) if (rank_of(node) or 0) > 2 else ()
    return [_by_channel(node, split, range(1, 3)) for split in splits(node, node.shapes[0], axes)]


@rule("GroupNormalization")
def group_normalization(node: NodeView) -> list[Option]:
    """The batch axis; or the channels where each rank gets whole groups."""
    groups = integer(node.attributes, "num_groups", 0)
    if (rank_of(node) or 0) < 2 or groups < 1:
        return []
    options = kept(node, (0,))
    for split in splits(node, node.shapes[0], (1,)):
        if groups % (node.world * split.blocks) == 0:
            whole = _by_channel(node, split, range(1, 3))
            options.append(replace(whole, emit=divided(num_groups=groups)))
    return options


@rule("LpNormalization")
def lp_normalization(node: NodeView) -> list[Option]:
    """All axes but the normalized one."""
    return others(node, axis_attribute(node, -1))


@rule("MeanVarianceNormalization")
def mean_variance_normalization(node: NodeView) -> list[Option]:
    """All axes but the normalized ones."""
    return others(node, *integers(node.attributes, "axes", (0, 2, 3)))


@rule("LRN")
def local_response_normalization(node: NodeView) -> list[Option]:
    """Sums over neighbouring channels: all axes but the channels."""
    return others(node, 1)
