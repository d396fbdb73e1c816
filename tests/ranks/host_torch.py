"""torch whose CUDA devices are host memory, where the stand-in for CUDA has its device memory, too; and NCCL
that is Gloo."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np

STREAM = 123456


class Torch:
    """torch, whose CUDA devices are host memory, as the stand-in's are."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        stream = types.SimpleNamespace(cuda_stream=STREAM, synchronize=lambda: None)
        self.cuda = types.SimpleNamespace(
            is_available=lambda: True,
            device_count=lambda: 1,
            set_device=lambda given: None,
            Stream=lambda *given: stream,
            stream=lambda given: contextlib.nullcontext(),
            current_stream=lambda *given: stream,
            synchronize=lambda *given: None,
            get_device_name=lambda given: "A Card",
            get_device_properties=lambda given: types.SimpleNamespace(uuid="stand-in", total_memory=16 << 30),
            nccl=types.SimpleNamespace(version=lambda: (2, 0, 0)),
        )
        self.version = types.SimpleNamespace(cuda="13.0")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def device(self, *given: Any) -> Any:
        return self._torch.device("cpu")

    def empty(self, shape: Any, *, pin_memory: bool = False, **given: Any) -> Any:
        return self._torch.empty(shape, **given)

    def full(self, *shape: Any, device: Any, **given: Any) -> Any:
        return self._torch.full(*shape, **given)

    def ones(self, *shape: Any, device: Any, **given: Any) -> Any:
        return self._torch.ones(*shape, **given)

    def zeros(self, *shape: Any, device: Any, **given: Any) -> Any:
        return self._torch.zeros(*shape, **given)

    def as_tensor(self, given: Any, device: Any) -> Any:
        told = given.__cuda_array_interface__
        raw = (ctypes.c_ubyte * told["shape"][0]).from_address(told["data"][0])
        raw.owner = given.owner  # type: ignore[attr-defined]
        return self._torch.from_numpy(np.frombuffer(raw, np.uint8))


def replace(torch: Any) -> None:
    """From now on whoever imports torch gets this one in its place. Its tensors say that they lie on a GPU,
    but not to torch itself."""
    import torch.distributed as dist

    sys.modules["torch"] = Torch(torch)  # type: ignore[assignment]
    own = str(Path(torch.__file__).parent)
    torch.Tensor.is_cuda = property(lambda tensor: not sys._getframe(1).f_code.co_filename.startswith(own))
    torch.Tensor.get_device = lambda tensor: 0
    join = dist.init_process_group

    def init(backend: str, *, device_id: Any = None, **options: Any) -> None:
        join("gloo" if backend == "nccl" else backend, **options)

    dist.init_process_group = init
    dist.is_nccl_available = lambda: True
