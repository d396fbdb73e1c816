"""Types of values as ONNX writes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sharding.common.arrays import Array, DType
from sharding.importers.mindir.primitives.base import Shape, TensorType, Value
from sharding.onnx_files.kinds import declared_shape

if TYPE_CHECKING:
    from onnx import TypeProto, ValueInfoProto


def described(value: Value) -> str:
    """A value's type and shape as errors show it."""
    shape = "?" if value.shape is None else ",".join("?" if n is None else str(n) for n in value.shape)
    return f"{value.dtype}[{shape}]"


def typed_info(name: str, dtype: DType, shape: Shape | None) -> ValueInfoProto:
    """A named value of a graph by its type and shape."""
    import onnx

    return onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(dtype), shape)


def value_info(name: str, array: Array) -> ValueInfoProto:
    """A named value of a graph by an array that it holds."""
    return typed_info(name, array.dtype, array.shape)


def type_proto(value: Value) -> TypeProto:
    """The ONNX type of a value."""
    import onnx

    return onnx.helper.make_tensor_type_proto(onnx.helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)


def from_type_proto(proto: TypeProto) -> TensorType:
    """What an ONNX type says; `ValueError` where it says no type."""
    import onnx

    tensor = proto.tensor_type
    if not tensor.elem_type:
        raise ValueError("its result has no type")
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type))
    shape = declared_shape(proto)
    return TensorType(
        dtype, None if shape is None else tuple(n if isinstance(n, int) else None for n in shape)
    )
