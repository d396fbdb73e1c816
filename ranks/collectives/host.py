"""What collectives on numpy arrays share: checks, pieces, axes, and sums that a library cannot make."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn

import numpy as np

from ranks.collectives import arrays
from ranks.collectives.whole import FORKED, WholeOrPart
from ranks.common import forks
from ranks.common.pulse import ALIKE_SECONDS
from ranks.errors import CollectiveError
from sharding.common.arrays import Array

_PIECE = 1 << 30  # bytes of one message: libraries count elements in 32 bits
_GATHERED = 4 << 20  # bytes of each rank that are held at a time where sums are made here

What = Callable[[], str]  # says in words what a rank is doing, for an error


class HostCommunicator(WholeOrPart):
    """Collectives in terms of six messages on flat contiguous arrays, which a subclass provides.

    A message raises `CollectiveError` or a subclass; the group cannot be used after that.
    """

    summed: ClassVar[frozenset[str]]  # names of the element types that the library adds

    def __init__(
        self,
        rank: int,
        size: int,
        timeout: float,
        whole: HostCommunicator | None = None,
        members: tuple[int, ...] | None = None,
    ) -> None:
        """``members``: this group's ranks as ``whole`` numbers them, of which it is a part."""
        self.rank = rank
        self.size = size
        self.members = tuple(range(size)) if members is None else members
        self._whole = self if whole is None else whole
        self.timeout = timeout
        forks.in_child(self, HostCommunicator._forked)

    def _forked(self) -> None:
        self._broken = FORKED

    def all_reduce(self, buffer: Array) -> None:
        flat = arrays.check_sum(buffer).reshape(-1)
        what = self._begin("all_reduce", buffer)
        if buffer.dtype.name in self.summed:
            for piece in _pieces(flat, _PIECE):
                self._sum(piece, what)
            return
        for piece in _pieces(flat, _GATHERED):
            parts = np.empty((self.size, piece.size), piece.dtype)
            self._gather(_raw(piece), _raw(parts), what)
            arrays.sum_into(piece, list(parts))

    def all_gather(self, buffer: Array, out: Array, axis: int = 0) -> None:
        outer, inner = arrays.check_gather(buffer, out, axis, self.size)
        what = self._begin(f"all_gather along axis {axis}", buffer)
        if outer == 1 and out.nbytes <= _PIECE:
            if out.size:
                self._gather(_raw(buffer), _raw(out), what)
            return
        source, target = buffer.reshape(outer, inner), out.reshape(outer, self.size, inner)
        for rows, columns in (
            arrays.blocks(source.shape, _PIECE // (self.size * out.itemsize)) if out.size else ()
        ):
            piece = np.ascontiguousarray(source[rows, columns])
            parts = np.empty((self.size, *piece.shape), piece.dtype)
            self._gather(_raw(piece), _raw(parts), what)
            for rank in range(self.size):
                target[rows, rank, columns] = parts[rank]

    def all_to_all(self, buffer: Array, out: Array) -> None:
        arrays.check_exchange(buffer, out, self.size)
        what = self._begin("all_to_all", buffer)
        count = buffer.size // self.size
        parts, target = buffer.reshape(self.size, count), out.reshape(self.size, count)
        step = max(1, _PIECE // (self.size * buffer.itemsize))
        for start in range(0, count, step):
            piece = np.ascontiguousarray(parts[:, start : start + step])
            received = np.empty_like(piece)
            self._exchange(_raw(piece), _raw(received), what)
            target[:, start : start + step] = received

    def broadcast(self, buffer: Array, root: int = 0) -> None:
        if not 0 <= root < self.size:
            raise CollectiveError(f"broadcast: the root {root} is not a rank of {self.size}.")
        flat = arrays.check(buffer, "broadcast", written=root != self.rank).reshape(-1)
        what = self._begin(f"broadcast from rank {self.members[root]}", buffer)
        for piece in _pieces(flat, _PIECE):
            self._spread(_raw(piece), root, what)

    def send(self, buffer: Array, peer: int) -> None:
        arrays.check_peer("send", peer, self.rank, self.size)
        flat = arrays.check(buffer, "send", written=False).reshape(-1)
        what = self._begin(f"send to rank {self.members[peer]}", buffer)
        for piece in _pieces(flat, _PIECE):
            self._send(_raw(piece), peer, what)

    def recv(self, buffer: Array, peer: int) -> None:
        arrays.check_peer("recv", peer, self.rank, self.size)
        flat = arrays.check(buffer, "recv", written=True).reshape(-1)
        what = self._begin(f"recv from rank {self.members[peer]}", buffer)
        for piece in _pieces(flat, _PIECE):
            self._receive(_raw(piece), peer, what)

    def all_failed(self, why: str) -> bool:
        if self._broken or self._whole._broken:
            return False
        alike = self._all_here(min(ALIKE_SECONDS, self.timeout))
        if not alike:
            self._withdraw(why)
            self._break(why)
        return alike

    @abstractmethod
    def _all_here(self, seconds: float) -> bool:
        """Whether all ranks call this within so many seconds."""

    @abstractmethod
    def _withdraw(self, why: str) -> None:
        """Ends what others wait for, and tells them why."""

    def _begin(self, operation: str, buffer: Array | None = None) -> What:
        self._check_usable()
        if buffer is None:
            return lambda: operation
        name, shape = buffer.dtype.name, list(buffer.shape)
        return lambda: f"{operation} of {name}{shape}"

    def _fail(self, error: CollectiveError) -> NoReturn:
        self._break(str(error))
        raise error

    @abstractmethod
    def _sum(self, flat: Array, what: What) -> None:
        """Replaces ``flat`` by its sum over ranks."""

    @abstractmethod
    def _gather(self, raw: Array, out: Array, what: What) -> None:
        """Puts the ranks' bytes one after the other."""

    @abstractmethod
    def _exchange(self, raw: Array, out: Array, what: What) -> None:
        """Sends the r-th of ``size`` equal parts to rank r."""

    @abstractmethod
    def _spread(self, raw: Array, root: int, what: What) -> None:
        """Overwrites all ranks' bytes with the root's."""

    @abstractmethod
    def _send(self, raw: Array, peer: int, what: What) -> None:
        """Sends bytes to one rank."""

    @abstractmethod
    def _receive(self, raw: Array, peer: int, what: What) -> None:
        """Receives bytes from one rank."""


def _raw(array: Array) -> Array:
    return array.reshape(-1).view(np.uint8)


def _pieces(flat: Array, most: int) -> Iterator[Array]:
    """Views of at most ``most`` bytes; none of an empty array."""
    step = max(1, most // flat.itemsize)
    for start in range(0, flat.size, step):
        yield flat[start : start + step]
