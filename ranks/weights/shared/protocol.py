"""How an owner of shared weights and a process that attaches talk.

On a connection of an abstract Unix socket that keeps packets apart (SOCK_SEQPACKET, unix(7)), JSON in each:

    owner     {"refused": sentence}    or {"protocol": ..., "nonce": N1}
    attacher  {"nonce": N2, "proof": of knowing the key}
    owner     {"refused": sentence}    or {"proof": ..., "facts": ..., "parts": ...} + descriptors
    attacher  {"fetch": true}          any time later, any number of times
    owner     {"refused": sentence}    or {"parts": ...} + descriptors

The owner has the kernel say of each packet who sent it.

Whatever may be long travels as a sealed memory file, so every packet is small. The attacher sends no
descriptors: the owner receives without room for any, and the kernel drops what comes.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import logging
import os
import select
import socket
import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ranks.common.descriptors import Part, close_all
from ranks.errors import WeightsError

log = logging.getLogger(__name__)

_CREDENTIALS = struct.Struct("3i")  # struct ucred of unix(7)
_SENDER = (socket.SOL_SOCKET, socket.SCM_CREDENTIALS)
_SO_PEERPIDFD = 77  # asm-generic/socket.h

PROTOCOL = "shardrun-weights-2"
LARGEST_PACKET = 4096
MOST_DESCRIPTORS = 200  # of one packet; the kernel's limit (SCM_MAX_FD) is 253
LARGEST_DESCRIPTION = 256 << 20


def step(name: str) -> None:
    """Logs a step of the protocol as done: tests stop processes there."""
    log.debug("%s", name)


class Packet(NamedTuple):
    """One packet; ``data`` is None where it was not a JSON object. The descriptors are the receiver's."""

    data: dict[str, Any] | None
    descriptors: list[int]
    sender: int | None = None
    """The process that sent it, where `name_senders` asked the kernel for it."""


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


def has_ended(process: int) -> bool:
    """Whether the process of a pidfd has ended."""
    poll = select.poll()
    poll.register(process, select.POLLIN)
    return bool(poll.poll(0))


def send(peer: socket.socket, data: Mapping[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Sends one packet; raises `OSError`, also where there is no room and ``peer`` does not wait."""
    raw = json.dumps(data).encode()
    if descriptors:
        socket.send_fds(peer, [raw], list(descriptors), socket.MSG_NOSIGNAL)
    else:
        peer.send(raw, socket.MSG_NOSIGNAL)


def receive(peer: socket.socket, descriptors: int = 0, *, named: bool = False) -> Packet | None:
    """One packet with up to so many descriptors, or, after `name_senders`, with its sender; None at the end
    of the connection.

    Raises `BlockingIOError` or `TimeoutError` where ``peer`` has none in time.
    """
    try:
        raw, found, flags, sender = _receive(peer, descriptors, named)
    except ConnectionResetError:  # it closed without reading all; what it had sent before is still there
        try:
            raw, found, flags, sender = _receive(peer, descriptors, named)
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


def _receive(peer: socket.socket, descriptors: int, named: bool) -> tuple[bytes, list[int], int, int | None]:
    if named:
        # The kernel puts the sender first, for whom alone there is room.
        raw, extra, flags, _ = peer.recvmsg(LARGEST_PACKET, socket.CMSG_SPACE(_CREDENTIALS.size))
        said = [value for level, kind, value in extra if (level, kind) == _SENDER]
        whole = len(said) == 1 and len(said[0]) == _CREDENTIALS.size
        return raw, [], flags, _CREDENTIALS.unpack(said[0])[0] if whole else None
    if not descriptors:
        raw, _, flags, _ = peer.recvmsg(LARGEST_PACKET)
        return raw, [], flags, None
    raw, found, flags, _ = socket.recv_fds(peer, LARGEST_PACKET, descriptors, socket.MSG_CMSG_CLOEXEC)
    return raw, list(found), flags, None


def pack(parts: Mapping[str, Part]) -> tuple[list[list[Any]], list[int], list[int]]:
    """The parts for a packet: what to say about them, the descriptors to send, and which to close after."""
    told: list[list[Any]] = []
    descriptors: list[int] = []
    made: list[int] = []
    for name, (description, attached) in parts.items():
        made.append(_memory_file(json.dumps(description).encode()))
        descriptors += [made[-1], *attached]
        told.append([name, len(attached)])
    if len(descriptors) >= MOST_DESCRIPTORS:
        close_all(made)
        raise WeightsError(f"{len(descriptors)} descriptors do not fit into one packet.")
    return told, descriptors, made


def unpack(told: object, descriptors: list[int]) -> dict[str, Part]:
    """The parts of a packet, by `pack`; takes their descriptors off the front of ``descriptors``.

    Raises `WeightsError` where they do not fit what was told of them.
    """
    parts: dict[str, Part] = {}
    try:
        if not isinstance(told, list):
            raise TypeError
        for name, count in told:
            if not (isinstance(name, str) and type(count) is int and 0 <= count < len(descriptors)):
                raise ValueError
            description = json.loads(_read_all(descriptors[0]))
            if not isinstance(description, dict):
                raise TypeError
            parts[name] = (description, descriptors[1 : count + 1])
            close_all(descriptors[:1])
            del descriptors[: count + 1]
    except (ValueError, TypeError, RecursionError, OSError):
        for _, attached in parts.values():
            close_all(attached)
        raise WeightsError("the owner of the weights sent parts that do not fit together.") from None
    return parts


def _memory_file(content: bytes) -> int:
    descriptor = os.memfd_create("shardrun-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(content)
        seals = fcntl.F_SEAL_WRITE | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_SEAL
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _read_all(descriptor: int) -> bytes:
    size = os.fstat(descriptor).st_size
    if size > LARGEST_DESCRIPTION:
        raise ValueError(size)
    content = b""
    while len(content) < size and (chunk := os.pread(descriptor, size - len(content), len(content))):
        content += chunk
    return content
