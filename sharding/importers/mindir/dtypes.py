"""Element types by the numbers that MindIR files give them."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from sharding.common.arrays import DType
from sharding.errors import ModelError

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
def bfloat16() -> DType:
    """The numpy type of bfloat16, which onnx knows."""
    import onnx

    return np.dtype(onnx.helper.tensor_dtype_to_np_dtype(onnx.TensorProto.BFLOAT16))


def tensor_dtype(number: int) -> DType:
    """The element type of a tensor. Raises `ValueProblem`."""
    if number == 16:
        return bfloat16()
    if number == 8:
        raise ValueProblem("it holds text, which has no conversion")
    if number not in _DTYPES:
        raise ValueProblem(f"its element type {number} is not known; expected one of 1 to 17")
    return np.dtype(_DTYPES[number])


def dtype_of_id(number: int) -> DType:
    """The element type of a TypeId. Raises `ValueProblem`."""
    if number == 45:
        return bfloat16()
    if number not in _TYPE_IDS:
        raise ValueProblem(f"the element type {number} is not known")
    return np.dtype(_TYPE_IDS[number])
