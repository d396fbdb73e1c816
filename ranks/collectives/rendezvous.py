"""The ranks of one host, connected without MPI; `ranks.collectives.meeting` brings them together.

Data and file descriptors travel through rank 0 (SCM_RIGHTS), so that the memory that ranks share needs no
name. Each rank keeps the writing end of a pipe to itself and gives the reading end to all others: it hangs
up as soon as the rank is gone, by any death. A rank that leaves in order first writes to it, and nobody
reads: the number of bytes says why.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import select
import socket
import sys
import termios
import time
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

from ranks.common.descriptors import close_all
from ranks.common.pulse import wait
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from ranks.identity.place import Identity
from ranks.talk import unix

LARGEST_PACKET = 1 << 16
_MOST_DESCRIPTORS = 8  # in one packet


class Item(NamedTuple):
    """What one rank gave to an exchange: data and file descriptors, which now belong to the receiver."""

    data: Any
    descriptors: list[int]


class Rendezvous:
    """The ranks of one job on one host, connected. Made by `ranks.collectives.meeting.meet`.

    ``ranks`` are all of them, as the job numbers them; the first one stands between the others.
    """

    def __init__(
        self, identity: Identity, ranks: Sequence[int], peers: dict[int, socket.socket], own_life: int
    ) -> None:
        self.rank = identity.rank
        self.ranks = tuple(ranks)
        self.life: dict[int, int] = {}
        self._peers = peers  # the first rank: one socket for each other rank; others: the first one's
        self._own_life = own_life
        self._reason = 1  # bytes to write when leaving
        # A forked child that kept the pipe open would hide this rank's death.
        os.register_at_fork(after_in_child=functools.partial(_close_in_child, weakref.ref(self)))

    @wait
    def exchange(self, data: Any, descriptors: Sequence[int] = (), timeout: float = 60.0) -> list[Item]:
        """Every rank gives JSON-able ``data`` and file descriptors, and gets those of all in rank order.

        Own descriptors come back as they were given. Raises `PeerLostError` or `CollectiveTimeoutError`.
        """
        deadline = time.monotonic() + timeout
        items: dict[int, Item] = {self.rank: Item(data, list(descriptors))}
        if self.rank == self.ranks[0]:
            self._collect_and_share(items, deadline)
        else:
            self._give_and_take(items, deadline)
        return [items[rank] for rank in self.ranks]

    def _collect_and_share(self, items: dict[int, Item], deadline: float) -> None:
        try:
            poll = select.poll()
            waiting = {peer.fileno(): rank for rank, peer in self._peers.items()}
            for descriptor in waiting:
                poll.register(descriptor, select.POLLIN)
            while waiting:  # whoever comes first: a death is noticed while others are awaited
                ready = poll.poll(max(0.0, deadline - time.monotonic()) * 1000)
                for descriptor in [descriptor for descriptor, _ in ready] or list(waiting)[:1]:
                    rank = waiting.pop(descriptor)
                    poll.unregister(descriptor)
                    packet = self._receive(self._peers[rank], rank, deadline)
                    items[rank] = Item((packet.data or {}).get("data"), packet.descriptors)
            for to, peer in self._peers.items():
                for rank, item in items.items():
                    if rank != to:
                        self._send(peer, to, {"rank": rank, "data": item.data}, item.descriptors)
        except CollectiveError as error:
            for rank, item in items.items():
                if rank != self.rank:
                    close_all(item.descriptors)
            for to, peer in self._peers.items():
                with contextlib.suppress(CollectiveError):
                    self._send(peer, to, {"failed": str(error)}, ())
            raise

    def _give_and_take(self, items: dict[int, Item], deadline: float) -> None:
        first = self.ranks[0]
        peer = self._peers[first]
        with contextlib.suppress(
            PeerLostError
        ):  # where the first rank has given up, what it said is there to be read
            self._send(peer, first, {"data": items[self.rank].data}, items[self.rank].descriptors)
        try:
            while len(items) < len(self.ranks):
                message = self._receive(peer, first, deadline)
                data = message.data or {}
                rank = data.get("rank")
                if type(rank) is int and rank in self.ranks and rank not in items:
                    items[rank] = Item(data.get("data"), message.descriptors)
                    continue
                close_all(message.descriptors)
                if "failed" in data:
                    raise CollectiveError(str(data["failed"]))
                raise CollectiveError(f"Rank {first} sent an unexpected message: {str(message.data)[:80]!r}.")
        except CollectiveError:
            for rank, item in items.items():
                if rank != self.rank:
                    close_all(item.descriptors)
            raise

    def gone(self) -> list[int]:
        """The other ranks that have ended or left."""
        poll = select.poll()
        for descriptor in self.life.values():
            poll.register(descriptor, 0)
        hung_up = {descriptor for descriptor, _ in poll.poll(0)}
        return [rank for rank, descriptor in self.life.items() if descriptor in hung_up]

    def lost(self, peer: int) -> PeerLostError:
        """The error that ``peer`` is gone, without what it was needed for.

        Where it left because it had itself lost another rank, that one is named. This rank in turn will say
        so. That one may be a rank of another host, of which nothing more is known here.
        """
        seen = {self.rank}
        while peer in self.life and peer not in seen and (said := self._last_words(peer)) > 1:
            if said - 2 == self.rank:
                break
            seen.add(peer)
            peer = said - 2
        self.blame(peer)
        left = peer in self.life and self._last_words(peer)
        return PeerLostError(f"Rank {peer} {'left the group' if left else 'ended'}", peer)

    def blame(self, peer: int) -> None:
        """From now on this rank says, when it leaves, that it has lost ``peer``."""
        self._reason = peer + 2

    def close(self) -> None:
        """Leaves; the other ranks see this rank's pipe hang up. Safe to call twice."""
        if self._own_life >= 0:
            with contextlib.suppress(OSError):
                os.set_blocking(self._own_life, False)
                os.write(self._own_life, bytes(self._reason))
        self._release()

    def _release(self) -> None:
        peers, self._peers = self._peers, {}
        for peer in peers.values():
            peer.close()
        life, self.life = self.life, {}
        own, self._own_life = self._own_life, -1
        close_all([*life.values(), *([own] if own >= 0 else [])])

    def _last_words(self, peer: int) -> int:
        """Bytes in a rank's pipe: 0 if it ended, 1 if it left, 2 + n if it left having lost rank n."""
        waiting = bytearray(4)
        fcntl.ioctl(self.life[peer], termios.FIONREAD, waiting)
        return int.from_bytes(waiting, sys.byteorder)

    def _send(
        self, peer: socket.socket, rank: int, data: dict[str, object], descriptors: Sequence[int]
    ) -> None:
        try:
            unix.send(peer, data, descriptors)
        except OSError as error:
            raise PeerLostError(
                f"Rank {rank} ended while the ranks joined ({error.strerror}).", rank
            ) from error

    def _receive(self, peer: socket.socket, rank: int, deadline: float) -> unix.Packet:
        if not unix.readable(peer, deadline - time.monotonic()):
            raise CollectiveTimeoutError(f"Rank {rank} did not answer in time while the ranks joined.")
        packet = unix.receive(peer, LARGEST_PACKET, _MOST_DESCRIPTORS)
        if packet is None:
            raise PeerLostError(f"Rank {rank} ended while the ranks joined.", rank)
        return packet


def _close_in_child(rendezvous: weakref.ref[Rendezvous]) -> None:
    if (parent := rendezvous()) is not None:
        parent._release()
