"""Shapes: other lengths, other orders, parts joined and taken apart, padding."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import (
    integer,
    integers,
    known_rank,
    moved,
    number,
    promoted,
    tensors,
    text,
)
from sharding.importers.mindir.primitives.reduction import flipped

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder


@primitive("Reshape", "View")
def reshape(b: Builder, node: Node, x: Value, shape: Operand) -> Value:
    """Another shape; -1 is what is left."""
    return b.reshape(x, shape)


@primitive("ViewAs")
def view_as(b: Builder, node: Node, x: Value, other: Value) -> Value:
    """The shape of another."""
    return b.reshape(x, b.shape_of(other))


@primitive("Transpose", "TransposeView")
def transpose(b: Builder, node: Node, x: Value, perm: Operand) -> Value:
    """Axes in another order."""
    order = [b.axis(axis, x) for axis in integers(b, perm, "perm")]
    if sorted(order) != list(range(len(order))):
        raise RefusedError(f"perm {order} is no order of axes")
    return b.transpose(x, order)


@primitive("TransposeExtView", "TransposeExt")
def transpose_two(b: Builder, node: Node, x: Value, first: Operand, second: Operand) -> Value:
    """Two axes exchanged."""
    order = list(range(known_rank(x)))
    one, other = b.axis(integer(b, first, "dim0"), x), b.axis(integer(b, second, "dim1"), x)
    order[one], order[other] = order[other], order[one]
    return b.transpose(x, order)


@primitive("TExt")
def transpose_all(b: Builder, node: Node, x: Value) -> Value:
    """The axes in reverse order."""
    return b.transpose(x, list(reversed(range(known_rank(x)))))


@primitive("ExpandDims", "ExpandDimsView", "Unsqueeze")
def expand_dims(b: Builder, node: Node, x: Operand, axis: Operand = None) -> Value:
    """A new axis of length 1."""
    places = node.attributes.get("axis") if axis is None else axis
    return b.unsqueeze(b.value(x), integers(b, places, "axis"))


@primitive("Squeeze", settings=("axis",))
def squeeze(b: Builder, node: Node, x: Value, *, axis: Operand = ()) -> Value:
    """Without these axes of length 1; without all of them if none is named."""
    if axis is not None and axis != ():
        chosen = [b.axis(item, x) for item in integers(b, axis, "axis")]
        return b.squeeze(x, chosen)
    if x.shape is None or None in x.shape:
        if node.result is None or node.result.shape is None or x.shape is None:
            raise RefusedError("it squeezes axes of which it is not known whether their length is 1")
        wanted = len(node.result.shape)
        chosen = [place for place, length in enumerate(x.shape) if length == 1]
        if len(x.shape) - len(chosen) != wanted:
            raise RefusedError("it squeezes axes of which it is not known whether their length is 1")
        return b.squeeze(x, chosen)
    return b.squeeze(x, [place for place, length in enumerate(x.shape) if length == 1])


@primitive("Flatten")
def flatten(b: Builder, node: Node, x: Value) -> Value:
    """All axes but the first as one."""
    return b.op("Flatten", [x], {"axis": 1})


@primitive("FlattenExt", settings=("start_dim", "end_dim"))
def flatten_ext(b: Builder, node: Node, x: Value, *, start_dim: Operand = 0, end_dim: Operand = -1) -> Value:
    """Neighbouring axes as one."""
    if not known_rank(x):
        return b.reshape(x, (1,))
    first, last = b.axis(integer(b, start_dim, "start_dim"), x), b.axis(integer(b, end_dim, "end_dim"), x)
    if first == last:
        return x
    shape = b.shape_of(x)
    assert isinstance(shape, tuple)
    return b.reshape(x, (*shape[:first], -1, *shape[last + 1 :]))


@primitive("Concat", settings=("axis",))
def concat(b: Builder, node: Node, *items: Operand, axis: Operand = 0) -> Value:
    """Joined along an axis."""
    found = promoted(b, *tensors(items[0] if len(items) == 1 else items))
    place = b.axis(integer(b, axis, "axis"), found[0])
    return b.op("Concat", found, {"axis": place}) if len(found) > 1 else found[0]


@primitive("Stack", "StackExt", "ParallelConcat", settings=("axis",))
def stack(b: Builder, node: Node, *items: Operand, axis: Operand = 0) -> Value:
    """Joined along a new axis. Integers become a vector."""
    given = items[0] if len(items) == 1 else items
    if isinstance(given, tuple) and any(not isinstance(item, Value) for item in given):
        given = tuple(b.value(item) for item in given)
    found = promoted(b, *tensors(given))
    if node.op_type == "ParallelConcat":
        return b.op("Concat", found, {"axis": 0})
    setting = node.attributes.get("dim", axis) if axis == 0 else axis
    place = integer(b, setting, "axis")
    if found[0].rank is not None:
        place = place % (found[0].rank + 1)
    return b.op("Concat", [b.unsqueeze(item, [place]) for item in found], {"axis": place})


@primitive("Unstack", "UnstackExtView", "Unbind", settings=("axis", "num"))
def unstack(b: Builder, node: Node, x: Value, *, axis: Operand = 0, num: Operand = None) -> Operand:
    """One tensor for each place along an axis."""
    place = b.axis(integer(b, axis, "axis"), x)
    length = b.dim(x, place)
    count = len(node.result_types) or (length if isinstance(length, int) else 0)
    if not count:
        raise RefusedError("the number of results must be known")
    parts = split_evenly(b, x, place, count)
    return tuple(b.squeeze(part, [place]) for part in parts)


def split_evenly(b: Builder, x: Value, axis: int, count: int) -> list[Value]:
    """Equal parts along an axis."""
    if count == 1:
        return [x]
    return b.ops("Split", [x], {"axis": axis, "num_outputs": count}, outputs=count)


def split_sizes(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> Operand:
    """Parts of these lengths along an axis."""
    if len(sizes) == 1:
        return (x,)
    wanted = b.const(list(sizes), np.int64)
    return tuple(b.ops("Split", [x, wanted], {"axis": axis}, outputs=len(sizes)))


@primitive("Split", settings=("axis", "output_num"))
def split(b: Builder, node: Node, x: Value, *, axis: Operand = 0, output_num: Operand = 1) -> Operand:
    """This many equal parts along an axis."""
    place = b.axis(integer(b, axis, "axis"), x)
    count = integer(b, output_num, "output_num")
    length = b.dim(x, place)
    if count < 1 or (isinstance(length, int) and length % count):
        raise RefusedError(f"a length of {length} cannot be cut into {count} equal parts")
    return tuple(split_evenly(b, x, place, count))


@primitive("SplitTensor", "SplitTensorView", settings=("split_size", "dim"))
def split_tensor(b: Builder, node: Node, x: Value, *, split_size: Operand = 1, dim: Operand = 0) -> Operand:
    """Parts of one length along an axis; the last one may be shorter."""
    place = b.axis(integer(b, dim, "dim"), x)
    size = integer(b, split_size, "split_size")
    length = b.dim(x, place)
    if not isinstance(length, int) or size < 1:
        raise RefusedError(f"the length along axis {place} must be known, and split_size positive")
    return split_sizes(b, x, place, _pieces(length, size))


def _pieces(length: int, size: int) -> list[int]:
    return [min(size, length - start) for start in range(0, max(length, 1), size)]


@primitive("SplitWithSize", "SplitWithSizeView", settings=("split_size", "dim"))
def split_with_size(
    b: Builder, node: Node, x: Value, *, split_size: Operand = (), dim: Operand = 0
) -> Operand:
    """Parts of these lengths along an axis."""
    return split_sizes(b, x, b.axis(integer(b, dim, "dim"), x), integers(b, split_size, "split_size"))


@primitive("SplitV", settings=("size_splits", "split_dim", "num_split"))
def split_v(
    b: Builder,
    node: Node,
    x: Value,
    *,
    size_splits: Operand = (),
    split_dim: Operand = 0,
    num_split: Operand = None,
) -> Operand:
    """Parts of these lengths along an axis; one -1 is what is left."""
    place = b.axis(integer(b, split_dim, "split_dim"), x)
    sizes = list(integers(b, size_splits, "size_splits"))
    if -1 in sizes:
        length = b.dim(x, place)
        if not isinstance(length, int):
            raise RefusedError("the length along the axis must be known for a part of length -1")
        sizes[sizes.index(-1)] = length - sum(size for size in sizes if size != -1)
    return split_sizes(b, x, place, sizes)


@primitive("Chunk", "ChunkView", settings=("chunks", "dim"))
def chunk(b: Builder, node: Node, x: Value, *, chunks: Operand = 1, dim: Operand = 0) -> Operand:
    """At most this many parts of one length; the last one may be shorter."""
    place = b.axis(integer(b, dim, "dim"), x)
    count, length = integer(b, chunks, "chunks"), b.dim(x, place)
    if not isinstance(length, int) or count < 1:
        raise RefusedError(f"the length along axis {place} must be known, and chunks positive")
    return split_sizes(b, x, place, _pieces(length, max(-(-length // count), 1)))


@primitive("Tile", "Repeat")
def tile(b: Builder, node: Node, x: Value, reps: Operand) -> Value:
    """Repeated along each axis; missing axes come in front."""
    times = b.known_ints(reps)
    count = len(times) if times is not None else len(reps) if isinstance(reps, tuple) else None
    if count is None:
        raise RefusedError("the number of repetitions must be known")
    rank = known_rank(x)
    if count > rank:
        x = b.unsqueeze(x, range(count - rank))
    elif count < rank:
        front: Operand = (1,) * (rank - count)
        return b.op("Tile", [x, b.op("Concat", [b.ints(front), b.ints(reps)], {"axis": 0})])
    if not count:
        return x
    return b.op("Tile", [x, b.ints(reps)])


@primitive("RepeatInterleaveInt", "RepeatInterleaveTensor", settings=("repeats", "dim", "output_size"))
def repeat_interleave(
    b: Builder,
    node: Node,
    x: Value,
    *,
    repeats: Operand = 1,
    dim: Operand = None,
    output_size: Operand = None,
) -> Value:
    """Each place along an axis repeated, one number of times or one for each place."""
    if dim is None:
        x, place = b.reshape(x, (-1,)), 0
    else:
        place = b.axis(integer(b, dim, "dim"), x)
    times = integers(b, repeats, "repeats")
    rank = known_rank(x)
    if len(times) > 1:
        rows = np.repeat(np.arange(len(times)), times)
        return b.op("Gather", [x, b.const(rows, np.int64)], {"axis": place})
    shape = b.shape_of(x)
    assert isinstance(shape, tuple)
    wide = b.unsqueeze(x, [place + 1])
    reps = [1] * (rank + 1)
    reps[place + 1] = times[0]
    tiled = b.op("Tile", [wide, b.const(reps, np.int64)])
    return b.reshape(tiled, (*shape[:place], -1, *shape[place + 1 :]))


@primitive("BroadcastTo", "BroadcastToView", "Expand", "DynamicBroadcastTo")
def broadcast_to(b: Builder, node: Node, x: Value, shape: Operand = None) -> Value:
    """Repeated along axes of length 1; -1 keeps a length."""
    wanted = node.attributes.get("shape") if shape is None else shape
    known = b.known_ints(wanted)
    if known is not None and -1 in known:
        rank = known_rank(x)
        lengths: list[Operand] = list(known)
        for place, length in enumerate(known):
            if length == -1:
                own = place - (len(known) - rank)
                if own < 0:
                    raise RefusedError(f"shape {known} has -1 for an axis that the operand does not have")
                lengths[place] = b.dim(x, own)
        wanted = tuple(lengths)
    return b.op("Expand", [x, b.ints(wanted)])


@primitive("ExpandAs")
def expand_as(b: Builder, node: Node, x: Value, other: Value) -> Value:
    """Broadcast to the shape of another."""
    return b.op("Expand", [x, b.ints(b.shape_of(other))])


@primitive("ReverseV2", settings=("axis",))
def reverse(b: Builder, node: Node, x: Value, *, axis: Operand = ()) -> Value:
    """Axes in reverse."""
    axes = [b.axis(item, x) for item in integers(b, axis, "axis")]
    return flipped(b, x, axes) if axes else x


@primitive("Roll", settings=("shifts", "dims"))
def roll(b: Builder, node: Node, x: Value, *, shifts: Operand = 0, dims: Operand = None) -> Value:
    """Places moved along axes, around the end; without axes, of the flattened tensor."""
    by = integers(b, node.attributes.get("shift", shifts), "shifts")
    setting = node.attributes.get("axis", node.attributes.get("dims")) if dims is None else dims
    if setting is None or setting == ():
        return b.reshape(_rolled(b, b.reshape(x, (-1,)), 0, by[0]), b.shape_of(x))
    for shift, axis in zip(by, integers(b, setting, "dims"), strict=True):
        x = _rolled(b, x, b.axis(axis, x), shift)
    return x


def _rolled(b: Builder, x: Value, axis: int, shift: int) -> Value:
    length = b.dim(x, axis)
    if isinstance(length, int):
        shift = shift % length if length else 0
    if not shift:
        return x
    place, cut = b.ints((axis,)), b.ints((-shift,))
    tail = b.op("Slice", [x, cut, b.ints((2**62,)), place])
    head = b.op("Slice", [x, b.ints((0,)), cut, place])
    return b.op("Concat", [tail, head], {"axis": axis})


@primitive("TensorShape", "DynamicShape")
def tensor_shape(b: Builder, node: Node, x: Value) -> Value:
    """The lengths as an int64 tensor."""
    return b.ints(b.shape_of(x))


@primitive("Meshgrid", settings=("indexing",))
def meshgrid(b: Builder, node: Node, *items: Operand, indexing: Operand = "xy") -> Operand:
    """Each vector spread over the axes of all."""
    vectors = tensors(items[0] if len(items) == 1 else items)
    matrix_order = text(indexing, "indexing", ("ij", "xy")) == "ij"
    count = len(vectors)
    axes = list(range(count))
    if not matrix_order and count > 1:
        axes[0], axes[1] = 1, 0
    lengths: list[Operand] = [0] * count
    for vector, axis in zip(vectors, axes, strict=True):
        lengths[axis] = b.dim(vector, 0)
    shape = b.ints(tuple(lengths))
    spread = []
    for vector, axis in zip(vectors, axes, strict=True):
        line = b.unsqueeze(vector, [place for place in range(count) if place != axis])
        spread.append(b.op("Expand", [line, shape]))
    return tuple(spread)


@primitive("SpaceToDepth", settings=("block_size",))
def space_to_depth(b: Builder, node: Node, x: Value, *, block_size: Operand = 1) -> Value:
    """Blocks of places as channels."""
    return b.op("SpaceToDepth", [x], {"blocksize": integer(b, block_size, "block_size")})


@primitive("DepthToSpace", settings=("block_size",))
def depth_to_space(b: Builder, node: Node, x: Value, *, block_size: Operand = 1) -> Value:
    """Channels as blocks of places, the blocks' places first."""
    return b.op("DepthToSpace", [x], {"blocksize": integer(b, block_size, "block_size"), "mode": "DCR"})


