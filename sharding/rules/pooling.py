"""Pooling and resampling of images: batch and channels may be split."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    axes_parameter,
    constant,
    dim,
    option,
    partial_option,
    shape_like,
    shape_of,
    splits,
    with_lengths,
)
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split


@rule("AveragePool", "GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool", "LpPool", "MaxPool")
def pool(node: NodeView) -> list[Option]:
    """X [batch, channels, ...]; an average of summands. MaxPool's indices count in the whole tensor."""
    shape = node.shapes[0]
    if shape is None or len(shape) < 3 or len(node.output_shapes) != 1:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, shape, (0, 1))]
    return options + (partial_option(node) if node.op_type.endswith("AveragePool") else [])


@rule("NhwcMaxPool", domain=MICROSOFT)
def nhwc_max_pool(node: NodeView) -> list[Option]:
    """X [batch, ..., channels]."""
    shape = node.shapes[0]
    if shape is None or len(shape) < 3:
        return []
    return [option(node, {0: split}, split) for split in splits(node, shape, (0, len(shape) - 1))]


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


def _emit_sizes(node: NodeView, axes: list[int], split: Split, e: Emitter, values: Values) -> list[Value]:
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


rule("GridSample", domain=MICROSOFT)(grid_sample)


@rule("AffineGrid")
def affine_grid(node: NodeView) -> list[Option]:
    """One matrix per image [batch, ...], and the size [batch, channels, ...] of what the grids are for."""
    shape, axes = node.shapes[0], dim(node.shapes[1], 0)
    if shape is None or not isinstance(axes, int):
        return []
    known = constant(node, 1)
    lengths = [None] * axes if known is None else [int(item) for item in known.reshape(-1)]
    options = []
    for split in splits(node, shape, (0,)):
        assert isinstance(shape[0], int)
        emit = partial(_emit_affine_grid, [shape[0] // node.world, *lengths[1:]])
        options.append(option(node, {0: split}, split, emit))
    return options


def _emit_affine_grid(lengths: list[int | None], e: Emitter, values: Values) -> list[Value]:
    return e.copy([values[0], with_lengths(e, values[1], lengths)])


@rule("RoiAlign")
def roi_align(node: NodeView) -> list[Option]:
    """X [batch, channels, height, width], regions [n, 4], their batch indices [n] -> [n, channels, ...]."""
    return _regions(node, (1, 2))


@rule("CropAndResize", domain=MICROSOFT)
def crop_and_resize(node: NodeView) -> list[Option]:
    """As RoiAlign, then the size of what is cropped."""
    return _regions(node, (1, 2))


@rule("MaxRoiPool")
def max_roi_pool(node: NodeView) -> list[Option]:
    """X [batch, channels, height, width], regions [n, 5] that begin with their batch index."""
    return _regions(node, (1,))


def _regions(node: NodeView, indices: Sequence[int]) -> list[Option]:
    shape, regions = node.shapes[0], shape_of(node, 1)
    if shape is None or len(shape) != 4:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, shape, (1,))]
    return options + [
        option(node, dict.fromkeys(indices, split), split) for split in splits(node, regions, (0,))
    ]


@rule("Col2Im")
def col2im(node: NodeView) -> list[Option]:
    """X [batch, channels * elements of a block, blocks] -> [batch, channels, ...]; sums of elements."""
    shape, out = node.shapes[0], shape_like(node)
    if shape is None or out is None or len(shape) != 3:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, shape, (0,))]
    return (
        options
        + [option(node, {0: split}, split) for split in splits(node, out, (1,))]
        + partial_option(node)
    )
