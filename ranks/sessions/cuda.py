"""Values on a CUDA GPU: torch tensors that ONNX Runtime is bound to by address.

Everything runs on one stream, a torch stream that all models of the process share: sessions compute on it
(``user_compute_stream``), copies to and from the host are torch's, and NCCL is ordered after it. So sessions
can share the memory that they compute in (`ranks.sessions.arena.on_cuda`), and only what reads their values
waits for them. Collectives of a backend that works on host memory are staged through it
(`ranks.collectives.torch.staged`), which is slow but lets several ranks share one GPU.
"""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

import numpy as np

from ranks.collectives.buffers import PLACE, Memory, Shape, nbytes
from ranks.collectives.torch.types import by_element
from ranks.common import settings
from ranks.common.tensors import element_dtype, element_number
from ranks.devices.providers import CPU, CUDA
from ranks.errors import DeviceError
from ranks.sessions import arena
from sharding.importers import torch_import

if TYPE_CHECKING:
    import onnxruntime as ort

    from ranks.collectives.base import Buffer
    from sharding.common.arrays import Array, DType


class Stream(Protocol):
    """A stream of torch's."""

    cuda_stream: int

    def synchronize(self) -> None:
        """Waits for all that was given to it."""


class _Properties(Protocol):
    """What torch says of a device."""

    uuid: object
    total_memory: int


GRAPHS = "enable_cuda_graph"
"""The option of CUDA's provider that captures sessions' work."""


def graphs_wanted(
    options: Sequence[Mapping[str, object]] = (), environ: Mapping[str, str] = os.environ
) -> bool:
    """Whether sessions' work is captured as CUDA graphs: ``SHARDRUN_CUDA_GRAPHS`` is 1, or the provider's
    options say so.

    Off by default: the values of each set of input shapes then take memory of their own, and not every
    operator's kernels can be captured.
    """
    return settings.CUDA_GRAPHS.get(environ) or any(
        str(told.get(GRAPHS, "")).lower() in {"1", "true"} for told in options
    )