@primitive("PixelShuffle", settings=("upscale_factor",))
def pixel_shuffle(b: Builder, node: Node, x: Value, *, upscale_factor: Operand = 1) -> Value:
    """Channels as blocks of places, the channels first."""
    attributes = {"blocksize": integer(b, upscale_factor, "upscale_factor"), "mode": "CRD"}
    rank = known_rank(x)
    if rank == 4:
        return b.op("DepthToSpace", [x], attributes)
    shape = b.shape_of(x)
    assert isinstance(shape, tuple)
    found = b.op("DepthToSpace", [b.reshape(x, (-1, *shape[-3:]))], attributes)
    last = b.shape_of(found)
    assert isinstance(last, tuple)
    return b.reshape(found, (*shape[:-3], *last[1:]))


@primitive("ChannelShuffle", "ShuffleChannel", settings=("group",))
def channel_shuffle(b: Builder, node: Node, x: Value, *, group: Operand = 1) -> Value:
    """The channels of groups interleaved."""
    shape = b.shape_of(x)
    assert isinstance(shape, tuple)
    groups = integer(b, group, "group")
    split_ = b.reshape(x, (shape[0], groups, -1, *shape[2:]))
    return b.reshape(moved(b, split_, 1, 2), shape)


@primitive("SpaceToBatch", "SpaceToBatchND", settings=("block_size", "paddings"))
def space_to_batch(
    b: Builder, node: Node, x: Value, *, block_size: Operand = None, paddings: Operand = ()
) -> Value:
    """Blocks of places along the axes after the channels as further batch entries, after padding."""
    block, pads = _block(b, node, block_size, paddings, "paddings")
    rank, first = known_rank(x), known_rank(x) - len(block)
    before = [0] * first + [pads[2 * i] for i in range(len(block))]
    after = [0] * first + [pads[2 * i + 1] for i in range(len(block))]
    padded = b.op("Pad", [x, b.const([*before, *after], np.int64)]) if any(pads) else x
    shape = b.shape_of(padded)
    assert isinstance(shape, tuple)
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


