"""From what is known about ended ranks to the first cause, as sentences."""

from __future__ import annotations

import os
import re
import resource
import signal
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from launcher.errors import LaunchError, RankFailedError
from launcher.starters.base import Ended
from ranks.talk.connect import EXIT_ORPHANED
from sharding.common.limits import files_advice, memory_advice
from sharding.common.limits import shortage as what_is_short
from sharding.common.text import listed, one_line

_HINTS = {
    signal.SIGKILL: "Someone killed it, or the kernel did when memory ran out (`dmesg` says so): if so, use "
    "more ranks, each of which holds less, fewer on one host, or raise the limit of the container or job.",
    signal.SIGTERM: "Someone, or the job system at its time limit, asked it to end.",
    signal.SIGSEGV: "A native library crashed: see its last lines, and try one rank alone.",
    signal.SIGABRT: "A native library gave up: see its last lines.",
    signal.SIGBUS: "A mapped file was cut short, or shared memory (/dev/shm) is full.",
    signal.SIGILL: "A native library was built for another processor.",
    signal.SIGXCPU: "It used the processor time that `ulimit -t` or the job system allows: raise that limit.",
    signal.SIGXFSZ: "A file grew beyond what `ulimit -f` allows: raise that limit.",
    signal.SIGHUP: "Its terminal or the session that it belonged to was closed.",
}


_PASSED_ON = {
    *(signal.SIGTERM, signal.SIGKILL, signal.SIGHUP, signal.SIGINT),
    *(signal.SIGABRT, signal.SIGPIPE),
}
"""The signals of which a rank may die because another one has ended."""
ENDED_BY_OTHERS = (-signal.SIGTERM, -signal.SIGKILL)
"""As exit codes: how a launching program ends ranks."""
ITSELF = "it says so itself"
_SHOWN = 8
_OWN_FAILURE, _OWN_WORDS = 255, re.compile(r"BAD TERMINATION|^\[mpiexec@")
"""With which MPICH's mpirun ends where one of its own processes did, or was killed with a rank; and what it
says then. Of a rank that ends with that code itself it says nothing."""
_ABORTED = '"abort"'  # mpirun's word for a rank, or its MPI, that ended the job
_ABORTER = r"process rank (\d+) with PID \d+ on node (\S+) calling"
_LOST_HOST = r"Remote daemon *: \S+ on node (\S+)|Connection to (\S+) closed by remote host"
_LOST_DAEMON = ("daemon failed to report back", "NO PATH TO TARGET")
_INSIDE = "(PMIX|PRTE) ERROR"
_UNFINISHED = 'exited without calling "finalize"'  # mpirun's, for a rank that ended well beside MPI
_BY_ABORT = "it, or its MPI, ended the job (MPI_Abort)"
_FEW_FILES = 256  # Open MPI needs some 30 for two ranks


class Said(Protocol):
    """What ranks and the launching program have written to standard error."""

    def tail(self, rank: int | None) -> list[str]:
        """The last lines of a rank, or of the launching program (None)."""

    def gave_up(self, rank: int) -> bool:
        """Whether a rank's MPI has said that it lost a connection, upon which it ends the rank."""

    def aborted(self, rank: int) -> bool:
        """Whether a rank's MPI has said that the rank itself ended the job (MPI_Abort)."""


