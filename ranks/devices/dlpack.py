"""ONNX Runtime values over memory that is there already, at an address; made by way of DLPack.

DLPack is the C structure by which array libraries hand memory to one another (its dlpack.h). It is filled in
here by hand, so that values on a GPU need no other library.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_char_p, c_int, c_int64, c_size_t, c_uint8, c_uint16, c_uint64, c_void_p

import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as onnxruntime_state

from ranks.errors import DeviceError

MOST_AXES = 64
# Code and bits of DLPack by ONNX's element type: kDLInt 0, kDLUInt 1, kDLFloat 2, kDLBfloat 4. ONNX Runtime
# takes bool as an 8-bit kDLUInt beside a flag.
TYPES = {
    1: (2, 32),
    2: (1, 8),
    3: (0, 8),
    4: (1, 16),
    5: (0, 16),
    6: (0, 32),
    7: (0, 64),
    9: (1, 8),
    10: (2, 16),
    11: (2, 64),
    12: (1, 32),
    13: (1, 64),
    16: (4, 16),
}
_BOOL = 9


class _Device(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Type(ctypes.Structure):
    _fields_ = [("code", c_uint8), ("bits", c_uint8), ("lanes", c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", c_void_p),
        ("device", _Device),
        ("axes", c_int),
        ("type", _Type),
        ("shape", c_void_p),
        ("strides", c_void_p),
        ("byte_offset", c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("context", c_void_p), ("deleter", c_void_p)]


_library = ctypes.CDLL(None)
_library.malloc.restype, _library.malloc.argtypes = c_void_p, (c_size_t,)
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, (c_void_p, c_char_p, c_void_p)


def width(element: int) -> int:
    """Bytes of an element of an ONNX type that is in `TYPES`."""
    return TYPES[element][1] // 8


def value_at(address: int, element: int, shape: Sequence[int], device: tuple[int, int]) -> ort.OrtValue:
    """A value at ``address``, which must stay valid as long as the value or a session that uses it does.

    ``element`` is ONNX's number of the type, one of `TYPES`; ``device`` DLPack's kind and the device's
    number. Raises `DeviceError` where ONNX Runtime does not take it.
    """
    capsule, place = capsule_at(address, element, shape, device)
    try:
        made = onnxruntime_state.OrtValue.from_dlpack(capsule, element == _BOOL)
    except Exception as error:
        _library.free(c_void_p(place))
        raise DeviceError(
            f"ONNX Runtime {ort.__version__} takes no weights in place on this device: {error}"
        ) from None
    return ort.OrtValue(made)


def capsule_at(
    address: int, element: int, shape: Sequence[int], device: tuple[int, int]
) -> tuple[object, int]:
    """What DLPack hands over: a capsule, and the address of what is in it.

    Who takes the capsule frees that; where nobody does, it is the caller's to free.
    """
    # In one piece of memory that free(3) itself gives back: ONNX Runtime may let go of a value at any time,
    # also while the interpreter ends, when no Python function can be called.
    head = ctypes.sizeof(_Managed)
    place = _library.malloc(head + max(len(shape), 1) * ctypes.sizeof(c_int64))
    if not place:
        raise MemoryError
    lengths = (c_int64 * len(shape)).from_address(place + head)
    lengths[:] = list(shape)
    managed = _Managed.from_address(place)
    code, bits = TYPES[element]
    managed.tensor = _Tensor(
        address, _Device(*device), len(shape), _Type(code, bits, 1), place + head, None, 0
    )
    managed.context = None
    managed.deleter = ctypes.cast(_library.free, c_void_p).value
    capsule = _new_capsule(place, b"dltensor", None)
    return capsule, place
