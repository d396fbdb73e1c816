"""Where ranks of several hosts meet: the store of torch at rank 0's address."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Collection
from datetime import timedelta
from types import ModuleType

from ranks.collectives.absence import ABSENCE, rank_of
from ranks.collectives.torch.error import is_loss
from ranks.collectives.torch.lines import is_open, is_there, line_to, place_of
from ranks.collectives.torch.protocols import Store
from ranks.collectives.torch.strangers import ANSWERS, is_ours, sign, soon, taken, until_listening
from ranks.common import sources
from ranks.errors import CollectiveError, CollectiveTimeoutError, PeerLostError
from ranks.identity.meeting import meeting_place
from ranks.identity.place import Identity
from ranks.talk.connect import tune_all_tcp
from sharding.common.bounds import MAX_PORT
from sharding.common.text import parse_whole
from sharding.importers import torch_import

_MEETING, _GONE, _HEARD = "shardrun-meeting", "gone", "heard-"
_FIRST_GONE = "Rank 0, where the ranks meet, ended before all had joined: see what it said."
_FOLLOWING = 15.0  # seconds in which what was beside rank 0 may come in its place
_HEARING = 2.0  # seconds in which the others hear of a rank that is gone
_AGAIN = 0.02  # seconds between two looks whether others have come
_SHOWN = 8
_LONGEST_WORD = 4000


def remote_store(identity: Identity, timeout: float) -> Store:
    """The store that rank 0 serves, once every rank of the job is connected to it.

    Raises `CollectiveError` where the environment does not say where it is or another program has the port,
    and `CollectiveTimeoutError` where not all ranks come within ``timeout`` seconds.
    """
    address, port = meeting_place(identity)
    dist: ModuleType = torch_import.load("torch.distributed")
    if not address or not port:
        places = ((sources.MASTER_ADDR, address), (sources.MASTER_PORT, port))
        missing = [name for name, value in places if not value]
        lacking = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not set"
        raise CollectiveError(
            f"The {identity.world_size} ranks are not known to be on one host, and {lacking}: set "
            "MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there, the same on every rank."
        )
    number = parse_whole(port, 1, MAX_PORT)
    if number is None:
        raise CollectiveError(
            f"MASTER_PORT must be a port number from 1 to {MAX_PORT}, but is {port[:40]!r}."
        )
    serves = identity.rank == 0 and not _agent_serves()
    deadline = time.monotonic() + timeout
    make = _maker(dist, (address, number), identity.world_size, timeout, serves=serves)
    try:
        if not serves:
            until_listening(address, number, identity.rank, timeout, deadline)
        return _met(make, identity, (address, number), timeout, deadline, serves=serves)
    except (RuntimeError, OSError) as error:
        if serves or time.monotonic() > deadline:
            raise _unreached(error, identity.rank, f"{address}:{port}", timeout) from error
    # Rank 0 has ended, it seems: what was beside it may tell why.
    try:
        until = min(deadline, time.monotonic() + _FOLLOWING)
        until_listening(address, number, identity.rank, timeout, until, again=True)
        return _met(make, identity, (address, number), timeout, deadline, serves=False)
    except (RuntimeError, OSError, CollectiveTimeoutError) as error:
        raise PeerLostError(_FIRST_GONE, 0) from error


def _met(
    make: Callable[[], Store],
    identity: Identity,
    place: tuple[str, int],
    timeout: float,
    deadline: float,
    *,
    serves: bool,
) -> Store:
    """The store at a place, once every rank is there. Raises torch's errors, too."""
    store = _found(make, place[1], identity, min(timeout, ANSWERS), serves=serves)
    if store is None:
        raise taken(place)
    _meet(store, identity, timeout, deadline)
    return store


def _found(
    make: Callable[[], Store], port: int, identity: Identity, seconds: float, *, serves: bool
) -> Store | None:
    """This job's store; None where another program has the port."""
    store = make() if serves else soon(make, port, seconds)
    if serves and store is not None:
        sign(store, identity)
    elif store is not None and not _agent_serves() and not is_ours(store, identity, seconds):
        return None
    return store


def _unreached(error: Exception, rank: int, place: str, timeout: float) -> CollectiveError:
    first = str(error).strip().splitlines()[0][:200]
    if "in use" in str(error):
        ABSENCE.over()
        port = place.rpartition(":")[2]
        return CollectiveError(f"Port {port} (MASTER_PORT) is in use on this host: choose another one.")
    return CollectiveTimeoutError(
        f"Rank {rank} did not reach all ranks through {place} (MASTER_ADDR, MASTER_PORT) within "
        f"{timeout:g} s: {first}"
    )


def _meet(store: Store, identity: Identity, timeout: float, deadline: float) -> None:
    """Returns when every rank is there. Raises `PeerLostError` where one has ended before, and what
    `said_by_all` raises."""
    with contextlib.closing(Lookout(store, identity)) as lookout:
        said_by_all(lookout.there, identity, "here", timeout, deadline, look=lookout.look)