@dataclass(eq=False, repr=False)
class Trouble:
    """What is known of one rank that did not end well, in the order of the first sign of it."""

    rank: int
    host: str
    error: Mapping[str, object] | None = None
    ended: Ended | None = None

    def end(self, ended: Ended) -> None:
        """Takes how it ended: with a code, which says more than why its connection is lost, or as who saw it
        says, or what came first."""
        known = self.ended
        if (
            known is None
            or (known.code is None and ended.code is not None)
            or (known.heard and not ended.heard and ended.code is not None)
            or (known.heard and ended.heard and bool(ended.why))
        ):
            self.ended = ended

    @property
    def secondary(self) -> bool:
        """Whether the rank itself says that another one was the cause."""
        return self.error is not None and bool(self.error.get("secondary"))

    @property
    def unexplained(self) -> bool:
        """Whether it ended with an exit code and without a word of its own, as where a library ends it."""
        ended = self.ended
        return self.error is None and ended is not None and (ended.code or 0) > 0 and not self.itself

    @property
    def crashed(self) -> bool:
        """Whether it ended in a way that no other rank's end, nor who ends them all, brings about."""
        code = self.ended.code if self.error is None and self.ended is not None else None
        return code is not None and code <= 0 and -code not in _PASSED_ON

    def gave_up(self, said: Callable[[int], bool]) -> bool:
        """Whether it may have been ended by its MPI, which has ``said`` that it lost a connection: that ends
        the rank itself, or has it killed."""
        return self.error is None and not self.crashed and not self.itself and said(self.rank)

    @property
    def heard_killed(self) -> bool:
        """Whether the launching program says that it was killed, which it may have done itself."""
        ended = self.ended
        return self.error is None and ended is not None and ended.heard and ended.code in ENDED_BY_OTHERS

    @property
    def itself(self) -> bool:
        """Whether the rank itself said with which code it would end."""
        return self.ended is not None and self.ended.why == ITSELF

    @property
    def told(self) -> bool:
        """Whether it is known how or why it ended."""
        known = self.ended is not None and (self.ended.code is not None or bool(self.ended.why))
        return self.error is not None or known


def first(
    troubles: Sequence[Trouble],
    gave_up: Callable[[int], bool] = lambda rank: False,
    kept: Callable[[int], bool] = lambda rank: False,
) -> Trouble | None:
    """The first cause: the earliest trouble that is not only the echo of another rank's. ``gave_up``: whether
    a rank's MPI has said that it lost its connection, upon which it ends the rank; ``kept``: whether a
    process above a rank tells how it ended, unless that one is killed too."""
    own = [item for item in troubles if not item.secondary]
    sure = [item for item in own if not item.gave_up(gave_up)]
    if sure and (not sure[0].told or (sure[0].heard_killed and kept(sure[0].rank))):
        # It may have been ended for the sake of one that has crashed, of which it was heard later. Where
        # nobody else would tell of its end, that one may have crashed since it missed this one.
        sure = [*(item for item in sure if item.crashed), *sure]
    return next(iter([*sure, *own, *troubles]), None)


def echoes(
    troubles: Mapping[int, Trouble],
    done: Collection[int],
    size: int,
    gave_up: Callable[[int], bool] = lambda rank: False,
) -> bool:
    """Whether all that is known are echoes of a rank of which nothing is known yet: what others say that miss
    it, and the ends of those whose MPI did (``gave_up``: as in `first`). ``done``: those of ``size`` ranks
    that have ended well."""
    lost: list[object] = []
    for item in troubles.values():
        if item.secondary and item.error is not None:
            lost.append(item.error.get("peer"))
        elif item.told and item.gave_up(gave_up):
            lost.append(None)
        else:
            return False
    known = {*done, *troubles}
    return len(known) < size and any(rank not in known for rank in lost)


def aborter(tail: Sequence[str]) -> tuple[int, str] | None:
    """The rank, and its host, of which mpirun says that it or its MPI ended the job (MPI_Abort)."""
    found = re.search(_ABORTER, " ".join(tail)) if any(_ABORTED in line for line in tail) else None
    return None if found is None else (int(found[1]), found[2])


def unlike(answer: Mapping[str, object]) -> dict[str, object]:
    """As the error that ends it, the answer of a rank that could not compute what another one could."""
    text = str(answer.get("message")).rstrip(".")
    return {**answer, "message": f"{text}. Other ranks did not fail alike.", "expected": True}


def left_early(done: Collection[int], error: Mapping[str, object]) -> str:
    """Where a rank waited for others in vain: which had ended with success, as the end of its error."""
    if error.get("type") != "CollectiveTimeoutError":
        return ""
    return "".join(f" Rank {rank} had ended with exit code 0 before." for rank in sorted(done)[:_SHOWN])


def ended_by_mpi(rank: int, other: int) -> Ended:
    """What is known of a rank that is gone, where the MPI of another one has ended all for that."""
    return Ended(rank, None, f"the MPI of rank {other} lost its connection and ended the job")


