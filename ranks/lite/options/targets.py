"""From a context to where its model runs, and errors in words for scripts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ranks.errors import DeviceError
from ranks.run import placement

if TYPE_CHECKING:
    from ranks.lite.options.context import Context
    from ranks.precision.request import Asked


def place(context: Context, asked: Asked | None = None, engine_cache: str = "") -> placement.Placement:
    """Where a model of ``context`` runs; ``engine_cache`` is a folder for TensorRT's engines.

    Raises `DeviceError` saying what this machine lacks for the target, and what `placement.place` raises.
    """
    target = target_of(context)
    if placement.on_cpu(target):
        return placement.ON_CPU
    gpu = target == "gpu"
    device = _gpu_of(context.gpu.device_id) if gpu else context.ascend.device_id
    provider = context.gpu.provider if gpu else ""
    with _for_scripts(target):
        return placement.place(target, device, provider, asked=asked, engine_cache=engine_cache)


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


def require(target: str) -> None:
    """`placement.require` with what a script can do."""
    with _for_scripts(target):
        placement.require(target)


@contextmanager
def _for_scripts(target: str) -> Iterator[None]:
    try:
        yield
    except DeviceError as error:
        raise DeviceError(
            f"The target {target!r} cannot be served here: {error} To try the script on the CPU, "
            "set SHARDRUN_TARGET=cpu or use `shardrun exec --target cpu`."
        ) from error
