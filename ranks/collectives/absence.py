"""The end of a rank that has not joined its group yet, told to those who wait for it.

Until it joins, nobody is connected to a rank, and no launcher of ours may be there to see its end: the others
would wait for their time-out. So a small process beside it sees the end, whatever death it is, and tells it
at the place where the ranks meet (`ranks.collectives.beside`). It ends as soon as the rank has joined.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import json
import os
import re
import subprocess
import sys
from collections.abc import Collection

from ranks.common import settings, sources
from ranks.common.descriptors import close_all
from ranks.errors import CollectiveTimeoutError, PeerLostError
from ranks.identity.identity import of_launcher
from ranks.identity.place import Identity
from ranks.talk import small
from ranks.talk.orphan import end_with_launcher
from ranks.talk.witness import END

_CODE = (
    "said = witness.witness(); import site; site.main(); "
    "from ranks.collectives.beside import tell; tell(said)"
)
LINGER_SECONDS, SHORTLY = 300.0, 3.0
"""For so long the end is told to ranks that come later than it, while what started this one is there; and
without such: another start of the same job, by hand or by a script, may take the place of this one."""
_STAY_SECONDS = 8.0


class Absence:
    """The process beside this one: one, however often it is asked for.

    ``first_stays``: for how many seconds the rank where all meet, which ends without this one, may still be
    there to tell the others.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._stays = False
        self.first_stays = 0.0
        os.register_at_fork(after_in_child=self._forget)

    @property
    def stands(self) -> bool:
        """Whether a process beside this one tells its end."""
        return self._process is not None

    def stand(self, identity: Identity, collectives: str = "") -> None:
        """Starts it, unless whatever starts the ranks ends them all where one ends. ``collectives``: by which
        they are to join; "" as the environment says."""
        if sys.platform != "linux" or self._process is not None or not _is_needed(identity, collectives):
            return
        watched: list[int] = []
        try:
            # Here: this rank may end before that one has begun.
            watched.append(os.pidfd_open(os.getpid()))
            if launcher := end_with_launcher():
                watched.append(os.pidfd_open(launcher))
            self._process = subprocess.Popen(
                small.command("ranks.talk.witness", _CODE, *map(str, watched)),
                pass_fds=watched,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
            )
        except (OSError, AttributeError):  # a rank itself says what is short
            return
        finally:
            close_all(watched)
        # Not what is merely above it, as in a job's script or shell that starts ranks again and again.
        self._stays = len(watched) > 1 and of_launcher(identity)
        atexit.register(self.stay)
        # Not on its command line: the key is nobody else's.
        first = {
            "identity": dataclasses.asdict(identity),
            "seconds": LINGER_SECONDS if self._stays else SHORTLY,
        }
        self._say(json.dumps(first).encode() + b"\n")

    def heard(self, gone: str, told: Collection[int]) -> None:
        """This rank ends since that one has, before all had joined: as `gone_text` says it. Where others meet
        at this rank, who comes later is to hear it too; these have been ``told``."""
        self._stays = False  # it serves them itself
        self._say(json.dumps({"gone": gone, "told": [*told]}).encode() + b"\n")

    def all_came(self, ranks: Collection[int]) -> None:
        """All have met at this rank, and nobody comes there any more to hear of its end."""
        self._say(json.dumps({"told": [*ranks]}).encode() + b"\n")

    def failed(self, identity: Identity, error: Exception) -> None:
        """This rank could not join. Where that is its own fault, the others are to hear of its end."""
        others = isinstance(error, CollectiveTimeoutError | PeerLostError)
        if isinstance(error, PeerLostError) and error.peer == 0 and of_launcher(identity):
            self.first_stays = _STAY_SECONDS
        if others and not (identity.rank == 0 and isinstance(error, PeerLostError)):
            self.over()

    def stay(self) -> None:
        """Before this rank ends in order, where it has not joined: has the others told now, and waits a while
        for that. Once it has ended, what started it may end whatever it has left on this host."""
        process = self._process
        if process is not None and self._stays:
            self._say(END + b"\n")
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_STAY_SECONDS)

    def over(self) -> None:
        """This rank has joined, or nobody waits for it."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            process.stdin.close()

    def _say(self, words: bytes) -> None:
        if self._process is not None and self._process.stdin is not None:
            with contextlib.suppress(OSError, ValueError):
                self._process.stdin.write(words)

    def _forget(self) -> None:
        self._process = None


ABSENCE = Absence()
"""This process's, which is one rank."""


def gone_text(rank: int, host: str) -> str:
    """What is told of a rank, as a sentence."""
    return f"Rank {rank} on host {host} ended before all ranks had joined: see what it said."


def rank_of(gone: str) -> int | None:
    """The rank that such a text is about."""
    found = re.match(r"Rank (\d+)\b", gone)
    return None if found is None else int(found[1])


def _is_needed(identity: Identity, collectives: str) -> bool:
    if settings.CONTROL.text() or identity.world_size == 1:
        return False
    # Open MPI's mpirun ends them all. MPICH's does not where one ends by a code before it has begun MPI, nor
    # does srun; but in MPI_Init nobody hears of anything.
    if os.environ.get(sources.OMPI_RANK):
        return False
    if sources.by_mpi(identity.source) and _by_mpi(identity, collectives):
        return False
    ends_all = settings.RUN_ALL.text() or os.environ.get(sources.TORCHELASTIC_RUN_ID)
    return not (ends_all and identity.shares_host)


def _by_mpi(identity: Identity, collectives: str) -> bool:
    """Whether the ranks join by MPI, which they could."""
    name = collectives or settings.collectives()
    return name == "mpi" or (name in {"auto", "hierarchical"} and not identity.shares_host)