def error_of(
    trouble: Trouble, tail: Sequence[str], trace: bool = False, *, more: str = "", begun: bool = True
) -> RankFailedError:
    """The error to raise for a rank's trouble; ``tail`` is the end of its standard error, ``more`` what else
    is known, ``begun`` whether the rank has been heard of.

    With ``trace``, an exception that is not one of ours brings its traceback: it is the user's own program's.
    """
    where = f"rank {trouble.rank} on host {trouble.host}"
    if trouble.error is not None:
        message = str(trouble.error.get("message"))
        if trouble.error.get("expected"):
            message = one_line(message) + more  # a sentence of ours: line ends in it belong to names
        else:
            message = f"{trouble.error.get('type')}: {message}"
        details = str(trouble.error.get("traceback", ""))
        if trace and details and not trouble.error.get("expected"):
            message += f"\n{details.rstrip()}"
        return RankFailedError(
            f"{where}: {message}",
            rank=trouble.rank,
            host=trouble.host,
            details=details,
            usage=trouble.error.get("usage") is True,
        )
    code = trouble.ended.code if trouble.ended is not None else None
    if code is not None and 128 < code <= 128 + signal.NSIG and _signal(128 - code) in _HINTS:
        code = 128 - code  # a shell between says so of a signal, and so do job systems
    sentence, hint = f"{where} {how(code)}", ""
    if code is not None and code < 0:
        hint = _HINTS.get(_signal(code) or signal.SIGCHLD, "")
        hint += _of_processor_time(trouble.host) if code == -signal.SIGKILL else ""
    elif code == EXIT_ORPHANED:
        sentence = f"{where} lost its connection to the process that started it, and ended itself"
        hint = (
            "That process still runs: it, or the rank, may be out of memory, threads or descriptors "
            "(`ulimit -a`), or the network between them failed."
        )
    elif code == 0:
        sentence += " before it was done, as os._exit(0) would"
    elif code is None and trouble.ended is not None and trouble.ended.why:
        sentence = f"{where} is gone: {trouble.ended.why}"
    elif code is None:
        hint = "Look at its host, and at the network between it and this one."
    elif not begun and not tail:
        from launcher.starters.reach import words

        hint = f"It said nothing: see that {sys.executable} can be started there, and {words.INSTALL}."
    message = f"{sentence}. {hint}".rstrip() if hint else f"{sentence}."
    if tail:
        message += "\nIts last lines:\n" + "\n".join(f"  {line}" for line in tail)
    return RankFailedError(message, rank=trouble.rank, host=trouble.host, code=code)


def _of_processor_time(host: str) -> str:
    """What else the kernel kills for, where a limit of this process, which its ranks of this host inherit,
    says so."""
    most = resource.getrlimit(resource.RLIMIT_CPU)[1]
    if most == resource.RLIM_INFINITY or host not in {"localhost", os.uname().nodename}:
        return ""
    return (
        f" It does so too when a process has used {most} s of processor time, which `ulimit -t` allows here."
    )


@dataclass(eq=False, repr=False)
class Launched:
    """What is known of the launching program when it has ended.

    ``tail`` is what it said last; ``started`` whether all ranks had started; ``far`` are hosts that it
    reaches over ssh; ``hosts`` are those of the ranks, where a table says so.
    """

    name: str
    code: int | None
    tail: Sequence[str]
    started: bool
    far: Sequence[str] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)


