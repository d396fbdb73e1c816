"""A rank's way to its launcher: its socket there, and its end where what started it ends.

Nothing heavy is imported; see `ranks.talk.frame`.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import socket
import stat
import struct
import sys
from collections.abc import Collection, Iterator

from ranks.common.settings import CONTROL
from ranks.errors import ShardrunError
from ranks.talk import unix
from sharding.common.bounds import MAX_PORT
from sharding.common.text import parse_whole

CUT = (errno.ETIMEDOUT, errno.EHOSTUNREACH, errno.ENETUNREACH, errno.EHOSTDOWN, errno.ENETDOWN)
"""What a socket says when the network to its other end is cut."""
EXIT_ORPHANED = 75  # EX_TEMPFAIL of sysexits.h: nothing is wrong with this rank
_CONNECT_SECONDS = 15
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_TIMEVAL_BYTES = 16
# Places in struct tcp_info of <linux/tcp.h>: milliseconds since the last data, then bytes acknowledged, and
# bytes received.
_INFO_SENT, _INFO_ACKED, _INFO_BYTES = 44, 120, 136


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
        number = parse_whole(port, 1, MAX_PORT)
        if scheme == "tcp" and host and number is not None:
            sock = socket.create_connection((host.strip("[]"), number), timeout=_CONNECT_SECONDS)
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


def tune_all_tcp() -> None:
    """The same for every connection of this process to another host, such as those that a library has made:
    Gloo's would wait for ever."""
    for _, own in _connections():
        with contextlib.suppress(OSError):
            if own.getpeername()[0] != own.getsockname()[0]:
                tune_tcp(own)


def timed_connections() -> frozenset[int]:
    """The TCP connections of this process whose time-outs are the kernel's (SO_RCVTIMEO), by the numbers of
    their inodes: all of Gloo's are, and none that Python or most libraries make."""
    return frozenset(inode for inode, own in _connections() if _is_timed(own))


def _is_timed(sock: socket.socket) -> bool:
    return any(sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _TIMEVAL_BYTES))


def cut(inodes: Collection[int]) -> None:
    """Ends TCP connections of this process, by `timed_connections`; both ends see it at once."""
    for inode, own in _connections():
        if inode in inodes:
            with contextlib.suppress(OSError):
                own.shutdown(socket.SHUT_RDWR)


def cut_to(port: int) -> None:
    """Ends this process's connections to such a port, on whichever host."""
    for _, own in _connections():
        with contextlib.suppress(OSError):
            if own.getpeername()[1] == port:
                own.shutdown(socket.SHUT_RDWR)


def unanswered(port: int) -> float:
    """For how many seconds a connection of this process to such a port has awaited its first answer, since it
    has last asked for it; 0 where none does."""
    longest = 0
    for _, own in _connections():
        with contextlib.suppress(OSError, struct.error, AttributeError):
            if own.getpeername()[1] == port:
                told = own.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
                asked, received = struct.unpack_from("=QQ", told, _INFO_ACKED)
                if asked > 1 and not received:  # the first is the connection itself
                    longest = max(longest, struct.unpack_from("=I", told, _INFO_SENT)[0])
    return longest / 1000


def any_ended(inodes: Collection[int]) -> bool:
    """Whether one of these TCP connections, by `timed_connections`, has ended at either end."""
    return not set(inodes) <= {inode for inode, own in _connections() if not _is_over(own)}


def _is_over(sock: socket.socket) -> bool:
    try:
        return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == b""
    except BlockingIOError:
        return False  # it has nothing to say
    except OSError:
        return True


def _connections() -> Iterator[tuple[int, socket.socket]]:
    """Each TCP connection of this process, with the number of its inode. Ones that end meanwhile may be
    missing."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - many
        with contextlib.suppress(OSError, ValueError):
            status = os.fstat(int(name))
            if not stat.S_ISSOCK(status.st_mode):
                continue
            with socket.socket(fileno=os.dup(int(name))) as own:
                internet = own.family in {socket.AF_INET, socket.AF_INET6}
                if internet and own.type == socket.SOCK_STREAM and own.getpeername():
                    yield status.st_ino, own


def die_with_parent() -> None:
    """Asks the kernel to kill this process when its parent dies: prctl(2), PR_SET_PDEATHSIG. Linux only."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def adopt_orphans() -> None:
    """Asks the kernel to make this process the parent of whatever its descendants leave: prctl(2),
    PR_SET_CHILD_SUBREAPER. Linux only."""
    if sys.platform != "linux":
        return
    import ctypes

    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
