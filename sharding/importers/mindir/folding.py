"""What is computed while converting instead of by the model: arithmetic of shapes and other small numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sharding.common.arrays import Array
from sharding.importers.mindir.primitives.base import Value

FOLDED = 4096
"""Results with at most this many elements are computed at once where all inputs are constants."""
_SHAPE_WORK = frozenset(
    {
        "Add", "Sub", "Mul", "Div", "Mod", "Max", "Min", "Concat", "Gather", "Slice", "Unsqueeze", "Squeeze",
        "Reshape", "Cast", "Shape", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "And",
        "Or", "Where", "Range", "ReduceProd", "ReduceSum", "Expand", "Transpose", "Neg", "Abs",
        "ReduceMax",
    }
)  # fmt: skip


def may_fold(array: Array) -> bool:
    """Whether a constant may be replaced by what is computed of it: weights keep their names."""
    return (
        array.dtype.kind in "iub" and array.size <= FOLDED if array.size > 1 else array.dtype.kind in "iubf"
    )


def is_small(op_type: str, values: Sequence[Value | None], results: Sequence[Value]) -> bool:
    """Whether a node computes with few constants alone, as shapes are."""
    if op_type not in _SHAPE_WORK:
        return False
    for value in values:
        if value is None:
            continue
        if value.constant is None or not may_fold(value.constant):
            return False
    return all(
        item.shape is not None
        and None not in item.shape
        and math.prod(length or 0 for length in item.shape) <= FOLDED
        for item in results
    )
