"""A rank's model on the device that its job asks for, with the groups that this takes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ranks.collectives import target_of
from ranks.collectives.base import Communicator
from ranks.common import settings
from ranks.common.targets import TARGETS, unknown
from ranks.devices import devices
from ranks.errors import DeviceError
from ranks.identity.place import Identity
from ranks.precision.request import Asked
from ranks.run import executor, group, placement
from ranks.run.rank_model import RankModel


def load(
    path: str | Path,
    identity: Identity,
    target: str = "cpu",
    *,
    collectives: str | None = None,
    threads: int | None = None,
    asked: Asked | None = None,
    variable_weights: Sequence[str] = (),
    options: executor.LoadOptions = executor.DEFAULTS,
) -> tuple[Communicator, RankModel]:
    """Joins this process's group and loads ``path`` on ``target``, one of `TARGETS`.

    A rank on a device takes the one that `ranks.devices.devices.number_of` gives it. ``asked``: in which
    types it computes, if not in the model's own; ``variable_weights`` and ``options``: as
    `ranks.run.executor.load`, and the time-out is also that of joining the group. Returns the communicator
    for arrays in host memory, by which inputs travel, and the model. Raises `DeviceError` where this machine
    cannot serve the target, and what `ranks.run.group.join` and `ranks.run.executor.load` raise.
    """
    if target not in TARGETS:
        raise DeviceError(unknown(target))
    name = collectives or settings.collectives()
    if target == "cpu":
        if (needed := target_of(name) or target) != target:
            raise DeviceError(
                f"The {name} collectives do not join ranks on the target cpu: give --target {needed}, or "
                "leave the choice of collectives to auto."
            )
        host = group.join(identity, collectives, timeout=options.timeout)
        precision = placement.precision(target, placement.ON_CPU, asked)
        model = executor.load(
            path, communicator=host, threads=threads, variable_weights=variable_weights,
            precision=precision, options=options,
        )  # fmt: skip
        return host, model

    if target == "gpu":
        device = devices.number_of(identity, devices.visible())
    else:
        device = devices.number_of(identity)
    try:
        placed = placement.place(target, device, asked=asked)
        precision = placement.precision(target, placed, asked)
    except DeviceError as error:
        raise DeviceError(
            f"The target {target!r} cannot be served here: {error} To run on the CPU, "
            "give --target cpu (in Python: target='cpu')."
        ) from error
    on_device = target_of(name) != "cpu"
    host = group.join(identity, "auto" if on_device else name, timeout=options.timeout)
    buffers = devices.DEVICES[placed.providers[0]].buffers if len(placed.providers) > 1 else "cpu"
    exchange = (
        group.join(identity, name, buffers, options.timeout) if on_device and buffers != "cpu" else host
    )
    if exchange is host and buffers == "cuda" and host.size > 1:
        from ranks.run import gpus

        gpus.say_shared(host, placed.device_id)
    model = executor.load(
        path,
        communicator=exchange,
        threads=threads,
        placement=placed,
        variable_weights=variable_weights,
        precision=precision,
        options=options,
    )
    return host, model
