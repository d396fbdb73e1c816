"""`Tensor`: a named numpy array with mindspore_lite's interface; `TensorMeta`: the same without data."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from ranks.lite.legacy_tensor import LegacyTensorMethods
from ranks.lite.options.check import check_isinstance, checked_shape
from ranks.lite.options.types import DataType, Format, from_numpy, to_numpy
from sharding.common.arrays import Array

__all__ = ["DataType", "Format", "Tensor", "TensorMeta"]

Shape = tuple[int, ...]
ANY_RANK = (-2,)
"""The shape of an input that may have any number of axes, as MindSpore writes it."""


class TensorMeta:
    """Name, type, shape (-1: not known), format, number of elements and size in bytes of a tensor."""

    def __init__(self) -> None:
        self.name = ""
        self.dtype = DataType.UNKNOWN
        self.shape: list[int] = []
        self.format = Format.DEFAULT
        self.element_num = 0
        self.data_size = 0

    def __str__(self) -> str:
        return (
            f"name: {self.name},\n"
            f"dtype: {self.dtype},\n"
            f"shape: {self.shape},\n"
            f"format: {self.format},\n"
            f"element_num: {self.element_num},\n"
            f"data_size: {self.data_size}."
        )


class Tensor(LegacyTensorMethods):
    """A tensor in host memory.

    ``tensor`` gives the data: a numpy array or another `Tensor`; it is shared, not copied. ``shape`` and
    ``dtype`` must agree with it, or describe a new tensor of zeros. ``device`` is None or "ascend[:id]".

    Raises `TypeError` for arguments of another type, and `ranks.errors.DeviceError` for a device that this
    machine lacks.
    """

    _kept: Tensor | None = None
    """Set in a model's inputs: the model's own, which gets the name, type, shape and format set here."""

    def __init__(
        self,
        tensor: Tensor | Array | None = None,
        shape: Sequence[int] | None = None,
        dtype: DataType | None = None,
        device: str | None = None,
    ) -> None:
        lengths = None if shape is None else checked_shape(shape)
        self._device = _parse_device(device)
        check_isinstance("dtype", dtype, DataType, none_allowed=True)
        self._name = ""
        self._format = Format.NCHW
        self._array: Array | None = None
        self._users = False  # whether the array is the user's own, to be filled in place by predict
        self._declared: tuple[int | None, ...] | None = None  # a model input's shape in the file; None: any
        if tensor is None:
            both = dtype is not None and lengths is not None
            self._dtype = dtype if both and dtype is not None else DataType.FLOAT32
            self._shape: Shape = lengths if both and lengths is not None else ()
        elif isinstance(tensor, Tensor):
            if lengths is not None and lengths != tensor._shape:
                raise TypeError(
                    f"user set shape is not equal numpy shape, user's shape: {shape}, "
                    f"tensor shape is: {tensor.shape}."
                )
            if dtype is not None and dtype != tensor.dtype:
                raise TypeError(
                    f"user set dtype is not equal tensor dtype, user's dtype: {dtype}, "
                    f"tensor dtype is: {tensor.dtype}."
                )
            self._dtype, self._shape, self._array, self._users = (
                tensor.dtype,
                tensor._shape,
                tensor._array,
                True,
            )
        elif isinstance(tensor, np.ndarray):
            self._adopt(tensor, shape, dtype)
        else:
            raise TypeError(
                f"tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray, but got {type(tensor)}."
            )

    def _adopt(self, array: Array, shape: Sequence[int] | None, dtype: DataType | None) -> None:
        array = _native(array)
        if shape is not None and list(shape) != list(array.shape):
            raise TypeError(
                f"user set shape is not equal numpy shape, user shape: {shape}, "
                f"numpy shape is: {array.shape}."
            )
        if dtype is not None and from_numpy(array.dtype) != dtype:
            raise TypeError(
                f"user set dtype is not equal numpy dtype, user dtype: {dtype}, "
                f"numpy dtype is: {array.dtype}."
            )
        self._dtype, self._shape, self._array, self._users = from_numpy(array.dtype), array.shape, array, True

    def __str__(self) -> str:
        return f"{TensorMeta.__str__(self)}\ndevice: {self.device}."  # type: ignore[arg-type]  # same attributes

    @property
    def name(self) -> str:
        """The tensor's name; a model's inputs and outputs have those of the model file."""
        return self._name

    @name.setter
    def name(self, name: str) -> None:
        check_isinstance("name", name, str)
        self._name = name
        if self._kept is not None:
            self._kept._name = name

    @property
    def dtype(self) -> DataType:
        """Element type. Setting another one drops the data."""
        return self._dtype

    @dtype.setter
    def dtype(self, dtype: DataType) -> None:
        check_isinstance("dtype", dtype, DataType)
        if dtype is not self._dtype:
            self._dtype, self._array, self._users = dtype, None, False
        if self._kept is not None:
            self._kept._dtype = dtype

    @property
    def shape(self) -> list[int]:
        """Shape; -1 where a model leaves it open. Data survives a new shape of as many elements."""
        return list(self._shape)

    @shape.setter
    def shape(self, shape: Sequence[int]) -> None:
        lengths = checked_shape(shape)
        self.take_shape(lengths)
        if self._kept is not None:
            self._kept._shape = lengths

    def take_shape(self, lengths: Shape) -> None:
        """Sets the shape of this tensor alone, whatever model it is an input of."""
        if self._array is not None:
            same = min(lengths, default=0) >= 0 and prod(lengths) == self._array.size
            self._array = self._array.reshape(lengths) if same else None
            self._users = self._users and same
        self._shape = lengths

    @property
    def format(self) -> Format:
        """Order of the axes, `Format.NCHW` unless set."""
        return self._format

    @format.setter
    def format(self, tensor_format: Format) -> None:
        check_isinstance("format", tensor_format, Format)
        self._format = tensor_format
        if self._kept is not None:
            self._kept._format = tensor_format

    @property
    def element_num(self) -> int:
        """Number of elements; 0 while a dimension is open."""
        return prod(self._shape) if min(self._shape, default=0) >= 0 else 0

    @property
    def data_size(self) -> int:
        """Size of the data in bytes."""
        dtype = to_numpy(self._dtype)
        if dtype is None:
            return 0 if self._array is None else self._array.nbytes
        return self.element_num * dtype.itemsize

    @property
    def device(self) -> str:
        """Where the data is meant to be, as TYPE:ID; "None:-1" is host memory."""
        return self._device

    def get_data_to_numpy(self) -> Array:
        """The data, not copied: zeros where none was set, an empty array while the shape is open."""
        if self._array is None:
            dtype = to_numpy(self._dtype)
            if dtype is None or min(self._shape, default=0) < 0:
                return np.empty(0, dtype)
            try:
                self._array = np.zeros(self._shape, dtype)
            except (MemoryError, ValueError):
                raise MemoryError(
                    f"tensor {self._name!r} of shape {self.shape} takes {self.data_size} bytes"
                ) from None
        return self._array

    def set_data_from_numpy(self, numpy_obj: Array) -> None:
        """Makes the tensor share ``numpy_obj``'s data.

        It must have the tensor's type and size in bytes, in any shape. An input of a model also takes an
        array whose shape the model file allows: open dimensions become those of the array.

        Raises `TypeError` unless it is a numpy array, `RuntimeError` for another type or size.
        """
        if not isinstance(numpy_obj, np.ndarray):
            raise TypeError(f"numpy_obj must be numpy.ndarray, but got {type(numpy_obj)}.")
        unequal = f"data type not equal! Numpy type: {numpy_obj.dtype.type}, Tensor type: {self._dtype}"
        try:
            array = _native(numpy_obj, any_type=self._dtype is DataType.UNKNOWN)
        except TypeError as error:  # a type that no tensor has
            raise RuntimeError(f"{unequal}. {error}") from None
        if from_numpy(array.dtype) is not self._dtype:
            raise RuntimeError(unequal)
        if self._declared is not None and _allows(self._declared, array.shape):
            self._shape = array.shape
        elif array.nbytes != self.data_size or min(self._shape, default=0) < 0:
            raise RuntimeError(self._size_in_words(array))
        self._array = array if array.shape == self._shape else array.reshape(self._shape)
        self._users = True

    def _size_in_words(self, array: Array) -> str:
        """Why an array does not fit, in mindspore_lite's words, and then what would."""
        text = f"data size not equal! Numpy size: {array.nbytes}, Tensor size: {self.data_size}"
        if self._declared is None:
            is_open = min(self._shape, default=0) < 0
            return (
                f"{text}. The tensor's shape {self.shape} is open: set its shape first." if is_open else text
            )
        takes = [-1 if length is None else length for length in self._declared]
        is_open, alike = None in self._declared, array.ndim == len(takes)
        return (
            f"{text}. The input {self._name!r} takes arrays of shape {takes}"
            f"{', where -1 is any length' if is_open else ''}, but this one has {list(array.shape)}: give "
            f"one of that shape{', or call resize for another one first' if alike else ''}."
        )


