"""What a model's inputs and outputs are, and whether given arrays fit them."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from ranks.errors import ShardrunError
from sharding.common.text import did_you_mean

if TYPE_CHECKING:
    import onnxruntime as ort

    from sharding.common.arrays import Array, DType

Dim = int | str | None
OBJECT = np.dtype(object)

ELEMENT_TYPES: Mapping[str, tuple[int, str]] = {
    "float": (1, "float32"),
    "uint8": (2, "uint8"),
    "int8": (3, "int8"),
    "uint16": (4, "uint16"),
    "int16": (5, "int16"),
    "int32": (6, "int32"),
    "int64": (7, "int64"),
    "string": (8, "object"),
    "bool": (9, "bool"),
    "float16": (10, "float16"),
    "double": (11, "float64"),
    "uint32": (12, "uint32"),
    "uint64": (13, "uint64"),
    "complex64": (14, "complex64"),
    "complex128": (15, "complex128"),
    "bfloat16": (16, "bfloat16"),
    "float8e4m3fn": (17, "float8_e4m3fn"),
    "float8e4m3fnuz": (18, "float8_e4m3fnuz"),
    "float8e5m2": (19, "float8_e5m2"),
    "float8e5m2fnuz": (20, "float8_e5m2fnuz"),
}
"""ONNX Runtime's name of an element type -> its number in ONNX's ``TensorProto.DataType`` and its numpy
name."""

_NAMES = {number: name for name, (number, _) in ELEMENT_TYPES.items()}


def element_number(ort_type: str) -> int | None:
    """``tensor(float)`` -> 1; None for what is no tensor of a type in `ELEMENT_TYPES`."""
    if not (ort_type.startswith("tensor(") and ort_type.endswith(")")):
        return None
    found = ELEMENT_TYPES.get(ort_type[7:-1])
    return found[0] if found else None


def element_dtype(number: int | None) -> DType:
    """The numpy type of an ONNX element type; ``object`` for strings and what numpy has no type for."""
    name = _NAMES.get(number or 0)
    if name is None:
        return OBJECT
    numpy_name = ELEMENT_TYPES[name][1]
    if numpy_name.startswith(("bfloat", "float8")):
        import ml_dtypes

        extended: DType = np.dtype(getattr(ml_dtypes, numpy_name))
        return extended
    return np.dtype(numpy_name)


@functools.lru_cache(64)
def name_of(dtype: DType) -> str:
    """The name of a numpy type, which numpy puts together anew each time that it is asked."""
    name: str = dtype.name
    return name


def is_extended(dtype: DType) -> bool:
    """Whether numpy itself lacks the type: bfloat16, 8-bit floats and the like, which ml_dtypes registers.

    Any other value of ``isbuiltin`` says little: it is 0 for a plain type in a certain byte order.
    """
    return dtype.isbuiltin == 2


def array_of(value: ort.OrtValue) -> Array:
    """The values of an `OrtValue` on the host, without a copy; the array keeps it."""
    shape, dtype = tuple(value.shape()), element_dtype(element_number(value.data_type()))
    size = math.prod(shape) * dtype.itemsize
    if size == 0:
        return np.empty(shape, dtype)
    memory = (ctypes.c_char * size).from_address(value.data_ptr())
    memory.owner = value  # type: ignore[attr-defined]  # the array keeps the OrtValue, which owns the bytes
    return np.frombuffer(memoryview(memory).cast("B"), dtype).reshape(shape)


class TensorSpec(NamedTuple):
    """A model input or output. An axis is a length, a symbol, or None; ``dtype`` is object for strings and
    for what is no tensor (whose ``shape`` is empty). ``open_rank``: it may have any number of axes, and
    ``shape`` is empty."""

    name: str
    dtype: DType
    shape: tuple[Dim, ...]
    is_tensor: bool = True
    open_rank: bool = False

    def __str__(self) -> str:
        axes = "..." if self.open_rank else ", ".join("?" if dim is None else str(dim) for dim in self.shape)
        return f"{'string' if self.dtype == OBJECT else self.dtype}[{axes}]"


def spec_of(argument: ort.NodeArg) -> TensorSpec:
    """The spec of a session's ``NodeArg``."""
    number = element_number(argument.type)
    is_tensor = argument.type.startswith("tensor(")
    shape = (
        tuple(
            dim if isinstance(dim, int) and dim >= 0 else dim if isinstance(dim, str) else None
            for dim in argument.shape
        )
        if is_tensor
        else ()
    )
    return TensorSpec(argument.name, element_dtype(number), shape, is_tensor)


def is_text(dtype: DType) -> bool:
    """Whether a numpy type holds text: characters, bytes, numpy's own strings."""
    return dtype.kind in "UST"


