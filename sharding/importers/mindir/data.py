"""Weights where they lie: in the MindIR file itself, or in the ``data_N`` files beside it."""

from __future__ import annotations

import mmap
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sharding.common.arrays import Array
from sharding.errors import ModelError
from sharding.importers.mindir.container import Container
from sharding.importers.mindir.dtypes import ValueProblem, tensor_dtype
from sharding.importers.mindir.values import byte_count, check_plain, lengths
from sharding.onnx_files.external import file_of, find_data
from sharding.onnx_files.protobuf import IN_MODEL_FILE

if TYPE_CHECKING:
    from sharding.importers.mindir.messages import Tensor


@dataclass(frozen=True)
class Weight:
    """A parameter of the network. ``location`` is relative to the model's folder, or `IN_MODEL_FILE`; None
    where the bytes are in memory only."""

    name: str
    array: Array
    location: str | None
    offset: int = 0


class Data:
    """The bytes of a model's weights; data files are mapped when first asked for."""

    def __init__(self, container: Container) -> None:
        self.container = container
        self._files: dict[str, memoryview] = {}

    def weight(self, tensor: Tensor, name: str) -> Weight:
        """A parameter. Raises `ModelError`: it cannot be read, or not from where the file says."""
        what = f"{self.container.path}: the parameter {name!r}"
        try:
            check_plain(tensor)
            dtype, shape = tensor_dtype(tensor.data_type), lengths(tensor.dims)
            needed = byte_count(dtype, shape)
        except ValueProblem as problem:
            raise ModelError(f"{what}: {problem}.") from None
        location: str | None = None
        offset = 0
        if tensor.HasField("raw_data"):
            data = memoryview(tensor.raw_data)
        elif tensor.HasField("external_data"):
            place = tensor.external_data
            location, offset = place.location, place.offset
            data = self._part(location, offset, place.length, what)
            if location == IN_MODEL_FILE and self.container.encrypted:
                location = None
        else:
            raise ModelError(f"{what} has no data: export the network with its parameters.")
        if len(data) != needed:
            raise ModelError(f"{what} needs {needed} bytes for its type and shape, but has {len(data)}.")
        kind = np.dtype(np.uint8) if dtype == np.bool_ else dtype
        array: Array = np.frombuffer(data, kind).reshape([length or 0 for length in shape or ()])
        return Weight(name, array.view(dtype), location, offset)

    def _part(self, location: str, offset: int, length: int, what: str) -> memoryview:
        data = self.container.data if location == IN_MODEL_FILE else self._file(location, what)
        if offset < 0 or length < 0 or offset + length > len(data):
            path = self.container.path
            where = file_of(path, location, what)
            raise ModelError(
                f"{what} lies at bytes {offset}..{offset + length} of {where}, which has {len(data)}: it is "
                "truncated."
            )
        return data[offset : offset + length]

    def _file(self, location: str, what: str) -> memoryview:
        if location in self._files:
            return self._files[location]
        path = find_data(self.container.path, location, what)
        try:
            if not path.is_file():
                raise ModelError(
                    f"{what} lies in {path}, which is not there: put the folder of the model's variables "
                    "beside it."
                )
            with path.open("rb") as file:
                if path.stat().st_size == 0:
                    data = memoryview(b"")
                else:
                    data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        except (OSError, RuntimeError, ValueError) as error:  # links in a circle, too long a name, ...
            why = getattr(error, "strerror", None) or error
            raise ModelError(f"{what} lies in {location[:80]!r}, which cannot be read: {why}.") from None
        if data and data[0] != 1:
            raise ModelError(f"{path} has big-endian data: export the model on a little-endian machine.")
        self._files[location] = data
        return data