class Lookout:
    """Looks for ranks that have ended before all had joined, as far as it is told in the store."""

    def __init__(self, store: Store, identity: Identity, *, apart: bool = False) -> None:
        """``apart``: over a connection of its own, where another thread waits for the store."""
        self._identity, self._apart = identity, apart
        self._line = None if identity.rank == 0 or _agent_serves() else line_to(store)
        if apart and (place := place_of(store)) is not None:
            dist: ModuleType = torch_import.load("torch.distributed")
            try:
                store = _maker(dist, place, identity.world_size, ANSWERS, serves=False)()
            except RuntimeError as error:
                raise self._unserved(error) from error
        self.there = of_this_start(_MEETING, store)

    def look(self) -> None:
        """Raises `PeerLostError` where one has. Rank 0, which serves the others, sees to it first that they
        hear of it."""
        there, identity = self.there, self._identity
        if self._line is not None and not is_open(self._line):
            raise self._first_gone()
        try:
            if not there.check([_GONE]):
                return
            gone = there.get(_GONE).decode(errors="replace")
            there.set(f"{_HEARD}{identity.rank}", "")
        except RuntimeError as error:
            raise self._unserved(error) from error
        if identity.rank == 0:
            others = [rank for rank in range(1, identity.world_size) if there.check([str(rank)])]
            until = time.monotonic() + _HEARING
            while others and time.monotonic() < until:
                others = [rank for rank in others if not there.check([f"{_HEARD}{rank}"])]
                time.sleep(_AGAIN)
            told = [rank for rank in range(identity.world_size) if there.check([f"{_HEARD}{rank}"])]
            ABSENCE.heard(gone, told)
        raise PeerLostError(gone[:_LONGEST_WORD], rank_of(gone))

    def _unserved(self, error: RuntimeError) -> Exception:
        """What it means where the store cannot be asked."""
        by_rank_0 = self._identity.rank != 0 and not _agent_serves()
        return self._first_gone() if by_rank_0 and is_loss(error) else error

    def _first_gone(self) -> PeerLostError:
        return _last_news(self._identity) if self._apart else PeerLostError(_FIRST_GONE, 0)

    def close(self) -> None:
        """Lets go of the store."""
        if self._line is not None:
            self._line.close()


def _last_news(identity: Identity) -> PeerLostError:
    """That rank 0, where all had met, has ended; what was beside it may tell why, and waits to be heard."""
    address, port = meeting_place(identity)
    place, deadline = (address, parse_whole(port, 1, MAX_PORT) or 0), time.monotonic() + _FOLLOWING
    try:
        until_listening(*place, identity.rank, _FOLLOWING, deadline, again=True)
        dist: ModuleType = torch_import.load("torch.distributed")
        make = _maker(dist, place, identity.world_size, _FOLLOWING, serves=False)
        _met(make, identity, place, _FOLLOWING, deadline, serves=False)
    except PeerLostError as error:
        return error
    except (RuntimeError, OSError, CollectiveError):
        pass
    return PeerLostError(_FIRST_GONE, 0)


def tell_gone(identity: Identity, gone: str, late: Collection[int], seconds: float) -> None:
    """Tells the ranks that wait, or come within so many seconds, that one will not come: the text ``gone``.
    Called in another process, after this rank's end; where it has served the others, for those that are
    ``late``."""
    address, port = meeting_place(identity)
    number = parse_whole(port, 1, MAX_PORT)
    if not address or number is None:
        return
    dist: ModuleType = torch_import.load("torch.distributed")
    serves = identity.rank == 0 and not _agent_serves()
    deadline = time.monotonic() + seconds
    if not serves:
        until_listening(address, number, identity.rank, seconds, deadline, again=True)
    make = _maker(dist, (address, number), identity.world_size, seconds, serves=serves)
    store = _found(make, number, identity, ANSWERS, serves=serves)
    if store is None:
        return
    there = of_this_start(_MEETING, store)
    if not there.check([_GONE]):
        there.set(_GONE, gone)
    there.set(f"{_HEARD}{identity.rank}", "")
    heard = [f"{_HEARD}{rank}" for rank in late]
    while serves and heard and not there.check(heard) and time.monotonic() < deadline:
        time.sleep(_AGAIN)


def of_this_start(name: str, store: Store) -> Store:
    """A part of a store, without what ranks have said there that ran before these."""
    dist: ModuleType = torch_import.load("torch.distributed")
    part: Store = dist.PrefixStore(f"{name}-{_restarts()}", store)
    return part


def _agent_serves() -> bool:
    """Whether torchrun's agent listens there already."""
    return os.environ.get(sources.TORCHELASTIC_USE_AGENT_STORE, "") == "True"


def _restarts() -> str:
    """How often an elastic launcher, whose store outlives it, has started the ranks anew."""
    return os.environ.get(sources.TORCHELASTIC_RESTART_COUNT, "0")


