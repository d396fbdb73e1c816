"""Whether it is rank 0 of this job that is found where ranks meet: the port may be another program's, which
says nothing, or that of another job, whose store answers as ours would.

Rank 0 itself is told by the system, and ends; the others must find out. torch asks whoever is there, again
and again, and prints its C++ frames each time; so it is asked here first, with torch's own words.
"""

from __future__ import annotations

import contextlib
import hashlib
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from enum import Enum
from types import ModuleType

from ranks.collectives.absence import ABSENCE
from ranks.collectives.torch.protocols import Store
from ranks.common import settings, sources
from ranks.errors import CollectiveError, CollectiveTimeoutError
from ranks.identity.meeting import in_parts
from ranks.identity.place import Identity
from ranks.talk.connect import unanswered
from sharding.importers import torch_import

ANSWERS = 10.0  # seconds in which a store that can be connected to is there, on a busy host too
_SILENCE = 4.0  # seconds in which one that was asked something says something; no Python is needed for that
_SIGNED = 5.0  # seconds in which rank 0 says whose its store is
_AGAIN = 0.02  # seconds between two looks
_SIGN = "shardrun-job"
_ANSWER = b"shrd"
_QUESTION = struct.pack("=BIB", 0, 0x3C85F7CE, 13) + _ANSWER
"""torch's VALIDATE with its number, and PING, which a store answers with the same four bytes."""


class Found(Enum):
    """What is at the other end of a connection."""

    STORE = "a store of torch's"
    OTHER = "one that says something else"
    CLOSED = "one that closes it"
    SILENT = "one that does not answer"


def taken(place: tuple[str, int]) -> CollectiveError:
    """That the place is another's. Whoever comes there does not hear of this rank's end."""
    ABSENCE.over()
    return CollectiveError(
        f"Port {place[1]} of {place[0]} (MASTER_ADDR, MASTER_PORT) is taken by another program, which is "
        f"not rank 0 of this job, or rank 0 is stopped: choose another port, the same on every rank."
    )


def until_listening(
    address: str, port: int, rank: int, timeout: float, deadline: float, *, again: bool = False
) -> None:
    """Waits until rank 0 can be connected to. Raises `CollectiveTimeoutError` where it cannot before the
    deadline, `CollectiveError` where another program has the port, and `OSError` where what was there has
    ended, unless what comes ``again`` in its place is waited for."""
    closed_at: float | None = None
    while True:
        left = max(0.1, deadline - time.monotonic())
        try:
            with socket.create_connection((address, port), timeout=left) as line:
                found = _asked(line, min(_SILENCE, left))
        except ConnectionResetError:
            found = Found.CLOSED
        except OSError as error:
            if closed_at is not None and not again:
                raise
            closed_at = None
            if time.monotonic() + _AGAIN > deadline:
                raise CollectiveTimeoutError(
                    f"Rank {rank} did not reach rank 0 at {address}:{port} (MASTER_ADDR, MASTER_PORT) within "
                    f"{timeout:g} s ({error.strerror or error}): see that rank 0 has started, that it is on "
                    "that host, and that no firewall is between."
                ) from error
            time.sleep(_AGAIN)
            continue
        if found is Found.STORE:
            return
        now = time.monotonic()
        closed_at = now if closed_at is None else closed_at
        # What only passes connections on closes them while rank 0 is not there yet.
        if found is not Found.CLOSED or now + _AGAIN > min(closed_at + _SILENCE, deadline):
            if _knows_the_words():
                raise taken((address, port))
            return
        time.sleep(_AGAIN)


def _asked(line: socket.socket, seconds: float) -> Found:
    """What is there: it is asked, and has so many seconds to answer."""
    line.settimeout(seconds)
    said = b""
    try:
        line.sendall(_QUESTION)
        while said != _ANSWER:
            more = line.recv(len(_ANSWER) - len(said))
            said += more
            if not more or not _ANSWER.startswith(said):
                return Found.OTHER if said else Found.CLOSED
    except TimeoutError:
        return Found.SILENT
    except OSError:
        return Found.CLOSED
    return Found.STORE


def _knows_the_words() -> bool:
    """Whether the stores of this torch answer as `_asked` expects it, and those of others will."""
    dist: ModuleType = torch_import.load("torch.distributed")
    with contextlib.suppress(RuntimeError, OSError):
        own = dist.TCPStore("127.0.0.1", 0, 1, True, timedelta(seconds=ANSWERS), wait_for_workers=False)
        with socket.create_connection(("127.0.0.1", own.port), timeout=ANSWERS) as line:
            return _asked(line, ANSWERS) is Found.STORE
    return False


def soon(make: Callable[[], Store], port: int, seconds: float) -> Store | None:
    """The store that ``make`` gives, or what it raises; None where it takes more than ``seconds``, or the
    port was asked and does not answer: of a program that accepts connections and says nothing torch awaits
    an answer without an end. What a slow name service takes is no silence."""
    found: queue.SimpleQueue[Store | Exception] = queue.SimpleQueue()

    def work() -> None:
        try:
            found.put(make())
        except Exception as error:  # raised where it is waited for
            found.put(error)

    threading.Thread(target=work, name="shardrun store", daemon=True).start()
    deadline = time.monotonic() + seconds
    while True:
        try:
            result = found.get(timeout=_AGAIN)
            break
        except queue.Empty:
            if time.monotonic() > deadline or unanswered(port) > min(_SILENCE, seconds):
                return None
    if isinstance(result, Exception):
        raise result
    return result


def sign(store: Store, identity: Identity) -> None:
    """Says whose this store is, which the process that serves it does at once."""
    store.set(_SIGN, _job(identity))


def is_ours(store: Store, identity: Identity, seconds: float) -> bool:
    """Whether a store is of this job, or of one that has no more of a name than this one."""
    deadline = time.monotonic() + min(_SIGNED, seconds)
    while not store.check([_SIGN]):
        if time.monotonic() > deadline:
            return False
        time.sleep(_AGAIN)
    return store.get(_SIGN).decode(errors="replace") == _job(identity)


def _job(identity: Identity) -> str:
    """The job's name is its secret, and whoever is at the port may read this. Without one, it is what Open
    MPI or Slurm call those that they have started together. (The components of a job of Slurm's have
    numbers of their own.)"""
    name = settings.JOB.text()
    if not name and identity.source.startswith((sources.OMPI_RANK, sources.SLURM)) and not in_parts():
        name = identity.key
    return hashlib.sha256(name.encode()).hexdigest()
