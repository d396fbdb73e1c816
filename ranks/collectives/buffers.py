"""Memory for the values that cross between segments and collectives: host arrays, or torch tensors on a GPU.

A buffer is a C-contiguous numpy array or a torch CUDA tensor: what the communicator takes and what ONNX
Runtime is bound to by its address.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ranks.collectives.base import Communicator
from ranks.common.tensors import array_of, element_dtype

if TYPE_CHECKING:
    import onnxruntime as ort

    from ranks.collectives.base import Buffer
    from sharding.common.arrays import Array, DType

ALIGNMENT = 64
"""Bytes; a cache line, and the widest vector load of x86-64."""

PLACE = 16

Shape = tuple[int, ...]


class Memory(Protocol):
    """Where buffers lie."""

    device: str
    device_id: int

    def allocate(self, shape: Shape, element: int, *, exchanged: bool = False) -> Buffer:
        """A buffer; ``exchanged``: a collective will act on it."""

    def block(self, nbytes: int, *, exchanged: bool) -> Buffer:
        """Bytes of which `view` makes buffers."""

    def view(self, block: Buffer, shape: Shape, element: int) -> Buffer:
        """The start of a block as a buffer."""

    def adopt(self, value: ort.OrtValue) -> Buffer:
        """An ``OrtValue`` of ONNX Runtime's own allocation as a buffer, without a copy."""

    def load(self, buffer: Buffer, array: Array) -> None:
        """Copies a host array into a buffer."""

    def fetch(self, buffer: Buffer) -> Array:
        """A copy of a buffer on the host, owned by the caller."""

    def fetch_into(self, array: Array, buffer: Buffer) -> None:
        """Copies a buffer into a host array of its type and shape."""

    def staging(self, nbytes: int) -> Array:
        """Bytes of host memory that are quickly copied to and from buffers."""

    def dtype(self, buffer: Buffer) -> DType:
        """The type of its elements."""

    def copy(self, target: Buffer, source: Buffer) -> None:
        """Copies between buffers."""

    def address(self, buffer: Buffer) -> int:
        """Where the buffer starts, for binding."""

    def shape(self, buffer: Buffer) -> Shape:
        """Its shape."""

    @property
    def place(self) -> bytes:
        """`PLACE` bytes that are the same for all who use this memory's device; zeros for the host's."""
        return bytes(PLACE)

    def shared_by(self, count: int) -> None:
        """Says how many ranks use the device."""
        return

    def provider_options(self) -> Mapping[str, str]:
        """What the first provider must be told to work on this memory."""
        return {}

    def session_entries(self) -> Mapping[str, str]:
        """Options of sessions that work on this memory, by ONNX Runtime's keys."""
        return {}

    def orders(self, session: ort.InferenceSession) -> bool:
        """Whether what ``session`` does comes before what is done with buffers after its run, though the run
        may end earlier."""
        return False

    def settle(self) -> None:
        """Waits for all that is done with buffers so far."""
        return

    def captures(self, session: ort.InferenceSession) -> bool:
        """Whether ``session`` may keep its work for a device, to repeat it on the same buffers."""
        return False

    def active(self) -> AbstractContextManager[object]:
        """Within it buffers may be used."""
        return nullcontext()


def nbytes(shape: Shape, element: int) -> int:
    """Bytes that a value takes."""
    return math.prod(shape) * element_dtype(element).itemsize


class HostMemory(Memory):
    """numpy arrays; those that collectives act on come from the communicator."""

    device = "cpu"
    device_id = 0

    def __init__(self, communicator: Communicator | None) -> None:
        self._exchange: Callable[[int], Array] | None = None
        if communicator is not None:
            self._exchange = lambda size: communicator.allocate((size,), np.dtype(np.uint8))

    def allocate(self, shape: Shape, element: int, *, exchanged: bool = False) -> Buffer:
        return self.view(self.block(nbytes(shape, element), exchanged=exchanged), shape, element)

    def block(self, nbytes: int, *, exchanged: bool) -> Buffer:
        if exchanged and self._exchange is not None:
            return self._exchange(max(nbytes, 1))
        raw = np.empty(nbytes + ALIGNMENT, np.uint8)
        start = -raw.ctypes.data % ALIGNMENT
        return raw[start : start + nbytes]

    def view(self, block: Buffer, shape: Shape, element: int) -> Buffer:
        return block[: nbytes(shape, element)].view(element_dtype(element)).reshape(shape)

    def adopt(self, value: ort.OrtValue) -> Buffer:
        return array_of(value)

    def load(self, buffer: Buffer, array: Array) -> None:
        np.copyto(buffer, array)

    def fetch(self, buffer: Buffer) -> Array:
        copied: Array = buffer.copy()
        return copied

    def fetch_into(self, array: Array, buffer: Buffer) -> None:
        np.copyto(array, buffer)

    def staging(self, nbytes: int) -> Array:
        return np.empty(nbytes, np.uint8)

    def dtype(self, buffer: Buffer) -> DType:
        dtype: DType = buffer.dtype
        return dtype

    def copy(self, target: Buffer, source: Buffer) -> None:
        np.copyto(target, source)

    def address(self, buffer: Buffer) -> int:
        return int(buffer.__array_interface__["data"][0])  # `ctypes` makes objects

    def shape(self, buffer: Buffer) -> Shape:
        return tuple(buffer.shape)


class Pool:
    """Blocks that are used again once the value in them has been read for the last time."""

    def __init__(self, memory: Memory, *, exchanged: bool) -> None:
        self._memory = memory
        self._exchanged = exchanged
        self._free: list[tuple[int, Buffer]] = []

    def take(self, size: int) -> tuple[int, Buffer]:
        """A block of at least ``size`` bytes and at most twice that."""
        fitting = [item for item in self._free if size <= item[0] <= max(2 * size, 4096)]
        if fitting:
            best = min(fitting, key=lambda item: item[0])
            self._free = [item for item in self._free if item is not best]
            return best
        return size, self._memory.block(size, exchanged=self._exchanged)

    def give(self, item: tuple[int, Buffer]) -> None:
        """Returns a block."""
        self._free.append(item)
