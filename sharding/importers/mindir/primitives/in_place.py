"""Primitives that change their first operand: what it holds afterwards, as a value.

What follows from that for other names of the same tensor is not theirs (`memory`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sharding.importers.mindir.primitives import (  # noqa: F401
    activation,
    arithmetic,
    comparison,
    elementwise,
    matmul,
    scatter,
)
from sharding.importers.mindir.primitives.base import PRIMITIVES, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.indexing import END
from sharding.importers.mindir.primitives.operands import INT64, Builder, known_rank

# Each does in place what another one gives. These modules fill the registry.
for _name, _source in {
    **dict.fromkeys(("InplaceAddExt", "InplaceAddsExt"), "AddExt"),
    **dict.fromkeys(("InplaceSubExt", "InplaceSubScalar"), "SubExt"),
    **dict.fromkeys(("InplaceDivMod", "InplaceDivMods"), "DivMod"),
    **dict.fromkeys(("InplaceFloorDivide", "InplaceFloorDivides"), "FloorDiv"),
    **dict.fromkeys(("InplaceMaskedFillTensor", "InplaceMaskedFillScalar"), "MaskedFill"),
    **dict.fromkeys(("InplaceScatterSrc", "InplaceScatterSrcReduce"), "Scatter"),
    **dict.fromkeys(("InplaceScatterValue", "InplaceScatterValueReduce"), "ScatterValue"),
    "InplaceScatterAdd": "ScatterAddExt",
    "AssignAdd": "Add",
    "AssignSub": "Sub",
    "ScatterNdUpdate": "TensorScatterUpdate",
    "ScatterNdAdd": "TensorScatterAdd",
    "ScatterNdSub": "TensorScatterSub",
    **{f"Inplace{name}": name for name in (
        "Mul", "Muls", "Div", "Divs", "RemainderTensorTensor", "RemainderTensorScalar", "ClampScalar",
        "ClampTensor", "ReLU", "SiLU", "Sigmoid", "Tanh", "Exp", "Log", "Floor", "Sign", "Erfinv", "Elu",
        "Hardtanh", "Threshold", "Addmm", "StopGradient", "IndexAddExt", "IndexFillScalar", "IndexFillTensor",
    )},
}.items():  # fmt: skip
    PRIMITIVES[_name] = replace(PRIMITIVES[_source], name=_name)


@primitive("InplaceCopy")
def inplace_copy(b: Builder, x: Value, src: Value, *, non_blocking: Operand = False) -> Value:
    """The elements of another tensor, repeated along axes that it lacks."""
    return b.op("Expand", [b.cast(src, x.dtype), b.ints(b.shape_of(x))])


@primitive("Assign")
def assign(b: Builder, x: Value, value: Value) -> Value:
    """Another tensor's elements."""
    return inplace_copy(b, x, value)


@primitive("ScatterUpdate")
def scatter_update(b: Builder, x: Value, indices: Value, updates: Value) -> Value:
    """Rows by their numbers."""
    places = b.unsqueeze(indices, [known_rank(indices)])
    return b.op("ScatterND", [x, b.cast(places, INT64), b.cast(updates, x.dtype)])


@primitive("InplaceZero")
def inplace_zero(b: Builder, x: Value) -> Value:
    """Zeros."""
    return b.full_like(x, 0)


@primitive("InplaceFillScalar", "InplaceFillTensor")
def inplace_fill(b: Builder, x: Value, value: Operand) -> Value:
    """One number everywhere."""
    return b.full_like(x, value if isinstance(value, Value) else b.number(value, "value"))


@primitive("TensorCopySlices")
def tensor_copy_slices(
    b: Builder, x: Value, value: Value, begin: Operand, end: Operand, strides: Operand
) -> Value:
    """A tensor of whose first axes the elements from begin to end are others; gives a new tensor."""
    starts, stops, steps = (
        item if isinstance(item, tuple) else b.integers(item, what)
        for item, what in ((begin, "begin"), (end, "end"), (strides, "strides"))
    )
    rank = known_rank(x) if len(starts) > 1 else max(x.rank or 1, 1)
    if not len(starts) == len(stops) == len(steps) <= rank:
        raise RefusedError("begin, end and strides must have the same length, at most the number of axes")
    count = len(starts)
    grid: Value | None = None
    for axis in range(count):
        length = b.dim(x, axis)
        whole = b.op("Range", [b.const(0, np.int64), b.value(length), b.const(1, np.int64)])
        bounds = [b.ints(starts[axis]), b.ints(stops[axis]), b.const([0], np.int64), b.ints(steps[axis])]
        chosen = b.unsqueeze(
            b.op("Slice", [whole, *bounds]), [item for item in range(count + 1) if item != axis]
        )
        grid = chosen if grid is None else _joined(b, grid, chosen)
    places = b.op("Shape", [grid])
    lead = b.op("Slice", [places, b.const([0]), b.const([count]), b.const([0])])
    rest = b.op("Slice", [b.op("Shape", [x]), b.const([count]), b.const([END]), b.const([0])])
    shape = b.op("Concat", [lead, rest], {"axis": 0})
    return b.op("ScatterND", [x, grid, b.op("Expand", [b.cast(value, x.dtype), shape])])


def _joined(b: Builder, grid: Value, chosen: Value) -> Value:
    """Index vectors with one more component."""
    zero = b.op("Mul", [b.op("Slice", [grid, b.const([0]), b.const([1]), b.const([-1])]), 0])
    last = b.op("Add", [chosen, zero])
    lead = b.op("Slice", [b.op("Shape", [last]), b.const([0]), b.const([-1]), b.const([0])])
    full = b.op("Concat", [lead, b.ints((b.dim(grid, -1),))], {"axis": 0})
    return b.op("Concat", [b.op("Expand", [grid, full]), last], {"axis": -1})
