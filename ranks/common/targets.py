"""The targets that models run on, and their precision modes; "gpu" is CUDA or TensorRT, "ascend" is CANN."""

from __future__ import annotations

BUFFERS = {"cpu": "cpu", "gpu": "cuda", "ascend": "npu"}
"""Target -> where the buffers of its ranks lie, in torch's words."""
TARGETS = tuple(BUFFERS)
CPU_GPU_MODES = ("enforce_fp32", "preferred_fp16")
ASCEND_MODES = ("enforce_fp32", "preferred_fp32", "enforce_fp16", "enforce_origin", "preferred_optimal")
MODES = dict(zip(TARGETS, (CPU_GPU_MODES, CPU_GPU_MODES, ASCEND_MODES), strict=True))
"""Target -> its precision modes."""


def unknown(target: str) -> str:
    """What is said of a target that does not exist."""
    return f"There is no target {target!r}: expected one of {', '.join(TARGETS)}."


def modes_in_words() -> str:
    """The modes, each list of them with its targets."""
    targets: dict[tuple[str, ...], list[str]] = {}
    for target, modes in MODES.items():
        targets.setdefault(modes, []).append(target)
    return "; ".join(
        f"{', '.join(modes[:-1])} or {modes[-1]} ({', '.join(names)})" for modes, names in targets.items()
    )
