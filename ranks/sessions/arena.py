"""The arenas that sessions of one process share: on the CPU, and on each CUDA device (ONNX Runtime's
environment allocators).

ONNX Runtime keeps them until the process ends and takes their settings once: whoever registers one first
decides.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping

import onnxruntime as ort

from ranks.devices.providers import CUDA

SHARED = {"session.use_env_allocators": "1"}
"""The option of a session that takes its memory from the shared arena."""

WORKSPACE_ONLY = {**SHARED, "session.use_device_allocator_for_initializers": "1"}
"""The same, with weights outside of it: they are freed with their session, and leave no gaps in the arena."""

_BY_NEED = 1  # kSameAsRequested of ONNX Runtime's OrtArenaCfg; 0 is kNextPowerOfTwo
_STEP = 1 << 20
_LEAST_REST = 4096


class Arenas:
    """Which shared arenas there are. One per process, as ONNX Runtime's environment is that keeps them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._registered = False
        self._on_cuda: dict[int, bool] = {}  # by device: whether there is a shared arena of ours

    def on_cuda(self, device_id: int, limit: int = 0) -> Mapping[str, str]:
        """The options of sessions that take what they compute in from one arena on a CUDA device; none where
        there is no such arena. They must compute on one stream.

        Made by the first call for a device, which decides on ``limit``: the most bytes that it takes, 0: no
        limit. It grows by what is asked.
        """
        with self._lock:
            if device_id not in self._on_cuda:
                info = ort.OrtMemoryInfo(
                    "Cuda", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, device_id, ort.OrtMemType.DEFAULT
                )
                settings = ort.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": _BY_NEED})
                try:
                    ort.create_and_register_allocator_v2(CUDA, info, {"device_id": str(device_id)}, settings)
                except Exception:  # each session then has an arena of its own
                    self._on_cuda[device_id] = False
                else:
                    self._on_cuda[device_id] = True
            return WORKSPACE_ONLY if self._on_cuda[device_id] else {}

    def register(self, reserve: int = 0, *, by_need: bool = False) -> bool:
        """Makes the shared arena unless there is one already; whether it was made with these settings.

        ``reserve``: bytes of its first region, which is allocated when first used and touched only as far as
        it is used; beyond it the arena grows by what is asked (at least 1 MiB). ``by_need``: no first region,
        and growth by exactly what is asked, so that its size tells what was needed. Without either, ONNX
        Runtime's own settings (regions of doubled size).
        """
        with self._lock:
            if self._registered:
                return False
            info = ort.OrtMemoryInfo(
                "Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT
            )
            settings = None
            if reserve or by_need:
                settings = ort.OrtArenaCfg(
                    {
                        "max_mem": 0,
                        "arena_extend_strategy": _BY_NEED if by_need else 0,
                        "initial_chunk_size_bytes": reserve or -1,
                        "initial_growth_chunk_size_bytes": _STEP,
                        "max_power_of_two_extend_bytes": _STEP,
                        # What is left of a block that is lent stays of use to others, however little it is.
                        "max_dead_bytes_per_chunk": _LEAST_REST,
                    }
                )
            try:
                ort.create_and_register_allocator(info, settings)
            except Exception:  # a program that uses ONNX Runtime itself may have made one already
                made = False
            else:
                made = True
            self._registered = True
            return made


ARENAS = Arenas()
on_cuda, register = ARENAS.on_cuda, ARENAS.register
