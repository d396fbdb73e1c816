"""Collectives over several hosts with several ranks each: shared memory within, one exchange between.

A network is slower than memory, so that each host is to send what it must and no more. A flat ring sends a
buffer from host to host as often as neighbours in the ring are on two hosts, and each step of it waits for
the network. Here the ranks of a host first add up in shared memory; then each of them exchanges its own part
with the ranks in the same place of the other hosts, and the parts are gathered in shared memory. Where hosts
have different numbers of ranks, or the buffer is small, the first rank of each exchanges for all.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from ranks.collectives import BACKENDS, arrays, choose
from ranks.collectives.base import Communicator, Groups
from ranks.collectives.shm.communicator import ShmCommunicator
from ranks.collectives.shm.communicator import connect as connect_host
from ranks.collectives.single import SingleCommunicator
from ranks.collectives.whole import WholeOrPart
from ranks.errors import CollectiveError, PeerLostError
from ranks.identity.place import Identity
from sharding.common.arrays import Array, DType

_IN_PARTS = 64 << 10  # bytes from which every rank of a host exchanges a part of the sum
_LATER = 2.0  # seconds: who waits for a rank of the own host names it before the other hosts' time is over
_MARK = 32

Hosts = tuple[tuple[int, ...], ...]
"""The ranks of each host in ascending order; hosts in the order of their first ranks."""


class HierarchicalCommunicator(WholeOrPart):
    """The ranks of several hosts. Buffers are numpy arrays, best those of `allocate`.

    ``flat`` joins all ranks; ``near`` those of this host, in the order of ``hosts``; ``far`` the ranks in
    the same place of all hosts, or where hosts have different numbers of ranks, the first ones (None on the
    others).
    """

    _whole: HierarchicalCommunicator

    def __init__(
        self,
        hosts: Hosts,
        flat: Communicator,
        near: Communicator,
        far: Communicator | None,
        whole: HierarchicalCommunicator | None = None,
    ) -> None:
        self.rank, self.size, self.members = flat.rank, flat.size, flat.members
        self.timeout = near.timeout
        self.name = f"{ShmCommunicator.name}+{flat.name}"
        self.sends_kept = min(flat.sends_kept, near.sends_kept if near.size > 1 else flat.sends_kept)
        self._hosts = hosts
        self._flat, self._near, self._far = flat, near, far
        self._whole = self if whole is None else whole
        self._host = next(number for number, ranks in enumerate(hosts) if self.rank in ranks)
        self._alike = _alike(hosts)
        self._widest = max(map(len, hosts))
        columns = _columns(hosts)
        self._turns = [[sorted(column).index(rank) for rank in column] for column in columns]

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Array:
        """A buffer in the memory that the ranks of this host share."""
        made: Array = self._near.allocate(shape, dtype)
        return made

    def all_reduce(self, buffer: Array) -> None:
        arrays.check_sum(buffer)
        self._run(self._sum, buffer)

    def all_gather(self, buffer: Array, out: Array, axis: int = 0) -> None:
        rows, columns = arrays.check_gather(buffer, out, axis, self.size)
        self._run(self._gather, buffer.reshape(rows, columns), out.reshape(rows, self.size, columns))

    def all_to_all(self, buffer: Array, out: Array) -> None:
        arrays.check_exchange(buffer, out, self.size)
        self._run(self._flat.all_to_all, buffer, out)

    def broadcast(self, buffer: Array, root: int = 0) -> None:
        if not 0 <= root < self.size:
            raise CollectiveError(f"broadcast: the root {root} is not a rank of {self.size}.")
        arrays.check(buffer, "broadcast", written=root != self.rank)
        self._run(self._spread, buffer, root)

    def send(self, buffer: Array, peer: int) -> None:
        arrays.check_peer("send", peer, self.rank, self.size)
        arrays.check(buffer, "send", written=False)
        way, number = self._way(peer)
        self._run(way.send, buffer, number)

    def recv(self, buffer: Array, peer: int) -> None:
        arrays.check_peer("recv", peer, self.rank, self.size)
        arrays.check(buffer, "recv", written=True)
        way, number = self._way(peer)
        self._run(way.recv, buffer, number)

    def barrier(self) -> None:
        self._run(self._meet)

    def all_failed(self, why: str) -> bool:
        if self._broken or self._whole._broken:
            return False
        alike = self._flat.all_failed(why)
        if not alike:
            self._break(why)
            self._near.close()
        return alike

    def close(self) -> None:
        if self._shut():  # parts have theirs from the whole, some of them the same ones
            self._near.close()
            self._flat.close()

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        self._check_whole(self._whole)
        made: list[Communicator] = []
        self._run(lambda: made.append(self._part(groups, mine)))
        return made[0]

    def _part(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        within = [tuple(rank for rank in group if rank in self._hosts[self._host]) for group in groups]
        place = {rank: number for number, rank in enumerate(self._hosts[self._host])}
        near = self._near.split([[place[rank] for rank in ranks] for ranks in within if ranks])
        hosts = {group: _by_host(group, self._hosts) for group in groups}
        # What the whole itself uses is not given away: who closes a part closes nothing else. All decide
        # alike, also where only some hosts are one group each: what follows is a collective of all.
        within_hosts = all(len(found) == 1 for found in hosts.values())
        if within_hosts and not any(group in self._hosts for group in groups):
            return near
        flat = self._flat.split(groups)
        far = self._flat.split(_across([_named(found, group) for group, found in hosts.items()], self.size))
        if len(mine) == 1:
            return SingleCommunicator(self.timeout, self.members[mine[0]])
        if len(hosts[mine]) == 1 and near is not self._near:
            return near
        if len(hosts[mine]) == len(mine) and flat is not self._far:
            return flat
        alone = all(self.rank not in column for column in _columns(_named(hosts[mine], mine)))
        return HierarchicalCommunicator(hosts[mine], flat, near, None if alone else far, self)

    def _sum(self, buffer: Array) -> None:
        self._near.all_reduce(buffer)
        if len(self._hosts) == 1:
            return
        flat = buffer.reshape(-1)
        if not self._alike or self._near.size == 1 or buffer.nbytes < _IN_PARTS:
            if self._leads:
                self._between.all_reduce(flat)
            self._near.broadcast(buffer)
            return
        share = -(-flat.size // self._near.size)
        part = np.zeros((share,), buffer.dtype)
        mine = flat[self._near.rank * share : (self._near.rank + 1) * share]
        part[: mine.size] = mine
        self._between.all_reduce(part[: mine.size])
        if flat.size == self._near.size * share:
            self._near.all_gather(part, flat)
            return
        whole = np.empty((self._near.size * share,), buffer.dtype)
        self._near.all_gather(part, whole)
        flat[...] = whole[: flat.size]

    def _gather(self, rows: Array, out: Array) -> None:
        mine = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        if not mine.size:
            self._meet()
            return
        parts = np.empty((self._widest, len(self._hosts), mine.size), np.uint8)
        if self._alike:
            across = np.empty((1, len(self._hosts), mine.size), np.uint8)
            self._between.all_gather(mine.reshape(1, 1, -1), across, axis=1)
            self._near.all_gather(across, parts)
        else:
            within = np.zeros((self._widest, 1, mine.size), np.uint8)
            self._near.all_gather(mine.reshape(1, 1, -1), within[: self._near.size])
            if self._leads:
                self._between.all_gather(within, parts, axis=1)
            self._near.broadcast(parts)
        for host, ranks in enumerate(self._hosts):
            for place, rank in enumerate(ranks):
                turn = self._turns[place if self._alike else 0][host]
                out[:, rank] = parts[place, turn].view(rows.dtype).reshape(rows.shape)

    def _spread(self, buffer: Array, root: int) -> None:
        host = next(number for number, ranks in enumerate(self._hosts) if root in ranks)
        place = self._hosts[host].index(root)
        if self._alike:
            if self._near.rank == place:
                self._between.broadcast(buffer, self._turns[place][host])
            self._near.broadcast(buffer, place)
            return
        if host == self._host:
            self._near.broadcast(buffer, place)
        if self._leads:
            self._between.broadcast(buffer, self._turns[0][host])
        if host != self._host:
            self._near.broadcast(buffer, 0)

    def _meet(self) -> None:
        self._near.barrier()
        if self._leads:
            self._between.barrier()
        self._near.barrier()

    @property
    def _leads(self) -> bool:
        return self._near.rank == 0

    @property
    def _between(self) -> Communicator:
        assert self._far is not None  # the first rank of a host always has one
        return self._far

    def _way(self, peer: int) -> tuple[Communicator, int]:
        """The group by which this rank and ``peer`` exchange, and the peer's number there."""
        ranks = self._hosts[self._host]
        return (self._near, ranks.index(peer)) if peer in ranks else (self._flat, peer)

    def _run(self, call: Callable[..., None], *arguments: object) -> None:
        self._check_usable()
        try:
            call(*arguments)
        except CollectiveError as error:
            found, word = error, self._flat.last_word()
            if word is not None and word[0] != self.members[self.rank]:
                found = PeerLostError(f"Rank {word[0]} could not go on: {word[1]}", word[0])
            self._break(str(found))
            self._whole._leave(found)
            if found is error:
                raise
            raise found from error

    def _leave(self, error: CollectiveError) -> None:
        """Tells the ranks that wait for this one, of this host and of others, that it comes no more."""
        if isinstance(error, PeerLostError) and error.peer is not None:
            lost = error.peer
            if lost not in self._hosts[self._host] and isinstance(self._near, ShmCommunicator):
                self._near.blame(lost)
        self._near.close()
        self._flat.close()


