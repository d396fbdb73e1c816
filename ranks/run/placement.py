"""From a target to ONNX Runtime's execution providers: where a model runs, and in which types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ranks.common import settings
from ranks.common.notice import warn_once
from ranks.devices.providers import CANN, CPU, CUDA, SUFFIX, TENSORRT
from ranks.precision import modes
from ranks.precision.request import Asked, Precision
from ranks.sessions import engines


@dataclass(frozen=True)
class Placement:
    """Execution providers with their options, best first, and the device they use."""

    providers: tuple[str, ...] = (CPU,)
    options: tuple[Mapping[str, str], ...] = ({},)
    device_id: int = 0

    @property
    def in_words(self) -> str:
        """The device and what runs on it."""
        if self.providers[0] == CPU:
            return "the CPU"
        return f"{self.providers[0].removesuffix(SUFFIX)} device {self.device_id}"


ON_CPU = Placement()


def place(
    target: str,
    device: int = 0,
    provider: str = "",
    *,
    asked: Asked | None = None,
    engine_cache: str = "",
) -> Placement:
    """Where a model runs; ``provider`` is "tensorrt" or "" for the target's own, ``engine_cache`` a folder
    for TensorRT's engines, ``asked`` in which types it computes.

    Raises `DeviceError` saying what this machine lacks, `ShardrunError` for a plan that contradicts the mode.
    """
    if on_cpu(target):
        return ON_CPU
    require(target, device, provider)
    first = _provider(target, provider)
    names = (TENSORRT, CUDA) if first == TENSORRT else (first,)  # what TensorRT leaves is CUDA's
    options = [{"device_id": str(device), **modes.told(name, asked or Asked())} for name in names]
    if first == TENSORRT and engine_cache:
        options[0] |= {"trt_engine_cache_enable": "True", engines.PATH: engine_cache}
    return Placement((*names, CPU), (*options, {}), device)


def on_cpu(target: str) -> bool:
    """Whether ``target`` is the CPU, or SHARDRUN_TARGET sends it there; the first time, with a warning."""
    if target == "cpu":
        return True
    if not settings.target():
        return False
    warn_once("target", f"target {target!r} runs on the CPU, because SHARDRUN_TARGET is 'cpu'.")
    return True


def require(target: str, device: int = 0, provider: str = "") -> None:
    """Raises `DeviceError` unless this machine can serve ``target`` or SHARDRUN_TARGET redirects it."""
    if on_cpu(target):
        return
    from ranks.devices import devices

    devices.require(_provider(target, provider), device)


def precision(target: str, placement: Placement, asked: Asked | None) -> Precision | None:
    """What is left to do in the graph of a model that was placed; what a device would do by itself is not
    done on the CPU where SHARDRUN_TARGET names that instead. Raises `ShardrunError` for a plan that the
    device would not keep to."""
    if not asked:
        return None
    first = placement.providers[0]
    return modes.left(first, replace(asked, mode="") if first == CPU and target != "cpu" else asked)


def _provider(target: str, provider: str) -> str:
    return CANN if target == "ascend" else TENSORRT if provider == "tensorrt" else CUDA
