"""Gather and its kin.

ONNX Runtime refuses an index beyond its axis, and so must all ranks together (see also
`sharding.search.refusals`): where the indexed axis is cut, each rank checks all indices against the whole
axis.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from sharding.common.arrays import DType
from sharding.onnx_files.attributes import integer
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    absent,
    axis_attribute,
    int64,
    moved,
    option,
    partial_option,
    rank_of,
    shape_of,
    splits,
    summable,
)
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL, Split

MOD_OPSET = 10


@rule("Gather")
def gather(node: NodeView) -> list[Option]:
    """The output has the indices' axes in place of ``axis``.

    The table may be split on another axis, the indices on any; with the table split on ``axis`` itself (a
    vocabulary) each rank looks up what it holds and gives zeros for the rest.
    """
    table, indices = node.shapes[0], node.shapes[1]
    if table is None or indices is None:
        return []
    axis = axis_attribute(node, 0)
    # Integers of one axis are shape arithmetic.
    if axis is None or (len(table) == 1 and node.dtypes[0] is not None and node.dtypes[0].kind in "iu"):
        return []
    whole = _moved_by(len(indices), axis, len(table))
    options = moved(node, whole) + moved(node, {own: axis + own for own in range(len(indices))}, 1)
    if node.divisible(table[axis]) and summable(node.dtypes[0]):
        emit = partial(_emit_vocabulary, node, axis)
        options.append(option(node, {0: Split(axis)}, PARTIAL, emit))
    return options + partial_option(node)


def _moved_by(indices: int, axis: int, rank: int) -> dict[int, int]:
    """Where the axes of a table lie that are not indexed: the indices' own are in place of ``axis``."""
    return {own: own if own < axis else own - 1 + indices for own in range(rank) if own != axis}


def _emit_vocabulary(node: NodeView, axis: int, e: Emitter, values: Values) -> list[Value]:
    """Rank r holds rows r * rows to (r + 1) * rows; negative indices count from the end.

    Which rank holds a row is looked up in a table as long as the whole axis: that lookup refuses on every
    rank what the whole model's would, in the same words.
    """
    rows, indices = _Rows(node, axis, e), values[1]
    mine = np.zeros(rows.count * e.world, bool)
    mine[e.rank * rows.count : (e.rank + 1) * rows.count] = True
    held = e.op("Gather", [e.constant(mine), indices])[0]
    if e.version >= MOD_OPSET:
        local = e.op("Mod", [indices, rows.number(rows.count)])[
            0
        ]  # as many for every rank; of negative ones, too
    else:
        local = rows.local(indices)
    # What others hold is read from one row, which is at hand then.
    found = e.copy([values[0], e.op("Where", [held, local, rows.number(0)])[0]])[0]
    return e.op("Where", [rows.spread(held), found, e.constant(np.zeros((), dtype=node.dtypes[0]))])


def _emit_masked(node: NodeView, axis: int, kind: DType | None, e: Emitter, values: Values) -> list[Value]:
    """The same, with zeros for what lies beyond the whole axis, as GatherBlockQuantized gives them."""
    rows = _Rows(node, axis, e)
    local = rows.local(values[1])
    low = e.op("Less", [local, rows.number(0)])[0]
    high = e.op("Less", [rows.number(rows.count - 1), local])[0]
    outside = e.op("Or", [low, high])[0]
    found = e.copy([values[0], e.op("Where", [outside, rows.number(0), local])[0], *values[2:]])[0]
    return e.op("Where", [rows.spread(outside), e.constant(np.zeros((), dtype=kind)), found])


class _Rows:
    """The rows of a table that a rank holds."""

    def __init__(self, node: NodeView, axis: int, e: Emitter) -> None:
        length = (node.shapes[0] or ())[axis]
        assert isinstance(length, int)
        self.node, self.e, self.count = node, e, length // e.world
        self.trailing = len(node.shapes[0] or ()) - axis - 1

    def number(self, value: int) -> Value:
        """A number of the indices' type."""
        return self.e.constant(np.asarray(value, dtype=self.node.dtypes[1] or np.dtype(np.int64)))

    def local(self, indices: Value) -> Value:
        """Indices counted from this rank's first row."""
        e = self.e
        negative = e.op("Less", [indices, self.number(0)])[0]
        counted = e.op("Add", [indices, self.number(self.count * e.world)])[0]
        own = e.op("Where", [negative, counted, indices])[0]
        return e.op("Sub", [own, self.number(self.count * e.rank)])[0]

    def spread(self, value: Value) -> Value:
        """What there is for each index, for each element of its row."""
        rank = len(self.node.shapes[1] or ())
        axes = list(range(rank, rank + self.trailing))
        if not axes:
            return value
        if self.e.version < 13:
            return self.e.op("Unsqueeze", [value], axes=axes)[0]
        return self.e.op("Unsqueeze", [value, int64(self.e, axes)])[0]


