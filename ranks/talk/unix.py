"""Unix sockets, unix(7): who is at the other end, and packets of JSON with file descriptors.

A socket is named by an abstract name, which leaves nothing on disk. Everything here takes hostile peers: a
packet that is too long, holds more descriptors than asked for or is no JSON object is a `Packet` without
data, and descriptors that nobody asked for are not kept.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import signal
import socket
import struct
from array import array
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ranks.common import processes

_CREDENTIALS = struct.Struct("3i")  # struct ucred
_SENDER = (socket.SOL_SOCKET, getattr(socket, "SCM_CREDENTIALS", 2))
_CLOSE_ON_EXEC = int(getattr(socket, "MSG_CMSG_CLOEXEC", 0))
_AT_ONCE, _CUT_OFF = _CLOSE_ON_EXEC | int(socket.MSG_DONTWAIT), int(socket.MSG_CTRUNC)  # enums are slow
_NO_SIGNAL = getattr(socket, "MSG_NOSIGNAL", 0)
_SO_PEERPIDFD = 77  # asm-generic/socket.h
_PIDFD_INFO = struct.Struct("Q52xi")  # struct pidfd_info: what is asked for and known, ..., exit_code
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_GET_INFO = 0xC000FF0B | _PIDFD_INFO.size << 16
_DESCRIPTOR_BYTES = array("i").itemsize
_DESCRIPTOR_SPACE = socket.CMSG_SPACE(_DESCRIPTOR_BYTES)


class Packet(NamedTuple):
    """One packet; ``data`` is None where it was not a JSON object. The descriptors are the receiver's."""

    data: dict[str, object] | None
    descriptors: list[int]
    sender: int | None = None
    """The process that sent it, where `name_senders` asked the kernel for it."""


def at(name: str) -> str:
    """A socket's name as the system takes it: a first ``@`` stands for the zero byte of abstract names."""
    return "\0" + name[1:] if name.startswith("@") else name


def listen(name: str | bytes, backlog: int, kind: socket.SocketKind = socket.SOCK_SEQPACKET) -> socket.socket:
    """A socket that listens under a name. Raises `OSError`, where the name is taken too."""
    listener = socket.socket(socket.AF_UNIX, kind)
    try:
        listener.bind(name)
        listener.listen(backlog)
    except BaseException:
        listener.close()
        raise
    return listener


