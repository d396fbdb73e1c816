"""The machine's MPI, by mpi4py."""

from __future__ import annotations

from ranks.collectives.backend import Backend
from ranks.collectives.base import Communicator
from ranks.common.sources import by_mpi
from ranks.identity.place import Identity


def _connect(identity: Identity, timeout: float) -> Communicator:
    from ranks.collectives.mpi import connect

    return connect(identity, timeout)


BACKEND = Backend(_connect, suits=lambda identity: by_mpi(identity.source), order=3, by_mpi=True)
