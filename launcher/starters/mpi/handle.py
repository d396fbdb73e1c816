"""A running mpirun: which rank wrote a line, which ended first, and what is left at its end."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from launcher.starters import marks
from launcher.starters.base import SOME_RANK, Ended
from launcher.starters.loopback import family, move_to_loopback
from launcher.starters.program import ProgramHandle, end_left
from launcher.starters.reach import words
from launcher.starters.reach.ways import Ways, marked
from ranks.common.leaving import mpich_files, mpich_left
from ranks.common.settings import JOB
from ranks.talk import small
from ranks.talk.connect import EXIT_ORPHANED
from sharding.common.text import human_bytes

Flavour = Literal["openmpi", "openmpi4", "mpich", "intel"]
OPEN_MPI = ("openmpi", "openmpi4")
_TAG = {
    "openmpi": marks.OPEN_MPI,
    "openmpi4": marks.OPEN_MPI_4,
    "mpich": marks.HYDRA,
    "intel": marks.HYDRA,
}
# How each says which rank ended first and how: Open MPI 5, Intel MPI 2021, MPICH 5. The last
# does not say the rank, and ORs the signal with the 9 by which it ended the others: only 9 and 11 can be
# believed.
_REPORTS = (
    re.compile(
        r"process rank (?P<rank>\d{1,7}) with PID \d+ on node \S+ exited on\s+signal (?P<signal>\d{1,3})"
    ),
    re.compile(r"Process name: \[\S*,(?P<rank>\d{1,7})\]\s+Exit code:\s+(?P<code>\d{1,9})"),
    re.compile(r"RANK (?P<rank>\d{1,7}) PID \d+ RUNNING AT \S+\s+=\s+KILLED BY SIGNAL: (?P<signal>\d{1,3})"),
    re.compile(r"EXIT STRING: [^(]*\(signal (?P<signal>9|11)\)"),
)

# MPICH 5, of what it started for a rank and what a signal has ended: of the first of a host, which it may
# have killed itself. The code is the kernel's.
_KILLED = re.compile(r"PID (?P<pid>\d{1,9}) RUNNING AT (?P<host>\S+)\s+=\s+EXIT CODE: (?P<status>\d{1,9})")
_SIGNAL_BITS = 0x7F

_MISSING = " execvp error on file "
"""MPICH's and Intel MPI's word, whose mpirun may wait for ever then."""


def _missing(line: str) -> tuple[int, str, str] | None:
    """The rank in whose name a daemon says that it cannot start a program, which one, and why."""
    head, mark, said = line.rstrip().partition(_MISSING)
    rank = marks.HYDRA.match(head) if mark else None
    what, mark, why = said.rpartition(" (")
    if rank is None or not head.startswith("[proxy:", rank.end()) or not (mark and why.endswith(")")):
        return None
    return int(rank[1]), what, why[:-1]


_BESIDE_SECONDS = 1.0


def _stand_beside(mpirun: int, environment: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
    """The process that ends an mpirun which outlives this one; None where none can be had."""
    words = [str(os.getpid()), str(mpirun), JOB.name]
    with contextlib.suppress(OSError):
        return subprocess.Popen(
            small.command("launcher.starters.mpi.outlived", "outlived.main()", *words),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    return None


class MpirunHandle(ProgramHandle):
    """A running mpirun."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        flavour: Flavour,
        scratch: Path | None,
        needed: int = 0,
        *,
        far: bool = False,
        kept: Sequence[int] = (),
    ) -> None:
        """``scratch``: the folder for mpirun's and the ranks' files, which need as many bytes there; ``far``:
        whether it reaches other hosts; ``kept``: as `ProgramHandle`."""
        self._flavour = flavour
        self._scratch = scratch
        self._said = ""
        self._reported = self._blamed = self._cut = False
        self._shared: set[str] = set()
        self._held: dict[int, set[str]] = {}
        self._shown: set[int] = set()
        super().__init__("mpirun", command, environment, kept=kept)
        self._beside = _stand_beside(self._process.pid, environment) if far else None
        self._ways = Ways(self._job)
        if scratch is not None and (free := shutil.disk_usage(scratch).free) < needed:
            self.short = (
                f" {scratch.parent} has {human_bytes(free)} free, and MPI may need {human_bytes(needed)} "
                "there or in /dev/shm: free some space, or name another folder in TMPDIR."
            )

    def _said_by(self, code: int) -> Iterable[Ended]:
        # MPICH and Intel MPI end with the code of the rank that failed, and say nothing more of it. What
        # has MPICH's 9 in it may be a signal instead.
        ambiguous = code == EXIT_ORPHANED or (self._flavour == "mpich" and code & 9 == 9)
        if self._flavour not in OPEN_MPI and 0 < code < 128 and not ambiguous:
            yield Ended(SOME_RANK, code)

    def attribute(self, line: str) -> list[tuple[int | None, str]]:
        if self._flavour not in OPEN_MPI and _missing(line):
            return [(None, line)]  # the daemon's word, in the rank's name
        tag = _TAG[self._flavour]
        # Open MPI puts what a rank wrote without ending its line, and then another's, into one line. The
        # other two's marks are too plain to be looked for in a text.
        found = (
            list(tag.finditer(line)) if self._flavour in OPEN_MPI else list(filter(None, [tag.match(line)]))
        )
        ends = [mark.start() for mark in found[1:]] + [len(line)]
        parts: list[tuple[int | None, str]] = [
            (int(mark[1]), line[mark.end() : end]) for mark, end in zip(found, ends, strict=False)
        ]
        before = line[: found[0].start()] if found else line
        return [(None, before), *parts] if before else parts

    def heard(self, line: str) -> Sequence[Ended]:
        """Finds in mpirun's own words which rank ended first and how; see `Handle.heard`."""
        if (lacks := _missing(line)) is not None:
            rank, what, why = lacks
            return [Ended(rank, None, words.not_started(what, why))]
        if self._reported:
            return ()
        self._said = (self._said + line)[-4000:]
        if not self._blamed and self._flavour == "mpich" and (found := _KILLED.search(self._said)):
            self._blamed = True
            code = -(int(found["status"]) & _SIGNAL_BITS)
            return [Ended(SOME_RANK, code, heard=True, process=(found["host"], int(found["pid"])))]
        for pattern in _REPORTS:
            found = pattern.search(self._said)
            if found:
                self._reported = True
                said = {name: int(value) for name, value in found.groupdict().items()}
                code = -said["signal"] if "signal" in said else said["code"]
                return [Ended(said.get("rank", SOME_RANK), code)]
        return ()

    def lost_host(self, here: Collection[int], awaited: Collection[str]) -> str:
        """See `Handle.lost_host`. Open MPI ends when its ssh does; the others do not, after a daemon has
        begun."""
        if self._flavour in OPEN_MPI:
            return ""
        # Asked every second, while others wait: what has shown the same files twice is read no more.
        for pid in set(here) - self._shown if mpich_left() else ():
            held = mpich_files(pid)
            # Afterwards: what has its number by then may be another process, and another's file.
            with contextlib.suppress(OSError):
                if held and marked(pid, self._job):
                    self._shared |= held
                    if self._held.get(pid) == held:
                        self._shown.add(pid)
                    self._held[pid] = held
        return self._ways.lost(awaited) if awaited else ""

    def cut_off(self, rank: int) -> None:
        """See `Handle.cut_off`: mpirun waits for its daemon there, and ends nothing meanwhile."""
        self._cut = True

    def terminate(self) -> None:
        """See `Handle.terminate`."""
        super().terminate()
        if self._cut:
            self.kill()

    def kill(self) -> None:
        """See `Handle.kill`; its ssh would stay, and keep our pipes open."""
        super().kill()
        self._ways.end()

    def settle(self, ranks: Collection[int]) -> None:
        for pid in family(self._process.pid, ranks):
            move_to_loopback(pid)
        super().settle(ranks)

    def close(self) -> None:
        """Removes mpirun's session folder, which a killed mpirun leaves, and ends what ranks left running."""
        end_left(self._process.pid, self._job)
        super().close()
        if self._beside is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._beside.wait(_BESIDE_SECONDS)
        for path in self._shared:
            with contextlib.suppress(OSError):
                Path(path).unlink()
        if self._scratch is not None:
            shutil.rmtree(self._scratch, ignore_errors=True)
