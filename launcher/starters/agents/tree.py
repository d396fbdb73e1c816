"""The launcher's side of a tree of agents: hosts that are reached through another host's agent.

A route is opened by the agent of a host that has started already (`launcher.starters.agents.relay`). What its
ranks are to do is told to an agent only after it has answered through the route. So a host whose route fails,
or takes long, can be reached in another way, and no rank is started twice.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import queue
import socket
import subprocess
import threading
from collections.abc import Callable, Mapping
from typing import IO, TYPE_CHECKING, cast

from launcher.starters import cause
from launcher.starters.agents.connection import Connection, Host

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer

_LONGEST_GREETING = 1 << 16
"""Bytes that a login shell may print before the agent answers."""
_LONGEST_ERRORS = 4096
_GONE = 255  # as ssh ends where its connection does


class Branch:
    """The routes through one host's agent. ``tell`` sends the agent a line; it may block."""

    def __init__(self, by: str, host: str, tell: Callable[[bytes], None]) -> None:
        self.by, self.host = by, host
        self.usable = True
        """Whether more hosts may be given to it."""
        self._tell = tell
        self._orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._routes: dict[int, Route] = {}
        self._lock = threading.Lock()
        self._writes = self.gone = False

    def open(self, host: Host, changed: Callable[[], None]) -> Route:
        """Has a host's agent started; ``changed`` is called, with no lock held, when that has answered, and
        when the route has ended. Raises `OSError` and `RuntimeError` where this process has too little."""
        with self._lock:
            if not self._writes:
                threading.Thread(target=self._write, name=f"shardrun {self.by}", daemon=True).start()
                self._writes = True
            number = len(self._routes)
            route = self._routes[number] = Route(self, host.name, number, changed)
            lost = self.gone
        if lost:
            route.end(_GONE)
        self.order({"to": number, "run": [*host.beyond]})
        return route

    def order(self, words: Mapping[str, object]) -> None:
        """Sends the agent an order, after those before it; waits for nothing."""
        self._orders.put(json.dumps(words).encode() + b"\n")

    def _write(self) -> None:
        while (line := self._orders.get()) is not None:
            self._tell(line)

    def take(self, fields: Mapping[str, object], data: bytes) -> None:
        """Takes a frame of the agent's that is about a route."""
        number, code = fields.get("from"), fields.get("code")
        with self._lock:
            route = self._routes.get(number) if type(number) is int else None
        if route is None:
            return
        if type(code) is int:
            route.end(code)
        elif fields.get("stream") == "stdout":
            route.take(data)
        else:
            route.complain(data)

    def end(self) -> None:
        """The agent is gone, and with it what it has reached."""
        with self._lock:
            self.gone, self.usable = True, False
            routes = list(self._routes.values())
            self._orders.put(None)
        for route in routes:
            route.end(_GONE)


class Route(Connection):
    """The way to one host through another one.

    ``answered``: its agent is there, and `use` may be called; ``failed``: it has ended.
    """

    def __init__(self, branch: Branch, host: str, number: int, changed: Callable[[], None]) -> None:
        self.branch, self.host = branch, host
        self.answered = False
        self._number, self._changed = number, changed
        self._ours, self._theirs = socket.socketpair()
        self.stdin = cast("IO[bytes]", _Orders(branch, number))
        self.stdout: IO[bytes] = self._ours.makefile("rb")
        self._ours.close()  # with the file
        self._head = b""
        self._said = b""
        self._errors = -1
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._code = 0

    @property
    def failed(self) -> bool:
        return self._ended.is_set()

    @property
    def why(self) -> str:
        """What it said last, or how it ended."""
        lines = self._said.decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return said or (cause.how(self._code) if self.failed else "no answer")

    def use(self, errors: int) -> Route:
        """The agent is to be asked by this way; ``errors`` is where its own words go."""
        with self._lock:
            self._errors = os.dup(errors)
        self.complain(b"")
        if self.failed:
            self._let_go()
        return self

    def leave(self) -> None:
        """It is not used: hangs up."""
        self.stdin.close()
        self.kill()
        self.stdout.close()

    # What comes of it; all of it in the thread that reads what the branch says.

    def take(self, data: bytes) -> None:
        """Takes what its agent writes."""
        if not self.answered:
            self._head = (self._head + data)[-_LONGEST_GREETING:]
            data = self._greeted()
        if data:
            with contextlib.suppress(OSError):  # nobody reads it any more
                self._theirs.sendall(data)

    def _greeted(self) -> bytes:
        """What follows the agent's greeting, once that has come."""
        *lines, rest = self._head.split(b"\n")
        for at, line in enumerate(lines):
            if _is_greeting(line):
                self._head, self.answered = b"", True
                self._changed()
                return b"\n".join([*lines[at + 1 :], rest])
        self._head = rest
        return b""

    def complain(self, data: bytes) -> None:
        """Takes its errors: shown where it is used, else they are the reason why it is not."""
        with self._lock:
            self._said = (self._said + data)[-_LONGEST_ERRORS:]
            if self._errors >= 0:
                data, self._said = self._said, b""
                with contextlib.suppress(OSError):
                    os.write(self._errors, data)

    def end(self, code: int) -> None:
        """It has ended. Safe to call twice."""
        self._stop(code)
        self._let_go()
        self._theirs.close()
        self._changed()

    def _stop(self, code: int) -> None:
        if not self._ended.is_set():
            self._code = code
            with contextlib.suppress(OSError):
                self._theirs.shutdown(socket.SHUT_RDWR)
            self._ended.set()

    def _let_go(self) -> None:
        with self._lock:
            errors, self._errors = self._errors, -1
        if errors >= 0:
            os.close(errors)

    # As a connection.

    def wait(self, timeout: float | None = None) -> int:
        if not self._ended.wait(timeout):
            raise subprocess.TimeoutExpired(self.host, timeout or 0)
        return self._code

    def kill(self) -> None:
        """Stops listening: the host between does not answer, or has killed it. What it has started there ends
        with its input, and the ranks with their connections."""
        self._stop(_GONE)

    def lost(self, code: int) -> str:
        if self.branch.gone:
            return f"the {self.branch.by} connection to {self.branch.host}, by which it was reached, ended"
        how = "ended" if code == _GONE else cause.how(code)
        return f"the {self.branch.by} connection to {self.host}, made by {self.branch.host}, {how}"


def _is_greeting(line: bytes) -> bool:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError):  # what a login shell prints before
        return False
    return isinstance(found, dict) and "here" in found


class _Orders(io.RawIOBase):
    """The input of a route's agent: lines, each written whole."""

    def __init__(self, branch: Branch, number: int) -> None:
        self._branch, self._number = branch, number

    def writable(self) -> bool:
        return True

    def write(self, words: ReadableBuffer) -> int:
        data = bytes(words)
        self._branch.order({"to": self._number, "line": data.decode()})
        return len(data)

    def close(self) -> None:
        if not self.closed:
            super().close()
            self._branch.order({"to": self._number, "end": True})
