"""This process in torch.distributed: how its groups are made, and how they end."""

from __future__ import annotations

import _thread
import atexit
import contextlib
import os
import socket
import sys
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from inspect import signature
from types import ModuleType
from typing import cast

from ranks.collectives.base import Groups
from ranks.collectives.meeting import meet
from ranks.collectives.rendezvous import Rendezvous
from ranks.collectives.torch.error import translate
from ranks.collectives.torch.joining import attended, see
from ranks.collectives.torch.protocols import Abortable, Device, Store
from ranks.collectives.torch.store import LastWord, Lookout, News, default_store, of_this_start, remote_store
from ranks.common import forks
from ranks.common.descriptors import close_all
from ranks.common.leaving import EXIT
from ranks.errors import CollectiveError
from ranks.identity.binding import INTERFACES
from ranks.identity.place import Identity
from ranks.talk.connect import cut, timed_connections, tune_all_tcp
from sharding.common.variables import set_for_a_while
from sharding.importers import torch_import

_LOOPBACK = "lo"
_NCCL = {
    "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",  # the watchdog would end the process where a rank is lost
    "TORCH_NCCL_ENABLE_MONITORING": "0",  # so would what watches the watchdog
    "TORCH_NCCL_DUMP_ON_TIMEOUT": "0",
    "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "0",  # the watchdog would sleep, and who leaves wait for it
    "TORCH_NCCL_RETHROW_CUDA_ERRORS": "0",
    "TORCH_NCCL_SHOW_EAGER_INIT_P2P_SERIALIZATION_WARNING": "0",  # what it warns of is what we do
}
"""How torch's NCCL group is told to leave errors to us. It takes these from the environment alone, when it is
made."""
_ORDERLY, _ABORT = 10.0, 20.0  # seconds to leave, and to end what a device does: a library may hang
_LAST = 20.0  # seconds for what of it goes on at the interpreter's end


class Leaving:
    """How this process leaves its groups, which a library may hang in. One per process.

    ``groups``: those to leave before the interpreter ends. A thread that comes back from C++ after that would
    end the process by SIGABRT; so what is left over then is waited for, or else the process ends at once.
    """

    def __init__(self) -> None:
        self.groups: weakref.WeakSet[TorchGroups] = weakref.WeakSet()
        self._left_over: list[_thread.LockType] = []
        atexit.register(self._end)
        os.register_at_fork(after_in_child=self._left_over.clear)

    def within(self, seconds: float, call: Callable[[], None]) -> bool:
        """Whether ``call`` came to its end in time; where it did not, it goes on in a thread of its own.

        Finalizers call this, and so does whichever thread collects garbage, maybe while it starts another
        one: `threading.Thread` would wait for a lock that this thread holds.
        """
        done = _thread.allocate_lock()
        done.acquire()

        def work() -> None:
            try:
                call()
            finally:
                done.release()

        try:
            _thread.start_new_thread(work, ())
        except RuntimeError:  # the interpreter is ending and starts no more threads
            work()
        if done.acquire(timeout=seconds):
            return True
        self._left_over.append(done)
        return False

    def _end(self) -> None:
        for groups in list(self.groups):
            groups.leave()
        deadline = time.monotonic() + _LAST
        for done in self._left_over:
            if not done.acquire(timeout=max(0.0, deadline - time.monotonic())):
                for stream in (sys.stdout, sys.stderr):
                    with contextlib.suppress(OSError, ValueError, AttributeError):
                        stream.flush()
                os._exit(EXIT.code)


LEAVING = Leaving()


