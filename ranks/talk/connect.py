"""A rank's way to its launcher: its socket there, and its end where what started it ends.

Nothing heavy is imported; see `ranks.talk.frame`.
"""

from __future__ import annotations

import signal
import socket
import sys

from ranks.common.settings import CONTROL
from ranks.errors import ShardrunError
from ranks.talk import unix

EXIT_ORPHANED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong with this rank
_CONNECT_SECONDS = 30
_PR_SET_PDEATHSIG = 1


class ControlError(ShardrunError):
    """The launcher's control socket is named wrongly or cannot be reached."""


def open_socket(address: str) -> socket.socket:
    """A socket connected to ``unix:PATH``, ``unix:@ABSTRACT`` or ``tcp:HOST:PORT``; raises `ControlError`."""
    scheme, _, place = address.partition(":")
    host, _, port = place.rpartition(":")
    try:
        if scheme == "unix" and place:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.connect(unix.at(place))
            return sock
        if scheme == "tcp" and host and port.isdecimal():
            sock = socket.create_connection((host.strip("[]"), int(port)), timeout=_CONNECT_SECONDS)
            sock.settimeout(None)
            tune_tcp(sock)
            return sock
    except OSError as error:
        raise ControlError(
            f"The launcher cannot be reached at {CONTROL.name}={address} ({error.strerror or error}): "
            "it has ended, or "
            "a firewall is between; start the job anew, or unset this variable to run without a launcher."
        ) from None
    raise ControlError(
        f"The environment variable {CONTROL.name} must be unix:PATH or tcp:HOST:PORT, but is "
        f"{address[:200]!r}."
    )


def tune_tcp(sock: socket.socket) -> None:
    """No delay for small messages; a cut cable or a dead host is noticed within about 6 s."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (
        ("TCP_KEEPIDLE", 3),
        ("TCP_KEEPINTVL", 1),
        ("TCP_KEEPCNT", 3),
        ("TCP_USER_TIMEOUT", 6000),
    ):
        if hasattr(socket, name):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies: prctl(2), PR_SET_PDEATHSIG. Linux only."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
