"""From a context's target to ONNX Runtime's execution providers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranks.common import settings
from ranks.common.notice import warn_once
from ranks.errors import DeviceError
from ranks.lite.options import precision_options

if TYPE_CHECKING:
    from ranks.lite.options.context import Context

CPU, CUDA, TENSORRT, CANN = (f"{name}ExecutionProvider" for name in ("CPU", "CUDA", "Tensorrt", "CANN"))


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


def place(context: Context, engine_cache: str = "", modes: precision_options.Modes = ()) -> Placement:
    """Where a model of ``context`` runs; ``engine_cache`` is a folder for TensorRT's engines, ``modes`` are
    precision modes that win over the context's.

    Raises `DeviceError` saying what this machine lacks for the target.
    """
    target = target_of(context)
    if target == "cpu" or on_cpu_instead(target):
        return Placement()
    provider = context.gpu.provider if target == "gpu" else ""
    device = _gpu_of(context.gpu.device_id) if target == "gpu" else context.ascend.device_id
    require(target, device, provider)
    mode = precision_options.chosen(context, target, modes)
    options = {"device_id": str(device), **precision_options.device_options(target, provider, mode)}
    if target == "ascend":
        return Placement((CANN, CPU), (options, {}), device)
    if provider != "tensorrt":
        return Placement((CUDA, CPU), (options, {}), device)
    if engine_cache:
        options |= {"trt_engine_cache_enable": "True", "trt_engine_cache_path": engine_cache}
    # What TensorRT leaves to CUDA.
    rest = {"device_id": str(device), **precision_options.device_options("gpu", "", mode)}
    return Placement((TENSORRT, CUDA, CPU), (options, rest, {}), device)


def _gpu_of(number: int) -> int:
    """The GPU that a script means by a number. Where it gives each process the one with its rank's number,
    and the process sees fewer (a scheduler shows it its own alone, say): the one of `number_of`."""
    from ranks.devices import devices
    from ranks.identity.identity import identify

    who, count = identify(), devices.visible()
    if who.world_size > 1 and 0 < count <= number and number in {who.rank, who.local_rank}:
        return devices.number_of(who, count)
    return number


def target_of(context: Context) -> str:
    """The target that a model of ``context`` asks for: the first that is no CPU."""
    return next((name.lower() for name in context.target if name.lower() != "cpu"), "cpu")


def on_cpu_instead(target: str) -> bool:
    """Whether SHARDRUN_TARGET sends ``target`` to the CPU; the first time, with a warning."""
    if not settings.target():
        return False
    warn_once("target", f"target {target!r} runs on the CPU, because SHARDRUN_TARGET is 'cpu'.")
    return True


def require(target: str, device: int = 0, provider: str = "") -> None:
    """Raises `DeviceError` unless this machine can serve ``target`` or SHARDRUN_TARGET redirects it."""
    if on_cpu_instead(target):
        return
    from ranks.devices import devices

    try:
        devices.require(CANN if target == "ascend" else TENSORRT if provider == "tensorrt" else CUDA, device)
    except DeviceError as error:
        raise DeviceError(
            f"The target {target!r} cannot be served here: {error} To try the script on the CPU, "
            "set SHARDRUN_TARGET=cpu or use `shardrun exec --target cpu`."
        ) from error
