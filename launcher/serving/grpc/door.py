"""Where gRPC's clients come in: a port of its own, in the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import TYPE_CHECKING

import grpc

from launcher.errors import LaunchError
from launcher.serving.context import Context, Frame
from launcher.serving.grpc.calls import PROTOCOL, Calls
from launcher.serving.grpc.service import methods

if TYPE_CHECKING:
    from launcher.serving.server import Listening

_MOST_INT, _ALL_IPV4 = (1 << 31) - 1, "0.0.0.0"
_PING_SECONDS, _ANSWER_SECONDS = 30, 20
"""How long a connection is silent before its client is asked whether it is still there, and how long it may
take to answer."""
_OFTEN_SECONDS = 10
"""Clients that ask the same more often, three times without data between, are sent away."""


class Door:
    """The gRPC server of a context. ``patience``: seconds in which a client must take an answer."""

    def __init__(self, context: Context, patience: float) -> None:
        self._context, self._patience = context, patience
        self._ending = asyncio.Event()
        self._server: grpc.aio.Server | None = None

    async def open(self, listening: Listening, where: tuple[str, int]) -> str:
        """Answers from now on, at this address and port; returns its URL. Raises `LaunchError` where that
        is taken."""
        limits = self._context.limits
        calls = Calls(Frame(self._context, PROTOCOL, lambda refusal: {}), self._patience)
        server = grpc.aio.server(
            options=[
                ("grpc.so_reuseport", 0),  # else a second server would get half of the clients
                ("grpc.max_receive_message_length", min(limits.body, _MOST_INT)),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_allowed_incoming_connections", limits.connections),
                ("grpc.max_concurrent_streams", limits.connections),
                ("grpc.max_connection_idle_ms", int(limits.idle * 1000)),
                ("grpc.server_handshake_timeout_ms", int(limits.idle * 1000)),
                ("grpc.keepalive_time_ms", _PING_SECONDS * 1000),
                ("grpc.keepalive_timeout_ms", _ANSWER_SECONDS * 1000),
                ("grpc.http2.min_ping_interval_without_data_ms", _OFTEN_SECONDS * 1000),
            ],
            maximum_concurrent_rpcs=limits.connections,
        )
        for service, handlers in methods(calls, self._ending).items():
            server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        host, port = where
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        with _ipv4_alone(host, port):
            try:
                _listen(server, listening, address)
            except (OSError, RuntimeError):
                raise LaunchError(
                    f"--host {listening.host} --grpc-port {port}: gRPC cannot listen here: choose another "
                    "port, or 0 for a free one"
                ) from None
        await server.start()
        self._server = server
        return f"{'grpc' if listening.certificate is None else 'grpcs'}://{address}"

    async def close(self, seconds: float) -> None:
        """Takes no more, and ends what is under way after so many seconds."""
        self._ending.set()
        if self._server is not None:
            await self._server.stop(seconds)


@contextlib.contextmanager
def _ipv4_alone(host: str, port: int) -> Iterator[None]:
    """gRPC takes all of IPv4 for all of IPv6, too, unless that is taken."""
    with contextlib.ExitStack() as stack:
        if host == _ALL_IPV4:
            with contextlib.suppress(OSError):  # a machine without IPv6
                other = stack.enter_context(socket.socket(socket.AF_INET6))
                other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                other.bind(("::", port))
        yield


def _listen(server: grpc.aio.Server, listening: Listening, address: str) -> None:
    if listening.certificate is None or listening.key is None:
        server.add_insecure_port(address)
        return
    pair = listening.key.read_bytes(), listening.certificate.read_bytes()
    clients = None if listening.clients is None else listening.clients.read_bytes()
    server.add_secure_port(address, grpc.ssl_server_credentials([pair], clients, clients is not None))
