"""The port at which ranks of a job find one another."""

from __future__ import annotations

import errno
import socket

from launcher.errors import ConfigError, LaunchError


def free_port() -> int:
    """A port of this machine that nobody uses."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("", 0))
        port: int = sock.getsockname()[1]
        return port


def check_port(text: str, address: str) -> int:
    """A port that the user chose: refused where it is taken, which the ranks would find out later and less
    clearly."""
    if not (text.isascii() and text.isdecimal() and 0 < int(text[:6]) < 65536):
        raise ConfigError(
            f"The environment variable MASTER_PORT must be a port from 1 to 65535, but is {text[:80]!r}."
        )
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            sock.bind((address, int(text)))
        except OSError as error:
            # Any other error only says that the address is another host's.
            if error.errno == errno.EADDRINUSE:
                raise LaunchError(
                    f"Port {text} of {address} (MASTER_PORT) is taken by another program: choose "
                    "another port, or unset "
                    "MASTER_PORT to have a free one chosen."
                ) from None
    return int(text)
