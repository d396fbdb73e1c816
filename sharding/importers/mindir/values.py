"""What attributes and tensors of a MindIR file say, as Python's values and numpy arrays."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np

from sharding.errors import ModelError
from sharding.importers.mindir.primitives.base import Array, Shape, TensorType

UNDEFINED, FLOAT, STRING, BOOL, DOUBLE, TENSORS, TUPLE, LIST = 0, 1, 8, 9, 11, 19, 20, 21
_INTEGERS = frozenset({2, 3, 4, 5, 6, 7, 12, 13})
_NOTHING = frozenset({22, 23, 24, 25})
"""Dictionaries (never of a meaning here), the two monads and None."""
UNKNOWN_RANK = -2
MAX_DEPTH = 64

_DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float16", 11: "float64", 12: "uint32", 13: "uint64", 14: "complex64", 15: "complex128",
    17: "float64",
}  # fmt: skip
"""Element types by their number in tensors; 16 is bfloat16."""
_TYPE_IDS = {
    30: "bool", 32: "int8", 33: "int16", 34: "int32", 35: "int64", 37: "uint8", 38: "uint16", 39: "uint32",
    40: "uint64", 42: "float16", 43: "float32", 44: "float64", 51: "complex64", 52: "complex128",
}  # fmt: skip
"""MindSpore's own numbers (TypeId), which settings of version 3 files use; 45 is bfloat16."""


class ValueProblem(ModelError):  # noqa: N818 - told as a part of a sentence
    """A value that cannot be read; the message is the end of a sentence."""


@lru_cache(maxsize=1)
def bfloat16() -> np.dtype[Any]:
    """The numpy type of bfloat16, which onnx knows."""
    import onnx

    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))


def tensor_dtype(number: int) -> np.dtype[Any]:
    """The element type of a tensor. Raises `ValueProblem`."""
    if number == 16:
        return bfloat16()
    if number == 8:
        raise ValueProblem("it holds text, which has no conversion")
    if number not in _DTYPES:
        raise ValueProblem(f"its element type {number} is not known; expected one of 1 to 17")
    return np.dtype(_DTYPES[number])


def dtype_of_id(number: int) -> np.dtype[Any]:
    """The element type of a TypeId. Raises `ValueProblem`."""
    if number == 45:
        return bfloat16()
    if number not in _TYPE_IDS:
        raise ValueProblem(f"the element type {number} is not known")
    return np.dtype(_TYPE_IDS[number])


def lengths(dims: Any, *, computed: bool = False) -> Shape | None:
    """A tensor's lengths, None where unknown. Raises `ValueProblem`.

    ``computed``: of an operation's result, of which MindSpore sometimes computes with its mark -1.
    """
    found = tuple(dims)
    if found == (UNKNOWN_RANK,):
        return None
    if any(item < -1 for item in found if not computed) or len(found) > 64:
        raise ValueProblem(f"its shape {list(found[:10])} cannot be")
    return tuple(None if item < 0 else int(item) for item in found)


def declared(tensor: Any, *, computed: bool = False) -> TensorType:
    """The type that a tensor without data declares."""
    return TensorType(tensor_dtype(tensor.data_type), lengths(tensor.dims, computed=computed))


def check_plain(tensor: Any) -> None:
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


def byte_count(dtype: np.dtype[Any], shape: Shape | None) -> int:
    """Bytes of a tensor of this type. Raises `ValueProblem` where a length is unknown."""
    if shape is None or None in shape:
        raise ValueProblem("it holds data but its shape is not known")
    return math.prod(length or 0 for length in shape) * dtype.itemsize


def array(tensor: Any) -> Array:
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


def attribute(item: Any, *, element: bool = False, depth: int = 0) -> Any:
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


def _tensor(tensor: Any) -> Any:
    """A constant, or an element type: a tensor without any data that is not empty."""
    if not tensor.HasField("raw_data"):
        dtype, shape = tensor_dtype(tensor.data_type), lengths(tensor.dims)
        if shape == ():
            return dtype
        if byte_count(dtype, shape):
            raise ValueProblem("it has no data")
        return np.empty(_known(shape), dtype)
    return array(tensor)


def result_types(item: Any) -> tuple[TensorType | None, ...]:
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
