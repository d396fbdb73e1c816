"""Precision that a context and a configuration ask for, and what of it each target can do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ranks.common.notice import warn_once
from ranks.errors import ShardrunError
from ranks.precision.request import FLOAT16, FLOAT32, MODES, Precision

if TYPE_CHECKING:
    from ranks.lite.options.context import Context
    from ranks.lite.options.targets import Placement

KEY = "precision_mode"
PLAN = "execution_plan"
Modes = tuple[tuple[str, str], ...]
"""(target, mode) as a configuration gives them."""

# CANN's precision_mode by mindspore_lite's, as the latter's documentation pairs them.
CANN = {
    "enforce_fp32": "force_fp32",
    "preferred_fp32": "allow_fp32_to_fp16",
    "enforce_fp16": "force_fp16",
    "enforce_origin": "must_keep_origin_dtype",
    "preferred_optimal": "allow_mix_precision",
}
_KEPT = CANN["enforce_origin"]
_ALLOWED = {
    **MODES,
    "ascend": (*MODES["ascend"], *CANN.values()),
}
_TYPE = re.compile(r"data_?type\s*:\s*(float16|float32)", re.IGNORECASE)


def modes(sections: Mapping[str, Mapping[str, str]]) -> Modes:
    """``precision_mode`` of each ``[cpu_context]``, ``[gpu_context]``, ``[ascend_context]`` that has one.

    Raises `ShardrunError` for a mode that the target does not have.
    """
    found = []
    for target, allowed in _ALLOWED.items():
        mode = sections.get(f"{target}_context", {}).get(KEY)
        if mode is None:
            continue
        mode = mode.strip()
        if mode not in allowed:
            raise ShardrunError(
                f"[{target}_context] {KEY} must be one of {', '.join(allowed)}, but is {mode[:80]!r}"
            )
        found.append((target, mode))
    return tuple(found)


def plan(sections: Mapping[str, Mapping[str, str]], where: str) -> tuple[tuple[str, str], ...]:
    """``[execution_plan]``: name of a node or type of operators, and "float16" or "float32".

    Raises `ShardrunError` for an entry of another form.
    """
    found = []
    for key, value in sections.get(PLAN, {}).items():
        match = _TYPE.fullmatch(value.strip())
        if not match:
            raise ShardrunError(
                f"{where}, [{PLAN}] {key} must be data_type:float16 or data_type:float32, "
                f"but is {value[:80]!r}"
            )
        # Names in square brackets are how mindspore_lite's documentation writes "a name of yours".
        found.append((key.strip().removeprefix("[").removesuffix("]"), match[1].lower()))
    return tuple(found)


def warn_of_others(target: str, given: Modes) -> None:
    """Warns, once each, of a configuration's modes for other targets than the chosen one.

    No error, for one file may serve several platforms, and mindspore_lite reads the target's section only.
    """
    for other, mode in given:
        if other != target:
            warn_once(
                f"precision:{other}:{mode}:{target}",
                f"[{other}_context] {KEY}={mode} has no effect, because the target is {target!r}.",
            )


def chosen(context: Context, target: str, given: Modes = ()) -> str:
    """The mode for the target that was chosen, by the configuration or else in the script; "" for none."""
    if (mode := dict(given).get(target)) is not None:
        return mode
    if target == "ascend":
        return context.ascend.precision_mode or context.ascend.legacy_precision_mode
    return context.gpu.precision_chosen if target == "gpu" else context.cpu.precision_chosen


def device_options(target: str, provider: str, mode: str) -> dict[str, str]:
    """What the target's execution provider must be told for ``mode``."""
    if target == "ascend":
        return {KEY: CANN.get(mode, mode)} if mode else {}
    if provider == "tensorrt":
        return {"trt_fp16_enable": "True"} if mode == "preferred_fp16" else {}
    # By default ONNX Runtime multiplies float32 matrices as TF32, of which 10 bits are the fraction.
    return {"use_tf32": "0"} if mode == "enforce_fp32" else {}


def left(
    target: str, placement: Placement, mode: str, entries: tuple[tuple[str, str], ...]
) -> Precision | None:
    """`of_graph` of a target: what a device would do by itself is not done on the CPU where SHARDRUN_TARGET
    names that instead."""
    on_cpu = len(placement.providers) == 1 and target != "cpu"
    return of_graph(placement, "" if on_cpu else mode, entries)


def of_graph(placement: Placement, mode: str, entries: tuple[tuple[str, str], ...]) -> Precision | None:
    """What is left to do in the model's graph for ``mode`` and the entries of a plan.

    Raises `ShardrunError` for a plan that the device would not keep to.
    """
    provider = placement.providers[0].removesuffix("ExecutionProvider")
    if provider == "CANN":
        told = placement.options[0].get(KEY)
        if entries and told not in {None, _KEPT}:
            raise ShardrunError(
                f"[{PLAN}] and the precision mode {told} of CANN contradict each other: CANN would change "
                "the types again; give the precision mode enforce_origin, or none."
            )
        if entries:
            placement.options[0][KEY] = _KEPT
        return Precision("", entries) or None
    if provider == "Tensorrt" and entries:
        raise ShardrunError(
            f"[{PLAN}] cannot be kept with TensorRT, which chooses the types of its layers itself: set "
            'context.gpu.provider to "" (CUDA), or leave the plan out.'
        )
    wanted = FLOAT32 if mode == "enforce_fp32" else ""
    if provider == "CUDA" and mode == "preferred_fp16":
        wanted = FLOAT16
    return Precision(wanted, entries, rounded=provider == "CPU") or None
