"""Parts joined and taken apart."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import Axis, Builder, Ints, tensors


@primitive("Concat")
def concat(b: Builder, *items: Operand, axis: int = 0) -> Value:
    """Joined along an axis."""
    found = b.promoted(*tensors(items[0] if len(items) == 1 else items))
    place = b.axis(axis, found[0])
    return b.op("Concat", found, {"axis": place}) if len(found) > 1 else found[0]


@primitive("Stack", "StackExt", "ParallelConcat")
def stack(b: Builder, node: Node, *items: Operand, axis: Operand = 0) -> Value:
    """Joined along a new axis. Integers become a vector."""
    given = items[0] if len(items) == 1 else items
    if isinstance(given, tuple) and any(not isinstance(item, Value) for item in given):
        given = tuple(b.value(item) for item in given)
    found = b.promoted(*tensors(given))
    if node.op_type == "ParallelConcat":
        return b.op("Concat", found, {"axis": 0})
    setting = node.attributes.get("dim", axis) if axis == 0 else axis
    place = b.integer(setting, "axis")
    if found[0].rank is not None:
        place = place % (found[0].rank + 1)
    return b.op("Concat", [b.unsqueeze(item, [place]) for item in found], {"axis": place})


@primitive("Unstack", "UnstackExtView", "Unbind")
def unstack(b: Builder, node: Node, x: Value, *, axis: Axis = 0, num: Operand = None) -> Operand:
    """One tensor for each place along an axis."""
    length = b.dim(x, axis)
    # With an unknown number of results, the file declares a single one for all.
    declared = len(node.result_types) if len(node.result_types) > 1 else 0
    count = length if isinstance(length, int) else declared
    if not count:
        raise RefusedError("the number of results must be known")
    parts = split_evenly(b, x, axis, count)
    return tuple(b.squeeze(part, [axis]) for part in parts)


_MOST_PARTS = 1 << 16
"""Each is a result of an operator of the graph; a small file can ask for any number."""


def _counted(count: int) -> int:
    if count > _MOST_PARTS:
        raise RefusedError(f"{count} parts are too many results for an operator")
    return count


def split_evenly(b: Builder, x: Value, axis: int, count: int) -> list[Value]:
    """Equal parts along an axis."""
    _counted(count)
    if count == 1:
        return [x]
    return b.ops("Split", [x], {"axis": axis, "num_outputs": count}, outputs=count)


def split_sizes(b: Builder, x: Value, axis: int, sizes: Sequence[int]) -> Operand:
    """Parts of these lengths along an axis."""
    if len(sizes) == 1:
        return (x,)
    wanted = b.const(list(sizes), np.int64)
    return tuple(b.ops("Split", [x, wanted], {"axis": axis}, outputs=len(sizes)))


@primitive("Split")
def split(b: Builder, x: Value, *, axis: Axis = 0, output_num: int = 1) -> Operand:
    """This many equal parts along an axis."""
    length = b.dim(x, axis)
    if output_num < 1 or (isinstance(length, int) and length % output_num):
        raise RefusedError(f"a length of {length} cannot be cut into {output_num} equal parts")
    return tuple(split_evenly(b, x, axis, output_num))


@primitive("SplitTensor", "SplitTensorView")
def split_tensor(b: Builder, x: Value, *, split_size: int = 1, dim: Axis = 0) -> Operand:
    """Parts of one length along an axis; the last one may be shorter."""
    length = b.dim(x, dim)
    if not isinstance(length, int) or split_size < 1:
        raise RefusedError(f"the length along axis {dim} must be known, and split_size positive")
    return split_sizes(b, x, dim, _pieces(length, split_size))


def _pieces(length: int, size: int) -> list[int]:
    _counted(-(-length // size))
    return [min(size, length - start) for start in range(0, max(length, 1), size)]


@primitive("SplitV")
@primitive("SplitWithSize", "SplitWithSizeView", settings="split_size=size_splits dim=split_dim")
def split_v(
    b: Builder, x: Value, *, size_splits: Ints = (), split_dim: Axis = 0, num_split: Operand = None
) -> Operand:
    """Parts of these lengths along an axis; one -1 is what is left."""
    sizes = list(size_splits)
    if -1 in sizes:
        length = b.dim(x, split_dim)
        if not isinstance(length, int):
            raise RefusedError("the length along the axis must be known for a part of length -1")
        sizes[sizes.index(-1)] = length - sum(size for size in sizes if size != -1)
    return split_sizes(b, x, split_dim, sizes)


@primitive("Chunk", "ChunkView")
def chunk(b: Builder, x: Value, *, chunks: int = 1, dim: Axis = 0) -> Operand:
    """At most this many parts of one length; the last one may be shorter."""
    length = b.dim(x, dim)
    if not isinstance(length, int) or chunks < 1:
        raise RefusedError(f"the length along axis {dim} must be known, and chunks positive")
    return split_sizes(b, x, dim, _pieces(length, max(-(-length // chunks), 1)))