class TorchGroups:
    """The groups of torch that one membership has made.

    ``open``: none of them has been left yet; ``connections``: those of Gloo, by the numbers of their
    inodes. Leaving and aborting are safe to call twice.
    """

    def __init__(self, dist: ModuleType, backend: str, timeout: float) -> None:
        self.open = True
        self.group: object = None
        self.parts: list[object] = []
        self._dist = dist
        self._backend = backend
        self._timeout = timeout
        self._connected: Device | None = (
            None  # the device for which groups connect when made, not when first used
        )
        self.connections: frozenset[int] = frozenset()
        self._whole = False  # whether the group is the process's first, on which all others depend

    def make(self, store: Store | None, identity: Identity, device: Device | None) -> None:
        """The group of all ranks; where it is the process's first one, its ranks meet over ``store``."""
        dist = self._dist
        if dist.is_initialized():
            self._connected = None if getattr(dist.group.WORLD, "bound_device_id", None) else device
            with self._connecting():
                self.group = dist.new_group(**self._options())
            return
        with self._connecting():
            dist.init_process_group(
                self._backend,
                store=dist.PrefixStore("shardrun", store),
                rank=identity.rank,
                world_size=identity.world_size,
                timeout=self._patience,
                device_id=device,
            )
        self.group, self._whole = dist.group.WORLD, True
        if self._backend == "gloo" and identity.local_size != identity.world_size:
            tune_all_tcp()

    def part(self, ranks: Sequence[int], *, mine: bool) -> object:
        """A group of some of the world's ranks; every rank must make it."""
        with self._connecting():
            made = self._dist.new_group(list(ranks), **self._options())
        if mine:
            self.parts.append(made)
            if self._backend == "gloo":
                tune_all_tcp()
        return made

    @contextlib.contextmanager
    def _connecting(self) -> Iterator[None]:
        """Notes the connections that Gloo makes meanwhile, and none of other threads'."""
        before = timed_connections() if self._backend == "gloo" else frozenset()
        yield
        if self._backend == "gloo":
            self.connections |= timed_connections() - before

    def cut(self) -> None:
        """Ends Gloo's connections: it has no way to do so, and else they last as long as the process."""
        cut(self.connections)

    def leave(self) -> None:
        """Leaves all groups once what is under way is done, which the others notice."""
        if not self.open:
            return
        self.open = False
        # Also for Gloo: where its group is torch's first, those of devices end with it.
        if not LEAVING.within(_ORDERLY, self._destroy):
            LEAVING.within(_ABORT, partial(self._abort, None))

    def abort(self, first: object = None) -> None:
        """Ends what the device still does for these groups, and leaves them.

        A kernel that waits for a lost rank never ends by itself: whoever waits for the device, or frees
        memory on it, would wait for ever. ``first``: the group that such a kernel may belong to. The library
        frees memory too when it ends another group.
        """
        if not self.open:
            return
        self.open = False
        LEAVING.within(_ABORT, partial(self._abort, first))

    def _destroy(self) -> None:
        for group in self._made():
            with contextlib.suppress(RuntimeError, ValueError, AttributeError, AssertionError):
                self._dist.destroy_process_group(group)

    def _abort(self, first: object) -> None:
        c10d = torch_import.load("torch.distributed.distributed_c10d")
        abort = getattr(c10d, "_abort_process_group", self._dist.destroy_process_group)
        if first is not None:
            with contextlib.suppress(RuntimeError, AttributeError):
                cast("Abortable", first).abort()
        for group in self._made():
            with contextlib.suppress(RuntimeError, ValueError, AttributeError, AssertionError):
                abort(group)

    def _made(self) -> list[object]:
        """The groups to end, in order. None is all that torch has, which may be others' than ours."""
        if self._whole:
            return [None]
        return [group for group in (*reversed(self.parts), self.group) if group is not None]

    def _options(self) -> dict[str, object]:
        options: dict[str, object] = {"backend": self._backend, "timeout": self._patience}
        if self._connected is not None and "device_id" in signature(self._dist.new_group).parameters:
            options["device_id"] = self._connected
        return options

    @property
    def _patience(self) -> timedelta:
        # Beyond our own time-out, so that ours speaks first where torch would end the process.
        return timedelta(seconds=self._timeout if self._backend == "gloo" else self._timeout + 60)