def connect(identity: Identity, timeout: float) -> Communicator:
    """Meets all ranks, finds out which share a host, and joins those in shared memory.

    Where no two do, the group is the flat one, by MPI or Gloo.
    """
    besides = [name for name, item in BACKENDS.own().items() if item.nested or not item.spans_hosts]
    flat = BACKENDS[choose(identity, besides=besides)].connect(identity, timeout + _LATER)
    try:
        marks = np.empty((flat.size, _MARK), np.uint8)
        flat.all_gather(_mark(identity).reshape(1, _MARK), marks)
        found: dict[bytes, list[int]] = {}
        for rank, mark in enumerate(marks):
            found.setdefault(mark.tobytes(), []).append(rank)
        hosts = tuple(tuple(ranks) for ranks in found.values())
        if len(hosts) == flat.size:
            flat.timeout = timeout
            return flat
        mine = next(ranks for ranks in hosts if flat.rank in ranks)
        far = flat.split(_across([hosts], flat.size))
        near: Communicator = SingleCommunicator(timeout, flat.rank)
        if len(mine) > 1:
            near = connect_host(identity, timeout, mine)
        alone = all(flat.rank not in column for column in _columns(hosts))
        return HierarchicalCommunicator(hosts, flat, near, None if alone else far)
    except BaseException:
        flat.close()
        raise