def _maker(
    dist: ModuleType, place: tuple[str, int], ranks: int, seconds: float, *, serves: bool
) -> Callable[[], Store]:
    """What makes torch's store at a host and port, or connects to it."""

    def make() -> Store:
        # torch's own waiting takes twice the time-out, and prints its C++ frames.
        patience = timedelta(seconds=seconds)
        made: Store = dist.TCPStore(*place, ranks, serves, patience, wait_for_workers=False)
        tune_all_tcp()  # of a host that is gone torch would await an answer without an end
        return made

    return make


def said_by_all(
    store: Store,
    identity: Identity,
    word: str,
    timeout: float,
    deadline: float | None = None,
    *,
    look: Callable[[], None] = lambda: None,
) -> list[str]:
    """What every rank says in this store, in their order, once all have; this one says ``word``.

    Raises `CollectiveTimeoutError` where some do not come before ``deadline`` (default: in ``timeout``
    seconds). ``look`` is called while they are waited for, and may raise.
    """
    deadline = time.monotonic() + timeout if deadline is None else deadline
    store.set(str(identity.rank), word)
    missing = list(range(identity.world_size))
    while missing := [rank for rank in missing if not store.check([str(rank)])]:
        look()
        if time.monotonic() > deadline:
            who = f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:_SHOWN]))}"
            raise CollectiveTimeoutError(
                f"{who} of {identity.world_size} did not join within {timeout:g} s (rank {identity.rank} "
                "waited): look at their hosts, or raise SHARDRUN_TIMEOUT."
            )
        time.sleep(_AGAIN)
    return [store.get(str(rank)).decode() for rank in range(identity.world_size)]


def all_have_read(store: Store, identity: Identity, timeout: float) -> None:
    """Says that this rank needs the store no longer. Rank 0, which may serve it, waits for the others, at
    most ``timeout`` seconds."""
    store.set(f"read-{identity.rank}", "")
    deadline = time.monotonic() + timeout
    keys = [f"read-{rank}" for rank in range(identity.world_size)]
    while identity.rank == 0 and not store.check(keys) and time.monotonic() < deadline:
        time.sleep(_AGAIN)


def default_store() -> Store:
    """What torch's first group of this process meets over."""
    c10d: ModuleType = torch_import.load("torch.distributed.distributed_c10d")
    store: Store = c10d._get_default_store()
    return store


class LastWord:
    """Which ranks cannot go on, and why one has left its group, for others that only see that it has."""

    def __init__(self, group: object) -> None:
        self._key = f"shardrun-word-{_restarts()}-{getattr(group, 'group_name', '')}"
        self._failures = 0
        self._store = default_store()  # torch forgets it with its first group

    def said_by_all(self, identity: Identity, seconds: float) -> bool:
        """Whether all ranks say within so many seconds that they cannot go on, as this one does: the n-th
        time of each is compared."""
        self._failures += 1
        dist: ModuleType = torch_import.load("torch.distributed")
        try:
            part: Store = dist.PrefixStore(f"{self._key}-{self._failures}", self._store)
            said_by_all(part, identity, "failed", seconds)
        except (RuntimeError, OSError, CollectiveError):
            return False
        return True

    def say(self, rank: int, why: str) -> None:
        """Leaves a word, unless another rank has left one."""
        with contextlib.suppress(RuntimeError, OSError):
            if not self._store.check([self._key]):
                self._store.set(self._key, f"{rank} {why[:_LONGEST_WORD]}")

    def heard(self) -> tuple[int, str] | None:
        """The rank that has left a word, and the word."""
        with contextlib.suppress(RuntimeError, OSError, ValueError):
            if is_there(self._store) and self._store.check([self._key]):
                rank, _, why = self._store.get(self._key).decode(errors="replace").partition(" ")
                return int(rank), why
        return None


class News:
    """Which rank was lost first, told through the store by whoever saw it.

    Among ranks of several hosts only those that were connected to a lost rank notice; the others wait for
    these.
    """

    def __init__(self, dist: ModuleType, group: object) -> None:
        self._key = f"shardrun-lost-{_restarts()}-{getattr(group, 'group_name', '')}"
        self._store = default_store()
        self._server = None if _agent_serves() else 0
        self._line = None if dist.get_rank() == self._server else line_to(self._store)

    def tell(self, rank: int) -> None:
        """Says that ``rank`` was lost, unless another one was before."""
        with contextlib.suppress(RuntimeError, OSError):
            if self._is_served() and not self._store.check([self._key]):
                self._store.set(self._key, str(rank))

    def lost(self) -> int | None:
        """The rank that was lost first, as far as any has said; rank 0 where its store is gone."""
        try:
            if self._is_served():
                return int(self._store.get(self._key)) if self._store.check([self._key]) else None
        except (RuntimeError, OSError):
            pass
        return self._server

    def close(self) -> None:
        """Lets go of the store."""
        if self._line is not None:
            self._line.close()

    def _is_served(self) -> bool:
        """Whether the store's process is there, as far as can be seen without asking the store: torch would
        print its C++ frames."""
        return self._line is None or is_open(self._line)
