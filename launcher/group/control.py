"""The launcher's side of the control channel: a socket that only this job's ranks get past."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from launcher.errors import LaunchError
from launcher.group.lobby import Lobby
from launcher.job.ports import BACKLOG, listen_tcp
from launcher.starters import cause
from launcher.starters.base import Ended
from ranks.common import forks, processes
from ranks.common.pulse import Beat
from ranks.talk import unix, wire
from ranks.talk.connect import CUT, tune_tcp
from ranks.talk.stacks import SPY_SECONDS
from ranks.talk.stream import Stream
from ranks.talk.title import process_name
from sharding.common.limits import shortage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from launcher.group.serving.lent import Lent
    from sharding.common.arrays import Array

_HELLO_SECONDS = 10
_MAX_HELLO = 4096
_MOST_STACKS, _STACK_SECONDS = 1 << 20, 3.0  # bytes of JSON; and how long they may take
_NAP_SECONDS, _PATIENCE = 0.05, 40  # without descriptors a rank is kept waiting for two seconds


class Above:
    """The process above a rank of another host (`ranks.talk.keeper`), as far as it has said anything.
    ``stopped``: whether a signal has stopped the rank; ``pid``: its own number there."""

    def __init__(self) -> None:
        self.pid: int | None = None
        self.stopped = False
        self._stream: Stream | None = None
        self._stacks: queue.SimpleQueue[tuple[str, bool]] = queue.SimpleQueue()

    def listen(self, stream: Stream, on_ended: Callable[[int], None]) -> None:
        """Takes what it says, until it says with which code the rank ended. Raises what receiving raises."""
        self._stream = stream
        try:
            while True:
                fields = stream.receive(max_header=_MOST_STACKS, max_payload=0).fields
                code, stopped, stacks = fields.get("code"), fields.get("stopped"), fields.get("stacks")
                if isinstance(stopped, bool):
                    self.stopped = stopped
                if isinstance(stacks, str):
                    self._stacks.put((stacks, fields.get("more") is True))
                if type(code) is int:
                    on_ended(code)
                    return
        finally:
            self._stream = None

    def stacks(self) -> str:
        """Where the rank is in its Python code, and in that of libraries where its host can tell; "" where
        that cannot be had soon."""
        stream, text = self._stream, ""
        if stream is None:
            return ""
        with contextlib.suppress(OSError, queue.Empty):
            stream.send(wire.Message(wire.Kind.PING, {}, {}))
            text, more = self._stacks.get(timeout=_STACK_SECONDS)
            if more:
                text = self._stacks.get(timeout=SPY_SECONDS + _STACK_SECONDS)[0] or text
        return text


@dataclass(eq=False, repr=False)
class Peer:
    """A rank that said hello. ``pid`` is what the rank says; ``process`` a pidfd where it is on this host."""

    rank: int
    host: str
    pid: int
    stream: Stream
    process: int | None = None
    cut: bool = False
    """Whether its connection was lost without a word, as when its host or the network is gone."""
    stacks: int = -1
    """The rank's descriptor of `ranks.talk.stacks`."""
    ready: bool = False
    """Whether it has loaded what it is to serve."""
    asked: bool = False
    """Whether it has been asked for a sign of life, and has given none yet."""
    beats: int = 0
    """How many signs of life it has given that tell whether it gets on."""
    beat: Beat = field(default_factory=Beat)
    """What the last of them told."""
    above: Above = field(default_factory=Above)
    """Of a rank of another host."""
    sending: threading.Lock = field(default_factory=threading.Lock)
    lent: Lent | None = None
    """Where an event loop reads what it says."""

    @property
    def kept(self) -> bool:
        """Whether a process above it tells how it ended, unless that one is killed too."""
        return self.above.pid is not None

    def ended(self) -> Ended | None:
        """How a rank of this host ended, as far as the kernel says. A busy mpirun may find several ranks
        ended, and name another."""
        code = None if self.process is None else unix.exit_code(self.process, self.pid)
        return None if code is None else Ended(self.rank, code)

    def feel(self, told: Mapping[str, object]) -> None:
        """Takes a sign of life."""
        if told:
            self.beats += 1
            self.beat = Beat(still=told.get("still") is True, moves=told.get("moves") is True)

    def ping(self) -> None:
        """Asks for a sign of life, unless that would have to wait; any message of the rank's is one."""
        if self.asked or not self.sending.acquire(blocking=False):
            return
        try:
            if unix.writable(self.stream.socket):
                self.asked = True
                self.stream.send(wire.Message(wire.Kind.PING, {}, {}))
        except OSError:  # it is gone, which is noticed elsewhere
            return
        finally:
            self.sending.release()

    def became(self, job: str) -> str | None:
        """What its process runs on as, where that is another program; None too on other hosts."""
        if self.process is None or self.ended() is not None:
            return None
        program = processes.became(self.pid, process_name(self.rank, job))
        return f"its process {self.pid} runs on, as {program}" if program else None

    def send(
        self,
        kind: wire.Kind,
        fields: Mapping[str, object] | None = None,
        tensors: dict[str, Array] | None = None,
        slot: int = 0,
    ) -> None:
        """Sends one message, large tensors in this slot of shared memory; raises `OSError` when the rank is
        gone."""
        with self.sending:
            self.stream.send(wire.Message(kind, fields or {}, tensors or {}), slot)

    def send_frame(self, frame: bytes) -> None:
        """The same of a message that was encoded before."""
        with self.sending:
            self.stream.send_frame(frame)


