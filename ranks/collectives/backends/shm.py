"""Shared memory of one host."""

from __future__ import annotations

from ranks.collectives.backend import Backend
from ranks.collectives.base import Communicator
from ranks.identity.place import Identity


def _connect(identity: Identity, timeout: float) -> Communicator:
    from ranks.collectives.shm.communicator import connect

    return connect(identity, timeout)


BACKEND = Backend(_connect, spans_hosts=False, suits=lambda identity: identity.shares_host, order=1)
