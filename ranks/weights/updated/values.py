"""Values of variable weights: of the file, as a caller gives them, and as ONNX Runtime takes them."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from ranks.common.tensors import ELEMENT_TYPES, element_dtype
from ranks.errors import ModelError, WeightsError
from sharding.onnx_files.external import place_of

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

    from sharding.common.arrays import Array, DType


@dataclass(frozen=True)
class Snapshot:
    """One version of the weights; never changes. A prediction takes one and keeps to it."""

    version: int
    feeds: Mapping[str, ort.OrtValue]
    """Further inputs of the session, ready to be given to it without a copy."""
    arrays: Mapping[str, Array]
    """The same values on the host; they own the memory."""


@dataclass(frozen=True)
class Pair:
    """A change of low rank: the weight becomes its base + ``a @ b``.

    ``a`` is [..., rows, r] and ``b`` [..., r, columns]; the product has the weight's shape. The base is the
    value of the file or of the last whole update.
    """

    a: Array
    b: Array


@dataclass(frozen=True)
class Delta:
    """What is added to a weight's base: a pair's product, of which a rank has its part."""

    change: Array


Given = Mapping[str, "Array | Pair | Delta"]
"""New values by weight: whole ones, and changes of the base."""


@dataclass(frozen=True)
class Spec:
    """Element type (ONNX's number) and shape of a tensor."""

    element: int
    shape: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        """numpy's type."""
        return element_dtype(self.element)

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.dtype.itemsize

    def __str__(self) -> str:
        return f"{self.dtype} {list(self.shape)}"


def of_file(tensor: onnx.TensorProto, file: Path) -> Array:
    """A weight's values; mapped where they lie in a file. Raises `ModelError` where they are not whole."""
    import onnx

    shape, dtype = tuple(tensor.dims), element_dtype(tensor.data_type)
    size = Spec(tensor.data_type, shape).nbytes
    if tensor.data_location == onnx.TensorProto.EXTERNAL:  # `model_file.read` has checked place and length
        place = place_of(tensor)
        if size == 0:
            return np.empty(shape, dtype)
        mapped = np.asarray(np.memmap(file.parent / place.location, np.uint8, "r", place.offset, (size,)))
        return (np.array(mapped) if place.offset % dtype.itemsize else mapped).view(dtype).reshape(shape)
    if tensor.HasField("raw_data"):
        data = tensor.raw_data
        if len(data) != size:
            raise ModelError(f"The weight {tensor.name!r} of {file} has {len(data)} bytes instead of {size}.")
        return np.frombuffer(data, dtype).reshape(shape)
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # onnx raises many kinds
        raise ModelError(f"The weight {tensor.name!r} of {file} is damaged: {error}.") from None
    return array if array.dtype == dtype else array.astype(dtype)


def check_value(name: str, spec: Spec, value: Array | Pair | Delta) -> None:
    """Checks that a value is of the weight's type and shape, or a pair for them.

    float32 is taken for a weight of bfloat16 or float8 too, which tensors cannot have: it is rounded to the
    nearest. Raises `WeightsError`.
    """
    if isinstance(value, Pair):
        _check_pair(name, spec, value)
        return
    if isinstance(value, Delta):
        return  # its pair has been checked
    if not isinstance(value, np.ndarray):
        raise WeightsError(f"The weight {name!r} must be given as an array, but is {type(value).__name__}.")
    if value.dtype != spec.dtype and not (value.dtype == np.float32 and _is_narrow(spec.dtype)):
        raise WeightsError(
            f"The weight {name!r} has the type {spec.dtype}, but the new value has {value.dtype}."
        )
    if tuple(value.shape) != spec.shape:
        raise WeightsError(
            f"The weight {name!r} has the shape {list(spec.shape)}, but the new value has "
            f"{list(value.shape)}."
        )


def converted(value: Array, spec: Spec) -> Array:
    """A checked value in the weight's own type: itself where it has that."""
    return value if value.dtype == spec.dtype else value.astype(spec.dtype)


def _is_narrow(dtype: DType) -> bool:
    """Whether a type is one that numpy itself does not have (bfloat16, float8)."""
    return dtype.type.__module__ != "numpy"


def _check_pair(name: str, spec: Spec, pair: Pair) -> None:
    """Raises `WeightsError` unless ``a @ b`` has the weight's shape and numbers of a floating-point type."""
    if spec.dtype.kind not in "fV" or len(spec.shape) < 2:
        raise WeightsError(
            f"The weight {name!r} is {spec}: only matrices of floating-point numbers take a pair A, B."
        )
    a, b = tuple(pair.a.shape), tuple(pair.b.shape)
    fits = (
        len(a) == len(b) == len(spec.shape)
        and a[:-2] == b[:-2] == spec.shape[:-2]
        and (a[-2], b[-1], a[-1]) == (*spec.shape[-2:], b[-2])
    )
    if not fits:
        raise WeightsError(
            f"The pair for the weight {name!r} has the shapes {list(a)} and {list(b)}, but A @ B must have "
            f"the weight's shape {list(spec.shape)}."
        )
    for part in (pair.a, pair.b):
        if part.dtype not in {spec.dtype, np.dtype(np.float32)}:
            own = "" if spec.dtype == np.float32 else f"{spec.dtype}, or "
            raise WeightsError(
                f"The pair for the weight {name!r} has the type {part.dtype}, but must have the weight's, "
                f"{own}float32."
            )


def delta(pair: Pair, dtype: DType) -> Array:
    """``a @ b`` for a weight of this type, in float32, or in float64 where the weight has that."""
    wide = np.float64 if dtype == np.float64 else np.float32
    product: Array = np.matmul(pair.a.astype(wide, copy=False), pair.b.astype(wide, copy=False))
    return product


def added(base: Array, change: Array) -> Array:
    """Base and change summed in the change's precision, rounded once to the weight's."""
    with np.errstate(over="ignore"):  # what float16 cannot hold becomes infinite, as everywhere
        return (base.astype(change.dtype) + change).astype(base.dtype)


_NUMBERS = {name: number for number, name in ELEMENT_TYPES.values()}


def number_of(dtype: DType) -> int:
    """ONNX's number of an element type."""
    return _NUMBERS[dtype.name]


def number_named(name: str) -> int | None:
    """ONNX's number of the element type of this numpy name; None for what no weight can be updated in."""
    number = _NUMBERS.get(name)
    return None if number is None or element_dtype(number).hasobject else number


def ort_value(array: Array, device: str = "cpu", device_id: int = 0) -> ort.OrtValue:
    """An `OrtValue` over an array (which must outlive it), or a copy of it on a GPU."""
    import onnxruntime as ort

    if device == "cpu" or array.dtype.type.__module__ != "numpy":
        return ort.OrtValue.ortvalue_from_numpy_with_onnx_type(array, number_of(array.dtype))
    return ort.OrtValue.ortvalue_from_numpy(array, device, device_id)


def copied(array: Array) -> Array:
    """A copy in memory of its own, C-contiguous and in this machine's byte order."""
    result = np.empty(array.shape, array.dtype.newbyteorder("="))
    np.copyto(result, array)
    return result


def contiguous(array: Array) -> Array:
    """The array, copied where it does not lie in one piece."""
    return array if array.flags.c_contiguous else copied(array)


def transposed(matrix: Array) -> Array:
    """A matrix of float32 transposed, in memory of its own.

    By ONNX Runtime, which is nine times as fast at it as numpy (768 x 3072: 1.1 against 10.2 ms).
    """
    import onnxruntime as ort

    if matrix.T.flags.c_contiguous and not matrix.flags.c_contiguous:
        return copied(matrix.T)
    # numpy asks the system for large pages, which ONNX Runtime's own memory does not have: with these a
    # product of one row, which is all reading, is faster.
    result = np.empty(matrix.shape[::-1], matrix.dtype)
    session = _turner()
    binding = session.io_binding()
    binding.bind_ortvalue_input("x", ort.OrtValue.ortvalue_from_numpy(contiguous(matrix)))
    binding.bind_output("y", "cpu", 0, matrix.dtype, list(result.shape), result.ctypes.data)
    session.run_with_iobinding(binding)
    return result


@functools.cache
def _turner() -> ort.InferenceSession:
    from onnx import helper

    from ranks.sessions.session import SessionConfig, create_plain
    from sharding.common import limits

    ends = [helper.make_tensor_value_info(name, 1, axes) for name, axes in (("x", "ab"), ("y", "ba"))]
    graph = helper.make_graph([helper.make_node("Transpose", ["x"], ["y"])], "turn", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=7)
    quiet = {"session.intra_op.allow_spinning": "0"}
    config = SessionConfig(threads=limits.cores(), entries=quiet)
    return create_plain(model.SerializeToString(), config, "a transposition")


NONE_MARKED = (
    "The model was built without variable weights, so that none can be replaced: name those to be replaced "
    "in variable_weights_list or variable_weights_file of [cpu_context] (or of another target's section), "
    "and build the model again."
)


def not_marked(name: str, names: Sequence[str]) -> str:
    """What is wrong with a weight that is not among the variable ones."""
    return (
        f"The weight {name[:200]!r} is not variable: name it in variable_weights_list or "
        f"variable_weights_file when the model is built. Variable are {some(names)}."
    )


def some(names: Sequence[str]) -> str:
    """The first of these names, for a sentence."""
    return (", ".join(map(repr, names[:5])) + (", ..." if len(names) > 5 else "")) or "none"
