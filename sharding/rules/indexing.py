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
    option,
    partial_option,
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
    axis = axis_attribute(node, 0, len(table))
    # Integers of one axis are shape arithmetic.
    if axis is None or (len(table) == 1 and node.dtypes[0] is not None and node.dtypes[0].kind in "iu"):
        return []
    options = []
    for split in splits(node, table):
        if split.axis != axis:
            out_axis = split.axis if split.axis < axis else split.axis - 1 + len(indices)
            options.append(option(node, {0: split}, Split(out_axis, split.blocks)))
    for split in splits(node, indices):
        options.append(option(node, {1: split}, Split(axis + split.axis, split.blocks)))
    vocabulary = table[axis]
    if isinstance(vocabulary, int) and node.divisible(vocabulary) and summable(node.dtypes[0]):
        emit = partial(_emit_vocabulary, node, axis)
        options.append(option(node, {0: Split(axis)}, PARTIAL, emit))
    return options + partial_option(node)


def _emit_vocabulary(node: NodeView, axis: int, e: Emitter, values: Values) -> list[Value]:
    """Rank r holds rows r * rows to (r + 1) * rows; negative indices count from the end.

    Which rank holds a row is looked up in a table as long as the whole axis: that lookup refuses on every
    rank what the whole model's would, in the same words.
    """
    table, indices = node.shapes[0] or (), values[1]
    vocabulary, trailing = table[axis], len(table) - axis - 1
    assert isinstance(vocabulary, int)
    rows = vocabulary // e.world
    mine = np.zeros(vocabulary, bool)
    mine[e.rank * rows : (e.rank + 1) * rows] = True
    held = e.op("Gather", [e.constant(mine), indices])[0]
    kind = node.dtypes[1] or np.dtype(np.int64)

    def number(value: int) -> Value:
        return e.constant(np.asarray(value, dtype=kind))

    if e.version >= MOD_OPSET:
        local = e.op("Mod", [indices, number(rows)])[0]  # as many for every rank; of negative ones, too
    else:
        negative = e.op("Less", [indices, number(0)])[0]
        counted = e.op("Where", [negative, e.op("Add", [indices, number(vocabulary)])[0], indices])[0]
        local = e.op("Sub", [counted, number(rows * e.rank)])[0]
    # What others hold is read from one row, which is at hand then.
    found = e.copy([values[0], e.op("Where", [held, local, number(0)])[0]])[0]
    if trailing:
        held = _append_axes(node, e, held, trailing)
    return e.op("Where", [held, found, e.constant(np.zeros((), dtype=node.dtypes[0]))])


def _emit_masked(node: NodeView, axis: int, kind: DType | None, e: Emitter, values: Values) -> list[Value]:
    """The same, with zeros for what lies beyond the whole axis, as GatherBlockQuantized gives them."""
    table = node.shapes[0] or ()
    vocabulary, trailing = table[axis], len(table) - axis - 1
    assert isinstance(vocabulary, int)
    rows = vocabulary // e.world
    whole = node.dtypes[1] or np.dtype(np.int64)

    def number(value: int) -> Value:
        return e.constant(np.asarray(value, dtype=whole))

    indices = values[1]
    negative = e.op("Less", [indices, number(0)])[0]
    counted = e.op("Where", [negative, e.op("Add", [indices, number(rows * e.world)])[0], indices])[0]
    local = e.op("Sub", [counted, number(rows * e.rank)])[0]
    low = e.op("Less", [local, number(0)])[0]
    high = e.op("Less", [number(rows - 1), local])[0]
    outside = e.op("Or", [low, high])[0]
    found = e.copy([values[0], e.op("Where", [outside, number(0), local])[0], *values[2:]])[0]
    if trailing:
        outside = _append_axes(node, e, outside, trailing)
    return e.op("Where", [outside, e.constant(np.zeros((), dtype=kind)), found])


def _append_axes(node: NodeView, e: Emitter, value: Value, count: int) -> Value:
    rank = len(node.shapes[1] or ())
    axes = list(range(rank, rank + count))
    if e.version < 13:
        return e.op("Unsqueeze", [value], axes=axes)[0]
    return e.op("Unsqueeze", [value, int64(e, axes)])[0]


