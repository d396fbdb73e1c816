"""How the ranks of one host find each other without MPI: an abstract Unix socket named after the job.

The first rank listens, the others connect; each side checks the user of the other as the kernel reports it
(SO_PEERCRED). Abstract names leave nothing on disk.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import select
import socket
import sys
import time
from collections.abc import Collection, Sequence

from ranks.collectives.absence import ABSENCE, rank_of
from ranks.collectives.rendezvous import LARGEST_PACKET, Rendezvous
from ranks.common.descriptors import close_all
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from ranks.identity.place import Identity
from ranks.talk import unix
from ranks.talk.unix import credentials

_PROTOCOL = "shardrun-rendezvous-2"
_MOST_SILENT = 64  # connections, beyond the ranks', that do not say who they are
_AGAIN = 0.1  # seconds between two attempts to tell of a rank that is gone
_NAME_TAKEN_PATIENCE = 5.0  # seconds in which an earlier rank 0 of the same name may still be ending


def meet(identity: Identity, timeout: float, ranks: Sequence[int] | None = None) -> Rendezvous:
    """Connects this rank with all others of its job, which must be on this host.

    ``ranks``: those of the job that are on this host, in ascending order, where they are not all. Waits for
    late ranks up to ``timeout`` seconds. Raises `CollectiveTimeoutError` that names who is missing,
    `PeerLostError` where a rank ended meanwhile, and `CollectiveError` where the ranks contradict each other
    (another world size, the same rank twice, a second job of the same name).
    """
    if sys.platform != "linux":
        raise CollectiveError(f"Ranks can meet without MPI on Linux only, but this is {sys.platform}.")
    ranks = tuple(range(identity.world_size)) if ranks is None else tuple(ranks)
    first = ranks[0]
    reading, writing = os.pipe()
    try:
        if identity.rank == first:
            peers = _listen(identity, ranks, timeout)
        else:
            peers = {first: _connect(identity, first, timeout)}
        rendezvous = Rendezvous(identity, ranks, peers, writing)
    except BaseException:
        close_all([reading, writing])
        raise
    try:
        items = rendezvous.exchange({"pid": os.getpid()}, [reading], timeout)
        others = {
            rank: item.descriptors for rank, item in zip(ranks, items, strict=True) if rank != identity.rank
        }
        rendezvous.life = {rank: found[0] for rank, found in others.items() if found}
        for rank, found in others.items():
            close_all(found[1:])
            if len(found) != 1:
                raise CollectiveError(f"Rank {rank} sent {len(found)} file descriptors instead of 1.")
    except BaseException:
        rendezvous.close()
        raise
    finally:
        close_all([reading])
    return rendezvous


def tell_gone(identity: Identity, gone: str, late: Collection[int], seconds: float) -> None:
    """Tells the ranks that wait, or come within so many seconds, that one will not come: the text ``gone``.
    Called in another process, after this rank's end; where the others meet at it, for those that are
    ``late``."""
    deadline = time.monotonic() + seconds
    if identity.rank == 0:
        _refuse_all(identity, gone, late, deadline)
        return
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(1.0)
            peer.connect(_name(identity, 0))
            if credentials(peer)[1] == os.getuid():
                unix.send(peer, {"protocol": _PROTOCOL, "rank": identity.rank, "gone": gone})
                # Where it is not heard, as while the first rank ends, it is told again.
                if (item := unix.receive(peer, LARGEST_PACKET)) is not None and "refused" in (
                    item.data or {}
                ):
                    return
        time.sleep(_AGAIN)


def _refuse_all(identity: Identity, gone: str, late: Collection[int], deadline: float) -> None:
    """In the place of the first rank, which is gone."""
    left = set(late)
    with _bind(identity, deadline) as listener:
        while left and unix.readable(listener, deadline - time.monotonic()):
            guest = _accept(listener)
            if guest is None:
                continue
            with contextlib.suppress(OSError), guest.socket as peer:
                peer.settimeout(1.0)
                item = unix.receive(peer, LARGEST_PACKET)
                rank = None if item is None else (item.data or {}).get("rank")
                if isinstance(rank, int):
                    left.discard(rank)
                    unix.send(peer, {"refused": gone, "lost": rank_of(gone)})


def _name(identity: Identity, first: int = 0) -> bytes:
    """The abstract socket name of the job's ranks that meet at ``first``. It holds no secret: every user of
    the host can list the names."""
    key = f"{_PROTOCOL}:{os.getuid()}:{identity.key or 'job'}{f':{first}' if first else ''}"
    return b"\0shardrun-" + hashlib.sha256(key.encode()).hexdigest()[:32].encode()


class _Guest:
    """A connection that has not said yet which rank it is."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.pid, self.uid = credentials(connection)