def _mark(identity: Identity) -> Array:
    """The same bytes on two ranks where they can share memory: one kernel, host name, network namespace (the
    abstract sockets by which they meet are of one) and user."""
    told = repr([os.uname().nodename, identity.host, os.getuid()])
    with contextlib.suppress(OSError):  # in a sandbox that has no such files
        network = Path("/proc/self/ns/net").stat()
        boot = Path("/proc/sys/kernel/random/boot_id").read_text()
        told += repr([boot, network.st_dev, network.st_ino])
    return np.frombuffer(hashlib.sha256(told.encode()).digest(), np.uint8)


def _by_host(group: Sequence[int], hosts: Hosts) -> Hosts:
    """The hosts of a group's ranks, which are numbered from 0 in the result."""
    number = {rank: place for place, rank in enumerate(group)}
    found = [tuple(number[rank] for rank in ranks if rank in number) for ranks in hosts]
    return tuple(sorted(ranks for ranks in found if ranks))


def _named(hosts: Hosts, group: Sequence[int]) -> Hosts:
    """The inverse of `_by_host`: ranks as ``group`` names them."""
    return tuple(tuple(group[place] for place in ranks) for ranks in hosts)


def _alike(hosts: Hosts) -> bool:
    return len({len(ranks) for ranks in hosts}) == 1


def _columns(hosts: Hosts) -> list[tuple[int, ...]]:
    """The ranks in the same place of all hosts, host by host; where hosts differ, the first ones alone."""
    return list(zip(*hosts, strict=True)) if _alike(hosts) else [tuple(ranks[0] for ranks in hosts)]


def _across(groups: Sequence[Hosts], size: int) -> list[list[int]]:
    """The ranks that exchange with each other across hosts: every rank once, some of them alone."""
    found = [sorted(column) for hosts in groups for column in _columns(hosts)]
    together = {rank for column in found for rank in column}
    return found + [[rank] for rank in range(size) if rank not in together]
