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

import fcntl
import json
import logging
import os
import socket
from collections.abc import Mapping

from ranks.common.descriptors import Part, close_all
from ranks.errors import WeightsError
from ranks.talk import unix
from ranks.talk.unix import Packet, send

__all__ = ["MOST_DESCRIPTORS", "PROTOCOL", "Packet", "pack", "receive", "send", "step", "unpack"]

log = logging.getLogger(__name__)

PROTOCOL = "shardrun-weights-2"
LARGEST_PACKET = 4096
MOST_DESCRIPTORS = 200  # of one packet; the kernel's limit (SCM_MAX_FD) is 253
LARGEST_DESCRIPTION = 256 << 20


def step(name: str) -> None:
    """Logs a step of the protocol as done: tests stop processes there."""
    log.debug("%s", name)


def receive(peer: socket.socket, descriptors: int = 0, *, named: bool = False) -> Packet | None:
    """One packet of this protocol; see `ranks.talk.unix.receive`."""
    return unix.receive(peer, LARGEST_PACKET, descriptors, named=named)


def pack(parts: Mapping[str, Part]) -> tuple[list[list[object]], list[int], list[int]]:
    """The parts for a packet: what to say about them, the descriptors to send, and which to close after."""
    told: list[list[object]] = []
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
