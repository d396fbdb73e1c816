"""The process in front: listens, answers, and ends in order."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from launcher.errors import ConfigError, LaunchError
from launcher.serving.app import application
from launcher.serving.context import Context
from launcher.serving.models import Model

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SLOW_SECONDS = 30.0
"""A client that takes nothing of its answer for so long is dropped."""
_LOOK_SECONDS = 5.0
_MOST_HEAD = 1 << 19
"""Bytes of a request line and headers, or of what follows a body; more than the socket gives at once."""


@dataclass(frozen=True)
class Listening:
    """Where a server listens. ``port`` 0: a free one. ``clients``: whose certificates clients must have."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    clients: Path | None = None

    def socket(self) -> socket.socket:
        """A bound socket. Raises `LaunchError`, and `ConfigError` for no address."""
        if not self.host:  # which sockets take for all
            raise ConfigError("--host: expected an address, found none; 0.0.0.0 is all of this machine")
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        made = socket.socket(family, socket.SOCK_STREAM)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            made.bind((self.host, self.port))
        except (OSError, OverflowError, UnicodeError) as error:
            made.close()
            why = getattr(error, "strerror", None) or str(error)
            raise LaunchError(
                f"--host {self.host} --port {self.port}: this address cannot be used ({why}): choose another "
                "port, or 0 for a free one"
            ) from None
        return made

    def check(self) -> None:
        """Raises `ConfigError` for files that are no certificates."""
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-certificate and --tls-key belong together: give both")
        if self.clients is not None and self.certificate is None:
            raise ConfigError("--tls-clients: give --tls-certificate and --tls-key too")
        if self.certificate is None:
            return
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        with _told(f"--tls-certificate {self.certificate}, --tls-key {self.key}"):
            made.load_cert_chain(self.certificate, self.key, password=lambda: "")
        if self.clients is not None:
            with _told(f"--tls-clients {self.clients}"):
                made.load_verify_locations(self.clients)

    @property
    def url(self) -> str:
        """Where clients find it, but for the port."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'http' if self.certificate is None else 'https'}://{host}"


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: {getattr(error, 'strerror', None) or error}") from None


class Protocol(HttpToolsProtocol):
    """uvicorn's protocol, which bounds what is neither a body nor a whole head."""

    _loose = 0

    def data_received(self, data: bytes) -> None:
        """Reads, as far as there is an end to it."""
        self._loose += len(data)  # until there is something whole
        super().data_received(data)
        if self._loose > _MOST_HEAD and not self.transport.is_closing():
            log.warning("a request's head is longer than %d bytes: its connection is closed", _MOST_HEAD)
            self.transport.abort()

    def on_headers_complete(self) -> None:
        """A head is there."""
        self._loose = 0
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        """A piece of a body is there."""
        self._loose = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """A request is there."""
        self._loose = 0
        super().on_message_complete()


class Server(uvicorn.Server):
    """uvicorn's server, which ends in order with SIGINT and SIGTERM, and keeps no connection that asks
    nothing."""

    def __init__(self, config: uvicorn.Config, context: Context) -> None:
        super().__init__(config)
        self._context = context
        self._silent: dict[object, tuple[object, float]] = {}

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Has the signals end the server; a second one ends it at once. One that came while something was
        imported comes again as an alarm, see `launcher.common.signals`."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        heeded = [one for one in _SIGNALS if signal.getsignal(one) is not signal.SIG_IGN]  # as nohup has it
        for number in (*heeded, signal.SIGALRM):
            loop.add_signal_handler(number, self._told_to_end)
        try:
            yield
        finally:
            for number in (*heeded, signal.SIGALRM):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begins to listen; what was told to end meanwhile ends in order."""
        await super().startup(sockets)
        if self.should_exit and not self.lifespan.should_exit:
            await self.shutdown(sockets)

    def _told_to_end(self) -> None:
        self.force_exit = self.should_exit
        self._context.draining = self.should_exit = True

    async def watch(self) -> None:
        """Closes connections on which nothing is asked, of which nothing is taken, or that do not close."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            now = time.monotonic()
            silent: dict[object, tuple[object, float]] = {}
            for connection in list(self.server_state.connections):
                cycle, transport = getattr(connection, "cycle", None), getattr(connection, "transport", None)
                if transport is None:
                    continue
                closing = transport.is_closing()
                if cycle is not None and not cycle.response_complete and not closing:
                    continue  # the request has its own limits
                seen = (cycle, closing, transport.get_write_buffer_size())
                before, since = self._silent.get(connection, (seen, now))
                if before != seen:
                    since = now
                elif now - since > self._context.limits.idle:
                    transport.abort()
                    continue
                silent[connection] = seen, since
            self._silent = silent


def with_patience(
    app: ASGIApp, seconds: float = _SLOW_SECONDS, ending: Callable[[], bool] = lambda: False
) -> ASGIApp:
    """The application, where a client that takes nothing of its answer for so long loses it; and where what
    is cut off in the midst when the server is ``ending`` says so in one line."""

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        async def bounded(message: Message) -> None:
            await asyncio.wait_for(send(message), seconds)

        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        try:
            await app(scope, receive, bounded)
        except asyncio.CancelledError:
            if not ending():
                raise
            log.warning("a request was cut off: the server is ending")

    return patient


def serve(context: Context, listening: Listening, ready: Callable[[str], None]) -> None:
    """Answers until a signal ends it; ``ready`` gets the address once all models are there. Raises what
    loading them raises, and `LaunchError` where the address is taken."""
    _, run = serving(context, listening, ready)
    run()


def serving(
    context: Context, listening: Listening, ready: Callable[[str], None]
) -> tuple[Server, Callable[[], None]]:
    """The server, whose ``should_exit`` ends it, and what runs it. Raises `LaunchError` and `ConfigError`."""
    listening.check()
    bound = listening.socket()
    url = f"{listening.url}:{bound.getsockname()[1]}"
    failed: list[BaseException] = []

    @contextlib.asynccontextmanager
    async def life() -> AsyncIterator[None]:
        async def load() -> None:
            try:
                await context.repository.load_all(_loaded)
                context.starting = False
                ready(url)
            except Exception as error:
                failed.append(error)
                server.should_exit = True

        works = (load(), server.watch(), context.repository.watch())
        tasks = [asyncio.create_task(work) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await context.repository.close()

    limits = context.limits
    server = Server(
        uvicorn.Config(
            with_patience(application(context, life), ending=lambda: context.draining),
            http=Protocol, log_config=None, access_log=False, ws="none", lifespan="on", server_header=False,
            limit_concurrency=limits.connections + 1,  # it refuses the one that reaches this
            timeout_keep_alive=int(limits.idle),
            timeout_graceful_shutdown=int(limits.drain),
            ssl_certfile=listening.certificate, ssl_keyfile=listening.key,
            ssl_ca_certs=None if listening.clients is None else str(listening.clients),
            ssl_cert_reqs=ssl.CERT_NONE if listening.clients is None else ssl.CERT_REQUIRED,
        ),
        context,
    )  # fmt: skip

    def run() -> None:
        try:
            server.run(sockets=[bound])
        finally:
            bound.close()
        if failed:
            raise failed[0]

    return server, run


async def _loaded(model: Model) -> None:
    log.info("the model %s is ready", model.name)
