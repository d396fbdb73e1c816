"""Operators that move, add, drop or repeat axes."""

from __future__ import annotations

from sharding.onnx_files.attributes import integer, integers
from sharding.rules.base import NodeView, Option, rule
from sharding.rules.common import (
    absent,
    axes_parameter,
    constant,
    dim,
    kept,
    list_parameter,
    moved,
    option,
    others,
    own_length,
    partial_option,
    shape_like,
    splits,
)
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import Split


@rule("Transpose")
def transpose(node: NodeView) -> list[Option]:
    """Output axis i is input axis ``perm[i]``."""
    shape = node.shapes[0]
    if shape is None:
        return []
    perm = integers(node.attributes, "perm") or list(range(len(shape) - 1, -1, -1))
    if sorted(perm) != list(range(len(shape))):
        return []
    return moved(node, {axis: perm.index(axis) for axis in range(len(shape))}) + partial_option(node)


@rule("Squeeze")
def squeeze(node: NodeView) -> list[Option]:
    """Drops axes of length 1."""
    shape, axes = node.shapes[0], axes_parameter(node, 1)
    if shape is None or axes is None:
        return []
    if not axes:
        if not all(isinstance(length, int) for length in shape):
            return []
        axes = [axis for axis, length in enumerate(shape) if length == 1]
    left = [axis for axis in range(len(shape)) if axis not in axes]
    # With no axes named, a part of length 1 would lose its axis too.
    named = node.attributes.get("axes") is not None or constant(node, 1) is not None
    whole = {axis: place for place, axis in enumerate(left) if named or shape[axis] != node.world}
    return moved(node, whole) + partial_option(node)


@rule("Unsqueeze")
def unsqueeze(node: NodeView) -> list[Option]:
    """Adds axes of length 1."""
    shape = node.shapes[0]
    added = list_parameter(node, "axes", 1)
    if shape is None or not added:
        return partial_option(node)
    rank = len(shape) + len(added)
    added = [axis % rank for axis in added]
    left = [axis for axis in range(rank) if axis not in added]
    return moved(node, dict(enumerate(left))) + partial_option(node) if len(left) == len(shape) else []


@rule("Expand")
def expand(node: NodeView) -> list[Option]:
    """Broadcasts to a shape (and that to the input); the shape is given this rank's length."""
    shape, target, requested = node.shapes[0], shape_like(node), dim(node.shapes[1], 0)
    if shape is None or target is None or not isinstance(requested, int) or len(target) < len(shape):
        return []
    options = []
    for split in splits(node, target):
        own, part = split.axis - len(target) + len(shape), target[split.axis]
        length = shape[own] if own >= 0 else 1
        if length not in (1, part):
            continue
        position = split.axis - len(target) + requested
        emit = None if position < 0 else own_length(node, 1, requested, position, part)
        parts = {} if length == 1 else {0: Split(own, split.blocks)}
        options.append(option(node, parts, split, emit))
    return options + partial_option(node)


@rule("Tile")
def tile(node: NodeView) -> list[Option]:
    """Repeats of a split axis are blocks of it."""
    shape, repeats = node.shapes[0], constant(node, 1)
    if shape is None or repeats is None or repeats.size != len(shape) or node.version < 6:
        return []
    times = [int(item) for item in repeats.reshape(-1)]
    options = [
        option(node, {0: split}, Split(split.axis, split.blocks * times[split.axis]))
        for split in splits(node, shape)
        if times[split.axis] > 0
    ]
    return options + partial_option(node)


@rule("Pad")
def pad(node: NodeView) -> list[Option]:
    """Axes without padding; summands where nothing is added to them (zeros, copies of elements)."""
    shape = node.shapes[0]
    pads = list_parameter(node, "pads", 1)
    if shape is None or pads is None or (not node.domain and node.version < 2):
        return []
    axes = axes_parameter(node, 3)
    if axes is None or len(pads) != 2 * (len(axes) or len(shape)):
        return []
    padded = axes or list(range(len(shape)))
    touched = [axis for i, axis in enumerate(padded) if pads[i] or pads[i + len(padded)]]
    return others(node, *touched) + (partial_option(node) if _adds_nothing(node) else [])


rule("Pad", domain=MICROSOFT)(pad)


def _adds_nothing(node: NodeView) -> bool:
    if node.attributes.get("mode", "constant") != "constant":
        return True
    if not node.domain and node.version < 11:
        return not node.attributes.get("value", 0.0)
    fill = constant(node, 2)
    return absent(node, 2) if fill is None else not fill.any()


@rule("CenterCropPad")
def center_crop_pad(node: NodeView) -> list[Option]:
    """Axes that are not named; a choice of elements, and zeros."""
    axes = axes_parameter(node, len(node.shapes))
    return (others(node, *axes) if axes else []) + partial_option(node)


@rule("DepthToSpace", "SpaceToDepth")
def depth_space(node: NodeView) -> list[Option]:
    """The batch axis; or channels, of which blocksize * blocksize become or make one."""
    shape = node.shapes[0]
    size = integer(node.attributes, "blocksize", 0) ** 2
    if shape is None or len(shape) != 4 or size < 1:
        return []
    options, channels = kept(node, (0,)), shape[1]
    if node.op_type == "SpaceToDepth":
        options += [option(node, {0: Split(1)}, Split(1, size))] if node.divisible(channels) else []
    elif node.divisible(channels, size):
        by_row = node.attributes.get("mode", "DCR") == "CRD"
        options.append(option(node, {0: Split(1, 1 if by_row else size)}, Split(1)))
    return options + partial_option(node)
