"""Blocks of places as channels or batch entries, and back."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import Builder, flattened, is_float, known_rank


def _parts(b: Builder, length: int | Value, size: int) -> int | Value:
    return length // size if isinstance(length, int) else b.op("Div", [length, size])


def _times(b: Builder, length: int | Value, size: int) -> int | Value:
    return length * size if isinstance(length, int) else b.op("Mul", [length, size])


@primitive("SpaceToDepth", rank=4)
def space_to_depth(b: Builder, x: Value, *, block_size: int = 1) -> Value:
    """Blocks of places as channels."""
    if is_float(x.dtype) or block_size < 1 or known_rank(x) != 4:
        return b.op("SpaceToDepth", [x], {"blocksize": block_size})
    batch, channels, height, width = b.lengths(x)  # there is no kernel for integers
    lines, columns = _parts(b, height, block_size), _parts(b, width, block_size)
    cut = b.reshape(x, (batch, channels, lines, block_size, columns, block_size))
    turned = b.transpose(cut, [0, 3, 5, 1, 2, 4])
    return b.reshape(turned, (batch, _times(b, channels, block_size**2), lines, columns))


@primitive("DepthToSpace", rank=4)
def depth_to_space(b: Builder, x: Value, *, block_size: int = 1) -> Value:
    """Channels as blocks of places, the blocks' places first."""
    if is_float(x.dtype) or block_size < 1 or known_rank(x) != 4:
        return b.op("DepthToSpace", [x], {"blocksize": block_size, "mode": "DCR"})
    batch, channels, height, width = b.lengths(x)  # there is no kernel for integers
    left = _parts(b, channels, block_size**2)
    cut = b.reshape(x, (batch, block_size, block_size, left, height, width))
    turned = b.transpose(cut, [0, 3, 4, 1, 5, 2])
    return b.reshape(turned, (batch, left, _times(b, height, block_size), _times(b, width, block_size)))


@primitive("PixelShuffle")
def pixel_shuffle(b: Builder, x: Value, *, upscale_factor: int = 1) -> Value:
    """Channels as blocks of places, the channels first."""
    attributes = {"blocksize": upscale_factor, "mode": "CRD"}
    rank = known_rank(x)
    if rank == 4:
        return b.op("DepthToSpace", [x], attributes)
    shape = b.lengths(x)
    found = b.op("DepthToSpace", [b.reshape(x, (-1, *shape[-3:]))], attributes)
    last = b.lengths(found)
    return b.reshape(found, (*shape[:-3], *last[1:]))


@primitive("ChannelShuffle", "ShuffleChannel")
def channel_shuffle(b: Builder, x: Value, *, group: int = 1) -> Value:
    """The channels of groups interleaved."""
    shape = b.lengths(x)
    channels = shape[1]
    each = channels // group if isinstance(channels, int) and group > 0 else -1
    split_ = b.reshape(x, (shape[0], group, each, *shape[2:]))
    return b.reshape(b.moved(split_, 1, 2), shape)


@primitive("SpaceToBatch", "SpaceToBatchND")
def space_to_batch(
    b: Builder, node: Node, x: Value, *, block_size: Operand = None, paddings: Operand = ()
) -> Value:
    """Blocks of places along the axes after the channels as further batch entries, after padding."""
    block, pads = _block(b, node, block_size, paddings, "paddings")
    rank, first = known_rank(x), known_rank(x) - len(block)
    before = [0] * first + [pads[2 * i] for i in range(len(block))]
    after = [0] * first + [pads[2 * i + 1] for i in range(len(block))]
    padded = b.op("Pad", [x, b.const([*before, *after], np.int64)]) if any(pads) else x
    shape = b.lengths(padded)
    if not all(isinstance(length, int) for length in shape[first:]):
        raise RefusedError("the lengths of the axes in blocks must be known")
    lengths: list[Operand] = list(shape[:first])
    for length, step in zip(shape[first:], block, strict=True):
        assert isinstance(length, int)
        if length % step:
            raise RefusedError(f"a length of {length} has no blocks of {step}")
        lengths += [length // step, step]
    cut = b.reshape(padded, tuple(lengths))
    steps = [first + 2 * i + 1 for i in range(len(block))]
    places = [first + 2 * i for i in range(len(block))]
    turned = b.transpose(cut, [*steps, *range(first), *places])
    kept = [lengths[place] for place in places]
    assert rank == first + len(block)
    return b.reshape(turned, (-1, *shape[1:first], *kept))


@primitive("BatchToSpace", "BatchToSpaceND", "BatchToSpaceNDV2")
def batch_to_space(
    b: Builder, node: Node, x: Value, *, block_size: Operand = None, crops: Operand = ()
) -> Value:
    """The inverse: batch entries as blocks of places, cropped then."""
    block, cut = _block(b, node, block_size, crops, "crops")
    rank, first = known_rank(x), known_rank(x) - len(block)
    shape = b.lengths(x)
    parts = b.reshape(x, (*block, -1, *shape[1:]))
    order = list(range(len(block), len(block) + first))
    for i in range(len(block)):
        order += [len(block) + first + i, i]
    turned = b.transpose(parts, order)
    lengths: list[Operand] = list(shape[1:first])
    for length, step in zip(shape[first:], block, strict=True):
        if not isinstance(length, int):
            raise RefusedError("the lengths of the axes in blocks must be known")
        lengths.append(length * step)
    joined = b.reshape(turned, (-1, *lengths))
    if not any(cut):
        return joined
    starts = tuple(cut[2 * i] for i in range(len(block)))
    ends = tuple(-cut[2 * i + 1] or 2**62 for i in range(len(block)))
    return b.op("Slice", [joined, b.ints(starts), b.ints(ends), b.ints(tuple(range(first, rank)))])


def _block(
    b: Builder, node: Node, setting: Operand, around: Operand, what: str
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Block lengths and what is around each axis, before and after."""
    wanted = node.attributes.get("block_shape") if setting is None else setting
    pads = b.integers(flattened(around), what)
    block = b.integers(wanted, "block_size", len(pads) // 2)
    return block, pads
