"""uvicorn's protocol for one connection, with bounds: of what is read, of slow clients, and of its end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from launcher.serving.parsing.offers import Parser
from launcher.serving.parsing.pace import LARGE

if TYPE_CHECKING:
    import httptools

log = logging.getLogger(__name__)

SLOW_SECONDS = 30.0
"""A client that takes nothing of its answer for so long is dropped."""
_VERSION, _END_OF_HEAD = b"HTTP/1.1 ", b"\r\n\r\n"
_MOST_HEAD = 1 << 19
"""Bytes of a request line and headers, or of what follows a body; more than the socket gives at once."""
_LINGER_SECONDS, _LINGER_BYTES = 5.0, 256 << 20
"""How much of a request is still read, and dropped, when its answer ends the connection."""
_LAST_SECONDS = 0.5
"""The same when the server ends: long enough for an answer that is on its way."""


class Patience(FlowControl):
    """uvicorn's, where a client that takes nothing of its answer for `SLOW_SECONDS` loses its connection."""

    async def drain(self) -> None:
        """Waits until the client takes more, or is gone."""
        timer = asyncio.get_running_loop().call_later(SLOW_SECONDS, self._transport.abort)
        try:
            await super().drain()
        finally:
            timer.cancel()


class Joined:
    """A connection on which the head of an answer waits for the body that follows: both are one packet, and
    the client wakes up once. Whatever else it is asked, it is the transport.

    It ends in order where a part of the request was not read: the system would answer that part with a reset,
    for which a client that still sends may never see its answer.
    """

    def __init__(self, transport: asyncio.Transport, unread: Callable[[], bool] = lambda: False) -> None:
        """``unread``: whether more of a request is to come."""
        self._transport, self._unread = transport, unread
        self._loop = asyncio.get_running_loop()
        self._head: bytes | None = None
        self._end: asyncio.TimerHandle | None = None
        self._dropped, self._seconds = 0, _LINGER_SECONDS

    def __getattr__(self, name: str) -> object:
        return getattr(self._transport, name)

    def write(self, data: bytes | memoryview) -> None:
        """Sends it, or in a moment."""
        head, self._head = self._head, None
        if head is not None and len(data) < LARGE:  # more is not worth its copy
            data, head = head + data, None
        if head is not None:
            self._transport.write(head)
        if isinstance(data, bytes) and data.endswith(_END_OF_HEAD) and data.startswith(_VERSION):
            self._head = data
            self._loop.call_soon(self._flush)  # nothing may follow soon, as in a stream
            return
        self._transport.write(data)

    def _flush(self) -> None:
        head, self._head = self._head, None
        if head is not None and not self._transport.is_closing():
            self._transport.write(head)

    @property
    def lingers(self) -> bool:
        """Whether what comes is to be dropped."""
        return self._end is not None

    def is_closing(self) -> bool:
        """Whether nothing is to be written any more."""
        return self._end is not None or self._transport.is_closing()

    def close(self) -> None:
        """Closes it when all is sent and, unless it was asked to close before, read."""
        self._flush()
        if self.is_closing() or not self._unread():
            self._transport.close()
            return
        self._end = self._loop.call_later(self._seconds, self._transport.abort)
        if self._transport.can_write_eof():  # not over TLS
            self._transport.write_eof()
        self._transport.resume_reading()  # of a body nothing is read while much of it waits

    def hurry(self) -> None:
        """The server ends: what is still sent holds it up for a moment at most."""
        self._seconds = _LAST_SECONDS
        if self._end is not None:
            self._end.cancel()
            self._end = self._loop.call_later(self._seconds, self._transport.abort)

    def drop(self, data: bytes) -> None:
        """This has come after the end."""
        self._dropped += len(data)
        if self._dropped > _LINGER_BYTES:
            self._transport.abort()

    def lost(self) -> None:
        """It is closed."""
        if self._end is not None:
            self._end.cancel()


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which bounds what is neither a body nor a whole head, and slow clients."""

    _loose, _in_body = 0, False
    offered = False
    """Whether a client offers to go on in another protocol."""
    _joined: Joined

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A client is there."""
        self._joined = Joined(transport, lambda: self._in_body or self._loose > 0)
        super().connection_made(cast("asyncio.Transport", self._joined))
        self.flow = Patience(transport)
        self.parser = cast("httptools.HttpRequestParser", Parser(self))

    def connection_lost(self, exc: Exception | None) -> None:
        """The client is gone."""
        self._joined.lost()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """The server ends: what is asked is answered, and all else is closed."""
        self._joined.hurry()
        if self._joined.lingers:
            return  # to close it again would cut it off
        if self.cycle is None or self.cycle.response_complete:
            self._loose = 0  # half a head waits for no answer
        super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Reads, as far as there is an end to it."""
        if self._joined.lingers:
            self._joined.drop(data)
            return
        self._loose += len(data)  # until there is something whole
        super().data_received(data)
        if self._loose > _MOST_HEAD and not self.transport.is_closing():
            log.warning("a request's head is longer than %d bytes: its connection is closed", _MOST_HEAD)
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """A head is there."""
        self._loose, self._in_body = 0, True
        named = any(name == b"upgrade" for name, _ in self.headers)
        self.offered = named and self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"
        if not self.offered:  # else it comes again
            super().on_headers_complete()

    def head_without_offer(self) -> bytes:
        """The head that has come, but for its offer."""
        method, version = self.parser.get_method(), self.parser.get_http_version().encode()
        lines = [b"%s %s HTTP/%s" % (method, self.url, version)]
        lines += [b"%s: %s" % pair for pair in self.headers if pair[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_body(self, body: bytes) -> None:
        """A piece of a body is there."""
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        self._loose, self._in_body = 0, False
        if not self.offered:
            super().on_message_complete()
