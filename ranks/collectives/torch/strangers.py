"""Whether it is rank 0 of this job that is found where ranks meet: the port may be another program's, which
says nothing, or that of another job, whose store answers as ours would.

Rank 0 itself is told by the system, and ends; the others must find out.
"""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from collections.abc import Callable

from ranks.collectives.torch.protocols import Store
from ranks.common import settings
from ranks.errors import CollectiveError
from ranks.talk.connect import unanswered

ANSWERS = 10.0  # seconds in which a store that can be connected to is there, on a busy host too
_SILENCE = 4.0  # seconds in which one that was asked something says something; no Python is needed for that
_SIGNED = 5.0  # seconds in which rank 0 says whose its store is
_AGAIN = 0.02  # seconds between two looks
_SIGN = "shardrun-job"


def taken(place: tuple[str, int]) -> CollectiveError:
    """That the place is another's."""
    return CollectiveError(
        f"Port {place[1]} of {place[0]} (MASTER_ADDR, MASTER_PORT) is taken by another program, which is "
        f"not rank 0 of this job, or rank 0 is stopped: choose another port, the same on every rank."
    )


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


def sign(store: Store) -> None:
    """Says whose this store is, which the process that serves it does at once."""
    store.set(_SIGN, _job())


def is_ours(store: Store, seconds: float) -> bool:
    """Whether a store is of this job, or of one that has no more of a name than this one."""
    deadline = time.monotonic() + min(_SIGNED, seconds)
    while not store.check([_SIGN]):
        if time.monotonic() > deadline:
            return False
        time.sleep(_AGAIN)
    return store.get(_SIGN).decode(errors="replace") == _job()


def _job() -> str:
    """The job's name is its secret, and whoever is at the port may read this."""
    return hashlib.sha256(settings.JOB.text().encode()).hexdigest()
