"""What a rank says, read by an event loop: where answers go to a loop, no thread stands between, which would
have to wake up, and to get the interpreter, first."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from ranks.talk import wire

if TYPE_CHECKING:
    import asyncio

    from launcher.group.watch import Job
    from ranks.talk.stream import Stream

QUICK = {wire.Kind.RESULT, wire.Kind.TOKENS, wire.Kind.STATS, wire.Kind.PONG}
"""What is taken without waiting for anything."""
_STOP_SECONDS = 1.0


class Lent:
    """A connection that a loop reads."""

    def __init__(self, stream: Stream, loop: asyncio.AbstractEventLoop, calm: Callable[[], bool]) -> None:
        """``calm``: whether messages are taken without waiting now."""
        self._stream, self._loop, self._calm = stream, loop, calm
        self._take: Callable[[wire.Message], None]
        self._back = threading.Event()
        self._left: wire.Message | Exception | None = None
        self._descriptor, self._thread = -1, 0
        self._stopped = False

    def wait(self, take: Callable[[wire.Message], None]) -> wire.Message | None:
        """Lends it, until something comes that the loop does not ``take``: that message, or None where the
        thread is to read it. Raises what receiving raises."""
        self._take = take
        self._back.clear()
        if self._stopped:  # and the loop may never run again
            return None
        try:
            self._loop.call_soon_threadsafe(self._begin)
        except RuntimeError:  # the loop has ended
            return None
        self._back.wait()
        left, self._left = self._left, None
        if isinstance(left, Exception):
            raise left
        return left

    def _begin(self) -> None:
        self._thread, self._descriptor = threading.get_ident(), self._stream.socket.fileno()
        try:
            self._loop.add_reader(self._descriptor, self._readable)
        except Exception:  # the kernel has no room for it, or it is closed: the thread goes on by itself
            self._back.set()
            return
        self._readable()

    def _readable(self) -> None:
        try:
            while (message := self._stream.receive_ready()) is not None:
                if message.kind not in QUICK or not self._calm():
                    self._left = message
                    break
                self._take(message)
                if not self._stream.holds:  # else the loop says that there is more
                    return
            else:
                return
        except wire.UnfinishedError:
            pass
        except Exception as error:
            self._left = error
        self._end()

    def _end(self) -> None:
        with contextlib.suppress(Exception):
            self._loop.remove_reader(self._descriptor)
        self._back.set()

    def stop(self) -> None:
        """Before the connection is closed: the loop reads no more of it."""
        self._stopped = True
        with contextlib.suppress(OSError):
            self._stream.socket.shutdown(socket.SHUT_RDWR)
        if threading.get_ident() == self._thread:
            self._end()
        elif not self._loop.is_closed():  # it reads the end
            self._back.wait(_STOP_SECONDS)
        self._back.set()


def lend(job: Job, loop: asyncio.AbstractEventLoop) -> None:
    """Has a loop read what rank 0 answers, from its next answer on."""
    peer = job._peers.get(0)
    if peer is not None and peer.lent is None:
        peer.lent = Lent(peer.stream, loop, lambda: not (job._why.open or job.answers.heavy))
