"""The CPU arena that sessions of one process share (ONNX Runtime's environment allocator).

ONNX Runtime keeps it until the process ends and takes its settings once: whoever registers it first decides.
"""

from __future__ import annotations

import threading

import onnxruntime as ort

SHARED = {"session.use_env_allocators": "1"}
"""The option of a session that takes its memory from the shared arena."""

WORKSPACE_ONLY = {**SHARED, "session.use_device_allocator_for_initializers": "1"}
"""The same, with weights outside of it: they are freed with their session, and leave no gaps in the arena."""

_BY_NEED = 1  # kSameAsRequested of ONNX Runtime's OrtArenaCfg; 0 is kNextPowerOfTwo
_STEP = 1 << 20
_LEAST_REST = 4096
_lock = threading.Lock()
_registered = False


def register(reserve: int = 0, *, by_need: bool = False) -> bool:
    """Makes the shared arena unless there is one already; whether it was made with these settings.

    ``reserve``: bytes of its first region, which is allocated when first used and touched only as far as it
    is used; beyond it the arena grows by what is asked (at least 1 MiB). ``by_need``: no first region, and
    growth by exactly what is asked, so that its size tells what was needed. Without either, ONNX Runtime's
    own settings (regions of doubled size).
    """
    global _registered
    with _lock:
        if _registered:
            return False
        info = ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)
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
        _registered = True
        return made
