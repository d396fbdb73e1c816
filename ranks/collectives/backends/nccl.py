"""NCCL of torch, between NVIDIA GPUs."""

from __future__ import annotations

from ranks.collectives.backend import Backend
from ranks.collectives.base import Communicator
from ranks.identity.place import Identity


def _connect(identity: Identity, timeout: float) -> Communicator:
    from ranks.collectives.torch.distributed import connect

    return connect(identity, timeout, "nccl", "cuda")


BACKEND = Backend(_connect, device="cuda", suits=lambda identity: True)
