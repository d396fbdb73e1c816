"""Requests that offer to go on in another protocol, as curl and Java make them with HTTP/2.

Each is read as if it had not. httptools takes what follows such a head, such as a body, for the other
protocol's.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Protocol

import httptools

if TYPE_CHECKING:
    from collections.abc import Callable


class Reader(Protocol):
    """Who is told what a parser finds."""

    @property
    def offered(self) -> bool:
        """Whether the head that came last makes an offer."""

    def head_without_offer(self) -> bytes:
        """The same head without it."""


class Parser:
    """httptools' parser of requests, which reads on after an offer. It holds for one connection."""

    get_method: Callable[[], bytes]
    get_http_version: Callable[[], str]
    should_upgrade: Callable[[], bool]
    should_keep_alive: Callable[[], bool]

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._begin()

    def _begin(self) -> None:
        own = self._own = httptools.HttpRequestParser(self._reader)
        with contextlib.suppress(AttributeError):  # an old one
            own.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn has it
        self.get_method, self.get_http_version = own.get_method, own.get_http_version
        self.should_upgrade, self.should_keep_alive = own.should_upgrade, own.should_keep_alive

    def __getattr__(self, name: str) -> object:
        return getattr(self._own, name)

    def feed_data(self, data: bytes) -> None:
        """Reads on. Raises `httptools.HttpParserError`."""
        rest = memoryview(data)  # of which no copies are made, as each of many requests may make an offer
        while rest:
            try:
                self._own.feed_data(rest)
                return
            except httptools.HttpParserUpgrade as error:
                if not self._reader.offered:  # but demanded
                    return
                rest, head = rest[error.args[0] :], self._reader.head_without_offer()
                self._begin()
                self._own.feed_data(head)
