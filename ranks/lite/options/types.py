"""The enumerations of the inference API, with mindspore_lite's names and values."""

from __future__ import annotations

from enum import Enum

import numpy as np

from sharding.common.arrays import DType

__all__ = ["DataType", "FmkType", "Format", "ModelType"]


class DataType(Enum):
    """Element type of a tensor. `UNKNOWN` stands for types that mindspore_lite has no name for."""

    UNKNOWN = 0
    BOOL = 30
    INT8 = 32
    INT16 = 33
    INT32 = 34
    INT64 = 35
    UINT8 = 37
    UINT16 = 38
    UINT32 = 39
    UINT64 = 40
    FLOAT16 = 42
    FLOAT32 = 43
    FLOAT64 = 44
    INVALID = 2147483647


class Format(Enum):
    """Order in which a tensor's axes are stored; a label here: data is always in the model's own order."""

    DEFAULT = -1
    NCHW = 0
    NHWC = 1
    NHWC4 = 2
    HWKC = 3
    HWCK = 4
    KCHW = 5
    CKHW = 6
    KHWC = 7
    CHWK = 8
    HW = 9
    HW4 = 10
    NC = 11
    NC4 = 12
    NC4HW4 = 13
    NCDHW = 15
    NWC = 16
    NCW = 17
    NDHWC = 18
    NC8HW8 = 19


class ModelType(Enum):
    """Format of a model file. `ONNX` is shardrun's own; mindspore_lite has the other two."""

    MINDIR = 0
    MINDIR_LITE = 4
    ONNX = 100


class FmkType(Enum):
    """Where a model that is converted comes from."""

    TF = 0
    CAFFE = 1
    ONNX = 2
    MINDIR = 3
    TFLITE = 4
    PYTORCH = 5


_NUMPY_TYPES: dict[DataType, type[np.generic]] = {
    DataType.BOOL: np.bool_,
    DataType.INT8: np.int8,
    DataType.INT16: np.int16,
    DataType.INT32: np.int32,
    DataType.INT64: np.int64,
    DataType.UINT8: np.uint8,
    DataType.UINT16: np.uint16,
    DataType.UINT32: np.uint32,
    DataType.UINT64: np.uint64,
    DataType.FLOAT16: np.float16,
    DataType.FLOAT32: np.float32,
    DataType.FLOAT64: np.float64,
}
_TO_NUMPY: dict[DataType, DType] = {key: np.dtype(value) for key, value in _NUMPY_TYPES.items()}
_FROM_NUMPY: dict[type[np.generic], DataType] = {value: key for key, value in _NUMPY_TYPES.items()}


def to_numpy(data_type: DataType) -> DType | None:
    """numpy's dtype, or None for `UNKNOWN` and `INVALID`."""
    return _TO_NUMPY.get(data_type)


def from_numpy(dtype: DType) -> DataType:
    """The name of numpy's ``dtype``, `UNKNOWN` where it has none (strings, bfloat16, float8, ...)."""
    return _FROM_NUMPY.get(dtype.type, DataType.UNKNOWN)