def _listen(identity: Identity, ranks: Sequence[int], timeout: float) -> dict[int, socket.socket]:
    """The first rank: waits until every other one has said hello."""
    deadline = time.monotonic() + timeout
    size = len(ranks)
    peers: dict[int, socket.socket] = {}
    pids: dict[int, int] = {identity.rank: os.getpid()}
    guests: dict[int, _Guest] = {}
    listener = _bind(identity, deadline)
    try:
        poll = select.poll()
        poll.register(listener, select.POLLIN)
        while len(peers) < size - 1:
            left = deadline - time.monotonic()
            if left <= 0:
                missing = [rank for rank in ranks[1:] if rank not in peers]
                raise CollectiveTimeoutError(
                    f"{_ranks(missing)} of {size} did not join within {timeout:g} s: start all ranks of the "
                    "job, with the same job, rank table and world size, on this host."
                )
            for descriptor, _ in poll.poll(min(left, 1.0) * 1000):
                if descriptor == listener.fileno():
                    guest = _accept(listener)
                    if guest is not None:
                        guests[guest.socket.fileno()] = guest
                        poll.register(guest.socket, select.POLLIN)
                    if len(guests) > _MOST_SILENT + size:  # the first that came goes
                        silent = guests.pop(next(iter(guests)))
                        poll.unregister(silent.socket)
                        silent.socket.close()
                elif descriptor in guests:
                    guest = guests.pop(descriptor)
                    poll.unregister(descriptor)
                    rank = _admit(guest, identity, ranks, pids)
                    if rank is not None:
                        peers[rank] = guest.socket
                        pids[rank] = guest.pid
                        poll.register(guest.socket, select.POLLIN)
                else:  # a rank that has joined says nothing until all have: it ended
                    rank = next((r for r, peer in peers.items() if peer.fileno() == descriptor), None)
                    if rank is None:  # one that has just been dropped
                        continue
                    raise PeerLostError(
                        f"Rank {rank} (pid {pids[rank]}) ended before all ranks had joined.", rank
                    )
        ABSENCE.all_came(ranks)
        # The name is free again before anyone is told, so that the next group of this job can have it.
        listener.close()
        for peer in peers.values():
            with contextlib.suppress(OSError):
                unix.send(peer, {"welcome": True})
        return peers
    except CollectiveError as error:
        # All that are connected learn the reason, also those whose hello has not been read yet.
        while (late := _accept(listener)) is not None:
            guests[late.socket.fileno()] = late
        lost = {}
        if isinstance(error, PeerLostError):
            lost["lost"] = error.peer
            ABSENCE.heard(str(error), peers)
        for peer in (*peers.values(), *(guest.socket for guest in guests.values())):
            with contextlib.suppress(OSError):
                unix.send(peer, {"refused": str(error), **lost})
            peer.close()
        raise
    finally:
        listener.close()
        for guest in guests.values():
            guest.socket.close()


def _bind(identity: Identity, deadline: float) -> socket.socket:
    name = _name(identity, identity.rank)
    patience = min(deadline, time.monotonic() + _NAME_TAKEN_PATIENCE)
    while True:
        try:
            listener = unix.listen(name, min(identity.world_size + 16, 4096))
            listener.setblocking(False)
            return listener
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            if time.monotonic() > patience:
                holder = unix.holder(name)
                told = f" (process {holder[0]} of user {holder[1]})" if holder else ""
                raise CollectiveError(
                    f"Rank {identity.rank} of this job is there already{told}: the job was started twice, or "
                    "two jobs have the same identity. Wait for the other one, or give each its own "
                    f"SHARDRUN_JOB (32 hexadecimal digits). ({error.strerror})"
                ) from error
        time.sleep(0.05)


