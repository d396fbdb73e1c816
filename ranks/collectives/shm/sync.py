"""How the ranks of one host wait for each other in shared memory.

All ranks go through the same sequence of phases. Each publishes, in its own line, the number of the phase it
has reached and in the low bits what it is doing there; it then waits until every other rank has published
the same. A rank that finds another operation there raises, instead of computing with the wrong bytes.

Data is written before the number is published and read after the number was seen. x86-64 keeps both orders;
other processors are told by membarrier(2), which makes the whole machine keep the order in which a program
runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import select
import time
import zlib
from collections.abc import Callable, Sequence
from typing import NoReturn

from ranks.collectives.arrays import CODES
from ranks.collectives.rendezvous import Rendezvous
from ranks.common.pulse import wait
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError

FAILURE = "failure"
OPERATIONS = ("barrier", "all_reduce", "all_gather", "all_to_all", "broadcast", "send/recv", FAILURE)
STEP = 1 << 20  # one phase; the 20 bits below it hold the signature
_SIGNATURE = STEP - 1

_SPINS = 400  # reads of a counter before the processor is offered to others: about 15 us
_SPINS_CROWDED = 4
_YIELDING = 1e-3  # seconds of offering it before the first sleep
_YIELDING_CROWDED = 1e-4
_SHORTEST_NAP, _LONGEST_NAP = 5e-5, 5e-3
_NAP_SHARE = 8  # a nap is at most this part of the wait so far, so that it delays little

_ORDERED = {"x86_64", "AMD64", "i686"}  # processors that order memory as the program does, for this use
_MEMBARRIER = {
    "aarch64": 283,
    "riscv64": 283,
    "loongarch64": 283,
    "ppc64le": 365,
    "s390x": 356,
    "x86_64": 324,
}
_GLOBAL_EXPEDITED, _REGISTER_GLOBAL_EXPEDITED = 1 << 1, 1 << 2


def signature(operation: str, dtype: str = "", *numbers: int) -> int:
    """20 bits that agree on all ranks where operation, element type and sizes agree."""
    digest = zlib.crc32(repr(numbers).encode()) & 0xFFF
    return OPERATIONS.index(operation) << 17 | CODES.get(dtype, 0) << 12 | digest


def fence() -> Callable[[], None] | None:
    """What orders memory between ranks on this processor; None where it does so by itself."""
    machine = platform.machine()
    return None if machine in _ORDERED else membarrier(machine)


def membarrier(machine: str) -> Callable[[], None]:
    """membarrier(2) over all processes that registered for it, as this one does here."""
    number = _MEMBARRIER.get(machine)
    libc = ctypes.CDLL(None, use_errno=True)
    if number is None or libc.syscall(number, _REGISTER_GLOBAL_EXPEDITED, 0, 0) != 0:
        raise CollectiveError(
            f"Shared-memory collectives need membarrier(2) on {machine}, and this kernel does not offer it: "
            "use other collectives (SHARDRUN_COLLECTIVES=mpi or gloo)."
        )

    def barrier() -> None:
        if libc.syscall(number, _GLOBAL_EXPEDITED, 0, 0) != 0:
            raise CollectiveError(f"membarrier(2) failed: {os.strerror(ctypes.get_errno())}.")

    return barrier


class Waiter:
    """Waits for counters of peers, and watches that the peers are alive."""

    def __init__(
        self,
        words: memoryview,
        lines: dict[int, int],
        rendezvous: Rendezvous,
        members: Sequence[int],
        *,
        crowded: bool,
        why: Callable[[int, int], str],
    ) -> None:
        """``why``: what a peer that has failed in a phase says; ``lines``: where in ``words`` each other
        rank's counter is; ``members``: each rank's number in ``rendezvous``, by which errors name it."""
        self._words = words
        self._rank = rendezvous.rank
        self._members = members
        self._rendezvous = rendezvous
        self._lines = lines
        self._why = why
        self._spins = range(_SPINS_CROWDED if crowded else _SPINS)
        self._yielding = _YIELDING_CROWDED if crowded else _YIELDING
        self._poll = select.poll()
        self._ranks = {rendezvous.life[members[peer]]: peer for peer in lines}
        self._gone: set[int] = set()
        self.seconds = 0.0
        """Waited so far."""
        for descriptor in self._ranks:
            self._poll.register(descriptor, 0)  # hang-ups are always reported

    def collective(self, peer: int, value: int, timeout: float, what: Callable[[], str]) -> None:
        """Waits until ``peer`` has published phase and signature ``value``, or a later phase."""
        found = self._until(self._lines[peer], value, timeout, what, None)
        if found // STEP == value // STEP and found != value:
            self._disagree(peer, found, what)

    def mail(self, peer: int, word: int, value: int, timeout: float, what: Callable[[], str]) -> None:
        """Waits until the counter at ``word``, which ``peer`` writes, has reached ``value``."""
        self._until(word, value, timeout, what, peer)

    @wait
    def _until(self, word: int, value: int, timeout: float, what: Callable[[], str], only: int | None) -> int:
        words = self._words
        floor = value & ~_SIGNATURE
        if (found := words[word]) >= floor:
            return found
        began = time.perf_counter()
        try:
            for _ in self._spins:
                if (found := words[word]) >= floor:
                    return found
            return self._rest(word, floor, timeout, what, only)
        finally:
            self.seconds += time.perf_counter() - began

    def _rest(self, word: int, floor: int, timeout: float, what: Callable[[], str], only: int | None) -> int:
        """What is left of a wait that is longer than a few reads."""
        words = self._words
        start = time.monotonic()
        while True:
            os.sched_yield()
            if (found := words[word]) >= floor:
                return found
            waited = time.monotonic() - start
            if waited < self._yielding:
                continue
            if waited > timeout:
                self._late(floor, timeout, what, only)
            nap = min(max(waited / _NAP_SHARE, _SHORTEST_NAP), _LONGEST_NAP, max(timeout - waited, 1e-4))
            if nap < 1e-3:
                time.sleep(nap)
            else:
                for descriptor, _ in self._poll.poll(nap * 1000):
                    self._poll.unregister(descriptor)
                    self._gone.add(self._ranks[descriptor])
            # A peer that finished this phase before it ended is not missed.
            for peer in self._gone:
                behind = (
                    words[word] < floor if only == peer else words[self._lines[peer]] < floor and only is None
                )
                if behind:
                    self._lost(peer, what)

    def _late(self, floor: int, timeout: float, what: Callable[[], str], only: int | None) -> NoReturn:
        if only is not None:
            missing = [only]
        else:
            missing = [peer for peer, line in self._lines.items() if self._words[line] < floor]
        numbers = sorted(self._members[peer] for peer in missing)
        names = f"Rank{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
        raise CollectiveTimeoutError(
            f"{names} did not come to {what()} within {timeout:g} s (rank {self._rank} waited): "
            "look for what holds them up, or raise SHARDRUN_TIMEOUT."
        )

    def _lost(self, peer: int, what: Callable[[], str]) -> NoReturn:
        lost = self._rendezvous.lost(self._members[peer])
        raise PeerLostError(f"{lost} while rank {self._rank} waited for it in {what()}.", lost.peer)

    def _disagree(self, peer: int, found: int, what: Callable[[], str]) -> NoReturn:
        if found & _SIGNATURE == signature(FAILURE):
            number = self._members[peer]
            raise PeerLostError(f"Rank {number} could not go on: {self._why(peer, found)}", number)
        raise CollectiveError(
            f"Rank {self._members[peer]} is in {describe(found)} while rank {self._rank} is in {what()}: "
            "every rank must make the same calls in the same order, with equal types and shapes."
        )


def describe(value: int) -> str:
    """A published signature in words."""
    operation = "another operation"
    with contextlib.suppress(IndexError):
        operation = OPERATIONS[(value & _SIGNATURE) >> 17]
    code = value >> 12 & 0x1F
    names = [name for name, number in CODES.items() if number == code]
    return f"{operation} of {names[0]} of its own shape" if names else operation
