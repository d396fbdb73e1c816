"""What attributes and tensors of a MindIR file say, as Python's values and numpy arrays."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.importers.mindir.dtypes import ValueProblem, tensor_dtype
from sharding.importers.mindir.primitives.base import Shape, TensorType

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sharding.common.arrays import Array, DType
    from sharding.importers.mindir.messages import Attribute, Tensor

UNDEFINED, FLOAT, STRING, BOOL, DOUBLE, TENSORS, TUPLE, LIST = 0, 1, 8, 9, 11, 19, 20, 21
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_NOTHING = frozenset({22, 23, 24, 25})
"""Dictionaries (never of a meaning here), the two monads and None."""
UNKNOWN_RANK = -2
MAX_DEPTH = 64


def lengths(dims: Iterable[int], *, computed: bool = False) -> Shape | None:
    """A tensor's lengths, None where unknown. Raises `ValueProblem`.

    ``computed``: of an operation's result, of which MindSpore sometimes computes with its mark -1.
    """
    found = tuple(dims)
    if found == (UNKNOWN_RANK,):
        return None
    if any(item < -1 for item in found if not computed) or len(found) > 64:
        raise ValueProblem(f"its shape {list(found[:10])} cannot be")
    return tuple(None if item < 0 else int(item) for item in found)


def declared(tensor: Tensor, *, computed: bool = False) -> TensorType:
    """The type that a tensor without data declares."""
    return TensorType(tensor_dtype(tensor.data_type), lengths(tensor.dims, computed=computed))


def check_plain(tensor: Tensor) -> None:
    """Raises `ValueProblem` for a tensor that is compressed or quantized, or keeps its data elsewhere."""
    if tensor.compression_type:
        raise ValueProblem(
            f"it is compressed (type {tensor.compression_type}): export it without compression"
        )
    if len(tensor.quant_params):
        raise ValueProblem("it is quantized: export the network before quantization")
    for name in ("float_data", "int32_data", "string_data", "int64_data", "double_data", "uint64_data"):
        if len(getattr(tensor, name)):
            raise ValueProblem(f"it keeps its data in {name}; expected raw_data")


def byte_count(dtype: DType, shape: Shape | None) -> int:
    """Bytes of a tensor of this type. Raises `ValueProblem` where a length is unknown."""
    if shape is None or None in shape:
        raise ValueProblem("it holds data but its shape is not known")
    return math.prod(length or 0 for length in shape) * dtype.itemsize


def array(tensor: Tensor) -> Array:
    """A constant tensor's elements. Raises `ValueProblem`."""
    check_plain(tensor)
    dtype, shape = tensor_dtype(tensor.data_type), lengths(tensor.dims)
    needed = byte_count(dtype, shape)
    if len(tensor.raw_data) != needed:
        raise ValueProblem(f"it needs {needed} bytes for its type and shape, but has {len(tensor.raw_data)}")
    if dtype == np.bool_:
        return np.frombuffer(tensor.raw_data, np.uint8).astype(np.bool_).reshape(_known(shape))
    return np.frombuffer(tensor.raw_data, dtype).reshape(_known(shape))


def _known(shape: Shape | None) -> tuple[int, ...]:
    return tuple(length or 0 for length in shape or ())


def attribute(item: Attribute, *, element: bool = False, depth: int = 0) -> Any:
    """What an attribute holds: bool, int, float, str, None, a numpy array or element type, or a tuple.

    An ``element`` of a tuple keeps its number in the repeated field. Raises `ValueProblem`.
    """
    kind = item.type
    if depth > MAX_DEPTH:
        raise ValueProblem("it is nested too deeply")
    if kind in {TUPLE, LIST}:
        return tuple(attribute(inner, element=True, depth=depth + 1) for inner in item.values)
    if kind == TENSORS:
        found = tuple(_tensor(tensor) for tensor in item.tensors)
        return found[0] if len(found) == 1 else found
    if kind in _NOTHING:
        return None
    if kind in _INTEGERS:
        return int(item.ints[0] if element and len(item.ints) else item.i)
    if kind == BOOL:
        return bool(item.ints[0] if element and len(item.ints) else item.i)
    if kind == FLOAT:
        return float(item.floats[0] if element and len(item.floats) else item.f)
    if kind == DOUBLE:
        return float(item.doubles[0] if element and len(item.doubles) else item.d)
    if kind == STRING:
        data = item.strings[0] if element and len(item.strings) else item.s
        return bytes(data).decode(errors="replace")
    raise ValueProblem(f"its attribute {item.name[:80]!r} is of kind {kind}, which has no conversion")


def _tensor(tensor: Tensor) -> Any:
    """A constant, or an element type: a tensor without any data that is not empty."""
    if not tensor.HasField("raw_data"):
        dtype, shape = tensor_dtype(tensor.data_type), lengths(tensor.dims)
        if shape == ():
            return dtype
        if byte_count(dtype, shape):
            raise ValueProblem("it has no data")
        return np.empty(_known(shape), dtype)
    return array(tensor)


def result_types(item: Attribute) -> tuple[TensorType | None, ...]:
    """The types in a node's ``shape`` attribute, one for each result; None for what is no tensor."""
    if item.type == TENSORS and len(item.tensors) == 1:
        return (declared(item.tensors[0], computed=True),)
    if item.type in {TUPLE, LIST}:
        return tuple(
            declared(inner.tensors[0], computed=True)
            if inner.type == TENSORS and len(inner.tensors) == 1
            else None
            for inner in item.values
        )
    return ()
