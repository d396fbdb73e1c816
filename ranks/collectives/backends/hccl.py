"""HCCL of torch_npu, between Ascend devices."""

from __future__ import annotations

from ranks.collectives.backend import Backend
from ranks.collectives.base import Communicator
from ranks.identity.place import Identity


def _connect(identity: Identity, timeout: float) -> Communicator:
    from ranks.collectives.torch.distributed import connect

    return connect(identity, timeout, "hccl", "npu")


BACKEND = Backend(_connect, device="npu", suits=lambda identity: True)
