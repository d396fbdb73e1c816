"""What a collective backend says of itself, before anything of it is imported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ranks.collectives.base import Communicator
from ranks.common.targets import BUFFERS
from ranks.identity.place import Identity


def never(identity: Identity) -> bool:
    """Of a backend that ``auto`` leaves alone."""
    return False


@dataclass(frozen=True)
class Backend:
    """One backend: a module of `ranks.collectives.backends` holds one, and has its name."""

    connect: Callable[[Identity, float], Communicator]
    """The communicator of this rank's group, whose other ranks are waited for this many seconds."""
    device: str = "cpu"
    """Where buffers lie: one of `BUFFERS`."""
    spans_hosts: bool = True
    """Whether it joins ranks of several hosts."""
    nested: bool = False
    """Whether it joins ranks of several hosts by another backend."""
    suits: Callable[[Identity], bool] = never
    """Whether ``auto`` may take it for this group; every rank must come to the same."""
    order: int = 0
    """Of several that suit, ``auto`` takes the one with the lowest."""
    by_mpi: bool = False
    """Whether ranks must have been started by an MPI."""

    @property
    def target(self) -> str:
        """The target whose ranks it joins."""
        return next(target for target, device in BUFFERS.items() if device == self.device)