def launcher_error(
    launched: Launched, lost: Trouble | None = None, *, short: str = "", heard: Said | None = None
) -> RankFailedError | LaunchError:
    """The error to raise when the launching program itself ended and no rank is known to be the cause.

    ``lost`` is the rank that was gone first, which may be its reason or its consequence; ``short`` is what it
    may have had too little of; ``heard`` is what ranks have written.
    """
    name, code, tail = launched.name, launched.code, launched.tail
    started, far = launched.started, launched.far
    when = "while the ranks were running" if started else "before the ranks had started"
    if started and lost is not None and not lost.told and any(_UNFINISHED in line for line in tail):
        return error_of(replace(lost, ended=Ended(lost.rank, 0)), ())
    if started and lost is not None and not lost.told and code == EXIT_ORPHANED:
        # The others ended since this process hung up, to hear of the one that was gone: nothing was wrong
        # with that.
        return error_of(replace(lost, ended=Ended(lost.rank, 0)), ())
    if started and (gone := _lost_host(tail, far)):
        # What became of any rank then is a consequence.
        there = [rank for rank, host in launched.hosts.items() if host == gone]
        are = "are" if len(there) > 1 else "is"
        return RankFailedError(
            f"{_ranks(there)}host {gone} {are} gone: {name} has lost its connection there. Look at that "
            "host, and at the network between it and this one.",
            rank=there[0] if len(there) == 1 else None,
            host=gone,
        )
    by = None if short else aborter(tail)
    if started and lost is not None and not lost.told and by is not None and by[0] != lost.rank:
        rank, host = by
        if heard is None or not heard.gave_up(
            rank
        ):  # for a reason of its own, and the others were ended with it
            return error_of(Trouble(rank, host, ended=Ended(rank, code, _BY_ABORT)), _last(heard, rank))
        # The exit code is that of the rank whose MPI gave up.
        return error_of(replace(lost, ended=ended_by_mpi(lost.rank, rank)), ())
    message = f"{name} {how(code)} {when}."
    aborted = any(_ABORTED in line for line in tail)
    failed_itself = code == _OWN_FAILURE and any(_OWN_WORDS.search(line) for line in tail)
    if started and lost is not None and not lost.told and failed_itself:
        return error_of(lost, ())
    if started and lost is not None and not lost.told and not short and code is not None and code > 1:
        # What mpirun ends with is how the rank that failed first ended; its own failures end with 1, too.
        return error_of(replace(lost, ended=Ended(lost.rank, code)), _last(heard, lost.rank))
    message += short
    if lost is not None and not short and not aborted:
        message += (
            f" Rank {lost.rank} on host {lost.host} was gone first, and {name} names neither a signal nor a "
            "failure of it: it ended with exit code 0 before it was done, as os._exit(0) would, unless "
            f"someone told {name} to end."
        )
    if far and not started:
        from launcher.starters.reach import words  # no part of what a start needs

        message = words.not_begun(name, tail, far, code) or message + words.to_look_at(tail, far)
    if not started and (advice := files_advice(_FEW_FILES)):
        message += f" It may have too few descriptors for its pipes and sockets: {advice}."
        if not far and any(re.search(_INSIDE, line) for line in tail):
            tail = ()  # places in Open MPI's source, which say less
    if tail:
        message += " It said:\n" + "\n".join(f"  {line}" for line in tail if line.strip("- "))
    return RankFailedError(message) if started else LaunchError(message)


def _ranks(there: Sequence[int]) -> str:
    """``ranks 2, 3 on ``, to be followed by their host; nothing where none is known."""
    return f"rank{'s' * (len(there) > 1)} {listed(there)} on " if there else ""


def _last(heard: Said | None, rank: int) -> Sequence[str]:
    return () if heard is None else heard.tail(rank)


def _lost_host(tail: Sequence[str], far: Sequence[str]) -> str | None:
    """The host that Open MPI lost its daemon on, as it says itself; None where it says nothing of it."""
    said = " ".join(tail)
    if found := re.search(_LOST_HOST, said):
        return found[1] or found[2]
    return far[0] if len(far) == 1 and any(words in said for words in _LOST_DAEMON) else None


def shortage(error: Exception) -> LaunchError:
    """The error to raise where this process itself has no memory, threads or descriptors for its ranks."""
    said = (error.strerror if isinstance(error, OSError) else str(error)) or type(error).__name__
    advice = what_is_short(error) or memory_advice()
    return LaunchError(f"This process cannot start and watch its ranks ({said}): {advice}.")


def how(code: int | None) -> str:
    """``ended with exit code 3``, ``was killed by SIGKILL``."""
    if code is None:
        return "is gone, and nothing says why"
    if code < 0:
        number = _signal(code)
        return f"was killed by {number.name if number else f'signal {-code}'}"
    return f"ended with exit code {code}"


def _signal(code: int) -> signal.Signals | None:
    try:
        return signal.Signals(-code)
    except ValueError:
        return None


def copied(error: RankFailedError | LaunchError) -> RankFailedError | LaunchError:
    """The same error as another object: raising one in several threads would mix their tracebacks."""
    if isinstance(error, RankFailedError):
        fields = ("rank", "host", "details", "code", "usage")
        return RankFailedError(str(error), **{name: getattr(error, name) for name in fields})
    return LaunchError(str(error))