@rule("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: NodeView) -> list[Option]:
    """A table, indices, one scale per block of ``quantize_axis``, zero points; the output is dequantized.

    As Gather. Two 4-bit numbers share a byte of an 8-bit table, and then of the zero points too: a rank holds
    whole bytes and whole blocks.
    """
    table, indices, scales, points = (shape_of(node, i) for i in range(4))
    if table is None or indices is None or scales is None or len(scales) != len(table):
        return []
    axis, blocked = axis_attribute(node, 0, "gather_axis"), axis_attribute(node, 1, "quantize_axis")
    if axis is None or blocked is None or (points is None and not absent(node, 3)):
        return []
    bits, kind = integer(node.attributes, "bits", 4), node.dtypes[0]
    packed = 2 if bits == 4 and kind is not None and kind.name == "uint8" else 1
    places = _moved_by(len(indices), axis, len(table))
    options = []
    for split in splits(node, table, places):
        if split.axis == blocked:
            size, count = integer(node.attributes, "block_size", 128), scales[blocked]
            whole = isinstance(count, int) and table[blocked] == count * size // packed
            if not whole or not node.divisible(count, split.blocks * (packed if points is not None else 1)):
                continue
        out = Split(places[split.axis], split.blocks)
        options.append(option(node, dict.fromkeys((0, 2, 3), split), out))
    options += moved(node, {own: axis + own for own in range(len(indices))}, 1)
    if axis != blocked and node.divisible(table[axis]) and summable(node.dtypes[2]):
        emit = partial(_emit_masked, node, axis, node.dtypes[2])
        options.append(option(node, dict.fromkeys((0, 2, 3), Split(axis)), PARTIAL, emit))
    return options


@rule("GatherElements")
def gather_elements(node: NodeView) -> list[Option]:
    """Indices split along ``axis`` (the data whole), or both on another axis where they are equally long."""
    data, indices = node.shapes[0], node.shapes[1]
    if data is None or indices is None or len(data) != len(indices):
        return []
    axis = axis_attribute(node, 0)
    options = []
    for split in splits(node, indices):
        if split.axis == axis or data[split.axis] == indices[split.axis]:
            parts = {1: split} if split.axis == axis else {0: split, 1: split}
            options.append(option(node, parts, split))
    return options + partial_option(node)


@rule("GatherND")
def gather_nd(node: NodeView) -> list[Option]:
    """Indices [batch..., ..., depth]: axes but the last, batch axes in both, data axes not indexed."""
    data, indices = node.shapes[0], node.shapes[1]
    batch = integer(node.attributes, "batch_dims", 0)
    if data is None or indices is None or not indices:
        return []
    options = []
    for split in splits(node, indices, range(len(indices) - 1)):
        if split.axis >= batch or data[split.axis] == indices[split.axis]:
            parts = {1: split} if split.axis >= batch else {0: split, 1: split}
            options.append(option(node, parts, split))
    depth = indices[-1]
    if isinstance(depth, int):
        first = batch + depth
        options += moved(node, {own: len(indices) - 1 + own - first for own in range(first, len(data))})
    return options + partial_option(node)


rule("GatherND", domain=MICROSOFT)(gather_nd)


@rule("Scatter", "ScatterElements")
def scatter_elements(node: NodeView) -> list[Option]:
    """Data, indices and updates split on another axis where all three are equally long."""
    data, indices = node.shapes[0], node.shapes[1]
    if data is None or indices is None or len(data) != len(indices):
        return []
    axis = axis_attribute(node, 0)
    return [
        option(node, dict.fromkeys(range(3), split), split)
        for split in splits(node, data)
        if split.axis != axis and data[split.axis] == indices[split.axis]
    ]


@rule("ScatterND")
def scatter_nd(node: NodeView) -> list[Option]:
    """Data axes that are not indexed, together with the updates' axes they are written from."""
    data, indices = node.shapes[0], node.shapes[1]
    depth = indices[-1] if indices else None
    if data is None or indices is None or not isinstance(depth, int):
        return []
    return [
        option(node, {0: split, 2: Split(len(indices) - 1 + split.axis - depth, split.blocks)}, split)
        for split in splits(node, data, range(depth, len(data)))
    ]


@rule("TensorScatter")
def tensor_scatter(node: NodeView) -> list[Option]:
    """A cache, what is written to it along ``axis``, and from where, one number per place on axis 0."""
    axis = axis_attribute(node, -2)
    if axis is None:
        return []
    options = []
    for split in splits(node, node.shapes[0]):
        if split.axis != axis:
            where = {2: Split(0, split.blocks)} if split.axis == 0 else {}
            options.append(option(node, {0: split, 1: split} | where, split))
    return options + partial_option(node, (0, 1))


@rule("OneHot")
def one_hot(node: NodeView) -> list[Option]:
    """A new axis at ``axis``; those of the indices may be split."""
    axis = axis_attribute(node, -1, added=1)
    return (
        [] if axis is None else moved(node, {own: own + (own >= axis) for own in range(rank_of(node) or 0)})
    )
