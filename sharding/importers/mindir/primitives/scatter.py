"""Putting elements by place."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import INT64, Builder, Number, is_float, known_rank

REDUCE = ("none", "add")


def _scatter_nd(b: Builder, x: Value, indices: Value, updates: Value, reduction: str) -> Value:
    first, second = b.promoted(x, updates)
    wide, other = b.computable(first), b.computable(second)
    return b.op("ScatterND", [wide, b.cast(indices, INT64), other], {"reduction": reduction})


@table({f"TensorScatter{kind}": kind.lower() for kind in ("Add", "Mul", "Max", "Min")} | {
    "TensorScatterUpdate": "none",
})  # fmt: skip
def tensor_scatter(reduction: str, b: Builder, x: Value, indices: Value, updates: Value) -> Value:
    """By index vectors along the first axes."""
    return _scatter_nd(b, x, indices, updates, reduction)


@primitive("TensorScatterDiv")
def tensor_scatter_div(b: Builder, x: Value, indices: Value, updates: Value) -> Value:
    """Divided by index vectors along the first axes."""
    if not is_float(x.dtype):
        raise RefusedError("integers divided by place have no conversion")
    return _scatter_nd(b, x, indices, b.op("Reciprocal", [b.computable(updates)]), "mul")


@primitive("TensorScatterSub")
def tensor_scatter_sub(b: Builder, x: Value, indices: Value, updates: Value) -> Value:
    """Taken away by index vectors along the first axes."""
    return _scatter_nd(b, x, indices, b.op("Neg", [b.computable(updates)]), "add")


@primitive("ScatterNd")
def scatter_nd(b: Builder, indices: Value, updates: Value, shape: Operand) -> Value:
    """Added by index vectors to zeros in a shape."""
    wide = b.computable(updates)
    return _scatter_nd(b, b.filled(shape, 0, wide.dtype), indices, wide, "add")


def _elements(b: Builder, x: Value, axis: int, index: Value, updates: Value, reduction: str) -> Value:
    first, second = b.promoted(x, updates)
    places = index if index.dtype == INT64 else b.cast(index, INT64)
    attributes = {"axis": b.axis(axis, x), "reduction": reduction}
    return b.op("ScatterElements", [b.computable(first), places, b.computable(second)], attributes)


@primitive("TensorScatterElements")
def tensor_scatter_elements(
    b: Builder,
    x: Value,
    indices: Value,
    updates: Value,
    *,
    axis: int = 0,
    reduce: Operand = None,
    reduction: Operand = "none",
) -> Value:
    """For each element the place along one axis."""
    kind = b.text(reduction if reduce is None else reduce, "reduce", REDUCE)
    return _elements(b, x, axis, indices, updates, kind)


@primitive("ScatterAddExt")
def scatter_add(b: Builder, x: Value, dim: int, index: Value, src: Value) -> Value:
    """Added, for each element the place along one axis."""
    return _elements(b, x, dim, index, _corner(b, src, index), "add")


def _corner(b: Builder, src: Value, index: Value) -> Value:
    """The part of the updates that the indices speak of."""
    if src.shape == index.shape and src.shape is not None and None not in src.shape:
        return src
    axes = tuple(range(known_rank(src)))
    return b.op("Slice", [src, b.ints((0,) * len(axes)), b.op("Shape", [index]), b.ints(axes)])


@primitive("Scatter")
def scatter(b: Builder, x: Value, dim: int, index: Value, src: Value, *, reduce: Operand = "none") -> Value:
    """Put or added, for each element the place along one axis."""
    kind = b.text(reduce, "reduce", REDUCE)
    return _elements(b, x, dim, index, _corner(b, src, index), kind)


@primitive("ScatterValue")
def scatter_value(
    b: Builder, x: Value, dim: int, index: Value, src: Operand, *, reduce: Operand = "none"
) -> Value:
    """One number put or added, for each element the place along one axis."""
    updates = b.full_like(index, src if isinstance(src, Value) else b.number(src, "src"), x.dtype)
    return _elements(b, x, dim, index, updates, b.text(reduce, "reduce", REDUCE))


def _rows(b: Builder, x: Value, axis: int, index: Value, source: Value, reduction: str) -> Value:
    """Whole places along one axis."""
    place = b.axis(axis, x)
    front = b.moved(x, place, 0)
    rows = b.unsqueeze(b.reshape(b.cast(index, INT64), (-1,)), [1])
    return b.moved(_scatter_nd(b, front, rows, b.moved(source, place, 0), reduction), 0, place)


@primitive("IndexAddExt")
def index_add_ext(b: Builder, x: Value, dim: int, index: Value, source: Value, *, alpha: Number = 1) -> Value:
    """Added at places along one axis."""
    if alpha != 1:
        wide = b.computable(source)
        source = b.op("Mul", [wide, b.scalar(alpha, wide)])
    return _rows(b, x, dim, index, source, "add")


@primitive("IndexAdd")
def index_add(b: Builder, x: Value, index: Value, source: Value, *, axis: int = 0) -> Value:
    """Added at places along one axis. Of a parameter, only the result is kept."""
    return _rows(b, x, axis, index, source, "add")


@primitive("IndexFill", "IndexFillScalar", "IndexFillTensor")
def index_fill(b: Builder, x: Value, dim: int, index: Value, value: Operand) -> Value:
    """One number at places along one axis."""
    place = b.axis(dim, x)
    filler = b.cast(b.value(value, None if isinstance(value, Value) else x.dtype), x.dtype)
    flat = b.cast(b.reshape(index, (-1,)) if index.rank != 1 else index, INT64)
    lengths = b.lengths(x)
    count = b.dim(flat, 0)
    shape = (*lengths[:place], count, *lengths[place + 1 :])
    return _rows(b, x, place, flat, b.op("Expand", [filler, b.ints(shape)]), "none")


def _segments(b: Builder, x: Value, ids: Value, count: Operand, start: float, reduction: str) -> Value:
    """Rows gathered into segments. Negative ids go into a further row, which is dropped."""
    wide = b.computable(x)
    places = b.cast(ids, INT64)
    total, asked = b.ints(count), b.known_ints(count)
    if asked is not None and min(asked, default=0) < 0:  # with which ONNX Runtime writes beyond its memory
        raise RefusedError(f"num_segments must not be negative, found {min(asked)}")
    whole = b.single(total, INT64)
    places = b.op("Where", [b.op("Less", [places, b.const(0, np.int64)]), whole, places])
    rest = b.lengths(wide)
    more = b.op("Add", [total, b.const([1], np.int64)])
    known = b.known_ints(more)
    shape = (known[0] if known else b.single(more, INT64), *rest[known_rank(ids) :])
    vectors = b.unsqueeze(places, [known_rank(places)])
    found = _scatter_nd(b, b.filled(shape, start, wide.dtype), vectors, wide, reduction)
    return b.op("Slice", [found, b.ints((0,)), total, b.ints((0,))])


@table({"UnsortedSegmentSum": (0, "add"), "UnsortedSegmentProd": (1, "mul")})
def segment_fold(row: tuple[int, str], b: Builder, x: Value, ids: Value, count: Operand) -> Value:
    """The sum or the product of each segment's rows."""
    return _segments(b, x, ids, count, *row)


def _limit(x: Value, largest: bool) -> float:
    if is_float(x.dtype):
        limits = np.finfo(x.dtype if x.dtype.kind == "f" else np.float32)
        return float(limits.max if largest else limits.min)
    if x.dtype.kind not in "iu":
        raise RefusedError(f"segments of {x.dtype} have no extremes")
    bounds = np.iinfo(x.dtype)
    return int(bounds.max if largest else bounds.min)


@table({"UnsortedSegmentMax": "max", "UnsortedSegmentMin": "min"})
def segment_extreme(kind: str, b: Builder, x: Value, ids: Value, count: Operand) -> Value:
    """The largest or the smallest of each segment's rows; for none, the number at the other end."""
    return _segments(b, x, ids, count, _limit(x, kind == "min"), kind)
