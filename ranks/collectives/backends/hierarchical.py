"""Shared memory within each host, and one exchange between hosts by MPI or Gloo."""

from __future__ import annotations

from ranks.collectives.backend import Backend
from ranks.collectives.base import Communicator
from ranks.identity.place import Identity


def _connect(identity: Identity, timeout: float) -> Communicator:
    from ranks.collectives.hierarchical import connect

    return connect(identity, timeout)


BACKEND = Backend(_connect, nested=True, suits=lambda identity: not identity.shares_host, order=2)
