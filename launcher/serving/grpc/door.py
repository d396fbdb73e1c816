"""Where gRPC's clients come in: a port of its own, in the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import contextlib
import socket
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

    async def open(self, listening: Listening, host: str) -> str:
        """Answers from now on, at the address ``host`` that HTTP has; returns its URL. Raises `LaunchError`
        where the port is taken."""
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
        address = f"[{host}]" if ":" in host else host
        port = _bind(server, listening, host, address)
        await server.start()
        self._server = server
        return f"{'grpc' if listening.certificate is None else 'grpcs'}://{address}:{port}"

    async def close(self, seconds: float) -> None:
        """Takes no more, and ends what is under way after so many seconds."""
        self._ending.set()
        if self._server is not None:
            await self._server.stop(seconds)


def _bind(server: grpc.aio.Server, listening: Listening, host: str, address: str) -> int:
    """Has the server listen; returns the port. Raises `LaunchError`."""
    assert listening.grpc_port is not None
    # A port that is taken is told in our words alone: gRPC would write some to standard error.
    with listening.bound(listening.grpc_port, "--grpc-port") as free:
        port = int(free.getsockname()[1])
    with contextlib.ExitStack() as stack:
        if host == _ALL_IPV4:
            # gRPC would take this for all of IPv6, too, were that not taken.
            other = stack.enter_context(socket.socket(socket.AF_INET6))
            with contextlib.suppress(OSError):
                other.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                other.bind(("::", port))
        try:
            if listening.certificate is None or listening.key is None:
                server.add_insecure_port(f"{address}:{port}")
                return port
            pair = listening.key.read_bytes(), listening.certificate.read_bytes()
            clients = None if listening.clients is None else listening.clients.read_bytes()
            credentials = grpc.ssl_server_credentials([pair], clients, clients is not None)
            server.add_secure_port(f"{address}:{port}", credentials)
            return port
        except (OSError, RuntimeError):
            raise LaunchError(
                f"--host {listening.host} --grpc-port {port}: gRPC cannot listen here: choose another port, "
                "or 0 for a free one"
            ) from None