def _accept(listener: socket.socket) -> _Guest | None:
    """The next connection of this user; those of others are closed at once."""
    try:
        connection = listener.accept()[0]
    except OSError:
        return None
    guest = _Guest(connection)
    if guest.uid != os.getuid():
        connection.close()
        return None
    return guest


def _admit(guest: _Guest, identity: Identity, ranks: Sequence[int], pids: dict[int, int]) -> int | None:
    """The rank that a guest says it is, or None for a stranger; raises where the job contradicts itself."""
    item = unix.receive(guest.socket, LARGEST_PACKET)
    if item is None:
        guest.socket.close()
        return None
    hello = item.data
    if hello is None or hello.get("protocol") != _PROTOCOL:
        guest.socket.close()
        return None
    rank, size, gone = hello.get("rank"), hello.get("world_size"), hello.get("gone")
    if isinstance(gone, str) and type(rank) is int and rank in ranks and rank not in pids:
        with contextlib.suppress(OSError):
            unix.send(guest.socket, {"refused": gone})
        guest.socket.close()
        raise PeerLostError(gone, rank)
    wrong = None
    if size != identity.world_size:
        wrong = (
            f"Rank {rank} (pid {guest.pid}) was started for {size} ranks, but rank {identity.rank} (pid "
            f"{os.getpid()}) for {identity.world_size}: start every rank with the same world size."
        )
    elif type(rank) is not int or rank not in ranks:
        where = "does not exist" if len(ranks) == size else "is on another host"
        wrong = f"Process {guest.pid} says it is rank {rank!r} of {size}, which {where}."
    elif rank in pids:
        wrong = f"Rank {rank} was started twice: processes {pids[rank]} and {guest.pid}."
    if wrong:
        with contextlib.suppress(OSError):
            unix.send(guest.socket, {"refused": wrong})
        guest.socket.close()
        raise CollectiveError(wrong)
    assert isinstance(rank, int)
    return rank


def _connect(identity: Identity, first: int, timeout: float) -> socket.socket:
    """Another rank: connects to the first one and waits for its welcome."""
    deadline = time.monotonic() + timeout
    pause = 0.002
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.settimeout(max(0.001, deadline - time.monotonic()))
            peer.connect(_name(identity, first))
            break
        except OSError:  # not there yet (ECONNREFUSED), or its queue is full
            peer.close()
        if time.monotonic() > deadline:
            raise CollectiveTimeoutError(
                f"Rank {identity.rank} waited {timeout:g} s for rank {first}, which did not appear on this "
                "host: start all ranks of the job, with the same job, rank table and world size "
                f"({identity.world_size})."
            )
        time.sleep(pause)
        pause = min(pause * 1.5, 0.05)
    try:
        _, uid = credentials(peer)
        if uid != os.getuid():
            raise CollectiveError(
                f"The rendezvous of this job is held by a process of another user (uid {uid})."
            )
        hello = {"protocol": _PROTOCOL, "rank": identity.rank, "world_size": identity.world_size}
        item = None
        with contextlib.suppress(OSError):
            unix.send(peer, hello)
            # Rank 0 knows who is missing and says so at its own time-out, which may be a little later than
            # ours.
            if not unix.readable(peer, deadline - time.monotonic() + 1.0):
                raise CollectiveTimeoutError(
                    f"Rank {identity.rank} reached rank {first}, but not all {identity.world_size} ranks "
                    f"joined within {timeout:g} s: start the missing ones."
                )
            item = unix.receive(peer, LARGEST_PACKET)
        if item is None:
            raise PeerLostError(f"Rank {first} ended before all ranks had joined.", first)
        answer = item.data or {}
        if "refused" in answer:
            lost = answer.get("lost")
            if type(lost) is int:
                raise PeerLostError(str(answer["refused"]), lost)
            raise CollectiveError(str(answer["refused"]))
        if "welcome" not in answer:
            raise CollectiveError(f"Rank {first} answered {str(item.data)[:80]!r} instead of a welcome.")
        peer.setblocking(True)
        return peer
    except BaseException:
        peer.close()
        raise


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"
