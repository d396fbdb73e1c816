"""Gather and its kin."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from sharding.placement import PARTIAL, Split
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import Values, axis_attribute, int64, option, partial_option, splits, summable


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
    if axis is None or (len(table) == 1 and node.dtypes[0] is not None and node.dtypes[0].kind in "iu"):
        return []  # shape arithmetic
    options = []
    for split in splits(node, table):
        if split.axis != axis:
            out_axis = split.axis if split.axis < axis else split.axis - 1 + len(indices)
            options.append(option(node, {0: split}, Split(out_axis, split.blocks)))
    for split in splits(node, indices):
        options.append(option(node, {1: split}, Split(axis + split.axis, split.blocks)))
    vocabulary = table[axis]
    if isinstance(vocabulary, int) and node.divisible(vocabulary) and summable(node.dtypes[0]):
        emit = partial(_emit_masked, node, vocabulary // node.world, len(table) - axis - 1)
        options.append(option(node, {0: Split(axis)}, PARTIAL, emit))
    return options + partial_option(node)


def _emit_masked(node: NodeView, rows: int, trailing: int, e: Emitter, values: Values) -> list[Any]:
    """Rank r holds rows r * rows to (r + 1) * rows; negative indices count from the end."""
    kind = node.dtypes[1] or np.dtype(np.int64)

    def number(value: int) -> Any:
        return e.constant(np.asarray(value, dtype=kind))

    indices = values[1]
    negative = e.op("Less", [indices, number(0)])[0]
    counted = e.op("Where", [negative, e.op("Add", [indices, number(rows * e.world)])[0], indices])[0]
    local = e.op("Sub", [counted, number(rows * e.rank)])[0]
    low = e.op("Less", [local, number(0)])[0]
    high = e.op("Less", [number(rows - 1), local])[0]
    outside = e.op("Or", [low, high])[0]
    found = e.copy([values[0], e.op("Where", [outside, number(0), local])[0]])[0]
    for _ in range(trailing):
        outside = _append_axis(node.version, e, outside)
    return e.op("Where", [outside, e.constant(np.zeros((), dtype=node.dtypes[0])), found])


def _append_axis(version: int, e: Emitter, value: Any) -> Any:
    if version < 13:
        return e.op("Unsqueeze", [value], axes=[-1])[0]
    return e.op("Unsqueeze", [value, int64(e, [-1])])[0]
