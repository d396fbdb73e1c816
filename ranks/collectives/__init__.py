"""Collective backends, and the choice among them.

A backend is a module with ``connect(identity, timeout, ...) -> Communicator`` and one line in `BACKENDS`.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from ranks.collectives.base import Communicator
from ranks.common.settings import default_timeout
from ranks.errors import CollectiveError
from ranks.identity.place import Identity

__all__ = ["BACKENDS", "Communicator", "choose", "connect"]

# Name -> module and what its `connect` is told besides identity and time-out.
BACKENDS: dict[str, tuple[str, dict[str, Any]]] = {
    "shm": ("ranks.collectives.shm.communicator", {}),
    "mpi": ("ranks.collectives.mpi", {}),
    "gloo": ("ranks.collectives.torch.distributed", {"backend": "gloo"}),
    "nccl": ("ranks.collectives.torch.distributed", {"backend": "nccl"}),
    "hccl": ("ranks.collectives.torch.distributed", {"backend": "hccl"}),
}
_DEVICE_BACKENDS = {"cuda": "nccl", "npu": "hccl"}


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
    if name != "auto" and name not in BACKENDS:
        raise CollectiveError(
            f"There are no collectives named {name!r}; the names are auto, {', '.join(BACKENDS)}."
        )
    if device not in ("cpu", *_DEVICE_BACKENDS):
        raise CollectiveError(f"Collectives have no device {device!r}; the devices are cpu, cuda and npu.")
    if identity.world_size == 1:
        from ranks.collectives.single import SingleCommunicator

        return SingleCommunicator(seconds)
    chosen = choose(identity, device) if name == "auto" else name
    needed = {backend: place for place, backend in _DEVICE_BACKENDS.items()}.get(chosen, "cpu")
    if needed != device:
        raise CollectiveError(
            f"The {chosen} collectives work on buffers of device {needed}, but this group's are on {device}: "
            "leave the choice to auto, or run the model on that device."
        )
    module, extra = BACKENDS[chosen]
    communicator: Communicator = importlib.import_module(module).connect(identity, seconds, **extra)
    return communicator


def choose(identity: Identity, device: str = "cpu") -> str:
    """The backend for a group: every rank of it comes to the same one.

    NCCL or HCCL for buffers on devices; shared memory where all ranks are on one host; MPI under an MPI
    launcher; else Gloo.
    """
    if device != "cpu":
        return _DEVICE_BACKENDS[device]
    if identity.shares_host:
        return "shm"
    # Under `srun --mpi=none` an MPI library would make every rank a world of its own.
    slurm_with_mpi = identity.source.startswith("SLURM_") and "PMIX_RANK" in os.environ
    return "mpi" if slurm_with_mpi or identity.source.startswith(("OMPI_", "PMI_")) else "gloo"