class Membership:
    """This process's torch.distributed group, and what is needed to leave it.

    Left at the latest when the interpreter ends.
    """

    def __init__(
        self,
        identity: Identity,
        timeout: float,
        backend: str,
        device: Device | None = None,
        check: Callable[[Store], None] | None = None,
    ) -> None:
        """``check`` is called with what ranks of several hosts meet over, before they connect."""
        dist: ModuleType = torch_import.load("torch.distributed")
        self.dist = dist
        self.identity = identity
        # The older name is deprecated in newer versions.
        self.gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
        self.groups = TorchGroups(dist, backend, timeout)
        self._backend = backend
        self._rendezvous: Rendezvous | None = None
        self._news: News | None = None
        self._store: Store | None = None
        self._file = -1
        self._leave = weakref.finalize(self, self.groups.leave)
        self._leave.atexit = False
        LEAVING.groups.add(self.groups)
        EXIT.at_once = True
        try:
            _check_world(dist, identity)
            if identity.shares_host:
                self._rendezvous = meet(identity, timeout)
            if not dist.is_initialized():  # else torch's first group has a store, and a port is served once
                self._store = (
                    self._local_store(self._rendezvous, timeout)
                    if self._rendezvous is not None
                    else remote_store(identity, timeout)
                )
            if check is not None and self._rendezvous is None:
                there = self._store if self._store is not None else default_store()
                check(of_this_start("shardrun-check", there))
            with self._settings(), contextlib.ExitStack() as open_:
                make = partial(self.groups.make, self._store, identity, device)
                attended(make, self._lookout(open_), self._store, apart=backend == "gloo")
            self.last_word = LastWord(self.group)
            if self._rendezvous is None and backend != "gloo":
                self._news = News(dist, self.group)
        except (RuntimeError, ValueError, OSError) as error:
            self.close()
            raise translate(error, f"joining the {backend} group", identity.rank, timeout, None) from error
        except BaseException:
            self.close()
            raise
        forks.in_child(self, Membership._forked)
        forks.never_freed(self, self.group, self._store)

    @property
    def group(self) -> object:
        """torch's group of all ranks."""
        return self.groups.group

    def _forked(self) -> None:
        self.groups.open = False  # the connections are the parent's

    def split(self, groups: Groups, mine: tuple[int, ...]) -> object:
        """torch's group of ``mine``, one of ``groups`` of the world's ranks. Every rank makes all of them in
        the same order, as torch wants it."""
        with self._settings():
            made: dict[tuple[int, ...], object] = {}

            def make() -> None:
                for group in groups:
                    made[group] = self.groups.part(group, mine=group == mine)

            attended(make, partial(self._see, mine), self._store, apart=self._backend == "gloo")
        forks.never_freed(made[mine])
        return made[mine]

    def _lookout(self, open_: contextlib.ExitStack) -> Callable[[], None]:
        """What raises `PeerLostError` where a rank ends while all join; ``open_`` closes what it needs."""
        if self._rendezvous is not None or self._store is None or self._backend != "gloo":
            return self._see
        lookout = Lookout(self._store, self.identity, apart=True)
        open_.callback(lookout.close)
        return lookout.look

    def _see(self, members: Sequence[int] | None = None) -> None:
        see(self.identity, self._rendezvous, self.groups.connections, members)

    def lost(self, patience: float = 0.0, among: Sequence[int] | None = None) -> int | None:
        """The rank that is known to have ended first (or that one of ``among`` had lost); waits up to
        ``patience`` seconds for one."""
        if self._rendezvous is None:
            return self._news.lost() if self._news is not None else None
        deadline = time.monotonic() + patience
        while not (found := self._gone(self._rendezvous, among)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._rendezvous.lost(found[0]).peer if found else None

    @staticmethod
    def _gone(rendezvous: Rendezvous, among: Sequence[int] | None) -> list[int]:
        return [rank for rank in rendezvous.gone() if among is None or rank in among]

    def close(self) -> None:
        """Leaves the group, which the others notice. Safe to call twice."""
        self.groups.leave()
        self._finish()

    def abort(self, first: object = None, lost: int | None = None) -> None:
        """Leaves the group at once, whatever the device still does for it (see `TorchGroups.abort`); others
        that wait for this rank learn that it, and before it ``lost``, is no longer there."""
        if self._news is not None and self.groups.open:
            self._news.tell(self.identity.rank if lost is None else lost)
        self.groups.abort(first)

    def disband(self) -> None:
        """Closes the connections, which ends what others wait for; this process still counts as alive."""
        self.groups.cut()
        self.groups.leave()

    def _finish(self) -> None:
        if self._news is not None:
            self._news.close()
        self._store = self._news = None
        descriptor, self._file = self._file, -1
        close_all([descriptor] if descriptor >= 0 else [])
        if self._rendezvous is not None:
            self._rendezvous.close()

    def _local_store(self, rendezvous: Rendezvous, timeout: float) -> Store:
        """A store in a memory file of rank 0, which the others get from it."""
        file = os.memfd_create("shardrun-store", os.MFD_CLOEXEC) if rendezvous.rank == 0 else -1
        try:
            items = rendezvous.exchange({}, [file] if file >= 0 else [], timeout)
        except BaseException:
            close_all([file] if file >= 0 else [])
            raise
        self._file = items[0].descriptors[0]
        for item in items[1:]:
            close_all(item.descriptors)
        # Not the size: with it the last one to leave would remove the file's name, and it has none.
        store: Store = self.dist.FileStore(f"/proc/self/fd/{self._file}", -1)
        store.set_timeout(timedelta(seconds=timeout))
        return store

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        """What is made inside leaves errors to us and, where all ranks are on one host, listens on the
        loopback interface alone, unless the user has chosen another one."""
        wanted = dict(_NCCL) if self._backend == "nccl" else {}
        interface = INTERFACES[self._backend]
        there = _LOOPBACK in (found for _, found in socket.if_nameindex())
        if self._rendezvous is not None and interface not in os.environ and there:
            wanted[interface] = _LOOPBACK
        with set_for_a_while(wanted):
            yield


def _check_world(dist: ModuleType, identity: Identity) -> None:
    """Raises `CollectiveError` where the program has made torch's first group as another rank."""
    if dist.is_initialized():
        found = dist.get_rank(), dist.get_world_size()
        if found != (identity.rank, identity.world_size):
            raise CollectiveError(
                f"This process is rank {identity.rank} of {identity.world_size}, but torch.distributed was "
                f"initialised in it as rank {found[0]} of {found[1]}: initialise it as the same rank, or not "
                "at all."
            )
