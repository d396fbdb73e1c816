"""Collective backends, and the choice among them.

A backend is one module in `ranks.collectives.backends`, or an entry point of the group
``shardrun.collectives`` that another package brings.
"""

from __future__ import annotations

from collections.abc import Sequence

from ranks.collectives.backend import Backend
from ranks.collectives.base import Communicator
from ranks.common.settings import COLLECTIVES, default_timeout
from ranks.common.targets import BUFFERS
from ranks.errors import CollectiveError
from ranks.identity.place import Identity
from sharding.common.registry import Registry

__all__ = ["BACKENDS", "Backend", "Communicator", "choose", "connect", "target_of"]

BACKENDS = Registry(COLLECTIVES, Backend)


def connect(
    identity: Identity, name: str = "auto", timeout: float | None = None, device: str = "cpu"
) -> Communicator:
    """The communicator of this rank's group, connected to all other ranks.

    ``name`` is a key of `BACKENDS` or "auto"; ``device`` is where the buffers lie: "cpu", "cuda" or "npu". A
    world of one rank gets a trivial one. Waits up to ``timeout`` seconds (default: ``SHARDRUN_TIMEOUT``,
    300) for the others. Raises `CollectiveError`, `CollectiveTimeoutError` or `PeerLostError`; `DeviceError`
    where a device or its software is missing.
    """
    seconds = default_timeout() if timeout is None else float(timeout)
    if name not in COLLECTIVES:
        raise CollectiveError(
            f"There are no collectives named {name!r}; the names are {', '.join(COLLECTIVES)}."
        )
    if device not in BUFFERS.values():
        raise CollectiveError(
            f"Collectives have no device {device!r}; the devices are {', '.join(BUFFERS.values())}."
        )
    if identity.world_size == 1:
        from ranks.collectives.single import SingleCommunicator

        return SingleCommunicator(seconds)
    chosen = choose(identity, device) if name == "auto" else name
    backend = BACKENDS[chosen]
    if backend.device != device:
        raise CollectiveError(
            f"The {chosen} collectives work on buffers of device {backend.device}, but this group's are on "
            f"{device}: leave the choice to auto, or run the model on that device."
        )
    return backend.connect(identity, seconds)


def choose(identity: Identity, device: str = "cpu", *, besides: Sequence[str] = ()) -> str:
    """The backend for a group, none of ``besides``: every rank of it comes to the same one.

    NCCL or HCCL for buffers on devices; shared memory where all ranks are on one host; else shared memory
    within hosts and MPI, under an MPI launcher, or Gloo between them.
    """
    own = BACKENDS.own().items()
    fitting = {name: item for name, item in own if item.device == device and name not in besides}
    return next(
        name for name, item in sorted(fitting.items(), key=lambda pair: pair[1].order) if item.suits(identity)
    )


def target_of(name: str) -> str | None:
    """The target whose ranks these collectives join by buffers of its own; None for "auto", which has one
    for each."""
    return None if name == "auto" else BACKENDS[name].target
