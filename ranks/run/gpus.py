"""Whether ranks have a GPU each: a scheduler that shows each of them one may show two of them the same."""

from __future__ import annotations

import logging

from ranks.agreement.handshake import gather_json
from ranks.collectives.base import Communicator
from ranks.collectives.buffers import HostMemory
from ranks.errors import DeviceError

log = logging.getLogger(__name__)


def demand_own(host: Communicator, device: int) -> None:
    """Raises `DeviceError`, on every rank, where two ranks of ``host`` use one GPU, which NCCL refuses.

    A collective of ``host``, the group of all ranks for arrays in host memory. ``device`` is the GPU's number
    in this process.
    """
    if (shared := _shared(host, device)) is not None:
        first, second, what = shared
        raise DeviceError(
            f"Ranks {first} and {second} both use {what}, but NCCL needs a GPU for each rank: start no more "
            "ranks on a host than it has GPUs, have the scheduler show each rank another one (or all of them "
            "to all), or let ranks share GPUs with --collectives shm, which is slower."
        )


def say_shared(host: Communicator, device: int) -> None:
    """Says in the log of the second of two ranks that use one GPU what that costs; else as `demand_own`."""
    shared = _shared(host, device)
    if shared is not None and host.rank == shared[1]:
        first, second, what = shared
        log.warning(
            "ranks %d and %d share %s: each takes memory of its own there, and what they exchange goes "
            "through host memory",
            first,
            second,
            what,
        )


def in_words(uuid: str) -> str:
    """A GPU as NVIDIA's tools name it."""
    parts = uuid[:8], uuid[8:12], uuid[12:16], uuid[16:20], uuid[20:]
    return f"the GPU GPU-{'-'.join(parts)}"


def _shared(host: Communicator, device: int) -> tuple[int, int, str] | None:
    """The first two ranks that use one GPU, and which; None where each has its own."""
    from ranks.devices import cuda_driver

    mine = cuda_driver.Driver().uuid(device)
    holders: dict[str, tuple[int, int]] = {}
    for rank, (uuid, number) in enumerate(gather_json((mine, device), host, HostMemory(host))):
        if uuid in holders:
            first, other = holders[uuid]
            each = f"device {number} of each" if number == other else f"device {other} and {number} of theirs"
            return host.members[first], host.members[rank], f"{in_words(uuid)} ({each})"
        holders[uuid] = rank, number
    return None