def holder(name: str | bytes) -> tuple[int, int] | None:
    """Process and user id of who listens for packets under a name; None where nobody answers."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as probe:
        probe.settimeout(1.0)
        probe.connect(name)
        return credentials(probe)
    return None


def credentials(peer: socket.socket) -> tuple[int, int]:
    """Process and user id of the other end, as the kernel noted them when it connected or listened."""
    raw = peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    pid, uid, _ = _CREDENTIALS.unpack(raw)
    return pid, uid


def name_senders(peer: socket.socket) -> None:
    """Has the kernel say of each packet who sent it: the process that connected may have handed it on."""
    peer.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def process_of(peer: socket.socket) -> int | None:
    """A pidfd of the process that connected, whose number is nobody else's as long as it runs; None where the
    kernel (before 6.5) has none."""
    try:
        return peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as problem:
        if problem.errno in {errno.ENOPROTOOPT, errno.EINVAL, errno.EOPNOTSUPP}:
            return None
        raise


def readable(what: socket.socket | int, seconds: float) -> bool:
    """Whether a socket has something to read, or its end, within so many seconds."""
    poll = select.poll()
    poll.register(what, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def writable(what: socket.socket) -> bool:
    """Whether a socket takes a short message now; another thread may close it meanwhile."""
    poll = select.poll()
    try:
        poll.register(what, select.POLLOUT)
    except ValueError:  # it is closed
        return False
    return bool(poll.poll(0))


def has_ended(process: int, seconds: float = 0.0) -> bool:
    """Whether the process of a pidfd has ended, or does within so many seconds."""
    return readable(process, seconds)


def exit_code(process: int, pid: int) -> int | None:
    """How the process of a pidfd, which has the number ``pid``, ended, as `subprocess.Popen.returncode` says
    it, whoever its parent is.

    Until its parent has waited for it, which Intel MPI does when nobody has its output open any more,
    proc(5) says so; from then on ioctl(2), ``PIDFD_GET_INFO`` of linux/pidfd.h. None while it runs, and where
    the kernel (before 6.15) does not tell.
    """
    left = processes.left_with(pid)
    with contextlib.suppress(OSError):
        if left is not None and processes.is_over(process):
            signal.pidfd_send_signal(process, 0)  # the number is still its own: it was when that was read
            return os.waitstatus_to_exitcode(left)
    record = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0))
    try:
        fcntl.ioctl(process, _PIDFD_GET_INFO, record)
    except OSError:
        return None
    known, status = _PIDFD_INFO.unpack(record)
    return os.waitstatus_to_exitcode(status) if known & _PIDFD_INFO_EXIT else None


def send(peer: socket.socket, data: Mapping[str, object], descriptors: Sequence[int] = ()) -> None:
    """Sends one packet; raises `OSError`, also where there is no room and ``peer`` does not wait."""
    raw = json.dumps(data).encode()
    # Not `socket.send_fds` and `socket.recv_fds`: they forget the flags.
    attached = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
    peer.sendmsg([raw], attached, _NO_SIGNAL)


def receive(peer: socket.socket, largest: int, descriptors: int = 0, *, named: bool = False) -> Packet | None:
    """One packet of at most so many bytes, with up to so many descriptors or, after `name_senders`, with its
    sender; None at the end of the connection.

    Raises `BlockingIOError` or `TimeoutError` where ``peer`` has none in time.
    """
    try:
        raw, found, flags, sender = _receive(peer, largest, descriptors, named)
    except ConnectionResetError:  # it closed without reading all; what it had sent before is still there
        try:
            raw, found, flags, sender = _receive(peer, largest, descriptors, named)
        except ConnectionError:
            return None
    except (BlockingIOError, TimeoutError):
        raise
    except OSError:
        return None
    if not raw and not found:
        return None
    data = None
    if not flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
        with contextlib.suppress(ValueError, RecursionError):
            data = json.loads(raw)
    return Packet(data if isinstance(data, dict) else None, found, sender)


def _receive(
    peer: socket.socket, largest: int, descriptors: int, named: bool
) -> tuple[bytes, list[int], int, int | None]:
    if named:
        # The kernel puts the sender first, for whom alone there is room.
        raw, extra, flags, _ = peer.recvmsg(largest, socket.CMSG_SPACE(_CREDENTIALS.size))
        said = [value for level, kind, value in extra if (level, kind) == _SENDER]
        whole = len(said) == 1 and len(said[0]) == _CREDENTIALS.size
        return raw, [], flags, _CREDENTIALS.unpack(said[0])[0] if whole else None
    if not descriptors:
        raw, _, flags, _ = peer.recvmsg(largest)
        return raw, [], flags, None
    raw, extra, flags, _ = peer.recvmsg(
        largest, socket.CMSG_LEN(descriptors * _DESCRIPTOR_BYTES), _CLOSE_ON_EXEC
    )
    return raw, list(_descriptors(extra)), flags, None


def receive_into(peer: socket.socket, target: memoryview, *, wait: bool = True) -> tuple[int, Sequence[int]]:
    """Bytes of a stream, and the descriptor that came with them, if one did. Without ``wait`` it raises
    `BlockingIOError` where none are there.

    Raises `OSError`; where a descriptor came for which there is no room, that of a want of descriptors.
    """
    how = _CLOSE_ON_EXEC if wait else _AT_ONCE
    count, extra, flags, _ = peer.recvmsg_into([target], _DESCRIPTOR_SPACE, how)
    if flags & _CUT_OFF:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    return count, _descriptors(extra) if extra else ()


def _descriptors(extra: Sequence[tuple[int, int, bytes]]) -> array[int]:
    found = array("i")
    for level, kind, data in extra:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    return found
