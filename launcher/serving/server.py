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
from typing import TYPE_CHECKING

import uvicorn

from launcher.errors import ConfigError, LaunchError
from launcher.serving.app import application
from launcher.serving.context import Context
from launcher.serving.models import Model
from launcher.serving.parsing import protocol

if TYPE_CHECKING:
    from launcher.serving.grpc.door import Door

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_LOOK_SECONDS = 5.0


@dataclass(frozen=True)
class Listening:
    """Where a server listens. ``port`` 0: a free one. ``clients``: whose certificates clients must have;
    ``grpc_port``: None for no gRPC."""

    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    clients: Path | None = None
    grpc_port: int | None = None

    def socket(self) -> socket.socket:
        """A socket that listens. Raises `LaunchError`, and `ConfigError` for no address."""
        return bound_at(self.host, self.port, "--port")

    def check(self) -> None:
        """Raises `ConfigError` for files that are no certificates, and one port for two."""
        if self.port and self.port == self.grpc_port:
            raise ConfigError(f"--port and --grpc-port: expected two ports, found {self.port} for both")
        if (self.certificate is None) != (self.key is None):
            raise ConfigError("--tls-certificate and --tls-key belong together: give both")
        if self.clients is not None and self.certificate is None:
            raise ConfigError("--tls-clients: give --tls-certificate and --tls-key too")
        if self.certificate is None:
            return
        for flag, path in (("certificate", self.certificate), ("key", self.key), ("clients", self.clients)):
            if path is not None:
                with _told(f"--tls-{flag} {path}"):
                    path.stat()
                if not path.is_file():
                    raise ConfigError(
                        f"--tls-{flag} {path}: expected a regular file, which can be read twice"
                    )
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


def bound_at(host: str, port: int, flag: str) -> socket.socket:
    """A socket at this port, which ``flag`` gave. It listens, or another server might still get the port.
    Raises `LaunchError`, and `ConfigError` for no address."""
    if not host:  # which sockets take for all
        raise ConfigError("--host: expected an address, found none; 0.0.0.0 is all of this machine")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen()
    except (OSError, OverflowError, UnicodeError) as error:
        made.close()
        why = getattr(error, "strerror", None) or str(error)
        raise LaunchError(
            f"--host {host} {flag} {port}: this address cannot be used ({why}): choose another "
            "port, or 0 for a free one"
        ) from None
    return made


@contextlib.contextmanager
def _told(what: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise ConfigError(f"{what}: {getattr(error, 'strerror', None) or error}") from None


class Server(uvicorn.Server):
    """uvicorn's server, which ends in order with SIGINT and SIGTERM, and keeps no connection that asks
    nothing."""

    def __init__(self, config: uvicorn.Config, context: Context, door: Door | None = None) -> None:
        super().__init__(config)
        self._context, self._door = context, door
        self._closing: asyncio.Task[None] | None = None
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

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Takes no more, and answers what is under way: on both ports at the same time."""
        if self._door is not None:
            self._closing = asyncio.create_task(self._door.close(self._context.limits.drain))
        await super().shutdown(sockets)

    def _told_to_end(self) -> None:
        self.force_exit = self.should_exit
        if self.force_exit and self._door is not None:  # it may be waited for already
            self._closing = asyncio.create_task(self._door.close(0))
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


def serve(context: Context, listening: Listening, ready: Callable[[str], None]) -> None:
    """Answers until a signal ends it; ``ready`` gets each address once all models are there, that of HTTP
    last. Raises what loading them raises, and `LaunchError` where an address is taken."""
    _, run = serving(context, listening, ready)
    run()


def serving(
    context: Context, listening: Listening, ready: Callable[[str], None]
) -> tuple[Server, Callable[[], None]]:
    """The server, whose ``should_exit`` ends it, and what runs it. Raises `LaunchError` and `ConfigError`."""
    listening.check()
    door, free_port = None, 0
    if listening.grpc_port is not None:
        from launcher.serving.grpc.door import Door

        door = Door(context, protocol.SLOW_SECONDS)
        # A port that is taken is told in our words alone: gRPC would write some to standard error.
        with bound_at(listening.host, listening.grpc_port, "--grpc-port") as free:
            free_port = int(free.getsockname()[1])
    bound = listening.socket()
    url = f"{listening.url}:{bound.getsockname()[1]}"
    failed: list[BaseException] = []

    @contextlib.asynccontextmanager
    async def life() -> AsyncIterator[None]:
        urls = [url]
        if door is not None:
            try:
                urls.insert(0, await door.open(listening, (bound.getsockname()[0], free_port)))
            except LaunchError as error:
                failed.append(error)
                server.should_exit = True

        async def load() -> None:
            try:
                await context.repository.load_all(_loaded)
                context.starting = False
                for each in urls:
                    ready(each)
            except Exception as error:
                failed.append(error)
                server.should_exit = True

        works = (load, server.watch, context.repository.watch)
        tasks = [] if failed else [asyncio.create_task(work()) for work in works]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if door is not None:
                await door.close(0 if server.force_exit else context.limits.drain)
            await context.repository.close()

    limits = context.limits
    server = Server(
        uvicorn.Config(
            application(context, life),
            http=protocol.Protocol,
            log_config=None, access_log=False, ws="none", lifespan="on", server_header=False,
            proxy_headers=False,  # who says that he is somebody else would get a turn as such
            limit_concurrency=limits.connections + 1,  # it refuses the one that reaches this
            timeout_keep_alive=int(limits.idle),
            timeout_graceful_shutdown=int(limits.drain),
            ssl_certfile=listening.certificate, ssl_keyfile=listening.key,
            ssl_ca_certs=None if listening.clients is None else str(listening.clients),
            ssl_cert_reqs=ssl.CERT_NONE if listening.clients is None else ssl.CERT_REQUIRED,
        ),
        context, door,
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
