"""Whether ranks have a GPU each: a scheduler that shows each of them one may show two of them the same."""

from __future__ import annotations

import logging

from ranks.agreement.handshake import gather_json
from ranks.collectives.base import Communicator
from ranks.collectives.buffers import HostMemory
from ranks.devices import owners

log = logging.getLogger(__name__)


def demand_own(host: Communicator, device: int) -> None:
    """Raises `DeviceError`, on every rank, where two ranks of ``host`` use one GPU, which NCCL refuses.

    A collective of ``host``, the group of all ranks for arrays in host memory. ``device`` is the GPU's number
    in this process.
    """
    if (shared := _shared(host, device)) is not None:
        raise owners.refusal(host.members[shared.first], host.members[shared.second], shared.gpu)


def say_shared(host: Communicator, device: int) -> None:
    """Says in the log of the second of two ranks that use one GPU what that costs; else as `demand_own`."""
    shared = _shared(host, device)
    if shared is not None and host.rank == shared.second:
        log.warning(
            "ranks %d and %d share %s: each takes memory of its own there, and what they exchange goes "
            "through host memory",
            host.members[shared.first],
            host.members[shared.second],
            shared.gpu,
        )


def _shared(host: Communicator, device: int) -> owners.Shared | None:
    """The first two ranks that use one GPU, and which; None where each has its own."""
    held = gather_json((owners.uuid_of(device), device), host, HostMemory(host))
    return owners.first_shared((uuid, number) for uuid, number in held)
