"""A bare connection to the process that serves torch's store: it ends with that, and to ask the store itself
would have torch print its C++ frames then."""

from __future__ import annotations

import socket

from ranks.talk.connect import tune_tcp

_CONNECT = 5.0  # seconds
_ASK = 1.0
"""Seconds, where a rank is lost: one whose host does not answer has been waited for already."""


def is_open(line: socket.socket) -> bool:
    """Whether the other end of a line is there."""
    try:
        return line.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True  # it has nothing to say
    except OSError:
        return False


def place_of(store: object) -> tuple[str, int] | None:
    """Where a store is served; None for a file."""
    while hasattr(store, "underlying_store"):
        store = store.underlying_store
    host, port = getattr(store, "host", None), getattr(store, "port", None)
    return None if host is None or port is None else (host, port)


def is_there(store: object) -> bool:
    """Whether a store can be asked: of one whose process is gone torch would print its C++ frames, and one
    whose host is gone would be waited for a second time."""
    line = line_to(store, _ASK)
    if line is not None:
        line.close()
    return line is not None or place_of(store) is None


def line_to(store: object, seconds: float = _CONNECT) -> socket.socket | None:
    """A connection to the process that serves a store, over which nothing is said: it ends with that,
    and some seconds after its host. None where none is made within so many ``seconds``."""
    if (place := place_of(store)) is None:
        return None
    try:
        line = socket.create_connection(place, timeout=seconds)
        tune_tcp(line)
    except OSError:
        return None
    line.setblocking(False)
    return line
