"""Parts repeated."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import Builder, Ints, known_rank, shown, tensors


@primitive("Tile", "Repeat")
def tile(b: Builder, x: Value, reps: Operand) -> Value:
    """Repeated along each axis; missing axes come in front."""
    times = b.known_ints(reps)
    count = len(times) if times is not None else len(reps) if isinstance(reps, tuple) else None
    if count is None:
        raise RefusedError("the number of repetitions must be known")
    rank = x.rank
    if rank is None:
        return _tiled_later(b, x, reps, count)
    if count > rank:
        x = b.unsqueeze(x, range(count - rank))
    elif count < rank:
        front: Operand = (1,) * (rank - count)
        return b.op("Tile", [x, b.op("Concat", [b.ints(front), b.ints(reps)], {"axis": 0})])
    if not count:
        return x
    return b.op("Tile", [x, b.ints(reps)])


@primitive("TileSize")
def tile_size(b: Builder, shape: Operand, wanted: Operand, count: int) -> Operand:
    """How often each axis is repeated to have the length that is wanted: once where it has it."""
    if not isinstance(shape, tuple) or not isinstance(wanted, tuple):
        raise RefusedError("the number of axes must be known")
    times: list[Operand] = [1] * count
    for place, (length, target) in enumerate(zip(shape, wanted, strict=False)):
        if isinstance(length, int) and isinstance(target, int):
            times[place] = 1 if length == target else target
        else:
            have, want = (b.ints(item) for item in (length, target))
            times[place] = b.op("Where", [b.op("Equal", [have, want]), b.ints(1), want])
    return tuple(times)


def _tiled_later(b: Builder, x: Value, reps: Operand, count: int) -> Value:
    """Of an unknown number of axes: missing ones come in front here as there."""
    shape = b.op("Shape", [x])
    more = b.op("Sub", [b.op("Size", [shape]), count])
    front = [
        b.op("Expand", [b.const(1, np.int64), b.reshape(b.op("Max", [item, 0]), (1,))])
        for item in (b.op("Neg", [more]), more)
    ]
    wide = b.op("Reshape", [x, b.op("Concat", [front[0], shape], {"axis": 0})])
    return b.op("Tile", [wide, b.op("Concat", [front[1], b.ints(reps)], {"axis": 0})])


@primitive("RepeatInterleaveInt", "RepeatInterleaveTensor")
def repeat_interleave(
    b: Builder, x: Value, *, repeats: Ints = (1,), dim: int | None = None, output_size: Operand = None
) -> Value:
    """Each place along an axis repeated, one number of times or one for each place."""
    if dim is None:
        x, place = b.reshape(x, (-1,)), 0
    else:
        place = b.axis(dim, x)
    rank = known_rank(x)
    if len(repeats) > 1:
        b.bounded(sum(repeats))
        rows = np.repeat(np.arange(len(repeats)), repeats)
        return b.op("Gather", [x, b.const(rows, np.int64)], {"axis": place})
    shape = b.lengths(x)
    wide = b.unsqueeze(x, [place + 1])
    reps = [1] * (rank + 1)
    reps[place + 1] = repeats[0]
    tiled = b.op("Tile", [wide, b.const(reps, np.int64)])
    return b.reshape(tiled, (*shape[:place], -1, *shape[place + 1 :]))


@primitive("BroadcastTo", "BroadcastToView", "Expand", "DynamicBroadcastTo")
def broadcast_to(b: Builder, node: Node, x: Value, shape: Operand = None) -> Value:
    """Repeated along axes of length 1; -1 keeps a length."""
    wanted = node.attributes.get("shape") if shape is None else shape
    own = x.rank
    if isinstance(wanted, tuple):
        if own is not None and any(item == -1 for item in wanted[: max(len(wanted) - own, 0)]):
            raise RefusedError(f"shape {shown(wanted)} has -1 for an axis that the operand does not have")
        # A length of 1 keeps the operand's, in ONNX.
        return b.op("Expand", [x, b.ints(tuple(1 if item == -1 else item for item in wanted))])
    known = b.known_ints(wanted)
    if known is not None:
        return broadcast_to(b, node, x, known)
    return b.op("Expand", [x, b.op("Abs", [b.ints(wanted)])])  # -1 as 1


@primitive("ExpandAs")
def expand_as(b: Builder, x: Value, other: Value) -> Value:
    """Broadcast to the shape of another."""
    return b.op("Expand", [x, b.ints(b.shape_of(other))])


@primitive("Meshgrid")
def meshgrid(b: Builder, *items: Operand, indexing: Operand = "xy") -> Operand:
    """Each vector spread over the axes of all."""
    vectors = tensors(items[0] if len(items) == 1 else items)
    matrix_order = b.text(indexing, "indexing", ("ij", "xy")) == "ij"
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
