"""From a context's target to ONNX Runtime's execution providers."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranks.api.notice import warn_once
from ranks.errors import DeviceError, ShardrunError

if TYPE_CHECKING:
    from ranks.api.context import Context

CPU, CUDA, TENSORRT, CANN = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt", "CANN"))

# CANN's precision_mode by mindspore_lite's, as the latter's documentation pairs them.
CANN_PRECISION = {
    "enforce_fp32": "force_fp32",
    "preferred_fp32": "allow_fp32_to_fp16",
    "enforce_fp16": "force_fp16",
    "enforce_origin": "must_keep_origin_dtype",
    "preferred_optimal": "allow_mix_precision",
}


@dataclass(frozen=True)
class Placement:
    """Execution providers with their options, best first, and the device they use."""

    providers: tuple[str, ...] = (CPU,)
    options: tuple[dict[str, str], ...] = ({},)
    device_id: int = 0

    @property
    def in_words(self) -> str:
        """The device and what runs on it."""
        if self.providers[0] == CPU:
            return "the CPU"
        return f"{self.providers[0].removesuffix('ExecutionProvider')} device {self.device_id}"


def place(context: Context, engine_cache: str = "") -> Placement:
    """Where a model of ``context`` runs; ``engine_cache`` is a folder for TensorRT's engines.

    Raises `DeviceError` saying what this machine lacks for the target.
    """
    target = next((name.lower() for name in context.target if name.lower() != "cpu"), "cpu")
    if target == "cpu" or on_cpu_instead(target):
        return Placement()
    if target == "ascend":
        device = context.ascend.device_id
        require("ascend", device)
        options = {"device_id": str(device)}
        precision = CANN_PRECISION.get(context.ascend.precision_mode) or context.ascend.legacy_precision_mode
        if precision:
            options["precision_mode"] = precision
        return Placement((CANN, CPU), (options, {}), device)
    device = context.gpu.device_id
    require("gpu", device, context.gpu.provider)
    if context.gpu.provider != "tensorrt":
        return Placement((CUDA, CPU), ({"device_id": str(device)}, {}), device)
    engine = {"device_id": str(device)}
    if context.gpu.precision_mode == "preferred_fp16":
        engine["trt_fp16_enable"] = "1"
    if engine_cache:
        engine |= {"trt_engine_cache_enable": "1", "trt_engine_cache_path": engine_cache}
    return Placement((TENSORRT, CUDA, CPU), (engine, {"device_id": str(device)}, {}), device)


def on_cpu_instead(target: str) -> bool:
    """Whether SHARDRUN_TARGET sends ``target`` to the CPU; the first time, with a warning."""
    choice = os.environ.get("SHARDRUN_TARGET", "").strip()
    if choice == "":
        return False
    if choice.lower() != "cpu":
        raise ShardrunError(f"SHARDRUN_TARGET must be 'cpu' or not set, but is {choice[:80]!r}.")
    warn_once("target", f"target {target!r} runs on the CPU, because SHARDRUN_TARGET is 'cpu'.")
    return True


def require(target: str, device: int = 0, provider: str = "") -> None:
    """Raises `DeviceError` unless this machine can serve ``target`` or SHARDRUN_TARGET redirects it."""
    if on_cpu_instead(target):
        return
    from ranks import devices

    try:
        devices.require(CANN if target == "ascend" else TENSORRT if provider == "tensorrt" else CUDA, device)
    except DeviceError as error:
        raise DeviceError(
            f"The target {target!r} cannot be served here: {error} To try the script on the CPU, "
            "set SHARDRUN_TARGET=cpu or use `shardrun exec --target cpu`."
        ) from error
