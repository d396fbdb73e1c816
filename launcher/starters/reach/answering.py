"""Whether hosts of which nothing was heard yet answer at all: a connection to a daemon there says it.

What starts ranks may notice late that the network to a host is cut, or its power: Slurm's controller by
default after 300 s. Ranks that have connected are watched by their own connections.
"""

from __future__ import annotations

import contextlib
import errno
import socket
import threading
import time
from collections.abc import Callable, Collection, Mapping

from ranks.talk.connect import CUT, tune_tcp

AFTER_SECONDS = 1.5
"""Most starts have heard of every rank by then: Slurm's daemon writes two lines into its log for each
connection that says nothing, and ends it after ten seconds."""
SILENT_SECONDS = 6.0
"""After which a host is lost that does not answer a connection; the kernel gives up one that is made then
too, see `tune_tcp`."""
_PAUSE_SECONDS, _ANEW_SECONDS = 0.25, 1.0

Place = tuple[str, int]
"""A host's address or name, and a port."""


class Answering:
    """The hosts of one start, as long as something is awaited of them."""

    def __init__(self, places: Callable[[Collection[str]], Mapping[str, Place]]) -> None:
        """``places``: which daemon of each host is to be asked; it may take its time, and leave hosts out."""
        self._places = places
        self._began = time.monotonic()
        self._awaited: frozenset[str] = frozenset()
        self._lost = ""
        self._watching: threading.Thread | None = None

    def lost(self, awaited: Collection[str]) -> str:
        """The first of the ``awaited`` hosts that does not answer; "" where none is known. To be called
        every now and then, from when ranks are started until all are there."""
        self._awaited = frozenset(awaited)
        if self._watching is None and self._awaited and time.monotonic() - self._began >= AFTER_SECONDS:
            self._watching = threading.Thread(target=self._watch, name="shardrun reach", daemon=True)
            with contextlib.suppress(RuntimeError):  # no more threads: the start itself will say so
                self._watching.start()
        return self._lost if self._lost in self._awaited else ""

    def close(self) -> None:
        """Nothing is awaited any more."""
        self._awaited = frozenset()

    def _watch(self) -> None:
        with contextlib.ExitStack() as closing:
            lines = {host: _Line(place) for host, place in self._places(self._awaited).items()}
            for line in lines.values():
                closing.callback(line.close)
            while not self._lost and (left := self._awaited & lines.keys()):
                self._lost = next((host for host in sorted(left) if lines[host].is_lost()), "")
                for host in lines.keys() - left:
                    lines.pop(host).close()
                time.sleep(_PAUSE_SECONDS)


class _Line:
    """A connection to one place, which is made anew where the other side ends it."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._socket: socket.socket | None = None
        self._connect()

    def _connect(self) -> None:
        self.close()
        self._since, self._answered = time.monotonic(), False
        try:
            family, kind, protocol, _, address = socket.getaddrinfo(*self._place, type=socket.SOCK_STREAM)[0]
            self._socket = socket.socket(family, kind, protocol)
            self._socket.setblocking(False)
            tune_tcp(self._socket)
            # Nothing else is said: if only each third second something came, a cable cut for 3 s would be
            # taken for one that is cut for `SILENT_SECONDS`.
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 1)
            self._take(self._socket.connect_ex(address))
        except OSError:  # a name that is not known here, no more descriptors: nothing can be said of it
            self._answered = True

    def _take(self, error: int) -> None:
        self._answered = error not in {0, errno.EINPROGRESS, *CUT}

    def is_lost(self) -> bool:
        """Whether the host has not answered for as long as it may."""
        waited = time.monotonic() - self._since
        if self._answered or self._socket is None:  # refused, or ended in order
            if waited >= _ANEW_SECONDS:
                self._connect()
            return False
        try:
            if not self._socket.recv(1):
                self._answered = True
        except BlockingIOError:
            return waited >= SILENT_SECONDS and not self._is_connected()
        except OSError as error:
            self._take(error.errno or 0)
            return not self._answered
        return False

    def _is_connected(self) -> bool:
        try:
            assert self._socket is not None
            self._socket.getpeername()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Safe to call twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
