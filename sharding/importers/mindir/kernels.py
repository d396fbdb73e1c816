"""What ONNX Runtime's kernels for the CPU lack: element types, with what to compute in instead, and more.

Taken from the kernels that ONNX Runtime 1.23 to 1.31 register; float16 without a kernel it widens itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from sharding.common.arrays import Array, DType
from sharding.importers.mindir.primitives.base import Value

_SINGLE_ONLY = frozenset(
    {
        *("AveragePool", "Conv", "ConvTranspose", "Det", "GridSample", "InstanceNormalization", "LRN"),
        "Resize",
    }
)
"""Operators of float32 that have no kernel for float64, and that `sharding.importers.mindir.doubles` does not
write."""
_FOR_INTEGERS = {
    "Where": {"bool": "int32", "int8": "int32", "int16": "int32", "uint16": "int32", "uint32": "int64",
              "uint64": "int64"},
    "Pad": {"int16": "int32", "uint16": "int32"},
    "Trilu": {"int8": "int64", "uint8": "int64", "int16": "int64", "uint16": "int64", "int32": "int64",
              "uint32": "int64", "uint64": "int64"},
    "NonZero": {"int8": "bool", "int16": "bool", "uint16": "bool", "uint32": "bool", "uint64": "bool",
                "float64": "bool"},
    "MaxPool": {"bool": "int8", "int16": "float64", "int32": "float64", "int64": "float64"},
}  # fmt: skip
_FOR_BFLOAT16 = frozenset({"Where", "Pad", "Expand", "Tile", "Trilu", "NonZero"})
_SCATTER = frozenset({"ScatterND", "ScatterElements"})


def substitute(
    op_type: str, values: Sequence[Value | None], attributes: Mapping[str, object]
) -> tuple[DType, DType, int] | None:
    """(the element type that has no kernel, the one to compute in, the first operand of it), or None."""
    place = 1 if op_type == "Where" else 0
    first = values[place] if place < len(values) else None
    if first is None:
        return None
    name = first.dtype.name
    other = _FOR_INTEGERS.get(op_type, {}).get(name)
    reduces = op_type in _SCATTER and attributes.get("reduction", "none") != "none"
    single = {"float64": op_type in _SINGLE_ONLY, "float16": reduces, "bfloat16": op_type in _FOR_BFLOAT16}
    if single.get(name, False):
        other = "float32"
    return None if other is None else (first.dtype, np.dtype(other), place)


def from_front(
    const: Callable[[Array], Value],
    op_type: str,
    values: list[Value | None],
    attributes: Mapping[str, object],
) -> tuple[list[Value | None], Mapping[str, object]]:
    """Operands and attributes with the axes of a reduction counted from the front, where that can be. ONNX
    Runtime gives a tensor without elements its own shape again where they are counted from behind."""
    x = values[0] if values else None
    if x is None or x.rank is None:
        return values, attributes
    if op_type in {"ArgMax", "ArgMin"}:
        axis = attributes.get("axis")
        if isinstance(axis, int) and axis < 0 < x.rank:
            attributes = {**attributes, "axis": axis + x.rank}
        return values, attributes
    axes = values[1] if op_type.startswith("Reduce") and len(values) > 1 else None
    known = None if axes is None else axes.constant
    if known is None or not (known < 0).any():
        return values, attributes
    return [x, const(np.where(known < 0, known + x.rank, known).astype(known.dtype))], attributes