def as_text(array: Array, what: str) -> Array:
    """An array of ``str`` objects, the one form in which ONNX Runtime takes any text as it is: bytes, which
    are UTF-8, would run into their neighbours. The array itself where it is one already.

    Raises `ShardrunError`, which names ``what``, for bytes that are no UTF-8 and objects that are no text.
    """
    array = array if array.dtype == OBJECT else array.astype(object)
    items = array.reshape(-1).tolist()
    if all(type(item) is str for item in items):
        return array
    result = np.empty(len(items), object)
    for index, item in enumerate(items):
        if not isinstance(item, str | bytes):
            raise ShardrunError(
                f"{what} takes text, but element {index} of the array is {type(item).__name__}: {item!r:.40}."
            )
        try:
            result[index] = item.decode() if isinstance(item, bytes) else str(item)
        except UnicodeDecodeError:
            raise ShardrunError(
                f"{what} takes text, but element {index} of the array is bytes that are no UTF-8: "
                f"{item!r:.40}. Decode it first."
            ) from None
    shaped: Array = result.reshape(array.shape)
    return shaped


def checked_feeds(specs: Sequence[TensorSpec], feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The feeds in the order of the inputs, each one checked and C-contiguous.

    Raises `ShardrunError` with one sentence that names the input, what was expected and what was found.
    """
    checked = {}
    for spec in specs:
        name = spec.name
        try:
            array = feeds[name]
        except KeyError:
            raise ShardrunError(
                f"Input {spec.name!r} is missing: the model expects {_listing(specs)}, but was given "
                f"{', '.join(map(repr, feeds)) or 'nothing'}."
            ) from None
        checked[name] = _checked(spec, array)
    if len(feeds) > len(specs):
        known = {spec.name for spec in specs}
        unknown = next(name for name in feeds if name not in known)
        hint = did_you_mean(unknown, known) or "."
        raise ShardrunError(f"The model has no input {unknown!r}; it expects {_listing(specs)}{hint}")
    return checked


def _checked(spec: TensorSpec, array: Array) -> Array:
    if not spec.is_tensor:
        return array
    if not isinstance(array, np.ndarray):
        raise ShardrunError(
            f"Input {spec.name!r} must be a numpy array of {spec}, but is {type(array).__name__}."
        )
    if array.dtype is not spec.dtype or spec.dtype is OBJECT:  # to compare types takes longer
        array = _of_type(spec, array)
    shape = array.shape
    if spec.open_rank:
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    if len(shape) != len(spec.shape):
        raise ShardrunError(
            f"Input {spec.name!r} must have {len(spec.shape)} axes ({spec}), but has {len(shape)}: "
            f"{list(shape)}."
        )
    for axis, (found, wanted) in enumerate(zip(shape, spec.shape, strict=True)):
        if found != wanted and isinstance(wanted, int):
            raise ShardrunError(
                f"Axis {axis} of input {spec.name!r} must have length {wanted} ({spec}), but has {found}: "
                f"{list(shape)}."
            )
    return array if array.flags.c_contiguous else np.ascontiguousarray(array)


def _of_type(spec: TensorSpec, array: Array) -> Array:
    """The array in the input's type. Raises `ShardrunError` for one of another type."""
    if is_text(array.dtype) or array.dtype == OBJECT:  # numpy's own strings have no order of bytes to ask for
        if spec.dtype == OBJECT:
            array = as_text(array, f"Input {spec.name!r}")
    elif array.dtype != spec.dtype and array.dtype.newbyteorder("=") == spec.dtype:
        array = array.astype(spec.dtype)  # only the order of its bytes is another
    if array.dtype != spec.dtype:
        raise ShardrunError(
            f"Input {spec.name!r} must have dtype {spec.dtype}, but has {array.dtype}: convert it with "
            f"array.astype({str(spec.dtype)!r})."
        )
    return array


def unlike(
    specs: Sequence[TensorSpec],
    shapes: Sequence[Sequence[int | None]],
    sums: Mapping[str, str] = MappingProxyType({}),
) -> str:
    """The first axis of inputs of these shapes that has another length than it is called by, as a sentence;
    "" where none has. ``sums``: symbols that must be sums of others: what is proved for them holds for these
    sums alone, so one that cannot be told counts as wrong. A length that is None may be any.

    ONNX Runtime does not hold a model to its symbols: exporters give one name to axes of different lengths.
    """
    seen: dict[str, tuple[int, str]] = {}
    for spec, shape in zip(specs, shapes, strict=True):
        for dim, length in zip(spec.shape, shape, strict=False):
            if not isinstance(dim, str) or length is None:
                continue
            if seen.setdefault(dim, (length, spec.name))[0] != length:
                other, name = seen[dim]
                return f"{dim!r} has length {length} in input {spec.name!r}, but {other} in input {name!r}"
    numbers = {symbol: length for symbol, (length, _) in seen.items()}
    for symbol, text in sums.items():
        wanted = _number(text, numbers)
        if wanted is None or symbol not in seen:
            return f"{symbol!r} must be {text}, but not all of these lengths are known"
        if wanted != numbers[symbol]:
            length, name = seen[symbol]
            said = text if text == symbol else f"{symbol} = {text}"
            return f"{said!r} has length {length} in input {name!r}, but would be {wanted}"
    return ""


def _number(text: str, numbers: Mapping[str, int]) -> int | None:
    from sharding.slices.expressions import number_of  # few models need it, and it reads Python

    return number_of(text, numbers)


def _listing(specs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.name!r} {spec}" for spec in specs) or "no inputs"
