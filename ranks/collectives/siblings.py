"""Ranks of this host that ended before all had joined, where no process beside them tells it.

Open MPI's mpirun ends all ranks where one fails, and where ranks join by MPI, nothing reaches those that
wait. But a rank that ends with exit code 0 fails to nobody, and the others would wait for their time-out. The
processes of what started the ranks say which are still there.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from pathlib import Path

from ranks.collectives.absence import ABSENCE
from ranks.collectives.beginning import end
from ranks.common import settings, sources
from ranks.common.processes import is_stopped, status
from ranks.identity.place import Identity
from ranks.talk.orphan import end_with_launcher

_LOOK_SECONDS, _LOOKS = 1.0, 5
"""How often it is looked, and how often in a row one must not be there: ranks start one after another."""


@contextlib.contextmanager
def watched(identity: Identity) -> Iterator[None]:
    """While it lasts, the process ends, with one sentence and exit code 1, where a rank of this host has."""
    others_tell = settings.CONTROL.text() or ABSENCE.stands or (identity.local_size or 1) < 2
    name = "" if others_tell else _variable(identity)
    launcher = end_with_launcher() if name else 0  # which ties this process to it
    if not launcher:
        yield
        return
    joined = threading.Event()
    with contextlib.suppress(RuntimeError):  # no more threads: the rank itself will say so
        threading.Thread(
            target=_watch, args=(identity, launcher, name, joined), name="shardrun siblings", daemon=True
        ).start()
    try:
        yield
    finally:
        joined.set()


def _variable(identity: Identity) -> str:
    """By which the ranks' processes are known; "" where nothing says it.

    It must be what this rank goes by itself: torchrun's ranks inside of an mpirun have its variables too, and
    all the same ones.
    """
    numbered = (sources.OMPI_RANK, sources.SLURM_PROCID, sources.PMI_RANK)
    return next((name for name in numbered if identity.source.startswith(f"{name} ")), "")


def _watch(identity: Identity, launcher: int, name: str, joined: threading.Event) -> None:
    missed, wanted = 0, identity.local_size or 0
    while not joined.wait(_LOOK_SECONDS):
        here, unknown = present(launcher, name)
        if identity.rank not in here or len(here) + unknown >= wanted or is_stopped(launcher):
            missed = 0
            continue
        missed += 1
        if missed < _LOOKS:
            continue
        gone = sorted(set(range(wanted)) - here) if identity.shares_host and not unknown else []
        who = f"rank {gone[0]}" if gone else f"one of the {wanted} ranks"
        end(
            f"rank {identity.rank} on host {identity.host} waits in vain: {who} on this host ended before "
            "all had joined, and what started them has ended no other: see what it said, and whether it was "
            "to take part."
        )


def present(launcher: int, name: str) -> tuple[set[int], int]:
    """The ranks whose processes the launcher on this host has, by the variable that numbers them; and of how
    many processes nothing can be read: those of another user, or that wrote their title over it."""
    found: set[int] = set()
    unknown = 0
    mark = f"{name}=".encode()
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{launcher}/task").iterdir():
            words: list[str] = []
            with contextlib.suppress(OSError):  # the thread has just ended
                words = (thread / "children").read_text().split()
            for word in words:
                told = _environment(word)
                if status(int(word)) is None:  # it has ended
                    continue
                unknown += b"=" not in told
                with contextlib.suppress(ValueError):
                    found.update(int(one[len(mark) :]) for one in told.split(b"\0") if one.startswith(mark))
    return found, unknown


def _environment(process: str) -> bytes:
    try:
        return Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return b""
