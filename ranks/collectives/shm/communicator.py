"""Collectives over shared memory: CPU ranks of one host, whoever started them.

Small messages: each rank copies its buffer to a slot that all can read, publishes, waits, and adds all slots
in rank order. Two halves are used in turn: when a rank has seen all others in one phase, all have finished
reading what it wrote in the phase before the last. Large messages go in pieces, or, where every rank's
buffer comes from `allocate`, without any copy: each rank adds its own part of all buffers and writes the sum
into all of them.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable

import numpy as np

from ranks.collectives import arrays
from ranks.collectives.base import Communicator, Groups
from ranks.collectives.meeting import meet
from ranks.collectives.rendezvous import Rendezvous
from ranks.collectives.shm import gather
from ranks.collectives.shm.area import PLACES, SLOT, Area, address_room, arena_bytes, create, longest_file
from ranks.collectives.shm.mail import Mailbox
from ranks.collectives.shm.phases import DIRECT, Phases, say
from ranks.collectives.shm.reduce import Sums
from ranks.collectives.shm.sync import signature
from ranks.collectives.single import SingleCommunicator
from ranks.collectives.whole import CLOSED
from ranks.common.descriptors import close_all
from ranks.common.tensors import name_of
from ranks.errors import CollectiveError
from ranks.identity.place import Identity
from sharding.common import limits
from sharding.common.arrays import Array, DType

_BROADCAST_PIECE = 256 << 10  # bytes: the root writes the next piece while the others copy this one


class ShmCommunicator(Communicator):
    """The ranks of one host over shared memory. One thread at a time may use it."""

    name = "shm"
    sends_kept = PLACES

    def __init__(
        self,
        rendezvous: Rendezvous,
        area: Area,
        timeout: float,
        *,
        crowded: bool,
        whole: ShmCommunicator | None = None,
        members: tuple[int, ...] | None = None,
    ) -> None:
        """``members``: the ranks of ``area`` as ``rendezvous`` numbers them, where they are not 0, 1, ..."""
        self.rank = area.rank
        self.size = area.size
        self.members = tuple(range(area.size)) if members is None else members
        self.timeout = timeout
        self._rendezvous = rendezvous
        self._area = area
        self._crowded = crowded
        self._whole = self if whole is None else whole
        self._phases = Phases(area, rendezvous, self.members, timeout, crowded=crowded)
        if whole is not None:
            _break_together(self._phases, whole._phases)
        self._sums = Sums(self._phases)
        self._all_reduce = self._sums.all_reduce()
        self.all_reduce = self._all_reduce  # type: ignore[method-assign, assignment]  # one call less
        self._mailbox = Mailbox(area, self._phases, self.members)

    @property
    def waiting_seconds(self) -> float:
        return self._phases.waiting_seconds

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A buffer in shared memory, which collectives need not copy; ordinary once its arena is full."""
        return self._area.allocate(tuple(shape), np.dtype(dtype))

    def all_reduce(self, buffer: Array) -> None:
        self._all_reduce(buffer)

    def all_gather(self, buffer: Array, out: Array, axis: int = 0) -> None:
        phases = self._phases
        outer, inner = arrays.check_gather(buffer, out, axis, self.size)
        what = say("all_gather", buffer)
        code = signature("all_gather", name_of(buffer.dtype), *buffer.shape, axis)
        rows, target = buffer.reshape(outer, inner), out.reshape(outer, self.size, inner)
        buffers = phases.buffers(buffer, code, what)
        if buffers:
            for peer, theirs in enumerate(buffers):
                target[:, peer] = theirs.reshape(outer, inner)
            phases.meet(phases.begin(code), what)
            return
        for piece in arrays.blocks(rows.shape, SLOT // buffer.itemsize):
            source = rows[piece]
            value = phases.begin(code)
            phases.slot(self.rank, value, source)[...] = source
            phases.meet(value, what)
            for peer in range(self.size):
                target[piece[0], peer, piece[1]] = phases.slot(peer, value, source)

    def gathering(self, buffer: Array, out: Array, axis: int = 0) -> Callable[[], object]:
        outer, inner = arrays.check_gather(buffer, out, axis, self.size)
        if not buffer.size or buffer.nbytes >= min(DIRECT, SLOT):
            return super().gathering(buffer, out, axis)
        what = say("all_gather", buffer)
        code = signature("all_gather", name_of(buffer.dtype), *buffer.shape, axis)
        rows, target = buffer.reshape(outer, inner), out.reshape(outer, self.size, inner)
        return gather.small(self._phases, rows, target, code, what)

    def all_to_all(self, buffer: Array, out: Array) -> None:
        phases = self._phases
        arrays.check_exchange(buffer, out, self.size)
        what = say("all_to_all", buffer)
        code = signature("all_to_all", name_of(buffer.dtype), *buffer.shape)
        count = buffer.size // self.size
        parts, target = buffer.reshape(self.size, count), out.reshape(self.size, count)
        step = max(1, SLOT // (buffer.itemsize * self.size))
        for start in range(0, count, step) if count else [0]:
            source = parts[:, start : start + step]
            value = phases.begin(code)
            phases.slot(self.rank, value, source)[...] = source
            phases.meet(value, what)
            for peer in range(self.size):
                target[peer, start : start + step] = phases.slot(peer, value, source)[self.rank]

    def broadcast(self, buffer: Array, root: int = 0) -> None:
        phases = self._phases
        if not 0 <= root < self.size:
            raise CollectiveError(f"broadcast: the root {root} is not a rank of {self.size}.")
        arrays.check(buffer, "broadcast", written=root != self.rank)
        what = say(f"broadcast from rank {self.members[root]}", buffer)
        code = signature("broadcast", name_of(buffer.dtype), *buffer.shape, root)
        flat = buffer.reshape(-1)
        step = _BROADCAST_PIECE // buffer.itemsize
        for start in range(0, flat.size, step) if flat.size else [0]:
            piece = flat[start : start + step]
            value = phases.begin(code)
            slot = phases.slot(root, value, piece)
            if root == self.rank:
                slot[...] = piece
            phases.meet(value, what)
            if root != self.rank:
                piece[...] = slot

    def send(self, buffer: Array, peer: int) -> None:
        self._mailbox.send(buffer, peer)

    def recv(self, buffer: Array, peer: int) -> None:
        self._mailbox.recv(buffer, peer)

    def blame(self, rank: int) -> None:
        """Before `close`: ranks that wait for this one are to learn that it lost ``rank``, a number as in
        ``members``, of another host."""
        self._rendezvous.blame(rank)

    def barrier(self) -> None:
        self._phases.meet(self._phases.begin(signature("barrier")), lambda: "barrier")

    def all_failed(self, why: str) -> bool:
        if self._phases.broken:
            return False
        alike = self._phases.all_failed(why)
        if not alike:
            self.close()
        return alike

    def close(self) -> None:
        self._close_parts()
        self._phases.stop(CLOSED)
        if self._whole is self:
            self._rendezvous.close()

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        """Each group's first rank makes its memory and shows it to all."""
        self._phases.check()
        first, rendezvous = mine[0] == self.rank, self._rendezvous
        members = tuple(self.members[rank] for rank in mine)
        self._check_whole(self._whole)
        made = [create(len(mine), self._area.arena_bytes)] if first and len(mine) > 1 else []
        given = list(made)
        try:
            items = rendezvous.exchange({"split": zlib.crc32(repr(groups).encode())}, made, self.timeout)
            given += [descriptor for item in items for descriptor in item.descriptors]
            if any(item.data != items[self.rank].data for item in items):
                raise CollectiveError("split: the ranks split their group into different parts.")
            if len(mine) == 1:
                return SingleCommunicator(self.timeout, members[0])
            memory = items[mine[0]].descriptors
            if len(memory) != 1:
                raise CollectiveError(f"split: rank {mine[0]} shows {len(memory)} memories instead of one.")
            area = Area(memory[0], mine.index(self.rank), len(mine))
        except CollectiveError as error:
            self._phases.stop(str(error))
            raise
        finally:
            close_all(list(dict.fromkeys(given)))
        return ShmCommunicator(
            rendezvous, area, self.timeout, crowded=self._crowded, whole=self, members=members
        )


def _break_together(part: Phases, whole: Phases) -> None:
    """What breaks one breaks the other; that a part is closed does not break the whole."""
    part.when_broken.append(lambda: None if part.broken == CLOSED else whole.stop(part.broken))
    whole.when_broken.append(lambda: part.stop(whole.broken))


def connect(identity: Identity, timeout: float, ranks: tuple[int, ...] | None = None) -> ShmCommunicator:
    """Meets the other ranks, which must be on this host, and maps the memory they share.

    ``ranks``: those of the job that are on this host, in ascending order, where they are not all.
    """
    rendezvous = meet(identity, timeout, ranks)
    ranks = rendezvous.ranks
    first = identity.rank == ranks[0]
    descriptors: list[int] = []
    try:
        told = {
            "cpus": sorted(os.sched_getaffinity(0)),
            "quota": limits.processors(),
            "room": address_room(),
        }
        items = rendezvous.exchange(told, (), timeout)
        together = len({cpu for item in items for cpu in item.data["cpus"]})
        if all(item.data["quota"] < len(item.data["cpus"]) for item in items):  # one, of all of them
            together = min(together, *(item.data["quota"] for item in items))
        rooms = [item.data["room"] for item in items if item.data["room"] is not None]
        if first:
            arena = arena_bytes(len(ranks), min(rooms, default=None), longest_file())
            descriptors.append(create(len(ranks), arena))
        items = rendezvous.exchange({}, descriptors, timeout)
        if not first:
            descriptors += [descriptor for item in items for descriptor in item.descriptors]
        if len(descriptors) != 1:
            raise CollectiveError(
                f"Rank {ranks[0]} sent {len(descriptors)} file descriptors instead of its shared memory."
            )
        area = Area(descriptors[0], ranks.index(identity.rank), len(ranks))
        crowded = len(ranks) > together
        return ShmCommunicator(rendezvous, area, timeout, crowded=crowded, members=ranks)
    except BaseException:
        rendezvous.close()
        raise
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
