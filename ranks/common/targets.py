"""The targets that models run on; "gpu" is CUDA or TensorRT, "ascend" is CANN."""

from __future__ import annotations

BUFFERS = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}
"""Target -> where the buffers of its ranks lie, in torch's words."""
TARGETS = tuple(BUFFERS)


def unknown(target: str) -> str:
    """What is said of a target that does not exist."""
    return f"There is no target {target!r}: expected one of {', '.join(TARGETS)}."
