"""Connections to an owner of shared weights that mean no good."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
import time
from collections import Counter
from collections.abc import Callable

HELD = 40  # half-open connections that are kept at a time


def attack(name: bytes, count: int, seed: int) -> dict[str, int]:
    """Makes ``count`` connections of mixed kinds; how many of each kind the owner answered."""
    chance = random.Random(seed)
    held: list[socket.socket] = []
    done: Counter[str] = Counter()
    files = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    try:
        for _ in range(count):
            kind = chance.choice(list(KINDS))
            peer = _connect(name)
            with contextlib.suppress(OSError):  # refused meanwhile
                KINDS[kind](peer, chance, files)
            done[kind] += 1
            if kind == "half-open":
                held.append(peer)
                if len(held) > HELD:
                    held.pop(0).close()
            else:
                peer.close()
        return dict(done)
    finally:
        for descriptor in files:
            os.close(descriptor)
        for peer in held:
            peer.close()


def _connect(name: bytes) -> socket.socket:
    deadline = time.monotonic() + 60
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        peer.settimeout(5.0)
        try:
            peer.connect(name)
            return peer
        except BlockingIOError:  # the owner's queue is full
            peer.close()
            assert time.monotonic() < deadline
            time.sleep(0.001)


def _garbage(peer: socket.socket, chance: random.Random, _: list[int]) -> None:
    peer.send(chance.randbytes(chance.randrange(1, 400)))


def _huge(peer: socket.socket, chance: random.Random, _: list[int]) -> None:
    peer.send(b"[" * chance.choice([5000, 60_000, 150_000]))


def _nested(peer: socket.socket, *_: object) -> None:
    peer.send(b'{"nonce":' * 450)


def _numbers(peer: socket.socket, *_: object) -> None:
    peer.send(b'{"nonce": ' + b"9" * 4000 + b"}")


def _types(peer: socket.socket, chance: random.Random, _: list[int]) -> None:
    wrong = [None, 3, [], {}, "x" * 3000, "\ud800", True]
    peer.send(json.dumps({"nonce": chance.choice(wrong), "proof": chance.choice(wrong)}).encode())


def _wrong_proof(peer: socket.socket, chance: random.Random, _: list[int]) -> None:
    peer.recv(4096)
    peer.send(json.dumps({"nonce": "00", "proof": chance.randbytes(32).hex()}).encode())
    peer.recv(4096)


def _early_fetch(peer: socket.socket, *_: object) -> None:
    peer.send(b'{"fetch": true}')
    peer.recv(4096)


def _files(peer: socket.socket, _: object, files: list[int]) -> None:
    socket.send_fds(peer, [b'{"nonce": "00", "proof": "00"}'], files * 60)


def _empty(peer: socket.socket, *_: object) -> None:
    peer.send(b"")


def _half_close(peer: socket.socket, *_: object) -> None:
    peer.shutdown(socket.SHUT_WR)


def _deaf(peer: socket.socket, *_: object) -> None:
    peer.shutdown(socket.SHUT_RD)
    peer.send(b"{}")


def _nothing(*_: object) -> None:
    pass


KINDS: dict[str, Callable[[socket.socket, random.Random, list[int]], None]] = {
    "half-open": _nothing,
    "closed at once": _nothing,
    "garbage": _garbage,
    "huge": _huge,
    "nested": _nested,
    "numbers": _numbers,
    "types": _types,
    "wrong proof": _wrong_proof,
    "early fetch": _early_fetch,
    "files": _files,
    "empty": _empty,
    "half close": _half_close,
    "deaf": _deaf,
}
