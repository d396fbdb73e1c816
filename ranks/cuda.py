"""Values on a CUDA GPU: torch tensors that ONNX Runtime is bound to by address.

Everything runs on one stream, a torch stream of the model's own: sessions compute on it
(``user_compute_stream``), copies to and from the host are torch's, and NCCL is ordered after it. Collectives
of a backend that works on host memory are staged through it, which is slow but lets several ranks share one
GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np

from ranks.buffers import Memory, Shape, nbytes
from ranks.collectives.base import Communicator, Groups
from ranks.errors import DeviceError
from ranks.tensors import element_dtype, element_number
from sharding.importers import torch_import

_ON_DEVICE = frozenset({"nccl"})


class CudaMemory(Memory):
    """torch CUDA tensors on one device."""

    device = "cuda"

    def __init__(self, device_id: int) -> None:
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
        self._types = _torch_types(torch)
        self._elements = {dtype: element for element, dtype in self._types.items()}
        self._nothing = self.block(1, exchanged=False)
        # Not torch's default stream: it is CUDA's null stream, which ONNX Runtime takes for "none given".
        self.stream: Any = torch.cuda.Stream(self._device)

    def allocate(self, shape: Shape, element: int, *, exchanged: bool = False) -> Any:
        return self._torch.empty(shape, dtype=self._type(element), device=self._device)

    def block(self, nbytes: int, *, exchanged: bool) -> Any:
        return self._torch.empty(max(nbytes, 1), dtype=self._torch.uint8, device=self._device)

    def view(self, block: Any, shape: Shape, element: int) -> Any:
        return block[: nbytes(shape, element)].view(self._type(element)).reshape(shape)

    def adopt(self, value: Any) -> Any:
        shape = tuple(value.shape())
        element = element_number(value.data_type()) or 0
        if nbytes(shape, element) == 0:
            return self.allocate(shape, element)
        raw = self._torch.as_tensor(_DeviceBytes(value, nbytes(shape, element)), device=self._device)
        return raw.view(self._type(element)).reshape(shape)

    def load(self, buffer: Any, array: np.ndarray[Any, Any]) -> None:
        # By bytes: torch reads no numpy array of bfloat16.
        source = self._torch.from_numpy(np.array(array, order="C", copy=True).reshape(-1).view(np.uint8))
        buffer.reshape(-1).view(self._torch.uint8).copy_(source)

    def fetch(self, buffer: Any) -> np.ndarray[Any, Any]:
        element = self._elements[buffer.dtype]
        raw = buffer.reshape(-1).view(self._torch.uint8).cpu().numpy()
        return raw.view(element_dtype(element)).reshape(tuple(buffer.shape))

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def address(self, buffer: Any) -> int:
        # torch gives 0 for tensors without elements, which ONNX Runtime refuses.
        return int(buffer.data_ptr() or self._nothing.data_ptr())

    def shape(self, buffer: Any) -> Shape:
        return tuple(buffer.shape)

    def provider_options(self) -> dict[str, str]:
        """What sessions need so as to compute on this memory's stream."""
        return {
            "device_id": str(self.device_id),
            "user_compute_stream": str(self.stream.cuda_stream),
            "do_copy_in_default_stream": "1",
        }

    def active(self) -> AbstractContextManager[Any]:
        """Within it torch works on this memory's device and stream (which each thread has its own of)."""
        return self._torch.cuda.stream(self.stream)

    def _type(self, element: int) -> Any:
        try:
            return self._types[element]
        except KeyError:
            raise DeviceError(f"Values of type {element_dtype(element)} cannot lie on a GPU.") from None


class _DeviceBytes:
    """Memory that an ``OrtValue`` owns, as torch takes it (CUDA array interface, version 3)."""

    def __init__(self, value: Any, size: int) -> None:
        self.owner = value
        self.__cuda_array_interface__ = {
            "shape": (size,),
            "typestr": "|u1",
            "data": (value.data_ptr(), False),
            "version": 3,
        }


class HostStaged(Communicator):
    """A host communicator that takes torch CUDA tensors, by way of host memory."""

    def __init__(self, inner: Communicator, memory: Memory) -> None:
        self.inner = inner
        self.memory = memory
        self.name, self.rank, self.size, self.timeout = inner.name, inner.rank, inner.size, inner.timeout
        self.members = inner.members

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        return on_device(self.inner.split(groups), self.memory)

    def _staged(self, call: Callable[[Any], None], buffer: Any) -> None:
        host = self.memory.fetch(buffer)
        call(host)
        self.memory.load(buffer, host)

    def all_reduce(self, buffer: Any) -> None:
        self._staged(self.inner.all_reduce, buffer)

    def broadcast(self, buffer: Any, root: int = 0) -> None:
        self._staged(lambda host: self.inner.broadcast(host, root), buffer)

    def recv(self, buffer: Any, peer: int) -> None:
        self._staged(lambda host: self.inner.recv(host, peer), buffer)

    def send(self, buffer: Any, peer: int) -> None:
        self.inner.send(self.memory.fetch(buffer), peer)

    def all_gather(self, buffer: Any, out: Any, axis: int = 0) -> None:
        source = self.memory.fetch(buffer)
        self._staged(lambda host: self.inner.all_gather(source, host, axis), out)

    def all_to_all(self, buffer: Any, out: Any) -> None:
        source = self.memory.fetch(buffer)
        self._staged(lambda host: self.inner.all_to_all(source, host), out)

    def barrier(self) -> None:
        self.inner.barrier()

    def close(self) -> None:
        self.inner.close()


def on_device(communicator: Communicator, memory: Memory) -> Communicator:
    """The communicator itself if it takes device memory, else one that stages through the host."""
    return communicator if communicator.name in _ON_DEVICE else HostStaged(communicator, memory)


def _torch_types(torch: Any) -> dict[int, Any]:
    names = {
        1: "float32",
        2: "uint8",
        3: "int8",
        5: "int16",
        6: "int32",
        7: "int64",
        9: "bool",
        10: "float16",
        11: "float64",
        16: "bfloat16",
        17: "float8_e4m3fn",
        19: "float8_e5m2",
    }
    return {element: getattr(torch, name) for element, name in names.items() if hasattr(torch, name)}
