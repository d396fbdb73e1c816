"""Reductions: kept axes may be split, and sums over a split axis are partial sums."""

from __future__ import annotations

import numpy as np

from sharding.onnx_files.attributes import integer
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    axes_parameter,
    floating,
    normalized,
    option,
    partial_option,
    splits,
    summable,
)
from sharding.slices.placement import PARTIAL, Split

SUMS = ("ReduceSum", "ReduceL1", "ReduceSumSquare")
LINEAR = ("ReduceSum", "ReduceMean")


def _kept(node: NodeView, reduced: set[int], keepdims: bool) -> list[Option]:
    shape = node.shapes[0] or ()
    kept = [axis for axis in range(len(shape)) if axis not in reduced]
    return [
        option(node, {0: split}, split if keepdims else Split(kept.index(split.axis), split.blocks))
        for split in splits(node, shape, kept)
    ]


@rule(
    *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
    *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
)
def reduce(node: NodeView) -> list[Option]:
    """No axes: all of them, unless ``noop_with_empty_axes``."""
    shape = node.shapes[0]
    axes = None if shape is None else axes_parameter(node, 1, len(shape))
    if shape is None or axes is None:
        return []
    reduced = set(axes)
    if not axes and not node.attributes.get("noop_with_empty_axes", 0):
        reduced = set(range(len(shape)))
    options = _kept(node, reduced, bool(node.attributes.get("keepdims", 1)))
    if node.op_type in SUMS and summable(node.dtypes[0]):
        options += [option(node, {0: split}, PARTIAL) for split in splits(node, shape, sorted(reduced))]
    if node.op_type == "ReduceMean" and floating(node.dtypes[0]):
        for split in splits(node, shape, sorted(reduced)):
            options.append(option(node, {0: split}, PARTIAL, lambda e, values: _mean(node, e, values)))
    if node.op_type in LINEAR and (node.op_type == "ReduceSum" or floating(node.dtypes[0])):
        options += partial_option(node)
    return options


def _mean(node: NodeView, e: Emitter, values: Values) -> list[Value]:
    """The whole mean is the mean of the parts' means."""
    return e.op("Div", [e.copy(values)[0], e.constant(np.asarray(e.world, dtype=node.dtypes[0]))])


@rule("ArgMax", "ArgMin")
def arg_reduce(node: NodeView) -> list[Option]:
    """All axes but the reduced one."""
    shape = node.shapes[0]
    axis = None if shape is None else normalized(integer(node.attributes, "axis", 0), len(shape))
    if axis is None:
        return []
    return _kept(node, {axis}, bool(node.attributes.get("keepdims", 1)))
