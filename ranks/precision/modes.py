"""What precision modes and execution plans mean to an execution provider: what it must be told, and what is
left to do in the model's graph."""

from __future__ import annotations

from ranks.devices.providers import CANN, CPU, CUDA, TENSORRT
from ranks.errors import ShardrunError
from ranks.precision.request import FLOAT16, FLOAT32, Asked, Precision

CANN_MODES = {
    "enforce_fp32": "force_fp32",
    "preferred_fp32": "allow_fp32_to_fp16",
    "enforce_fp16": "force_fp16",
    "enforce_origin": "must_keep_origin_dtype",
    "preferred_optimal": "allow_mix_precision",
}
"""CANN's own name of each mode of the target "ascend"."""
NO_PLAN_WITH_TENSORRT = (
    "[execution_plan] cannot be kept with TensorRT, which chooses the types of its layers itself"
)
_KEPT = CANN_MODES["enforce_origin"]


def told(provider: str, asked: Asked) -> dict[str, str]:
    """What the provider must be told. Raises `ShardrunError` for a mode of CANN that a plan contradicts."""
    if provider == CANN:
        mode = CANN_MODES.get(asked.mode, asked.mode)
        if asked.plan and mode not in {"", _KEPT}:
            raise ShardrunError(
                f"[execution_plan] and the precision mode {mode} of CANN contradict each other: CANN would "
                "change the types again; give the precision mode enforce_origin, or none."
            )
        mode = _KEPT if asked.plan else mode
        return {"precision_mode": mode} if mode else {}
    if provider == TENSORRT:
        return {"trt_fp16_enable": "True"} if asked.mode == "preferred_fp16" else {}
    # By default ONNX Runtime multiplies float32 matrices as TF32, of which 10 bits are the fraction.
    return {"use_tf32": "0"} if provider == CUDA and asked.mode == "enforce_fp32" else {}


def left(provider: str, asked: Asked) -> Precision | None:
    """What is left to do in the graph. Raises `ShardrunError` for a plan that the provider would not keep."""
    if provider == CANN:
        return Precision("", asked.plan) or None
    if provider == TENSORRT and asked.plan:
        raise ShardrunError(f"{NO_PLAN_WITH_TENSORRT}: leave the plan out.")
    wanted = FLOAT32 if asked.mode == "enforce_fp32" else ""
    if provider == CUDA and asked.mode == "preferred_fp16":
        wanted = FLOAT16
    return Precision(wanted, asked.plan, rounded=provider == CPU) or None
