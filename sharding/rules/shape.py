"""Shape and Size of a value that is not whole: the part's length times the ranks is the whole length."""

from __future__ import annotations

from functools import partial

import numpy as np

from sharding.rules.base import Emit, Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import int64, option, splits, summable
from sharding.slices.placement import PARTIAL, REPLICATED


@rule("Shape", "Size")
def shape_of_value(node: NodeView) -> list[Option]:
    """So that arithmetic with shapes needs no gathering of the value itself."""
    shape = node.shapes[0]
    if shape is None:
        return []
    rank = len(shape)
    start, end, _ = slice(node.attributes.get("start"), node.attributes.get("end")).indices(rank)
    options = []
    for split in splits(node, shape):
        emit: Emit | None = None
        if node.op_type == "Size":
            emit = _whole_size
        elif start <= split.axis < end:
            emit = partial(_whole_shape, split.axis - start, end - start)
        options.append(option(node, {0: split}, REPLICATED, emit, divides_work=False))
    if summable(node.dtypes[0]):
        options.append(option(node, {0: PARTIAL}, REPLICATED, divides_work=False))
    return options


def _whole_shape(position: int, length: int, e: Emitter, values: Values) -> list[Value]:
    factors = [e.world if i == position else 1 for i in range(length)]
    return e.op("Mul", [e.copy(values)[0], int64(e, factors)])


def _whole_size(e: Emitter, values: Values) -> list[Value]:
    return e.op("Mul", [e.copy(values)[0], e.constant(np.asarray(e.world, dtype=np.int64))])
