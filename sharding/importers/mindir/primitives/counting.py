"""What occurs, and how often."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import ABSENT, Absent, Node, Operand, Value, primitive
from sharding.importers.mindir.primitives.indexing import END
from sharding.importers.mindir.primitives.operands import INT64, Axis, Builder, is_float, known_rank


def _sortable(b: Builder, x: Value) -> Value:
    """In a type that ONNX Runtime compares."""
    return b.computable(x) if is_float(x.dtype) else b.cast(x, INT64)


@primitive("Unique2")
def unique_of_all(
    b: Builder, x: Value, *, sorted: Operand = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Value | Absent, ...]:
    """What occurs, in order; where each element is in that; how often each occurs."""
    values, _, inverse, counts = b.ops("Unique", [_sortable(b, x)], {"sorted": 1}, outputs=4)
    return (
        values,
        b.reshape(inverse, b.shape_of(x)) if return_inverse else ABSENT,
        counts if return_counts else ABSENT,
    )


@primitive("UniqueDim")
def unique_along(
    b: Builder, x: Value, *, sorted: Operand = True, return_inverse: Operand = False, dim: Axis = 0
) -> Operand:
    """The same of the parts along an axis."""
    attributes = {"sorted": 1, "axis": dim}
    values, _, inverse, counts = b.ops("Unique", [_sortable(b, x)], attributes, outputs=4)
    return values, inverse, counts


@primitive("UniqueConsecutive")
def unique_consecutive(
    b: Builder,
    node: Node,
    x: Value,
    *,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: Operand = None,
) -> tuple[Value | Absent, ...]:
    """Equal neighbours as one; which of these each element is in; how many each is."""
    along = node.attributes.get("axis", dim) if dim is None else dim
    line = b.reshape(x, (-1,)) if along is None else x
    axis = 0 if along is None else b.axis(b.integer(along, "dim"), x)
    place, first, one = b.ints((axis,)), b.ints((0,)), b.ints((1,))
    later = b.op("Slice", [line, one, b.ints((END,)), place])
    earlier = b.op("Slice", [line, first, b.ints((-1,)), place])
    wide = [_sortable(b, item) for item in (later, earlier)]
    differs = b.op("Not", [b.op("Equal", wide)])
    others = [item for item in range(known_rank(line)) if item != axis]
    if others:
        amount = b.op("ReduceMax", [b.cast(differs, np.int32), b.ints(tuple(others))], {"keepdims": 0})
        differs = b.cast(amount, np.bool_)
    length = b.reshape(b.ints(b.dim(line, axis)), (1,))
    # The first of all, where there is one.
    start = b.op("Expand", [b.const(True), b.op("Min", [length, one])])
    begins = b.op("Concat", [start, differs], {"axis": 0})
    values = b.op("Compress", [line, begins], {"axis": axis})
    number_ = b.op("Sub", [b.op("CumSum", [b.cast(begins, INT64), b.const(0, np.int64)]), 1])
    if along is None:
        number_ = b.reshape(number_, b.shape_of(x))
    places = b.reshape(b.op("NonZero", [begins]), (-1,))
    following = b.op("Concat", [b.op("Slice", [places, one, b.ints((END,)), first]), length], {"axis": 0})
    ends = b.op("Slice", [following, first, b.op("Shape", [places]), first])
    counts = b.op("Sub", [ends, places])
    return values, number_ if return_inverse else ABSENT, counts if return_counts else ABSENT


@primitive("BincountExt")
def bincount(b: Builder, node: Node, x: Value, *, weights: Operand = None, minlength: int = 0) -> Value:
    """How often each number occurs, or the sum of the weights of its places."""
    numbers = b.cast(x, INT64)
    least = b.const([minlength - 1], np.int64)
    most = b.op("ReduceMax", [b.op("Concat", [numbers, least], {"axis": 0})], {"keepdims": 1})
    length = b.op("Add", [most, b.const([1], np.int64)])
    if isinstance(weights, Value):
        added = b.floating(b.cast(weights, b.result_type(node, weights.dtype)))
    else:
        added = b.filled(b.shape_of(numbers), 1, INT64)
    nothing = b.op("Expand", [b.scalar(0, added), length])
    return b.op("ScatterElements", [nothing, numbers, added], {"reduction": "add", "axis": 0})


@primitive("HistcExt", "Histogram")
def histogram(
    b: Builder, node: Node, x: Value, *, bins: int = 100, min: Operand = 0, max: Operand = 0
) -> Value:
    """How many elements lie in each of equal parts of a range: by default from the least to the largest."""
    lower, upper = (float(b.number(item, "a bound")) for item in (min, max))
    flat = b.floating(b.reshape(x, (-1,)))
    low, high = (b.scalar(item, flat) for item in (lower, upper))
    if lower == upper:
        least, most = (b.op(kind, [flat], {"keepdims": 0}) for kind in ("ReduceMin", "ReduceMax"))
        alone, one = b.op("Equal", [least, most]), b.scalar(1, flat)
        low = b.op("Where", [alone, b.op("Sub", [least, one]), least])
        high = b.op("Where", [alone, b.op("Add", [most, one]), most])
    width = b.op("Sub", [high, low])
    place = b.op("Div", [b.op("Mul", [b.op("Sub", [flat, low]), b.scalar(bins, flat)]), width])
    inside = b.op("And", [b.op("GreaterOrEqual", [flat, low]), b.op("LessOrEqual", [flat, high])])
    # What is equal to the upper bound belongs to the last part; what lies outside, to one that is left out.
    part = b.op("Min", [b.cast(b.op("Floor", [place]), INT64), b.const(bins - 1, np.int64)])
    part = b.op("Where", [inside, part, b.const(bins, np.int64)])
    ones = b.filled(b.shape_of(part), 1, INT64)
    nothing = b.const(np.zeros(b.bounded(bins) + 1, np.int64))
    found = b.op("ScatterElements", [nothing, part, ones], {"reduction": "add", "axis": 0})
    kept = b.op("Slice", [found, b.ints((0,)), b.ints((bins,)), b.ints((0,))])
    return b.cast(kept, b.result_type(node, x.dtype))
