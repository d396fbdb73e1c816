"""The weights of a model where they lie: nothing is loaded before it is cut."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from sharding.errors import ModelError
from sharding.onnx_files.external import file_of
from sharding.slices.placement import Placement, Split

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array


@dataclass(frozen=True)
class Extent:
    """Bytes of a file that hold one tensor, little-endian and row-major as ONNX stores them."""

    path: Path
    offset: int
    length: int


@dataclass(frozen=True)
class WeightTensor:
    """One weight: its type and shape, and its data in a file (``extent``) or in memory (``tensor``)."""

    name: str
    tensor: ir.TensorProtocol
    extent: Extent | None

    @functools.cached_property
    def dtype(self) -> str:
        """The element type's name, such as float32 or bfloat16."""
        return dtype_name(self.tensor.dtype)

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        return tuple(int(axis) for axis in self.tensor.shape.numpy())

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the whole tensor; 0 for strings, which are never stored as plain bytes."""
        return 0 if self.is_text else int(self.tensor.nbytes)

    @property
    def is_text(self) -> bool:
        return self.dtype == "string"

    @property
    def is_integer(self) -> bool:
        return bool(self.tensor.dtype.is_integer()) or self.dtype == "bool"

    def array(self) -> Array:
        """The whole tensor; mapped from its file where it lies in one."""
        if self.extent is None:
            return self.tensor.numpy()
        if self.tensor.dtype.bitwidth < 8:
            import onnx_ir as ir

            packed = np.fromfile(self.extent.path, np.uint8, self.extent.length, offset=self.extent.offset)
            if packed.size != self.extent.length:
                raise self._changed()
            return ir.PackedTensor(packed, self.tensor.dtype, shape=ir.Shape(self.shape)).numpy()
        return self._mapped(0, self.extent.length).reshape(self.shape)

    def _mapped(self, start: int, end: int) -> Array:
        """The elements in these bytes of the tensor, flat; mapped anew, so that they can be let go."""
        assert self.extent is not None
        dtype = self.tensor.dtype.numpy()
        if start == end:
            return np.empty(0, dtype)
        try:
            mapped = np.memmap(self.extent.path, np.uint8, "r", self.extent.offset + start, (end - start,))
        except ValueError:  # it had the length once, see `locate`
            raise self._changed() from None
        return mapped.view(dtype)

    def _changed(self) -> ModelError:
        assert self.extent is not None
        return ModelError(f"{self.extent.path} changed while it was read: it is shorter than before.")

    def part(self, placement: Placement, rank: int, world: int) -> Array:
        """What a rank holds under this placement: a view where it is contiguous."""
        return cut(self.array(), placement, rank, world)


def cut(array: Array, placement: Placement, rank: int, world: int) -> Array:
    """The part of a whole array that a rank holds under a placement."""
    if not isinstance(placement, Split):
        return array
    axis, blocks = placement.axis, placement.blocks
    part, parts = placement.part(rank), placement.parts(world)
    size = array.shape[axis] // (parts * blocks)
    index: list[slice] = [slice(None)] * array.ndim
    pieces = []
    for block in range(blocks):
        start = (block * parts + part) * size
        index[axis] = slice(start, start + size)
        pieces.append(array[tuple(index)])
    return pieces[0] if blocks == 1 else np.concatenate(pieces, axis)


def dtype_name(dtype: ir.DataType | None) -> str:
    """The name that manifests use for an element type: numpy's, else ONNX's in lower case."""
    if dtype is None:
        return "unknown"
    names = {"FLOAT": "float32", "DOUBLE": "float64"}
    return names.get(dtype.name, dtype.name.lower())


def locate(name: str, tensor: ir.TensorProtocol, model_path: Path) -> WeightTensor:
    """Finds where a weight's bytes lie, and checks that they can be there.

    Raises `ModelError` for a location that `find_data` refuses, a file that is missing or too short, or a
    length that is not the shape's.
    """
    import onnx_ir as ir

    if not isinstance(tensor, ir.ExternalTensor):
        return WeightTensor(name, tensor, None)
    what = f"{model_path}: weight {name!r}"
    if any(not isinstance(axis, int) or axis < 0 for axis in tensor.shape.dims):
        raise ModelError(f"{what} has the impossible shape {list(tensor.shape.dims)}.")
    location = str(tensor.location)
    path = file_of(model_path, location, what)
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(
            f"{what} lies in {path}, which cannot be read ({error.strerror}): put the model's external "
            f"data file beside it."
        ) from None
    offset, needed = tensor.offset or 0, int(tensor.nbytes)
    length = needed if tensor.length is None else tensor.length
    if length != needed:
        raise ModelError(f"{what} needs {needed} bytes for its type and shape, but its length is {length}.")
    if offset < 0 or offset + length > size:
        raise ModelError(
            f"{what} lies at bytes {offset}..{offset + length} of {path}, which has {size}: it is truncated."
        )
    return WeightTensor(name, tensor, Extent(path, offset, length))
