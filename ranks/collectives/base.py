"""The protocol every collective backend implements."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any, TypeAlias

import numpy as np

from ranks.common.pulse import wait
from ranks.errors import CollectiveError
from sharding.common.arrays import DType

Buffer: TypeAlias = Any
"""A numpy array or a torch tensor: only the memory that made it, and its backend, know which."""
Groups = tuple[tuple[int, ...], ...]


class Communicator(ABC):
    """The ranks of one group, as one rank sees them.

    Buffers are C-contiguous numpy arrays for CPU backends and torch tensors on the rank's device for NCCL and
    HCCL. Every rank must make the same calls in the same order with equal dtypes and shapes. Each call raises
    `CollectiveTimeoutError` when a peer does not come within ``timeout`` seconds and `PeerLostError` as soon
    as a peer is known to be dead.
    """

    name: str
    on_device: bool = False
    """Whether buffers are torch tensors on the rank's device."""
    rank: int
    size: int
    timeout: float
    awaits: bool = True
    """Whether a collective that moves something returns only once all that came before it is done, on a
    device, too."""
    computing_seconds: float = 0.0
    """How long its collectives have waited for what this rank itself still computed on its device."""
    sends_kept: int = 0
    """Messages from one rank to another that `send` leaves behind before the receiver has come. With none,
    two ranks that both send first wait for each other for ever."""
    members: tuple[int, ...]
    """The numbers by which errors name this group's ranks 0, 1, ...: those of the whole it is a part of."""
    _parts: dict[Groups, Communicator]

    @property
    def waiting_seconds(self) -> float:
        """How long its collectives have waited for other ranks; 0 where they cannot tell that apart."""
        return 0.0

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for name in (*Communicator.__abstractmethods__, "_split"):
            if isinstance(method := cls.__dict__.get(name), FunctionType):
                wait(method)

    @wait
    def split(self, groups: Sequence[Sequence[int]]) -> Communicator:
        """The group among ``groups`` that this rank is in; ranks there count from 0, in the same order.

        ``groups`` holds every rank of this group once, each group in ascending order. Made on the first
        call, which is a collective: every rank must make it, with the same ``groups``; kept, and closed with
        this group. A failure in a part is one of the whole: neither can be used any more.

        Raises `CollectiveError` and what collectives raise.
        """
        wanted = tuple(tuple(group) for group in groups)
        everyone = sorted(rank for group in wanted for rank in group)
        if everyone != list(range(self.size)) or any(list(group) != sorted(group) for group in wanted):
            raise CollectiveError(
                f"split: the groups {wanted} do not hold each of the ranks 0..{self.size - 1} once, "
                "in ascending order."
            )
        if wanted == (tuple(range(self.size)),):
            return self
        if "_parts" not in self.__dict__:
            self._parts = {}
        if wanted not in self._parts:
            self._parts[wanted] = self._split(wanted, next(group for group in wanted if self.rank in group))
        return self._parts[wanted]

    @abstractmethod
    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        """Makes the group of ``mine``, one of ``groups``; all ranks call it together."""

    def _check_whole(self, whole: Communicator) -> None:
        """For a backend that cannot split a part of ``whole`` again."""
        if whole is not self:
            raise CollectiveError("split: this group is a part of another one already; split the whole.")

    def _close_parts(self) -> None:
        for part in self.__dict__.get("_parts", {}).values():
            part.close()

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A buffer on which this backend's collectives are fastest (default: ordinary memory)."""
        return np.empty(shape, dtype)

    @abstractmethod
    def all_reduce(self, buffer: Buffer) -> None:
        """Replaces ``buffer`` by the sum over ranks, in place; every rank gets the same bits."""

    @abstractmethod
    def all_gather(self, buffer: Buffer, out: Buffer, axis: int = 0) -> None:
        """Concatenates the ranks' equal-shaped buffers along ``axis`` into ``out``."""

    def gathering(self, buffer: Buffer, out: Buffer, axis: int = 0) -> Callable[[], object]:
        """What gathers these buffers whenever it is called: quicker where that is done often."""
        return partial(self.all_gather, buffer, out, axis)

    @abstractmethod
    def all_to_all(self, buffer: Buffer, out: Buffer) -> None:
        """Sends the r-th of ``size`` equal parts of axis 0 to rank r; part r of ``out`` came from rank r."""

    @abstractmethod
    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        """Overwrites ``buffer`` with the root's."""

    @abstractmethod
    def send(self, buffer: Buffer, peer: int) -> None:
        """Sends ``buffer`` to ``peer``, which must call `recv`."""

    @abstractmethod
    def recv(self, buffer: Buffer, peer: int) -> None:
        """Overwrites ``buffer`` with what ``peer`` sends."""

    @abstractmethod
    def barrier(self) -> None:
        """Returns when every rank has called it."""

    def all_failed(self, why: str) -> bool:
        """For a rank that cannot go on with what all ranks do: whether all others come here as well within
        `ranks.common.pulse.ALIKE_SECONDS`, so that they are still in step. Else this rank has left the group,
        and whoever waits for it is told ``why``, as far as that is possible."""
        try:
            self.barrier()
        except CollectiveError:
            self.close()
            return False
        return True

    def last_word(self) -> tuple[int, str] | None:
        """A rank, as ``members`` numbers them, that left since it could not go on, and why; None where no
        such is known."""
        return None

    @abstractmethod
    def close(self) -> None:
        """Leaves the group; safe to call twice."""
