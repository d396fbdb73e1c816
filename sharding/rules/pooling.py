"""Pooling and resampling of images: batch and channels may be split."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sharding.placement import Split
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import (
    Values,
    absent,
    axes_parameter,
    constant,
    option,
    partial_option,
    shape_like,
    shape_of,
    splits,
    with_lengths,
)


@rule("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool")
def pool(node: NodeView) -> list[Option]:
    """X [batch, channels, ...]; an average of summands. MaxPool's indices count in the whole tensor."""
    shape = node.shapes[0]
    if shape is None or len(shape) < 3 or len(node.output_shapes) != 1:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, shape, (0, 1))]
    return options + (partial_option(node) if node.op_type.endswith("AveragePool") else [])


@rule("Resize", "Upsample")
def resize(node: NodeView) -> list[Option]:
    """Batch and channels where their scale is exactly 1; given sizes get this rank's length."""
    shape = node.shapes[0]
    if shape is None or len(shape) < 3:
        return []
    if node.attributes.get("coordinate_transformation_mode") == "tf_crop_and_resize":
        return []
    first = 1 if node.op_type == "Upsample" or node.version < 11 else 2  # where the scales are
    sizes = 3 if node.op_type == "Resize" and node.version >= 11 and not absent(node, 3) else None
    # Empty scales stand for absent ones where sizes are given.
    scales = (
        constant(node, first)
        if node.attributes.get("scales") is None
        else np.asarray(node.attributes["scales"])
    )
    axes = axes_parameter(node, len(node.shapes), len(shape))
    if axes is None:
        return []
    axes = axes or list(range(len(shape)))
    options = []
    for split in splits(node, shape, (0, 1)):
        if split.axis not in axes:
            options.append(option(node, {0: split}, split))
        elif sizes is not None:
            out = shape_like(node)
            policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
            if out is not None and out[split.axis] == shape[split.axis] and policy in ("stretch", b"stretch"):
                emit = partial(_emit_sizes, node, axes, split)
                options.append(option(node, {0: split}, split, emit))
        elif scales is not None and scales.size == len(axes) and scales[axes.index(split.axis)] == 1:
            options.append(option(node, {0: split}, split))
    return options


def _emit_sizes(node: NodeView, axes: list[int], split: Split, e: Emitter, values: Values) -> list[Any]:
    whole = (node.shapes[0] or ())[split.axis]
    assert isinstance(whole, int)
    known = constant(node, 3)
    lengths: list[int | None] = [None] * len(axes) if known is None else [int(item) for item in known]
    lengths[axes.index(split.axis)] = whole // e.world
    return e.copy([*values[:3], with_lengths(e, values[3], lengths)])


@rule("GridSample")
def grid_sample(node: NodeView) -> list[Option]:
    """X [batch, channels, ...], grid [batch, ...]; linear in X."""
    shape, grid = node.shapes[0], node.shapes[1]
    if shape is None or grid is None or len(shape) < 3:
        return []
    options = [
        option(node, {0: split, 1: split}, split)
        for split in splits(node, shape, (0,))
        if grid[0] == shape[0]
    ]
    return (
        options
        + [option(node, {0: split}, split) for split in splits(node, shape, (1,))]
        + partial_option(node)
    )


@rule("RoiAlign")
def roi_align(node: NodeView) -> list[Option]:
    """X [batch, channels, height, width], regions [n, 4], their batch indices [n] -> [n, channels, ...]."""
    shape, regions = node.shapes[0], shape_of(node, 1)
    if shape is None or len(shape) != 4:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, shape, (1,))]
    return options + [option(node, {1: split, 2: split}, split) for split in splits(node, regions, (0,))]