class OutputTensor(Tensor, TensorMeta):  # type: ignore[override]  # counts follow from the shape
    """An output as `Model.get_outputs` returns it: a `TensorMeta` that ``predict(inputs, outputs)`` fills."""

    def __init__(self, name: str, dtype: DataType, shape: Shape) -> None:
        Tensor.__init__(self)
        self._name, self._dtype, self._shape = name, dtype, shape

    def __str__(self) -> str:
        return TensorMeta.__str__(self)


def input_tensor(name: str, dtype: DataType, shape: Shape, declared: tuple[int | None, ...]) -> Tensor:
    """An input of a model: current ``shape`` (-1: open) and what the file declares (None: any)."""
    tensor = Tensor()
    tensor._name, tensor._dtype, tensor._shape, tensor._declared = name, dtype, shape, declared
    return tensor


def as_kept(kept: Tensor) -> Tensor:
    """A tensor without data as ``kept`` is now. What a script sets on it is set on ``kept``, too."""
    tensor = Tensor()
    tensor.__dict__.update(kept.__dict__, _kept=kept)
    return tensor


def result_tensor(name: str, dtype: DataType, array: Array) -> Tensor:
    """An output with its data. On the path of every prediction, hence without `Tensor.__init__`."""
    tensor = Tensor.__new__(Tensor)
    tensor.__dict__ = {
        "_name": name,
        "_dtype": dtype,
        "_shape": array.shape,
        "_format": Format.NCHW,
        "_array": array,
        "_device": "None:-1",
        "_users": False,
        "_declared": None,
    }
    return tensor


