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
    """A new connection always gets in; where there is no place, the oldest of those who have most goes."""

    def __init__(self) -> None:
        self._waiting: dict[socket.socket, Hashable] = {}  # the oldest first
        self._lock = threading.Lock()

    def enter(self, sock: socket.socket, origin: Hashable) -> None:
        """Takes a connection in, from ``origin``. Whoever must go for it has its connection shut down."""
        with self._lock:
            counts = Counter(self._waiting.values())
            if counts[origin] >= MOST_OF_ONE:
                crowded = origin
            elif len(self._waiting) >= MOST:
                crowded = counts.most_common(1)[0][0]
            else:
                self._waiting[sock] = origin
                return
            oldest = next(other for other, whose in self._waiting.items() if whose == crowded)
            del self._waiting[oldest]
            self._waiting[sock] = origin
            with contextlib.suppress(OSError):  # wakes the thread that waits for its hello, which closes it
                oldest.shutdown(socket.SHUT_RDWR)

    def leave(self, sock: socket.socket) -> bool:
        """Gives a connection's place back; whether it still had one, and so was not shut down."""
        with self._lock:
            return self._waiting.pop(sock, None) is not None
