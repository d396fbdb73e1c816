"""Connections that have not said yet who they are: a bounded number, of which nobody can take all places."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Hashable

MOST = 256
MOST_OF_ONE = 64
"""From one origin: an address or, on one host, a process. Not fewer, since a host may hold many ranks."""


class Lobby:
    """A new connection always gets in; where there is no place, the oldest of those who have most goes.

    ``size``: the number of connections that are to come. All of them may come at once, and from one host, and
    none must go for it.
    """

    def __init__(self, size: int = 1) -> None:
        self._most, self._most_of_one = max(MOST, 2 * size), max(MOST_OF_ONE, size)
        self._waiting: dict[socket.socket, Hashable] = {}  # the oldest first
        self._counts: Counter[Hashable] = Counter()
        self._lock = threading.Lock()

    def enter(self, sock: socket.socket, origin: Hashable) -> None:
        """Takes a connection in, from ``origin``. Whoever must go for it has its connection shut down."""
        with self._lock:
            if self._counts[origin] >= self._most_of_one:
                crowded = origin
            elif len(self._waiting) >= self._most:
                crowded = self._counts.most_common(1)[0][0]
            else:
                crowded = None
            if crowded is not None:
                oldest = next(other for other, whose in self._waiting.items() if whose == crowded)
                self._drop(oldest)
                with contextlib.suppress(
                    OSError
                ):  # wakes the thread that waits for its hello, which closes it
                    oldest.shutdown(socket.SHUT_RDWR)
            self._waiting[sock] = origin
            self._counts[origin] += 1

    def leave(self, sock: socket.socket) -> bool:
        """Gives a connection's place back; whether it still had one, and so was not shut down."""
        with self._lock:
            return self._drop(sock)

    def _drop(self, sock: socket.socket) -> bool:
        if sock not in self._waiting:
            return False
        origin = self._waiting.pop(sock)
        self._counts[origin] -= 1
        if not self._counts[origin]:
            del self._counts[origin]
        return True