NO_TENSOR = "is a sequence or a map, which no tensor can hold: call predict without outputs."


def misfit(tensor: Tensor, array: Array) -> str | None:
    """Why the result ``array`` cannot be written into the user's own array in ``tensor``; None if it can.

    A tensor without data of the user's takes any result.
    """
    own = tensor._array
    if own is None or not tensor._users:
        return None
    if (own.shape, own.dtype) != (array.shape, array.dtype):
        return (
            f"has dtype {array.dtype} and shape {list(array.shape)}, but the array given for it has dtype "
            f"{own.dtype} and shape {list(own.shape)}: give one of the same, or a tensor without data."
        )
    if not own.flags.writeable:
        return "cannot be written into the array given for it, which is read-only: give one that is writable."
    return None


def fill(tensor: Tensor, array: Array) -> None:
    """Gives ``tensor`` the result ``array``: into the user's own array, which `misfit` has checked."""
    if tensor._array is not None and tensor._users:
        tensor._array[...] = array
        return
    tensor._dtype, tensor._shape, tensor._array, tensor._users = (
        from_numpy(array.dtype),
        array.shape,
        array,
        False,
    )


def _native(array: Array, any_type: bool = False) -> Array:
    """``array``, copied only where it is not C-contiguous, aligned and in this machine's byte order."""
    if not any_type and from_numpy(array.dtype) is DataType.UNKNOWN:
        raise TypeError(f"Unsupported numpy dtype value {array.dtype}")
    flags = array.flags
    if flags.c_contiguous and flags.aligned and array.dtype.isnative and type(array) is np.ndarray:
        return array
    # numpy's own strings have no order of bytes to ask for.
    dtype = array.dtype if array.dtype.isnative else array.dtype.newbyteorder("=")
    return np.require(np.asarray(array), dtype, ["C", "A"])


def _allows(declared: tuple[int | None, ...], shape: Shape) -> bool:
    return declared == ANY_RANK or (
        len(declared) == len(shape)
        and all(length is None or length == given for length, given in zip(declared, shape, strict=True))
    )


def _parse_device(device: object) -> str:
    if device is None:
        return "None:-1"
    if not isinstance(device, str):
        raise TypeError(f"device must be str, but got {type(device)}.")
    kind, *index = device.split(":")
    if len(index) > 1:
        raise TypeError("device must be 'ascend:index', eg: 'ascend:0'")
    if kind != "ascend":
        raise TypeError("now only support ascend device.")
    if index and not (index[0].isascii() and index[0].isdigit()):
        raise TypeError("device id should >= 0.")
    from ranks.lite.options.targets import require

    require("ascend")
    return f"ascend:{int(index[0]) if index else -1}"