class Listener:
    """Listens for the ranks of one job and hands on what they send; each callback runs in that rank's own
    thread.

    On one host it is an abstract Unix socket, which leaves no file behind however this process ends and
    where the kernel says who connects; for several hosts it is TCP on the address that faces them. Whoever
    does not say hello with the job's secret within 10 s is dropped, and earlier where many do not.
    """

    def __init__(
        self,
        world_size: int,
        hosts: Sequence[str],
        on_hello: Callable[[Peer], None],
        on_message: Callable[[Peer, wire.Message], None],
        on_lost: Callable[[Peer], None],
        *,
        on_shortage: Callable[[Exception], None],
        on_ended: Callable[[Ended], None] = lambda ended: None,
    ) -> None:
        """``on_shortage``: this process could not take the connection of a rank, for want of threads;
        ``on_ended``: the process above a rank of another host says with which code it ended."""
        self.secret = os.urandom(16).hex()
        self._world_size = world_size
        self._on_hello, self._on_message, self._on_lost = on_hello, on_message, on_lost
        self._on_shortage, self._on_ended = on_shortage, on_ended
        self._known: dict[int, Peer] = {}
        self._above: dict[int, Above] = {}
        self._lock = threading.Lock()
        # Of a rank of another host, the process above it connects too.
        self._lobby = Lobby(2 * world_size if hosts else world_size)
        self._socket, self.address = listen_tcp(hosts) if hosts else _listen_unix()
        self._open: weakref.WeakSet[socket.socket] = weakref.WeakSet([self._socket])
        forks.in_child(self, Listener.forget)
        threading.Thread(target=self._accept, name="shardrun accept", daemon=True).start()

    def _accept(self) -> None:
        # Now: when the first rank comes, there may be no descriptor left to load it.
        import hmac  # noqa: F401

        refused = 0
        while True:
            try:
                sock, _ = self._socket.accept()
            except OSError as error:
                if self._socket.fileno() < 0:
                    return
                refused += 1
                if refused == _PATIENCE and len(self._known) < self._world_size:
                    self._on_shortage(error)
                time.sleep(_NAP_SECONDS)  # out of descriptors, for now
                continue
            refused = 0
            try:
                pid = _pid_of(sock)
                origin = sock.getpeername()[0] if pid is None else pid
            except OSError:  # gone already, or another user's
                sock.close()
                continue
            self._open.add(sock)
            self._lobby.enter(sock, origin)
            try:
                threading.Thread(
                    target=self._serve, args=(sock, pid), name="shardrun rank", daemon=True
                ).start()
            except (RuntimeError, MemoryError) as error:  # no more threads, or the interpreter is ending
                self._lobby.leave(sock)
                if self._socket.fileno() >= 0 and not sys.is_finalizing():
                    self._on_shortage(error)
                sock.close()

    def _serve(self, sock: socket.socket, pid: int | None) -> None:
        stream = Stream(sock)
        try:
            peer = self._admit(stream, pid)
        except (OSError, wire.WireError):
            peer = None
        finally:
            self._lobby.leave(sock)
        if peer is None:
            stream.close()
            return
        self._on_hello(peer)
        try:

            def take(message: wire.Message) -> None:
                peer.asked = False
                if message.kind is wire.Kind.PONG:
                    peer.feel(message.fields)
                else:
                    self._on_message(peer, message)

            while True:
                found = None if peer.lent is None else peer.lent.wait(take)
                take(found or stream.receive())
        except (OSError, wire.WireError) as error:
            if shortage(error):
                self._on_shortage(error)
            peer.cut = isinstance(error, OSError) and error.errno in CUT
            self._on_lost(peer)

    def _admit(self, stream: Stream, pid: int | None) -> Peer | None:
        """The rank that says hello; None for anybody else. ``pid``: what the kernel says, on one host."""
        if stream.socket.family != socket.AF_UNIX:
            tune_tcp(stream.socket)
        stream.deadline = time.monotonic() + _HELLO_SECONDS
        hello = stream.receive(max_header=_MAX_HELLO, max_payload=0)
        stream.deadline = None
        stream.share_memory(borrow=False)
        fields = hello.fields
        job, rank, host = fields.get("job"), fields.get("rank"), fields.get("host")
        if hello.kind is not wire.Kind.HELLO or not isinstance(job, str):
            return None
        import hmac  # since `_accept`

        if not hmac.compare_digest(job.encode(), self.secret.encode()):
            return None
        if type(rank) is not int or not 0 <= rank < self._world_size or not isinstance(host, str):
            return None
        if not self._lobby.leave(stream.socket):
            return None
        if "keeps" in fields:
            self._above_of(rank).pid = said if type(said := fields.get("pid")) is int else None
            self._above_of(rank).listen(stream, lambda code: self._on_ended(Ended(rank, code)))
            return None
        said = fields.get("pid")
        number = pid or (said if type(said) is int else 0)
        peer = Peer(rank, host[:255], number, stream, above=self._above_of(rank))
        place = fields.get("stacks")
        peer.stacks = place if type(place) is int else -1
        with self._lock:
            if rank in self._known or self._socket.fileno() < 0:
                return None
            self._known[rank] = peer
        if pid:
            # Kept from now on, so that a later signal can never reach another process that got the same
            # number.
            with contextlib.suppress(OSError, AttributeError):
                peer.process = os.pidfd_open(pid)
        return peer

    def _above_of(self, rank: int) -> Above:
        with self._lock:
            return self._above.setdefault(rank, Above())

    def close(self) -> None:
        """Stops listening and closes every connection, which ends ranks that are still there."""
        with self._lock:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._socket.close()
            peers = list(self._known.values())
        for peer in peers:
            if peer.lent is not None:
                peer.lent.stop()
            peer.stream.close()

    def forget(self) -> None:
        """In a forked child: drops the copies of our sockets, or the parent's death would go unnoticed."""
        for sock in list(self._open):
            sock.close()


