"""Pooling and resampling of images: batch and channels may be split."""

from __future__ import annotations

import numpy as np

from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import (
    absent,
    axes_parameter,
    constant,
    dim,
    kept,
    last_axis,
    option,
    own_length,
    partial_option,
    rank_of,
    shape_like,
    shape_of,
    splits,
)
from sharding.slices.domains import MICROSOFT


@rule("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool")
def pool(node: NodeView) -> list[Option]:
    """X [batch, channels, ...]; an average of summands. MaxPool's indices count in the whole tensor."""
    if (rank_of(node) or 0) < 3 or len(node.output_shapes) != 1:
        return []
    return kept(node, (0, 1)) + (partial_option(node) if node.op_type.endswith("AveragePool") else [])


@rule("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: NodeView) -> list[Option]:
    """X [batch, ..., channels]."""
    return kept(node, (0, last_axis(node))) if (rank_of(node) or 0) > 2 else []


# MaxUnpool has no rule: its indices count in the whole tensor.


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
    axes = axes_parameter(node, len(node.shapes))
    if axes is None:
        return []
    axes = axes or list(range(len(shape)))
    options = []
    for split in splits(node, shape, (0, 1)):
        if split.axis not in axes:
            options.append(option(node, {0: split}, split))
        elif sizes is not None:
            out, place = shape_like(node), axes.index(split.axis)
            policy = node.attributes.get("keep_aspect_ratio_policy", "stretch")
            if out is not None and out[split.axis] == shape[split.axis] and policy in ("stretch", b"stretch"):
                emit = own_length(node, sizes, len(axes), place, shape[split.axis])
                options.append(option(node, {0: split}, split, emit))
        elif scales is not None and scales.size == len(axes) and scales[axes.index(split.axis)] == 1:
            options.append(option(node, {0: split}, split))
    return options


@rule("GridSample")
def grid_sample(node: NodeView) -> list[Option]:
    """X [batch, channels, ...], grid [batch, ...]; linear in X."""
    shape, grid = node.shapes[0], node.shapes[1]
    if shape is None or grid is None or len(shape) < 3:
        return []
    images = splits(node, shape, (0,) if grid[0] == shape[0] else ())
    options = [option(node, {0: split, 1: split}, split) for split in images]
    return options + kept(node, (1,)) + partial_option(node)


rule("GridSample", domain=MICROSOFT)(grid_sample)


@rule("AffineGrid")
def affine_grid(node: NodeView) -> list[Option]:
    """One matrix per image [batch, ...], and the size [batch, channels, ...] of what the grids are for."""
    shape, axes = node.shapes[0], dim(node.shapes[1], 0)
    if shape is None or not isinstance(axes, int):
        return []
    return [
        option(node, {0: split}, split, own_length(node, 1, axes, 0, shape[0]))
        for split in splits(node, shape, (0,))
    ]


@rule("RoiAlign", "MaxRoiPool")
def roi_align(node: NodeView) -> list[Option]:
    """X [batch, channels, height, width], regions [n, 4], their batch indices [n] -> [n, channels, ...].

    CropAndResize has the size of what is cropped after these; the regions of MaxRoiPool [n, 5] begin with
    their batch index."""
    if rank_of(node) != 4:
        return []
    own = (1,) if node.op_type == "MaxRoiPool" else (1, 2)
    regions = splits(node, shape_of(node, 1), (0,))
    return kept(node, (1,)) + [option(node, dict.fromkeys(own, split), split) for split in regions]


rule("CropAndResize", domain=MICROSOFT)(roi_align)


@rule("Col2Im")
def col2im(node: NodeView) -> list[Option]:
    """X [batch, channels * elements of a block, blocks] -> [batch, channels, ...]; sums of elements."""
    out = shape_like(node)
    if rank_of(node) != 3 or out is None:
        return []
    channels = [option(node, {0: split}, split) for split in splits(node, out, (1,))]
    return kept(node, (0,)) + channels + partial_option(node)
