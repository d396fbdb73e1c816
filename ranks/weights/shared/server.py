"""The owner's side of shared weights: one thread that lets processes attach, and waits at no cost.

It runs in the process that serves the model, so nothing that another process sends may stop it, hold it up
or use up the process's descriptors: whoever may not attach is refused before a byte of it is read, the others
have a time to prove that they know the handle and a number of connections each.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import resource
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ranks.common import forks
from ranks.common.descriptors import Part, close_all
from ranks.errors import ShardrunError, WeightsError
from ranks.talk import unix
from ranks.talk.unix import credentials, has_ended, name_senders, process_of
from ranks.weights.shared.handle import Address, is_nonce
from ranks.weights.shared.peers import Guests
from ranks.weights.shared.protocol import (
    PROTOCOL,
    pack,
    receive,
    send,
    step,
)

log = logging.getLogger(__name__)

HANDSHAKE_SECONDS = 5.0
MOST_PENDING = 8  # connections of one process that have not proved anything yet
MOST_ATTACHED = 64  # connections of one process
BACKLOG = 256
_ACCEPTS_PER_ROUND = 16  # so that those who are connected already are heard in between
_OUT_OF_DESCRIPTORS_PAUSE = 0.05
# So few unread packets fit into it that nobody can fill the kernel's table of descriptors on their way.
_SEND_BUFFER = 8 << 10


@dataclass(frozen=True)
class Offer:
    """What an attached process is given."""

    facts: Mapping[str, object]
    """What it must agree with, JSON-able: see `ranks.weights.shared.sharing`."""
    folder: int
    """A descriptor of the folder with the weights; the server closes it."""
    parts: Mapping[str, Callable[[], Part]] = field(default_factory=dict)
    """What is made anew for each process, and on each later request; the server closes the descriptors."""


@dataclass
class _Guest:
    socket: socket.socket
    pid: int
    deadline: float | None
    """When it must have proved to know the handle; None: it has."""
    nonce: str
    process: int | None = None
    """A pidfd of the process that connected, until it has proved; see `process_of`."""

    def close(self) -> None:
        """Closes the connection."""
        self.socket.close()
        self.forget_process()

    def forget_process(self) -> None:
        """Lets go of the pidfd."""
        process, self.process = self.process, None
        close_all([process] if process is not None else [])


class Server:
    """Takes the address at once, and lets processes attach when `serve` is called."""

    def __init__(self, address: Address, guests: Guests) -> None:
        """Raises `WeightsError` where another process listens there."""
        self._address = address
        self._guests = guests
        self._offer: Offer | None = None
        self._peers: dict[int, _Guest] = {}
        self._thread: threading.Thread | None = None
        self._closing = False
        self._pid = os.getpid()
        self._most = max(16, min(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4))
        self._listener = _listen(address)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._paused = 0.0
        # Reentrant: the collector may close a model within the server's own thread.
        self._lock = threading.RLock()
        forks.in_child(self, Server._abandon)

    def serve(self, offer: Offer) -> None:
        """Lets processes attach from now on."""
        self._offer = offer
        self._thread = threading.Thread(target=self._run, name="shardrun-weights", daemon=True)
        self._thread.start()

    def close(self, wait: bool = True) -> None:
        """Nobody attaches any more; those who are keep what they have. Safe to call twice, from any thread.

        With ``wait`` the address is free afterwards.
        """
        if self._pid != os.getpid():  # a forked child has let go of everything already
            return
        self._closing = True
        thread = self._thread
        if thread is None:
            self._release()
        elif thread.is_alive():
            with self._lock:  # or the thread may end meanwhile, and the number be another file's
                if self._wake >= 0:
                    os.eventfd_write(self._wake, 1)
            if wait and thread is not threading.current_thread():
                thread.join(10.0)

    @property
    def attached(self) -> int:
        """Connections of attached processes."""
        return sum(guest.deadline is None for guest in list(self._peers.values()))

    def _release(self) -> None:
        peers, self._peers = self._peers, {}
        for guest in peers.values():
            guest.close()
        self._listener.close()
        with self._lock:
            offer, self._offer = self._offer, None
            wake, self._wake = self._wake, -1
        close_all([*([offer.folder] if offer else []), *([wake] if wake >= 0 else [])])

    def _run(self) -> None:
        try:
            poll = select.poll()
            poll.register(self._wake, select.POLLIN)
            poll.register(self._listener, select.POLLIN)
            while not self._closing:
                for descriptor, _ in poll.poll(self._patience()):
                    if descriptor == self._listener.fileno():
                        self._accept(poll)
                    elif descriptor in self._peers:
                        self._hear(descriptor, poll)
                self._expire(poll)
        except Exception:  # whatever it is, the model goes on
            log.exception("sharing weights has stopped: no more processes can attach")
        finally:
            self._release()

    def _patience(self) -> float | None:
        """Milliseconds until something must be done though nobody says anything."""
        times = [guest.deadline for guest in self._peers.values() if guest.deadline is not None]
        if self._paused:
            times.append(self._paused)
        return max(0.0, min(times) - time.monotonic()) * 1000 + 1 if times else None

    def _expire(self, poll: select.poll) -> None:
        now = time.monotonic()
        if self._paused and now >= self._paused:
            self._paused = 0.0
            poll.register(self._listener, select.POLLIN)
        for descriptor, guest in list(self._peers.items()):
            if guest.deadline is not None and now >= guest.deadline:
                self._drop(descriptor, poll, f"it did not answer within {HANDSHAKE_SECONDS:g} s")

    def _accept(self, poll: select.poll) -> None:
        for _ in range(_ACCEPTS_PER_ROUND):
            try:
                connection, _ = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:
                # No descriptors or memory left. Whoever has proved nothing goes first, and there is a pause:
                # the connection still waits, so polling would not.
                self._drop_oldest(poll)
                poll.unregister(self._listener)
                self._paused = time.monotonic() + _OUT_OF_DESCRIPTORS_PAUSE
                return
            try:
                self._welcome(connection, poll)
            except OSError:
                connection.close()

    def _welcome(self, connection: socket.socket, poll: select.poll) -> None:
        """Lets whoever connected prove that it knows the handle, or refuses it."""
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
        pid, uid = credentials(connection)
        refusal = None
        if uid != os.getuid():
            refusal = f"process {pid} runs as user {uid}, the owner as user {os.getuid()}"
        else:
            refusal = self._guests.refusal(pid) or self._crowded(pid, poll)
        if refusal is not None:
            _refuse(connection, refusal)
            return
        name_senders(connection)  # before the nonce, so that a proof cannot come unnamed
        guest = _Guest(
            connection,
            pid,
            time.monotonic() + HANDSHAKE_SECONDS,
            secrets.token_hex(16),
            process_of(connection),
        )
        try:
            send(connection, {"protocol": PROTOCOL, "nonce": guest.nonce})
        except OSError:
            guest.close()
            raise
        self._peers[connection.fileno()] = guest
        poll.register(connection, select.POLLIN)
        step("challenged")

    def _crowded(self, pid: int, poll: select.poll) -> str | None:
        """Why there is no room for one more connection of the process; makes room where it can."""
        own = [(number, guest) for number, guest in self._peers.items() if guest.pid == pid]
        pending = [number for number, guest in own if guest.deadline is not None]
        if len(own) - len(pending) >= MOST_ATTACHED:
            return f"process {pid} is attached {MOST_ATTACHED} times already, which is the limit"
        if len(pending) >= MOST_PENDING:  # the kernel's order of descriptors is not that of time
            oldest = min(pending, key=lambda number: self._peers[number].deadline or 0.0)
            self._drop(oldest, poll, "the process has newer connections")
        if len(self._peers) >= self._most and not self._drop_oldest(poll):
            return f"{self._most} connections are attached already, as many as the owner has room for"
        return None

    def _drop_oldest(self, poll: select.poll) -> bool:
        times = {
            number: guest.deadline for number, guest in self._peers.items() if guest.deadline is not None
        }
        if not times:
            return False
        self._drop(min(times, key=times.__getitem__), poll, "there are too many connections")
        return True

    def _drop(self, descriptor: int, poll: select.poll, refusal: str = "") -> None:
        guest = self._peers.pop(descriptor)
        poll.unregister(descriptor)
        if refusal:
            _refuse(guest.socket, refusal)
        guest.close()

    def _hear(self, descriptor: int, poll: select.poll) -> None:
        guest = self._peers[descriptor]
        try:
            packet = receive(guest.socket, named=True)
        except OSError:  # it was readable, and is not: nothing has come
            return
        if packet is None:
            self._drop(descriptor, poll)
            return
        data = packet.data or {}
        try:
            if packet.sender != guest.pid:
                raise WeightsError(
                    f"process {packet.sender} uses a connection that process {guest.pid} made: each process "
                    "attaches itself"
                )
            if guest.deadline is not None:
                self._admit(guest, data)
            elif data.get("fetch") is True:
                self._give(guest.socket, {})
                step("fetched")
            else:
                raise WeightsError("it sent something else than a request")
        except ShardrunError as error:
            self._drop(descriptor, poll, str(error))
        except OSError:  # it has ended, or does not read what it asked for
            self._drop(descriptor, poll)
        except Exception:
            log.exception("a process that attached to the weights is disconnected")
            self._drop(descriptor, poll, "the owner failed to answer")

    def _admit(self, guest: _Guest, data: Mapping[str, object]) -> None:
        nonce = data.get("nonce")
        if not isinstance(nonce, str) or not is_nonce(nonce):
            raise WeightsError("it did not speak the protocol of this version")
        if not self._address.is_proof(data.get("proof"), "attacher", guest.nonce, nonce):
            raise WeightsError("the handle is wrong")
        # Between the two the process may have ended, and another have got its number.
        if guest.process is not None and has_ended(guest.process):
            raise WeightsError(f"process {guest.pid} has ended")
        if refusal := self._guests.refusal(guest.pid):
            raise WeightsError(refusal)
        assert self._offer is not None
        proof = self._address.prove("owner", nonce, guest.nonce)
        self._give(guest.socket, {"proof": proof, "facts": self._offer.facts}, (self._offer.folder,))
        guest.deadline = None
        guest.forget_process()
        step("admitted")

    def _give(
        self, peer: socket.socket, data: Mapping[str, object], descriptors: tuple[int, ...] = ()
    ) -> None:
        assert self._offer is not None
        parts: dict[str, Part] = {}
        made: list[int] = []
        try:
            for name, make in self._offer.parts.items():
                parts[name] = make()
            told, attached, made = pack(parts)
            send(peer, {**data, "parts": told}, [*descriptors, *attached])
        finally:
            close_all(made)
            for _, given in parts.values():
                close_all(given)

    def _abandon(self) -> None:
        """In a forked child: the parent serves on, so nothing is told to anyone."""
        self._lock = threading.RLock()  # the parent's thread may have held it
        self._release()


def _listen(address: Address) -> socket.socket:
    try:
        listener = unix.listen(address.socket_name, BACKLOG)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        holder = unix.holder(address.socket_name)
        told = f" by process {holder[0]} of user {holder[1]}" if holder else ""
        raise WeightsError(
            f"weights are shared under {address} already{told}: choose another name, or end that "
            f"process ({error.strerror})."
        ) from None
    listener.setblocking(False)
    return listener


def _refuse(connection: socket.socket, sentence: str) -> None:
    with contextlib.suppress(OSError):
        send(connection, {"refused": sentence[:600]})
    connection.close()
