"""The ports of this machine at which ranks of a job find one another and their launcher."""

from __future__ import annotations

import errno
import socket
from collections.abc import Sequence

from launcher.errors import ConfigError, LaunchError
from sharding.common.bounds import MAX_PORT
from sharding.common.text import parse_whole

BACKLOG = 1024
"""A burst of connections is no reason to keep a rank waiting."""


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


def check_port(text: str, address: str) -> int:
    """A port that the user chose: refused where it is taken, which the ranks would find out later and less
    clearly."""
    port = parse_whole(text, 1, MAX_PORT)
    if port is None:
        raise ConfigError(
            f"The environment variable MASTER_PORT must be a port from 1 to {MAX_PORT}, but is {text[:80]!r}."
        )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, port))
        except OSError as error:
            # Any other error only says that the address is another host's.
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"Port {text} of {address} (MASTER_PORT) is taken by another program: choose another "
                    "port, or unset MASTER_PORT to have a free one chosen."
                ) from None
    return port


def listen_tcp(hosts: Sequence[str]) -> tuple[socket.socket, str]:
    """A listening socket on this machine's address on the way to these hosts, and ``tcp:HOST:PORT`` of it.
    Raises `LaunchError`."""
    address = "127.0.0.1"
    family = socket.AF_INET
    for host in hosts:
        try:
            family, kind, _, _, place = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        except OSError as error:
            raise LaunchError(
                f"The host {host!r} cannot be found ({error.strerror or error}): correct its name, or say "
                "the address by which this machine reaches it (in a rank table, server_ip)."
            ) from None
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(place)  # UDP: sends nothing, only asks for the route
            except OSError as error:
                raise LaunchError(
                    f"There is no route to host {host!r} ({error.strerror or error}): see that this machine "
                    "is in its network, or correct its address."
                ) from None
            address = probe.getsockname()[0]
        if not address.startswith("127.") and address != "::1":
            break
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.bind((address, 0))
    except OSError as error:
        sock.close()
        raise LaunchError(
            f"The control socket cannot listen on {address}: {error.strerror or error}."
        ) from None
    sock.listen(BACKLOG)
    return sock, f"tcp:{f'[{address}]' if ':' in address else address}:{sock.getsockname()[1]}"