@rule("GatherBlockQuantized", domain=MICROSOFT)
def gather_block_quantized(node: NodeView) -> list[Option]:
    """A table, indices, one scale per block of ``quantize_axis``, zero points; the output is dequantized.

    As Gather. Two 4-bit numbers share a byte of an 8-bit table, and then of the zero points too: a rank holds
    whole bytes and whole blocks.
    """
    table, indices, scales, points = (shape_of(node, i) for i in range(4))
    if table is None or indices is None or scales is None or len(scales) != len(table):
        return []
    axis = axis_attribute(node, 0, len(table), "gather_axis")
    blocked = axis_attribute(node, 1, len(table), "quantize_axis")
    if axis is None or blocked is None or (points is None and not absent(node, 3)):
        return []
    bits, kind = integer(node.attributes, "bits", 4), node.dtypes[0]
    packed = 2 if bits == 4 and kind is not None and kind.name == "uint8" else 1
    held = [0, 2, *([3] if points is not None else [])]
    options = []
    for split in splits(node, table):
        if split.axis == axis:
            continue
        if split.axis == blocked:
            size, count = integer(node.attributes, "block_size", 128), scales[blocked]
            whole = isinstance(count, int) and table[blocked] == count * size // packed
            if not whole or not node.divisible(count, split.blocks * (packed if points is not None else 1)):
                continue
        out_axis = split.axis if split.axis < axis else split.axis - 1 + len(indices)
        options.append(option(node, dict.fromkeys(held, split), Split(out_axis, split.blocks)))
    for split in splits(node, indices):
        options.append(option(node, {1: split}, Split(axis + split.axis, split.blocks)))
    vocabulary = table[axis]
    if (
        axis != blocked
        and isinstance(vocabulary, int)
        and node.divisible(vocabulary)
        and summable(node.dtypes[2])
    ):
        emit = partial(_emit_masked, node, axis, node.dtypes[2])
        options.append(option(node, dict.fromkeys(held, Split(axis)), PARTIAL, emit))
    return options


@rule("GatherElements")
def gather_elements(node: NodeView) -> list[Option]:
    """Indices split along ``axis`` (the data whole), or both on another axis where they are equally long."""
    data, indices = node.shapes[0], node.shapes[1]
    if data is None or indices is None or len(data) != len(indices):
        return []
    axis = axis_attribute(node, 0, len(data))
    options = []
    for split in splits(node, indices):
        if split.axis == axis:
            options.append(option(node, {1: split}, split))
        elif data[split.axis] == indices[split.axis]:
            options.append(option(node, {0: split, 1: split}, split))
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
        if split.axis >= batch:
            options.append(option(node, {1: split}, split))
        elif data[split.axis] == indices[split.axis]:
            options.append(option(node, {0: split, 1: split}, split))
    depth = indices[-1]
    if isinstance(depth, int):
        for split in splits(node, data, range(batch + depth, len(data))):
            out_axis = len(indices) - 1 + split.axis - batch - depth
            options.append(option(node, {0: split}, Split(out_axis, split.blocks)))
    return options + partial_option(node)


rule("GatherND", domain=MICROSOFT)(gather_nd)


@rule("Scatter", "ScatterElements")
def scatter_elements(node: NodeView) -> list[Option]:
    """Data, indices and updates split on another axis where all three are equally long."""
    data, indices = node.shapes[0], node.shapes[1]
    if data is None or indices is None or len(data) != len(indices):
        return []
    axis = axis_attribute(node, 0, len(data))
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
    shape = node.shapes[0]
    axis = None if shape is None else axis_attribute(node, -2, len(shape))
    if shape is None or axis is None:
        return []
    options = []
    for split in splits(node, shape):
        if split.axis != axis:
            where = {2: Split(0, split.blocks)} if split.axis == 0 and not absent(node, 2) else {}
            options.append(option(node, {0: split, 1: split} | where, split))
    return options + partial_option(node, (0, 1))


@rule("OneHot")
def one_hot(node: NodeView) -> list[Option]:
    """A new axis at ``axis``; those of the indices may be split."""
    indices = node.shapes[0]
    axis = None if indices is None else axis_attribute(node, -1, len(indices) + 1)
    if indices is None or axis is None:
        return []
    return [
        option(node, {0: split}, Split(split.axis + (split.axis >= axis), split.blocks))
        for split in splits(node, indices)
    ]
