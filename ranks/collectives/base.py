"""The protocol every collective backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np


class Communicator(ABC):
    """The ranks of one group, as one rank sees them.

    Buffers are C-contiguous numpy arrays for CPU backends and torch tensors on the rank's device for NCCL and
    HCCL. Every rank must make the same calls in the same order with equal dtypes and shapes. Each call raises
    `CollectiveTimeoutError` when a peer does not come within ``timeout`` seconds and `PeerLostError` as soon
    as a peer is known to be dead.
    """

    name: str
    rank: int
    size: int
    timeout: float

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A buffer on which this backend's collectives are fastest (default: ordinary memory)."""
        return np.empty(shape, dtype)

    @abstractmethod
    def all_reduce(self, buffer: Any) -> None:
        """Replaces ``buffer`` by the sum over ranks, in place; every rank gets the same bits."""

    @abstractmethod
    def all_gather(self, buffer: Any, out: Any, axis: int = 0) -> None:
        """Concatenates the ranks' equal-shaped buffers along ``axis`` into ``out``."""

    @abstractmethod
    def all_to_all(self, buffer: Any, out: Any) -> None:
        """Sends the r-th of ``size`` equal parts of axis 0 to rank r; part r of ``out`` came from rank r."""

    @abstractmethod
    def broadcast(self, buffer: Any, root: int = 0) -> None:
        """Overwrites ``buffer`` with the root's."""

    @abstractmethod
    def send(self, buffer: Any, peer: int) -> None:
        """Sends ``buffer`` to ``peer``, which must call `recv`."""

    @abstractmethod
    def recv(self, buffer: Any, peer: int) -> None:
        """Overwrites ``buffer`` with what ``peer`` sends."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called it."""

    @abstractmethod
    def close(self) -> None:
        """Leaves the group; safe to call twice."""
