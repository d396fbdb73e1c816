"""Reductions: kept axes may be split, and sums over a split axis are partial sums."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial

import numpy as np

from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    axes_parameter,
    axis_attribute,
    floating,
    moved,
    option,
    partial_option,
    rank_of,
    splits,
    summable,
)
from sharding.slices.placement import PARTIAL

SUMS = ("ReduceSum", "ReduceL1", "ReduceSumSquare")


def _kept(node: NodeView, reduced: Collection[int]) -> list[Option]:
    left = [axis for axis in range(rank_of(node) or 0) if axis not in reduced]
    keepdims = bool(node.attributes.get("keepdims", 1))
    return moved(node, {axis: axis if keepdims else place for place, axis in enumerate(left)})


@rule(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
def reduce(node: NodeView) -> list[Option]:
    """No axes: all of them, unless ``noop_with_empty_axes``."""
    shape, axes = node.shapes[0], axes_parameter(node, 1)
    if shape is None or axes is None:
        return []
    reduced = sorted(set(axes))
    if not axes and not node.attributes.get("noop_with_empty_axes", 0):
        reduced = list(range(len(shape)))
    options = _kept(node, reduced)
    if node.op_type in SUMS and summable(node.dtypes[0]):
        options += [option(node, {0: split}, PARTIAL) for split in splits(node, shape, reduced)]
    if node.op_type == "ReduceMean" and floating(node.dtypes[0]):
        emit = partial(_mean, node)
        options += [option(node, {0: split}, PARTIAL, emit) for split in splits(node, shape, reduced)]
    if node.op_type == "ReduceSum" or (node.op_type == "ReduceMean" and floating(node.dtypes[0])):
        options += partial_option(node)
    return options


def _mean(node: NodeView, e: Emitter, values: Values) -> list[Value]:
    """The whole mean is the mean of the parts' means."""
    return e.op("Div", [e.copy(values)[0], e.constant(np.asarray(e.world, dtype=node.dtypes[0]))])


@rule("ArgMax", "ArgMin")
def arg_reduce(node: NodeView) -> list[Option]:
    """All axes but the reduced one."""
    axis = axis_attribute(node, 0)
    return [] if axis is None else _kept(node, [axis])
