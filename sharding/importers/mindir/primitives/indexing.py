"""Taking elements by place."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import INT32, INT64, Axis, Builder, known_rank, tensors

END = 2**62
"""Beyond any length; ONNX's Slice stops at the end of the axis."""
REST = "..."
"""Among bounds: as many whole axes as the others leave, of a tensor whose number of axes is open."""


def indices_of(b: Builder, x: Operand) -> Value:
    """Indices in a type that every operator takes."""
    value = b.value(x)
    return value if value.dtype in {INT32, INT64} else b.cast(value, INT64)


def _gather(b: Builder, x: Value, indices: Operand, axis: int) -> Value:
    return b.op("Gather", [x, indices_of(b, indices)], {"axis": b.axis(axis, x)})


@primitive("Gather", "GatherV2", "SparseGatherV2")
def gather(b: Builder, x: Value, indices: Operand, axis: Axis = 0, *, batch_dims: int = 0) -> Value:
    """Places along an axis, the same for all or, with batch axes, for each batch entry its own."""
    places = indices_of(b, indices)
    batch = batch_dims if batch_dims >= 0 else batch_dims + known_rank(places)
    if not batch:
        return b.op("Gather", [x, places], {"axis": axis})
    if not 0 < batch <= known_rank(places):  # ONNX itself would read beyond its lists
        raise RefusedError(
            f"batch_dims {batch_dims} is no number of axes of indices with {known_rank(places)}"
        )
    if not batch <= axis:
        raise RefusedError(f"batch_dims {batch} lies behind axis {axis}")
    front = b.moved(x, axis, batch)
    found = b.op("GatherND", [front, b.cast(b.unsqueeze(places, [known_rank(places)]), INT64)],
                 {"batch_dims": batch})  # fmt: skip
    # batch axes, the indices' own, then what was between the batch axes and the axis: that goes first.
    own, between = known_rank(places) - batch, axis - batch
    rank = known_rank(found)
    middle = list(range(batch + own, batch + own + between))
    order = [*range(batch), *middle, *range(batch, batch + own), *range(batch + own + between, rank)]
    return b.transpose(found, order)


@primitive("Embedding")
def embedding(b: Builder, indices: Value, table: Value, *rest: Operand) -> Value:
    """Rows of a table."""
    if len(rest) > 1 and rest[1] is not None:
        raise RefusedError("it renormalizes rows (max_norm), which changes its own table")
    return _gather(b, table, indices, 0)


@primitive("EmbeddingLookup")
def embedding_lookup(b: Builder, table: Value, indices: Value, offset: int = 0) -> Value:
    """Rows of a table by index less an offset; zeros for indices outside of it."""
    places = indices_of(b, indices)
    places = b.op("Sub", [places, b.scalar(offset, places)]) if offset else places
    rows = b.cast(b.value(b.dim(table, 0)), places.dtype)
    outside = b.op(
        "Or", [b.op("Less", [places, b.scalar(0, places)]), b.op("GreaterOrEqual", [places, rows])]
    )
    safe = b.op("Where", [outside, b.scalar(0, places), places])
    found = b.op("Gather", [table, safe], {"axis": 0})
    return b.op("Where", [b.unsqueeze(outside, [known_rank(places)]), b.scalar(0, found), found])


@primitive("GatherD", "GatherDExt")
def gather_d(b: Builder, x: Value, dim: Axis, index: Value) -> Value:
    """For each element the place along one axis."""
    return b.op("GatherElements", [x, indices_of(b, index)], {"axis": dim})


@primitive("GatherNd", "GatherNdExt")
def gather_nd(b: Builder, x: Value, indices: Value) -> Value:
    """By index vectors along the first axes."""
    return b.op("GatherND", [x, b.cast(indices, INT64)])


@primitive("IndexSelect")
def index_select(b: Builder, x: Value, dim: int, index: Value) -> Value:
    """Places along an axis."""
    return _gather(b, x, index, dim)


@primitive("Take")
def take(b: Builder, x: Value, index: Value) -> Value:
    """Places in the flattened tensor."""
    return _gather(b, b.reshape(x, (-1,)), index, 0)


@primitive("Index")
def index_tensors(b: Builder, x: Value, indices: Operand) -> Value:
    """One index tensor for each of the first axes, broadcast against one another; a mask counts its axes."""
    found = tensors(indices, "the indices")
    places: list[Value] = []
    for item in found:
        if item.dtype == np.bool_:
            rows = b.op("NonZero", [item])
            count = known_rank(item)
            places += [b.reshape(b.op("Gather", [rows, b.const([k], np.int64)], {"axis": 0}), (-1,))
                       for k in range(count)]  # fmt: skip
        else:
            places.append(b.cast(item, INT64))
    shape = b.op("Shape", [places[0]])
    if len(places) > 1:
        total = places[0]
        for item in places[1:]:
            total = b.op("Add", [total, item])
        shape = b.op("Shape", [total])
    spread = [b.op("Expand", [item, shape]) for item in places]
    vectors = b.op("Concat", [b.op("Unsqueeze", [item, b.ints((-1,))]) for item in spread], {"axis": -1})
    return b.op("GatherND", [x, vectors])