class CudaMemory(Memory):
    """torch CUDA tensors on one device."""

    device = "cuda"

    def __init__(self, device_id: int, *, graphs: bool = False) -> None:
        """``graphs``: sessions capture what they do (`graphs_wanted`)."""
        try:
            torch = torch_import.load()
        except ImportError:
            raise DeviceError(
                "Running a model on several GPUs needs torch, which is not installed: pip install torch."
            ) from None
        if not torch.cuda.is_available():
            raise DeviceError(
                f"torch {torch.__version__} sees no CUDA device: install a CUDA build of torch that fits the "
                f"driver."
            )
        self.device_id = device_id
        self._torch = torch
        self._device = torch.device("cuda", device_id)
        self._types = by_element()
        self._elements = {dtype: element for element, dtype in self._types.items()}
        self._nothing = self.block(1, exchanged=False)
        self.stream: Stream = _stream(device_id)
        self._sharers = 1
        self._graphs = graphs

    def allocate(self, shape: Shape, element: int, *, exchanged: bool = False) -> Buffer:
        return self._torch.empty(shape, dtype=self._type(element), device=self._device)

    def block(self, nbytes: int, *, exchanged: bool) -> Buffer:
        return self._torch.empty(max(nbytes, 1), dtype=self._torch.uint8, device=self._device)

    def view(self, block: Buffer, shape: Shape, element: int) -> Buffer:
        return block[: nbytes(shape, element)].view(self._type(element)).reshape(shape)

    def adopt(self, value: ort.OrtValue) -> Buffer:
        shape = tuple(value.shape())
        element = element_number(value.data_type()) or 0
        if nbytes(shape, element) == 0:
            return self.allocate(shape, element)
        raw = self._torch.as_tensor(_DeviceBytes(value, nbytes(shape, element)), device=self._device)
        return raw.view(self._type(element)).reshape(shape)

    def load(self, buffer: Buffer, array: Array) -> None:
        # torch warns of arrays that are read-only. The copy has ended when the call returns.
        plain = array.flags.c_contiguous and array.flags.writeable
        source = array if plain else np.array(array, order="C", copy=True)
        self._bytes(buffer).copy_(self._host_bytes(source))

    def fetch(self, buffer: Buffer) -> Array:
        raw = self._bytes(buffer).cpu().numpy()
        fetched: Array = raw.view(self.dtype(buffer)).reshape(tuple(buffer.shape))
        return fetched

    def fetch_into(self, array: Array, buffer: Buffer) -> None:
        self._host_bytes(array).copy_(self._bytes(buffer))

    def staging(self, nbytes: int) -> Array:
        try:
            block = self._torch.empty(nbytes, dtype=self._torch.uint8, pin_memory=True)
        except RuntimeError:  # no memory can be pinned: a limit of the container, say
            return np.empty(nbytes, np.uint8)
        pinned: Array = block.numpy()  # which keeps the tensor
        return pinned

    def dtype(self, buffer: Buffer) -> DType:
        return element_dtype(self._elements[buffer.dtype])

    def copy(self, target: Buffer, source: Buffer) -> None:
        target.copy_(source)

    def address(self, buffer: Buffer) -> int:
        # torch gives 0 for tensors without elements, which ONNX Runtime refuses.
        return int(buffer.data_ptr() or self._nothing.data_ptr())

    def shape(self, buffer: Buffer) -> Shape:
        return tuple(buffer.shape)

    @property
    def place(self) -> bytes:
        name = str(self._properties().uuid)
        return hashlib.sha256(name.encode()).digest()[:PLACE]

    def shared_by(self, count: int) -> None:
        self._sharers = max(count, 1)

    def provider_options(self) -> dict[str, str]:
        """What sessions need so as to compute on this memory's stream, and in how much memory: what they ask
        for, and where ranks share the device, their part of it."""
        options = {
            "device_id": str(self.device_id),
            "user_compute_stream": str(self.stream.cuda_stream),
            "do_copy_in_default_stream": "1",
            "arena_extend_strategy": "kSameAsRequested",
        }
        if self._limit():
            options["gpu_mem_limit"] = str(self._limit())
        if self._graphs:
            options[GRAPHS] = "1"
        return options

    def session_entries(self) -> Mapping[str, str]:
        # A graph's memory stays its own: it is written again whenever the graph is replayed.
        return {} if self._graphs else arena.on_cuda(self.device_id, self._limit())

    def orders(self, session: ort.InferenceSession) -> bool:
        stream = str(self.stream.cuda_stream)
        told = session.get_provider_options()
        on_device = [name for name in session.get_providers() if name != CPU]
        return bool(on_device) and all(told[name].get("user_compute_stream") == stream for name in on_device)

    def settle(self) -> None:
        self.stream.synchronize()

    def captures(self, session: ort.InferenceSession) -> bool:
        told = session.get_provider_options().get(CUDA, {})
        return told.get(GRAPHS) == "1"

    def _limit(self) -> int:
        return self._properties().total_memory // self._sharers if self._sharers > 1 else 0

    def _properties(self) -> _Properties:
        found: _Properties = self._torch.cuda.get_device_properties(self._device)
        return found

    def active(self) -> AbstractContextManager[object]:
        """Within it torch works on this memory's device and stream (which each thread has its own of)."""
        within: AbstractContextManager[object] = self._torch.cuda.stream(self.stream)
        return within

    def _bytes(self, buffer: Buffer) -> Buffer:
        return buffer.reshape(-1).view(self._torch.uint8)

    def _host_bytes(self, array: Array) -> Buffer:
        return self._torch.from_numpy(array.reshape(-1).view(np.uint8))  # torch reads no array of bfloat16

    def _type(self, element: int) -> object:
        try:
            return self._types[element]
        except KeyError:
            raise DeviceError(f"Values of type {element_dtype(element)} cannot lie on a GPU.") from None


@functools.cache
def _stream(device_id: int) -> Stream:
    """The process's stream on a device. Not torch's default stream: it is CUDA's null stream, which ONNX
    Runtime takes for "none given"."""
    torch = torch_import.load()
    stream: Stream = torch.cuda.Stream(torch.device("cuda", device_id))
    return stream


class _DeviceBytes:
    """Memory that an ``OrtValue`` owns, as torch takes it (CUDA array interface, version 3)."""

    def __init__(self, value: ort.OrtValue, size: int) -> None:
        self.owner = value
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (value.data_ptr(), False),
            "version": 3,
        }
