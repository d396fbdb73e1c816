"""A rank's model on the device that its job asks for, with the groups that this takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ranks.common import settings
from ranks.errors import DeviceError
from ranks.run import executor, group

if TYPE_CHECKING:
    from pathlib import Path

    from ranks.collectives.base import Communicator
    from ranks.identity.place import Identity
    from ranks.lite.options.targets import Placement
    from ranks.precision.request import Asked, Precision
    from ranks.run.rank_model import RankModel

TARGETS = ("cpu", "gpu", "ascend")
_ON_DEVICE = {"nccl": "gpu", "hccl": "ascend"}


def load(
    path: str | Path,
    identity: Identity,
    target: str = "cpu",
    *,
    collectives: str | None = None,
    threads: int | None = None,
    asked: Asked | None = None,
    timeout: float | None = None,
    keep: bool = True,
) -> tuple[Communicator, RankModel]:
    """Joins this process's group and loads ``path`` on ``target``, one of `TARGETS`.

    A rank on a device takes the one that `ranks.devices.devices.number_of` gives it. ``asked``: in which
    types it computes, if not in the model's own; ``timeout``: seconds to wait for another rank or process, by
    default ``SHARDRUN_TIMEOUT``; without ``keep`` no weights of the model stay in the cache. Returns the
    communicator for arrays in host memory, by which inputs travel, and the model. Raises `DeviceError` where
    this machine cannot serve the target, and what `ranks.run.group.join` and `ranks.run.executor.load` raise.
    """
    if target not in TARGETS:
        raise DeviceError(f"There is no target {target!r}; the targets are {', '.join(TARGETS)}.")
    name = collectives or settings.collectives()
    if target == "cpu":
        if needed := _ON_DEVICE.get(name):
            raise DeviceError(
                f"The {name} collectives do not join ranks on the target cpu: give --target {needed}, or "
                "leave the choice of collectives to auto."
            )
        host = group.join(identity, collectives, timeout=timeout)
        model = executor.load(
            path,
            communicator=host,
            threads=threads,
            precision=_precision(asked),
            timeout=timeout,
            keep=keep,
        )
        return host, model

    from ranks.devices import devices
    from ranks.lite.options.context import Context
    from ranks.lite.options.targets import place

    context = Context()
    context.target = [target]
    if target == "gpu":
        context.gpu.device_id = devices.number_of(identity, devices.visible())
    else:
        context.ascend.device_id = identity.device if identity.device is not None else identity.local_rank
    try:
        placement = place(context, modes=((target, asked.mode),) if asked and asked.mode else ())
        precision = _precision(asked, target, placement)
    except DeviceError as error:
        raise DeviceError(
            f"The target {target!r} cannot be served here: {error.__cause__ or error} To run on the CPU, "
            "give --target cpu (in Python: target='cpu')."
        ) from error
    on_device = name == "auto" or name in _ON_DEVICE
    host = group.join(identity, "auto" if on_device else name, timeout=timeout)
    buffers = devices.DEVICES[placement.providers[0]].buffers if len(placement.providers) > 1 else "cpu"
    exchange = group.join(identity, name, buffers, timeout) if on_device and buffers != "cpu" else host
    if exchange is host and buffers == "cuda" and host.size > 1:
        from ranks.run import gpus

        gpus.say_shared(host, placement.device_id)
    model = executor.load(
        path,
        communicator=exchange,
        threads=threads,
        providers=placement.providers,
        provider_options=placement.options,
        device_id=placement.device_id,
        precision=precision,
        timeout=timeout,
        keep=keep,
    )
    return host, model


def _precision(
    asked: Asked | None, target: str = "cpu", placement: Placement | None = None
) -> Precision | None:
    """What is left to do in the graph. Raises `ShardrunError` for a plan that the device cannot keep to."""
    if not asked:
        return None
    from ranks.lite.options import precision_options
    from ranks.lite.options.targets import Placement

    return precision_options.left(target, placement or Placement(), asked.mode, asked.plan)
