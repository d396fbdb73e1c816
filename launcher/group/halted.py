"""Ranks that a signal has stopped, while somebody waits for them.

A stopped rank says nothing and does not end. Where others wait for it in a collective, they notice after
their time-out; where every rank is stopped, or the last one of a request, nobody would ever notice. Ranks of
this host are looked at, and the processes above those of other hosts tell; all are asked for a sign of life,
which a thread gives while others compute, and which says whether these get on. Where a rank hangs, its Python
stacks are shown and, by py-spy where that is installed on its host, native ones.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from launcher.errors import RankFailedError
from launcher.group.control import Peer
from launcher.starters import cause
from ranks.common.processes import is_stopped
from ranks.common.pulse import STANDS_STILL
from ranks.common.waiting import NOTICE_SECONDS, in_words, stopped_in_words
from ranks.talk.stacks import native, read

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_MOST_LINES, _MOST_RANKS = 60, 2
_GRACE = 1.0  # seconds in which ranks that wait for the stopped one say so themselves


def stopped(peers: Iterable[Peer]) -> list[Peer]:
    """Those that are known to be stopped."""
    found = [peer for peer in peers if (peer.above.stopped if peer.process is None else is_stopped(peer.pid))]
    return sorted(found, key=lambda peer: peer.rank)


class Seen:
    """Stopped ranks in words, as they are now or were at the last look.

    What starts ranks may continue and end them as soon as one of them fails: then only the last look tells
    that another had been stopped.
    """

    def __init__(self) -> None:
        self._looked = 0.0
        self._words: dict[int, str] = {}

    def look(self, peers: Iterable[Peer]) -> list[Peer]:
        """Those that are stopped now."""
        found = [(peer, words) for peer in stopped(peers) if (words := _in_words(peer))]
        self._looked, self._words = time.monotonic(), {peer.rank: words for peer, words in found}
        return [peer for peer, _ in found]

    def words(self, peer: Peer) -> str:
        """A peer that `look` found last."""
        return self._words[peer.rank]

    def in_sentences(self, peers: Iterable[Peer]) -> str:
        """Which ranks are stopped, as the end of an error: others then wait in vain."""
        late = time.monotonic() - self._looked > 2 * LOOK_SECONDS
        before = {} if late else self._words
        self.look(peers)
        words = {**self._words, **before}
        return "".join(f" Rank {rank} is {words[rank]}." for rank in sorted(words))


def _in_words(peer: Peer) -> str:
    """A stopped rank; "" where it has just gone on or ended."""
    if peer.process is None:
        return stopped_in_words(f"process {peer.pid}", peer.pid)
    words = in_words(peer.pid)
    return words if is_stopped(peer.pid) else ""


class Hung(NamedTuple):
    """A rank that hangs, and ``what`` is said of it."""

    peer: Peer
    what: str

    def error(self, stacks: str) -> RankFailedError:
        """What those who wait for it are told."""
        rank, host = self.peer.rank, self.peer.host
        return RankFailedError(f"rank {rank} on host {host} {self.what}{stacks}", rank=rank, host=host)


class Inquest:
    """What is being found out of ranks that others wait for in vain: where they are in their code. That takes
    seconds, in which the job's lock (``changed``) is not held.

    ``deciding``: a rank that hangs was found, and is the failure, whatever comes meanwhile: it may go on to
    show its stacks, and answer. ``said``: what is known of late ranks, as the end of an error.
    """

    def __init__(self, changed: threading.Condition, seen: Seen) -> None:
        self._changed, self._seen = changed, seen
        self.deciding = self._asking = False
        self.said = ""

    @property
    def open(self) -> bool:
        """Whether the first cause is to wait for what is found out."""
        return self.deciding or self._asking

    def wait(self) -> None:
        """Returns when nothing is being decided."""
        with self._changed:
            while self.deciding:
                self._changed.wait()

    def look(self, watch: Watch, peers: Iterable[Peer], failure: Exception | None) -> Hung | None:
        """A rank that hangs, with which `decide` is to be called now, without the lock; none where there is a
        ``failure``."""
        with self._changed:
            found = watch.look(peers) if failure is None and not self.deciding else None
            self.deciding = self.deciding or found is not None
        return found

    def begin(
        self,
        peers: Mapping[int, Peer],
        told: Collection[int],
        done: Collection[int],
        error: Mapping[str, object],
    ) -> list[Peer]:
        """With the lock held: a rank has told of its ``error``, as those that have ``told``; ``done`` have
        ended well. Gives those with which `ask` is to be called now."""
        if self.said or self._asking:
            return []
        late = late_ones(peers.values(), told, error)
        self.said = self._seen.in_sentences(peers.values()) + cause.left_early(done, error)
        self._asking = bool(late)
        return late

    def ask(self, late: Sequence[Peer]) -> None:
        """Without the lock: adds the stacks of late ranks."""
        if not late:
            return
        found = ""
        try:
            found = "".join(map(stacks, late))
        finally:
            with self._changed:
                self.said, self._asking = self.said + found, False
                self._changed.notify_all()

    def decide(self, hung: Hung, fail: Callable[[RankFailedError], None]) -> None:
        """Without the lock, and ``deciding``: fails with the rank that hangs, and its stacks."""
        found = ""
        try:
            found = stacks(hung.peer)
        finally:
            with self._changed:
                self.deciding = False
                fail(hung.error(found))


class Watch:
    """Watches for stopped ranks during one wait for them: call `look` from time to time."""

    def __init__(self, limit: float | None, hang: float | None = None, seen: Seen | None = None) -> None:
        """``hang``: seconds that a rank may be stopped, or give no sign of life once it is ready; None, or
        more than ``limit``: that one. ``limit``: the same while it starts and loads, when a library may keep
        the interpreter to itself for long; None for as long as it likes. ``seen``: keeps what is found."""
        self._limit = limit
        self._hang = limit if hang is None or (limit is not None and limit < hang) else hang
        self._seen = seen or Seen()
        self._began = self._looked = time.monotonic()
        self._seconds: dict[int, float] = {}
        self._still = _Still()
        self._received: dict[int, int] = {}
        self._told: set[int] = set()

    def look(self, peers: Iterable[Peer]) -> Hung | None:
        """Warns once of each stopped rank; returns one that has been stopped for too long."""
        now = time.monotonic()
        # This process may have been stopped too, as in a frozen container: that time is no rank's fault.
        passed, self._looked = min(now - self._looked, 2 * LOOK_SECONDS), now
        peers = list(peers)
        found = self._seen.look(peers)
        halted = {peer.rank for peer in found}
        # Who sends a large message over a slow network answers only after it.
        received = {peer.rank: peer.stream.received for peer in peers}
        sends = {rank for rank, count in received.items() if count > self._received.get(rank, count)}
        self._received = received
        silent = [peer for peer in peers if peer.asked and peer.rank not in halted | sends]
        self._seconds = {
            peer.rank: self._seconds.get(peer.rank, -passed) + passed for peer in (*found, *silent)
        }
        still = self._still.look(peers, passed)
        for peer in peers:
            # From the first look on: with a message the kernel begins anew to wait for a cable that is cut.
            peer.ping()
        if now - self._began < NOTICE_SECONDS:
            return None
        for peer in found:
            if peer.rank not in self._told:
                self._told.add(peer.rank)
                most = "" if self._hang is None else f", at most {self._hang:.3g} s"
                where = f"rank {peer.rank} on host {peer.host}"
                log.warning("waiting for %s%s: it is %s", where, most, self._seen.words(peer))
        for peer in found:
            if self._hang is not None and self._seconds[peer.rank] >= self._hang + _GRACE:
                return Hung(peer, f"did not go on within {self._hang:g} s: it is {self._seen.words(peer)}.")
        for peer in silent:
            limit = self._hang if peer.ready else self._limit
            if limit is not None and self._seconds[peer.rank] >= limit + _GRACE:
                return Hung(
                    peer,
                    f"has given no sign of life for {limit:g} s: its process {peer.pid} is stopped there "
                    "(SIGSTOP), or a library keeps all of it waiting (--hang-timeout allows more time).",
                )
        for peer, seconds in still:
            limit = self._hang if peer.ready else self._limit
            if limit is not None and seconds >= limit + _GRACE:
                return Hung(peer, STANDS_STILL.format(limit))
        return None


class _Still:
    """For how long ranks have stood still in the midst of their work, while no other rank has got on either:
    then whoever is awaited is among them."""

    def __init__(self) -> None:
        self._seconds: dict[int, float] = {}
        self._beats: dict[int, int] = {}

    def look(self, peers: Sequence[Peer], passed: float) -> list[tuple[Peer, float]]:
        """Those, and how long each has; ``passed``: seconds since the look before. They count where every
        rank has told something new."""
        new = [peer for peer in peers if self._beats.get(peer.rank) not in {None, peer.beats}]
        self._beats = {peer.rank: peer.beats for peer in peers}
        if any(peer.beat.moves for peer in new):
            self._seconds = {}
        elif len(new) == len(peers):
            self._seconds = {
                peer.rank: self._seconds.get(peer.rank, 0.0) + passed for peer in peers if peer.beat.still
            }
        return [(peer, self._seconds[peer.rank]) for peer in peers if peer.rank in self._seconds]


def wait_aloud(
    wait_for: Callable[[Callable[[], bool], float | None], bool],
    condition: Callable[[], bool],
    timeout: float | None,
    look: Callable[[float], Hung | None],
) -> bool | Hung:
    """`Condition.wait_for` in steps, after each of which ``look`` is given the seconds that have passed.

    Whether the condition holds, False after ``timeout`` seconds, or what ``look`` found.
    """
    began = time.monotonic()
    while True:
        waited = time.monotonic() - began
        step = LOOK_SECONDS if timeout is None else min(LOOK_SECONDS, timeout - waited)
        if wait_for(condition, max(0.0, step)):
            return True
        waited = time.monotonic() - began
        if timeout is not None and waited >= timeout:
            return False
        if (hung := look(waited)) is not None:
            return hung


def stacks(peer: Peer) -> str:
    """The stacks, as the end of an error; "" where they cannot be had."""
    if peer.process is None:
        text = peer.above.stacks()
    else:
        text = native(peer.pid) or read(peer.pid, peer.process, peer.stacks)
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        return ""
    more = [f"... {len(lines) - _MOST_LINES} more lines"] if len(lines) > _MOST_LINES else []
    return f"\nStacks of rank {peer.rank}:\n" + "\n".join(
        f"  {line}" for line in [*lines[:_MOST_LINES], *more]
    )


def late_ones(peers: Iterable[Peer], told: Collection[int], error: Mapping[str, object]) -> list[Peer]:
    """Where ranks waited for others in vain: some that have not ``told`` of any trouble, whose stacks say
    why."""
    if error.get("type") != "CollectiveTimeoutError":
        return []
    return sorted((peer for peer in peers if peer.rank not in told), key=lambda peer: peer.rank)[:_MOST_RANKS]
