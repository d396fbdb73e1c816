"""Ranks that a signal has stopped, while somebody waits for them.

A stopped rank says nothing and does not end. Where others wait for it in a collective, they notice after
their time-out; where every rank is stopped, or the last one of a request, nobody would ever notice.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable

from launcher.errors import RankFailedError
from launcher.group.control import Peer
from ranks.common.processes import is_stopped
from ranks.common.waiting import NOTICE_SECONDS, in_words

log = logging.getLogger(__name__)

LOOK_SECONDS = 1.0
_GRACE = 1.0  # seconds in which ranks that wait for the stopped one say so themselves


def stopped(peers: Iterable[Peer]) -> list[Peer]:
    """Those of this host that are stopped."""
    found = [peer for peer in peers if peer.process is not None and is_stopped(peer.pid)]
    return sorted(found, key=lambda peer: peer.rank)


def in_sentences(peers: Iterable[Peer]) -> str:
    """Which ranks of this host are stopped, as the end of an error: others then wait in vain."""
    return "".join(f" Rank {peer.rank} is {in_words(peer.pid)}." for peer in stopped(peers))


class Watch:
    """Watches for stopped ranks during one wait for them: call `look` from time to time."""

    def __init__(self, limit: float | None) -> None:
        """``limit``: seconds that a rank may be stopped; None for as long as it likes."""
        self._limit = limit
        self._began = self._looked = time.monotonic()
        self._seconds: dict[int, float] = {}
        self._told: set[int] = set()

    def look(self, peers: Iterable[Peer]) -> RankFailedError | None:
        """Warns once of each stopped rank; returns an error where one has been stopped for too long."""
        now = time.monotonic()
        # This process may have been stopped too, as in a frozen container: that time is no rank's fault.
        passed, self._looked = min(now - self._looked, 2 * LOOK_SECONDS), now
        found = stopped(peers)
        self._seconds = {peer.rank: self._seconds.get(peer.rank, -passed) + passed for peer in found}
        if now - self._began < NOTICE_SECONDS:
            return None
        for peer in found:
            if peer.rank not in self._told:
                self._told.add(peer.rank)
                most = "" if self._limit is None else f", at most {self._limit:.3g} s"
                log.warning("waiting for rank %d%s: it is %s", peer.rank, most, in_words(peer.pid))
        if self._limit is None:
            return None
        for peer in found:
            if self._seconds[peer.rank] >= self._limit + _GRACE:
                where = f"rank {peer.rank} on host {peer.host}"
                return RankFailedError(
                    f"{where} did not go on within {self._limit:g} s: it is {in_words(peer.pid)}.",
                    rank=peer.rank,
                    host=peer.host,
                )
        return None


def wait_aloud(
    wait_for: Callable[[Callable[[], bool], float | None], bool],
    condition: Callable[[], bool],
    timeout: float | None,
    look: Callable[[float], RankFailedError | None],
) -> bool | RankFailedError:
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
        if (error := look(waited)) is not None:
            return error