def _pid_of(sock: socket.socket) -> int | None:
    """The process that connected, where the kernel says it. Raises `PermissionError` for another user's."""
    if sock.family != socket.AF_UNIX:
        return None
    pid, uid = unix.credentials(sock)
    if uid != os.getuid():
        raise PermissionError(f"process {pid} runs as user {uid}")
    return pid


def _listen_unix() -> tuple[socket.socket, str]:
    if sys.platform != "linux":
        raise LaunchError("shardrun starts ranks on Linux only (abstract Unix sockets).")
    name = f"@shardrun-{os.urandom(8).hex()}"
    try:
        sock = unix.listen(unix.at(name), BACKLOG, socket.SOCK_STREAM)
    except OSError as error:
        raise cause.shortage(error) from None
    return sock, f"unix:{name}"


def kill_peers(peers: Sequence[Peer], seconds: float) -> None:
    """Kills ranks of this host that are still there, and waits, ``seconds`` at most, until they are not."""
    deadline = time.monotonic() + seconds
    for peer in peers:
        assert peer.process is not None
        with contextlib.suppress(OSError):
            signal.pidfd_send_signal(peer.process, signal.SIGKILL)
    for peer in peers:
        if peer.process is None:
            continue
        unix.has_ended(peer.process, deadline - time.monotonic())
        os.close(peer.process)
        peer.process = None