@primitive("BatchToSpace", "BatchToSpaceND", "BatchToSpaceNDV2", settings=("block_size", "crops"))
def batch_to_space(
    b: Builder, node: Node, x: Value, *, block_size: Operand = None, crops: Operand = ()
) -> Value:
    """The inverse: batch entries as blocks of places, cropped then."""
    block, cut = _block(b, node, block_size, crops, "crops")
    rank, first = known_rank(x), known_rank(x) - len(block)
    shape = b.shape_of(x)
    assert isinstance(shape, tuple)
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
    pads = integers(b, _flat(around), what)
    block = integers(b, wanted, "block_size", len(pads) // 2)
    return block, pads


def _flat(operand: Operand) -> Operand:
    """Nested tuples as one."""
    if not isinstance(operand, tuple):
        return operand
    items: list[Operand] = []
    for item in operand:
        inner = _flat(item)
        items.extend(inner if isinstance(inner, tuple) else (inner,))
    return tuple(items)


# Padding


def padded(
    b: Builder, x: Value, pairs: Sequence[tuple[int, int]], mode: str = "constant", value: Operand = None
) -> Value:
    """Padded by (before, after) along each axis; negative numbers take away."""
    if not any(before or after for before, after in pairs):
        return x
    amounts = [before for before, _ in pairs] + [after for _, after in pairs]
    filler = None
    if mode == "constant" and value is not None:
        filler = b.cast(b.value(value, None if isinstance(value, Value) else x.dtype), x.dtype)
        if filler.rank:
            filler = b.op("Reshape", [filler, b.const([], np.int64)])
    if mode != "constant" and any(item < 0 for item in amounts):
        starts = tuple(-min(before, 0) for before, _ in pairs)
        ends = tuple(min(after, 0) or 2**62 for _, after in pairs)
        x = b.op("Slice", [x, b.ints(starts), b.ints(ends), b.ints(tuple(range(len(pairs))))])
        amounts = [max(item, 0) for item in amounts]
    return b.op("Pad", [x, b.const(amounts, np.int64), filler], {"mode": mode})


def pairs_from_last(x: Value, amounts: Sequence[int]) -> list[tuple[int, int]]:
    """(before, after) of each axis from a list that begins with the last axis."""
    rank = known_rank(x)
    if len(amounts) % 2 or len(amounts) > 2 * rank:
        raise RefusedError(f"paddings {list(amounts)} do not fit a tensor with {rank} axes")
    pairs = [(0, 0)] * rank
    for i in range(len(amounts) // 2):
        pairs[rank - 1 - i] = (amounts[2 * i], amounts[2 * i + 1])
    return pairs


def _rows(b: Builder, paddings: Operand, x: Value) -> list[tuple[int, int]]:
    """(before, after) of each axis from a table with a row for each."""
    found = integers(b, _flat(paddings), "paddings")
    if len(found) != 2 * known_rank(x):
        raise RefusedError(f"paddings {list(found)} do not fit a tensor with {x.rank} axes")
    return [(found[2 * i], found[2 * i + 1]) for i in range(len(found) // 2)]


@primitive("Pad", settings=("paddings",))
def pad(b: Builder, node: Node, x: Value, *, paddings: Operand = ()) -> Value:
    """Zeros around."""
    return padded(b, x, _rows(b, paddings, x))


@primitive("PadV3", settings=("mode", "paddings_contiguous"))
def pad_v3(
    b: Builder,
    node: Node,
    x: Value,
    paddings: Operand,
    value: Operand = None,
    *,
    mode: Operand = "constant",
    paddings_contiguous: Operand = True,
) -> Value:
    """A constant, the nearest edge, a reflection, or the other end around; the list begins with the last axis."""
    found = integers(b, _flat(paddings), "paddings")
    if not paddings_contiguous:
        half = len(found) // 2
        found = tuple(found[i // 2 + (half if i % 2 else 0)] for i in range(len(found)))
    kind = text(mode, "mode", ("constant", "reflect", "edge", "circular"))
    if kind == "circular":
        return _circular(b, x, pairs_from_last(x, found))
    return padded(b, x, pairs_from_last(x, found), kind, value)


def _circular(b: Builder, x: Value, pairs: Sequence[tuple[int, int]]) -> Value:
    for axis, (before, after) in enumerate(pairs):
        place = b.ints((axis,))
        parts = [x]
        if before > 0:
            parts.insert(0, b.op("Slice", [x, b.ints((-before,)), b.ints((2**62,)), place]))
        if after > 0:
            parts.append(b.op("Slice", [x, b.ints((0,)), b.ints((after,)), place]))
        if before < 0 or after < 0:
            raise RefusedError("a circular padding cannot be negative")
        x = b.op("Concat", parts, {"axis": axis}) if len(parts) > 1 else x
    return x


@primitive("MirrorPad", settings=("mode",))
def mirror_pad(b: Builder, node: Node, x: Value, paddings: Operand, *, mode: Operand = "REFLECT") -> Value:
    """A reflection around, without the edge itself (REFLECT) or with it (SYMMETRIC)."""
    pairs = _rows(b, paddings, x)
    if text(mode, "mode", ("reflect", "symmetric")) == "reflect":
        return padded(b, x, pairs, "reflect")
    for axis, (before, after) in enumerate(pairs):
        place, parts = b.ints((axis,)), [x]
        if before:
            head = b.op("Slice", [x, b.ints((0,)), b.ints((before,)), place])
            parts.insert(0, flipped(b, head, [axis]))
        if after:
            tail = b.op("Slice", [x, b.ints((-after,)), b.ints((2**62,)), place])
            parts.append(flipped(b, tail, [axis]))
        x = b.op("Concat", parts, {"axis": axis}) if len(parts) > 1 else x
    return x


@primitive("ConstantPadND", settings=("padding", "value"))
def constant_pad(b: Builder, node: Node, x: Value, *, padding: Operand = (), value: Operand = 0.0) -> Value:
    """One number around; the list begins with the last axis."""
    amount = number(value, "value")
    return padded(b, x, pairs_from_last(x, integers(b, padding, "padding")), "constant", amount)


@primitive("ReflectionPad1D", "ReflectionPad2D", "ReflectionPad3D", settings=("padding",))
def reflection_pad(b: Builder, node: Node, x: Value, *, padding: Operand = ()) -> Value:
    """A reflection without the edge; the list begins with the last axis."""
    return padded(b, x, pairs_from_last(x, integers(b, padding, "padding")), "reflect")


@primitive("ReplicationPad1D", "ReplicationPad2D", "ReplicationPad3D", settings=("padding",))
def replication_pad(b: Builder, node: Node, x: Value, *, padding: Operand = ()) -> Value:
    """The nearest edge; the list begins with the last axis."""
    return padded(b, x, pairs_from_last(x, integers(b, padding, "padding")), "edge")
