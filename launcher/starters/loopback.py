"""Sockets that mpirun leaves open to other hosts, moved to the loopback interface.

mpirun listens on every interface, for its daemons on other hosts, and has no setting against that: Open MPI
5 binds to INADDR_ANY whatever `prte_if_include` and its like say, and does not start without TCP. Where all
ranks are on this host, nobody should be able to connect. Our mpirun is our child, so we can get its sockets
(pidfd_getfd(2)). A listening socket that was shut down can be bound again and listen again, and mpirun keeps
waiting on it. Meanwhile mpirun is stopped, or it would find a socket that does not listen.
"""

from __future__ import annotations

import contextlib
import ctypes
import ipaddress
import logging
import os
import signal
import socket
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from ranks.common.processes import is_stopped, status

log = logging.getLogger(__name__)

_PIDFD_GETFD = 438  # the same number on every processor
_LOOPBACK = {socket.AF_INET: "127.0.0.1", socket.AF_INET6: "::1"}
_BACKLOG = 128
_STOP_SECONDS = 1.0


def family(pid: int, without: Collection[int] = ()) -> list[int]:
    """A process of this host and its descendants, except ``without`` and the descendants of those."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*"):
        now = status(int(path.name)) if path.name.isdecimal() else None
        if now is not None:
            parents[int(path.name)] = now.parent
    found = [pid]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one and child not in without]
    return found


def move_to_loopback(pid: int) -> None:
    """Moves the listening TCP sockets of a child process to the loopback interface.

    Where the system does not let us (ptrace(2) is forbidden) they stay as they are.
    """
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        with contextlib.ExitStack() as opened:
            sockets = [opened.enter_context(_taken(process, number)) for number in _sockets_of(pid)]
            outside = [there for there in sockets if _is_open(there)]
            if outside:
                with _stopped(process, pid):
                    for there in outside:
                        _move(there)
    except OSError as problem:
        log.info("sockets of process %d may stay open to other hosts: %s", pid, problem)
    finally:
        os.close(process)


@contextlib.contextmanager
def _stopped(process: int, pid: int) -> Iterator[None]:
    signal.pidfd_send_signal(process, signal.SIGSTOP)
    try:
        deadline = time.monotonic() + _STOP_SECONDS
        while not is_stopped(pid) and time.monotonic() < deadline:
            time.sleep(1e-4)
        yield
    finally:
        signal.pidfd_send_signal(process, signal.SIGCONT)


def _sockets_of(pid: int) -> list[int]:
    found = []
    with contextlib.suppress(OSError):
        for path in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if str(path.readlink()).startswith("socket:"):
                    found.append(int(path.name))
    return found


def _taken(process: int, number: int) -> socket.socket:
    """Our own descriptor of another process's socket. Raises `OSError`."""
    libc = ctypes.CDLL(None, use_errno=True)
    descriptor = libc.syscall(_PIDFD_GETFD, process, number, 0)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return socket.socket(fileno=descriptor)


def _is_open(there: socket.socket) -> bool:
    """Whether other hosts can connect to a socket."""
    if there.family not in _LOOPBACK or not there.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        return False
    return not ipaddress.ip_address(there.getsockname()[0].partition("%")[0]).is_loopback


def _move(there: socket.socket) -> None:
    port = there.getsockname()[1]
    there.shutdown(socket.SHUT_RDWR)
    there.bind((_LOOPBACK[there.family], port))
    there.listen(_BACKLOG)
