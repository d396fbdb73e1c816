"""What is known so far of how a job's ranks ended, and which of them was first.

A rank's own words, the end of its connection, the kernel, and what the launching program says of it come in
several ways and in no order that can be relied on: what says that a rank is gone may overtake what says why,
and a rank that was ended because of another one may be missed first.
"""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from launcher.errors import LaunchError, RankFailedError
from launcher.starters import cause
from launcher.starters.base import Ended
from launcher.starters.cause import Said, Trouble
from ranks.talk.connect import EXIT_ORPHANED


class Seen(Protocol):
    """What can be seen of a rank that said hello."""

    @property
    def kept(self) -> bool:
        """Whether a process above it, which may be killed too, tells how it ended."""

    def ended(self) -> Ended | None:
        """How it ended, as far as the kernel of this host says so."""

    def became(self, job: str) -> str | None:
        """What its process of this host runs on as, where that is another program."""


class Findings:
    """What has come so far. Used with the job's lock held.

    ``done``: ranks that said so; ``gone``: those whose connection has ended; ``launched``: the end
    of the launching program; ``some``: that of a rank of which it says no number.
    """

    def __init__(self, size: int, seen: Mapping[int, Seen], hosts: Mapping[int, str]) -> None:
        """``seen``: the ranks that said hello, which others add to; ``hosts``: those of a rank table."""
        self._size, self._seen, self._hosts = size, seen, hosts
        self.said: Said | None = None
        self.troubles: dict[int, Trouble] = {}
        self.done: set[int] = set()
        self.gone: set[int] = set()
        self.launched: Ended | None = None
        self.some: Ended | None = None
        self._named: int | None = None

    def name(self, rank: int | None) -> None:
        """The launching program says that this rank was the first to end."""
        if self._named is None and rank is not None and rank >= 0:
            self._named = rank

    @property
    def finished(self) -> bool:
        """Whether all ranks said that they were done."""
        return len(self.done) == self._size

    def look_for_another_program(self, job: str) -> None:
        """Where a rank of this host is gone and its process is there. ``job``: its short name."""
        trouble = self.first()
        seen = None if trouble is None or trouble.told else self._seen.get(trouble.rank)
        if trouble is not None and seen is not None and (became := seen.became(job)):
            trouble.end(Ended(trouble.rank, None, became))

    def first(self) -> Trouble | None:
        """The first cause, as far as it is known."""
        self._confirm()
        found = cause.first(list(self.troubles.values()), self._gave_up, self._kept)
        named = self._first_named()
        if found is None or named is None or named is found or named.secondary:
            return found
        if named.unexplained and (self._gave_up(named.rank) or _is_orphan(named)):
            return found
        # The connection of a rank that the launching program ended for another one's sake may be seen to end
        # before that one's. Who was killed may itself be such a rank. Who ends by a code may do so since it
        # misses one that was killed; but a program that names no rank would tell of a kill before that.
        ended = self._how(named)
        code = 0 if ended is None or self._aborted(named) else ended.code or 0
        if code in cause.ENDED_BY_OTHERS:
            return found
        crashed = code < 0 or self._aborted(named)
        return named if self._ended_by_others(found, crashed=crashed) else found

    def _first_named(self) -> Trouble | None:
        """The rank of which the launching program says that it was the first to end."""
        if self._named is not None:
            return self.troubles.get(self._named)
        if aborted := [trouble for trouble in self.troubles.values() if self._aborted(trouble)]:
            return aborted[0]
        if self.some is None:
            return None
        known = ((trouble, self._how(trouble)) for trouble in self.troubles.values())
        alike = [trouble for trouble, ended in known if ended is not None and ended.code == self.some.code]
        return alike[0] if len(alike) == 1 else None

    def _confirm(self) -> None:
        """Of ranks of which the launching program tells, takes the kernel's word where there is one."""
        for rank, trouble in self.troubles.items():
            if (
                trouble.ended is not None
                and trouble.ended.heard
                and (ended := self._kernel(rank)) is not None
            ):
                trouble.end(ended)

    def _kernel(self, rank: int) -> Ended | None:
        seen = self._seen.get(rank)
        return None if seen is None else seen.ended()

    def _kept(self, rank: int) -> bool:
        seen = self._seen.get(rank)
        return seen is not None and seen.kept

    def _how(self, trouble: Trouble) -> Ended | None:
        return trouble.ended or self._kernel(trouble.rank)

    def _ended_by_others(self, trouble: Trouble, *, crashed: bool) -> bool:
        """Whether a rank may have been ended for the sake of another one, which ``crashed`` or ended by a
        code."""
        ended = self._how(trouble)
        if trouble.error is not None or (ended is not None and ended.why):
            return False
        if ended is None or ended.code is None:
            return crashed
        return ended.code in (cause.ENDED_BY_OTHERS if crashed or self._named is None else (-signal.SIGTERM,))

    def _killed_for(self, trouble: Trouble) -> int | None:
        """The rank whose MPI missed this one, and had all killed, itself and also what would have told how
        this one ended: so that the launching program's word of its end is not how it ended. None where that
        is known, or where not all were killed."""
        if not trouble.heard_killed:
            return None
        killed = (
            other.rank for other in self.troubles.values()
            if other is not trouble and self._gave_up(other.rank) and other.ended is not None
            and other.ended.code in cause.ENDED_BY_OTHERS
        )  # fmt: skip
        return next(killed, None)

    def silent(self) -> bool:
        """Whether the first cause is a rank of which nothing is known but that it is gone."""
        trouble = self.first()
        return trouble is not None and not trouble.told and self.some is None

    def certain(self, *, remote: bool) -> bool:
        """Whether nothing that may still come would change the first cause. ``remote``: ranks are on other
        hosts, where the process above a rank may still tell of it."""
        told_all = self.launched is not None and not remote
        if self.launcher_died or (told_all and self.silent()):
            return True
        trouble = self.first()
        if trouble is None or trouble.secondary or trouble.unexplained:
            return False
        # Why a rank is gone is less than how it ended, or what it says itself; and who saw its end may still
        # say that it was another one than what is heard.
        ended = trouble.ended
        known = ended is not None and ended.code is not None and not trouble.heard_killed
        if known and ended is not None and ended.heard and not self._begun(trouble):
            return False  # what started it may still say that it could not
        return trouble.error is not None or known

    def only_echoes(self) -> bool:
        """Whether all that is known are echoes of a rank of which nothing is known yet."""
        return cause.echoes(self.troubles, self.done, self._size, self._gave_up)

    @property
    def launcher_died(self) -> bool:
        """Whether the launching program itself was killed; of a rank's death it tells by its exit code."""
        return self.launched is not None and (self.launched.code or 0) < 0

    def verdict(
        self, name: str, *, far: Sequence[str], short: str, started: bool, trace: bool, more: str
    ) -> RankFailedError | LaunchError:
        """The error to raise; the arguments are those of `cause.Launched`, `cause.launcher_error` and
        `cause.error_of`."""
        trouble, launched = self.first(), self.launched
        said = self._tail(None)
        aborter = cause.aborter(said)
        if trouble is not None and not trouble.told:
            kernel = None if short else self._kernel(trouble.rank)
            by_others = kernel is not None and kernel.code in cause.ENDED_BY_OTHERS
            if by_others and aborter is not None and aborter[0] != trouble.rank:
                kernel = None
            trouble.ended = (self.some if self._aborted(trouble) else None) or kernel or self.some
        if trouble is not None and (other := self._killed_for(trouble)) is not None:
            return cause.error_of(replace(trouble, ended=cause.ended_by_mpi(trouble.rank, other)), ())
        # An mpirun that was told to end, or was killed, does not say how any rank ended; none is the cause.
        over = launched is not None or aborter is not None
        gone = over and (trouble is None or not trouble.told)
        if trouble is None or gone or (self.launcher_died and trouble.error is None):
            code = launched.code if launched is not None else None
            lost = None if self.launcher_died else trouble
            ended = cause.Launched(name, code, said, started, far, self._hosts)
            return cause.launcher_error(ended, lost, short=short, heard=self.said)
        begun = self._begun(trouble)
        return cause.error_of(trouble, self._tail(trouble.rank), trace, more=more, begun=begun)

    def _begun(self, trouble: Trouble) -> bool:
        return trouble.rank in self._seen

    def _gave_up(self, rank: int) -> bool:
        return self.said is not None and self.said.gave_up(rank)

    def _aborted(self, trouble: Trouble) -> bool:
        return self.said is not None and self.said.aborted(trouble.rank)

    def _tail(self, rank: int | None) -> list[str]:
        return [] if self.said is None else self.said.tail(rank)


def _is_orphan(trouble: Trouble) -> bool:
    """Whether a rank ended since this process hung up, to hear of another one."""
    return trouble.ended is not None and trouble.ended.code == EXIT_ORPHANED
