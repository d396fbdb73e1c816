"""Messages from one rank of a host to another, through shared memory.

A sender does not wait for its receiver: up to `PLACES` pieces of a pair are on their way. Small messages lie
in the pair's own places; a large one is copied to the sender's arena, and only where it lies is passed on.
Where the arena is full, a large message goes in pieces.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from ranks.collectives import arrays
from ranks.collectives.shm.area import LINE, MAIL, PLACES, Area
from ranks.collectives.shm.phases import Phases, say
from ranks.collectives.shm.sync import STEP, signature
from ranks.common.tensors import name_of
from sharding.common.arrays import Array

_HERE = (1 << 64) - 1  # instead of an offset in the arena: the piece lies in the pair's place
_MOST_SPARE = 8  # buffers kept for later messages
_ROUND = 1 << 16  # bytes: buffers come in multiples, so that later messages fit them


class Mailbox:
    """What this rank sends and receives."""

    def __init__(self, area: Area, phases: Phases, members: tuple[int, ...]) -> None:
        """``members``: the ranks of ``area`` as errors name them."""
        self._area = area
        self._phases = phases
        self._members = members
        self._sent = dict.fromkeys(range(area.size), 0)
        self._received = dict.fromkeys(range(area.size), 0)
        self._on_the_way: dict[int, deque[tuple[int, Array]]] = {}  # by receiver: number and buffer
        self._spare: list[Array] = []

    def send(self, buffer: Array, peer: int) -> None:
        """Sends a buffer, which may be changed as soon as this returns."""
        phases, area = self._phases, self._area
        arrays.check_peer("send", peer, area.rank, area.size)
        raw = arrays.check(buffer, "send", written=False).reshape(-1).view(np.uint8)
        what = say(f"send to rank {self._members[peer]}", buffer)
        code = signature("send/recv", name_of(buffer.dtype), *buffer.shape)
        phases.check()
        large = self._copied(raw, peer) if raw.size > MAIL else None
        line = area.mail_line(area.rank, peer)
        pieces = [raw] if large is not None else _pieces(raw)
        for piece in pieces:
            number = self._sent[peer] = self._sent[peer] + 1
            if number > PLACES:
                phases.wait_mail(peer, line + LINE, (number - PLACES) * STEP, what)
            word = line + 2 + 2 * (number % PLACES)
            if large is None:
                area.mail(area.rank, peer, number % PLACES, piece.size)[...] = piece
                phases.words[word + 1] = _HERE
            else:
                phases.words[word + 1] = area.offset_of(large) or 0
                self._on_the_way.setdefault(peer, deque()).append((number, large))
            phases.words[word] = code  # beside its piece: the counter may be ahead
            phases.publish_mail(line, number * STEP)

    def recv(self, buffer: Array, peer: int) -> None:
        """Overwrites a buffer with the next message of ``peer``."""
        phases, area = self._phases, self._area
        arrays.check_peer("recv", peer, area.rank, area.size)
        raw = arrays.check(buffer, "recv", written=True).reshape(-1).view(np.uint8)
        what = say(f"recv from rank {self._members[peer]}", buffer)
        code = signature("send/recv", name_of(buffer.dtype), *buffer.shape)
        phases.check()
        line = area.mail_line(peer, area.rank)
        done = 0
        while True:
            number = self._received[peer] = self._received[peer] + 1
            phases.wait_mail(peer, line, number * STEP, what)
            word = line + 2 + 2 * (number % PLACES)
            if phases.words[word] != code:
                phases.fail(
                    f"Rank {self._members[peer]} sent another type or shape than rank "
                    f"{self._members[area.rank]} expects in {what()}."
                )
            offset = phases.words[word + 1]
            if offset != _HERE:
                raw[...] = area.arena(peer, offset, raw.shape, raw.dtype)
                done = raw.size
            else:
                piece = raw[done : done + MAIL]
                piece[...] = area.mail(peer, area.rank, number % PLACES, piece.size)
                done += piece.size
            phases.publish_mail(line + LINE, number * STEP)
            if done == raw.size:
                return

    def _copied(self, raw: Array, peer: int) -> Array | None:
        """A copy in this rank's arena; None where that is full."""
        area = self._area
        for receiver, waiting in self._on_the_way.items():
            taken = self._phases.words[area.mail_line(area.rank, receiver) + LINE] // STEP
            while waiting and waiting[0][0] <= taken:
                self._spare.append(waiting.popleft()[1])
        fitting = [block for block in self._spare if raw.size <= block.size <= 2 * raw.size + _ROUND]
        block = min(fitting, key=len, default=None)
        if block is None:
            self._spare = self._spare[-_MOST_SPARE:]
            block = area.allocate((-(-raw.size // _ROUND) * _ROUND,), np.dtype(np.uint8))
            if area.offset_of(block) is None:
                return None
        else:
            self._spare = [other for other in self._spare if other is not block]
        block[: raw.size] = raw
        return block


def _pieces(raw: Array) -> list[Array]:
    """Views that fit a place; one empty view of an empty message."""
    return [raw[start : start + MAIL] for start in range(0, raw.size, MAIL)] or [raw]
