"""The phases that the ranks of one host go through together, and the memory that each phase may use."""

from __future__ import annotations

import functools
import itertools
import os
import weakref
from collections.abc import Callable
from typing import NoReturn

import numpy as np

from ranks.collectives.rendezvous import Rendezvous
from ranks.collectives.shm.area import Area
from ranks.collectives.shm.sync import FAILURE, STEP, Waiter, fence, signature
from ranks.collectives.whole import FORKED
from ranks.common.pulse import ALIKE_SECONDS
from ranks.errors import CollectiveError
from sharding.common.arrays import Array

DIRECT = 128 << 10  # bytes from which buffers in shared memory are worked on where they are
_NOWHERE = (1 << 64) - 1
_LONGEST_WORD = 4096  # bytes of what a rank that has failed says
_WORD = np.zeros(_LONGEST_WORD, np.uint8)

What = Callable[[], str]  # says in words what a rank is doing, for an error


class Phases:
    """One rank's way through the phases.

    A phase has a number and a half of every rank's slot. A rank writes to its half, publishes the phase and
    waits for all others to publish it; then it may read their halves. The halves take turns: a rank that has
    seen all others in one phase knows that they have read what it wrote in the phase before the last.
    """

    def __init__(
        self, area: Area, rendezvous: Rendezvous, members: tuple[int, ...], timeout: float, *, crowded: bool
    ) -> None:
        """``members``: the ranks of ``area`` as ``rendezvous`` and errors name them."""
        self.area = area
        self.rank, self.size = area.rank, area.size
        self.timeout = timeout
        self.words = area.words
        self.me = area.line(area.rank)
        self.peers = [(peer, area.line(peer)) for peer in range(area.size) if peer != area.rank]
        self.order = fence()
        self.number = itertools.count(STEP, STEP)
        self.broken = ""
        self.when_broken: list[Callable[[], None]] = []
        self._waiter = Waiter(
            area.words, dict(self.peers), rendezvous, members, crowded=crowded, why=self._said
        )
        os.register_at_fork(after_in_child=functools.partial(_break_in_child, weakref.ref(self)))

    @property
    def waiting_seconds(self) -> float:
        """How long this rank has waited for others."""
        return self._waiter.seconds

    def begin(self, code: int) -> int:
        """Begins a phase: its number, with the operation's signature in the low bits."""
        self.check()
        return next(self.number) | code

    def slot(self, rank: int, value: int, like: Array) -> Array:
        """A rank's half in phase ``value``, as an array like another."""
        return self.area.slot(rank, (value // STEP) & 1, like.shape, like.dtype)

    def meet(self, value: int, what: What) -> None:
        """Publishes phase ``value`` and waits until every rank has."""
        if self.order is not None:
            self.order()
        words = self.words
        words[self.me] = value
        for peer, line in self.peers:
            if words[line] != value:
                self.wait(peer, value, what)
        if self.order is not None:
            self.order()

    def wait(self, peer: int, value: int, what: What) -> None:
        """Waits until ``peer`` has published phase ``value``."""
        try:
            self._waiter.collective(peer, value, self.timeout, what)
        except CollectiveError as error:
            self.stop(str(error))
            raise

    def all_failed(self, why: str) -> bool:
        """As `ranks.collectives.base.Communicator.all_failed`, but for leaving."""
        value = self.begin(signature(FAILURE))
        text = why.encode()[:_LONGEST_WORD]
        said = self.slot(self.rank, value, _WORD)
        said[: len(text)], said[len(text) :] = np.frombuffer(text, np.uint8), 0
        if self.order is not None:
            self.order()
        self.words[self.me] = value
        try:
            for peer, _ in self.peers:
                self._waiter.collective(peer, value, min(ALIKE_SECONDS, self.timeout), lambda: FAILURE)
        except CollectiveError:
            self.stop(why)
            return False
        return True

    def _said(self, peer: int, value: int) -> str:
        text: bytes = self.slot(peer, value, _WORD).tobytes()
        return text.rstrip(b"\0").decode(errors="replace")

    def wait_mail(self, peer: int, word: int, value: int, what: What) -> None:
        """Waits until the counter at ``word``, which ``peer`` writes, has reached ``value``."""
        try:
            self._waiter.mail(peer, word, value, self.timeout, what)
        except CollectiveError as error:
            self.stop(str(error))
            raise
        if self.order is not None:
            self.order()

    def publish_mail(self, word: int, value: int) -> None:
        """Sets a counter that one peer waits for."""
        if self.order is not None:
            self.order()
        self.words[word] = value

    def buffers(self, buffer: Array, code: int, what: What) -> list[Array]:
        """Every rank's large buffer, flat, where all of them lie in shared memory; else nothing.

        One phase; the buffers may be used until the end of the next.
        """
        if buffer.nbytes < DIRECT:
            return []
        words = self.words
        own = self.area.offset_of(buffer)
        value = self.begin(code)
        words[self.me + 1] = _NOWHERE if own is None else own
        self.meet(value, what)
        offsets = [words[self.area.line(rank) + 1] for rank in range(self.size)]
        if _NOWHERE in offsets:
            return []
        return [self.area.arena(rank, at, (buffer.size,), buffer.dtype) for rank, at in enumerate(offsets)]

    def check(self) -> None:
        """Raises where an earlier failure has left the ranks at different places."""
        if self.broken:
            raise CollectiveError(f"The group cannot be used any more: {self.broken}")

    def stop(self, why: str) -> None:
        """From now on every operation raises, and says why first it was stopped."""
        if self.broken:
            return
        self.broken = why
        for call in self.when_broken:
            call()

    def fail(self, why: str) -> NoReturn:
        """Stops and raises."""
        self.stop(why)
        raise CollectiveError(why)


def say(operation: str, buffer: Array) -> What:
    """An operation on a buffer, in words. It keeps no buffer alive: who asks for it may live longer."""
    dtype, shape = buffer.dtype, buffer.shape
    return lambda: f"{operation} of {dtype.name}{list(shape)}"


def _break_in_child(phases: weakref.ref[Phases]) -> None:
    if (parent := phases()) is not None:
        parent.stop(FORKED)
