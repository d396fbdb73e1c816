"""Collectives of torch.distributed: Gloo on numpy arrays, NCCL and HCCL on tensors of the rank's device.

Ranks of one host find each other through `ranks.rendezvous`, exchange addresses through a file without a
name, and connect over the loopback interface: torch's own store would listen on all interfaces, to whoever
comes. Ranks of several hosts meet through MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, NoReturn

from ranks import forks
from ranks.collectives.arrays import Array
from ranks.collectives.base import Communicator, Groups
from ranks.collectives.host import CLOSED, HostCommunicator, What
from ranks.collectives.single import SingleCommunicator
from ranks.errors import CollectiveError, CollectiveTimeoutError, DeviceError, PeerLostError
from ranks.identity import Identity
from ranks.meeting import meet
from ranks.rendezvous import Rendezvous, close_all
from sharding.importers import torch_import

_LOOPBACK = "lo"
_INTERFACES = {
    "gloo": "GLOO_SOCKET_IFNAME",
    "nccl": "NCCL_SOCKET_IFNAME",
    "hccl": "HCCL_SOCKET_IFNAME",
}  # each library's variable for the network interface that it listens on
_AGAIN = 0.02  # seconds between two looks whether others have come
_SHOWN = 8


class Membership:
    """This process's torch.distributed group, and what is needed to leave it."""

    def __init__(self, identity: Identity, timeout: float, backend: str, device: Any = None) -> None:
        dist: Any = torch_import.load("torch.distributed")
        self.dist = dist
        self.identity = identity
        # The older name is deprecated in newer versions.
        self.gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
        self._rendezvous: Rendezvous | None = None
        self._file = -1
        self._open = True
        address, port = os.environ.get("MASTER_ADDR", "").strip(), os.environ.get("MASTER_PORT", "").strip()
        try:
            if identity.shares_host:
                self._rendezvous = meet(identity, timeout)
                self._store = self._local_store(self._rendezvous, timeout)
            else:
                self._store = _remote_store(identity, address, port, timeout)
            # Beyond our own time-out, so that ours speaks first where torch would end the process.
            patience = timedelta(seconds=timeout if backend == "gloo" else timeout + 60)
            with self._on_loopback(backend):
                if dist.is_initialized():
                    self.group = dist.new_group(backend=backend, timeout=patience)
                    self._whole = False
                else:
                    dist.init_process_group(
                        backend,
                        store=dist.PrefixStore("shardrun", self._store),
                        rank=identity.rank,
                        world_size=identity.world_size,
                        timeout=patience,
                        device_id=device,
                    )
                    self.group = dist.group.WORLD
                    self._whole = True
        except (RuntimeError, ValueError, OSError) as error:
            self.close()
            raise translate(error, f"joining the {backend} group", identity.rank, timeout, None) from error
        except BaseException:
            self.close()
            raise
        forks.in_child(self, Membership._forked)
        forks.never_freed(self, self.group, self._store)

    def _forked(self) -> None:
        self._open = False  # the connections are the parent's

    def split(self, groups: Groups, mine: tuple[int, ...], timeout: float, backend: str) -> Any:
        """torch's group of ``mine``, one of ``groups`` of the world's ranks. Every rank makes all of them in
        the same order, as torch wants it."""
        made = {}
        patience = timedelta(seconds=timeout if backend == "gloo" else timeout + 60)
        with self._on_loopback(backend):
            for group in groups:
                made[group] = self.dist.new_group(list(group), backend=backend, timeout=patience)
        forks.never_freed(made[mine])
        return made[mine]

    def lost(self, patience: float = 0.0, among: Sequence[int] | None = None) -> int | None:
        """The rank that is known to have ended first (or that one of ``among`` had lost); waits up to
        ``patience`` seconds for one."""
        if self._rendezvous is None:
            return None
        deadline = time.monotonic() + patience
        while not (found := self._gone(self._rendezvous, among)) and time.monotonic() < deadline:
            time.sleep(0.005)
        return self._rendezvous.lost(found[0]).peer if found else None

    @staticmethod
    def _gone(rendezvous: Rendezvous, among: Sequence[int] | None) -> list[int]:
        return [rank for rank in rendezvous.gone() if among is None or rank in among]

    def close(self) -> None:
        """Leaves the group, which the others notice. Safe to call twice."""
        self.disband()
        self._store = None
        descriptor, self._file = self._file, -1
        close_all([descriptor] if descriptor >= 0 else [])
        if self._rendezvous is not None:
            self._rendezvous.close()

    def disband(self) -> None:
        """Closes the connections, which ends what others wait for; this process still counts as alive."""
        if self._open:
            self._open = False
            with contextlib.suppress(RuntimeError, ValueError, AttributeError, AssertionError):
                self.dist.destroy_process_group(None if self._whole else self.group)

    def _local_store(self, rendezvous: Rendezvous, timeout: float) -> Any:
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
        store = self.dist.FileStore(f"/proc/self/fd/{self._file}", -1)
        store.set_timeout(timedelta(seconds=timeout))
        return store

    @contextlib.contextmanager
    def _on_loopback(self, backend: str) -> Iterator[None]:
        """Where all ranks are on one host, what is made inside listens on the loopback interface alone,
        unless the user has chosen another one."""
        name = _INTERFACES[backend]
        there = _LOOPBACK in (found for _, found in socket.if_nameindex())
        if self._rendezvous is None or name in os.environ or not there:
            yield
            return
        os.environ[name] = _LOOPBACK  # the libraries have no other way in
        try:
            yield
        finally:
            os.environ.pop(name, None)


class GlooCommunicator(HostCommunicator):
    """Gloo over TCP. Buffers are numpy arrays."""

    name = "gloo"
    summed = frozenset(["float32", "float64", "int8", "uint8", "int32", "int64"])

    def __init__(
        self,
        membership: Membership,
        timeout: float,
        whole: GlooCommunicator | None = None,
        members: tuple[int, ...] = (),
        group: Any = None,
    ) -> None:
        torch = torch_import.load()
        rank, size = membership.identity.rank, membership.identity.world_size
        if whole is None:
            super().__init__(rank, size, timeout)
        else:
            super().__init__(members.index(rank), len(members), timeout, whole, members)
        self._membership = membership
        self._dist = membership.dist
        self._group = membership.group if group is None else group
        self._tensor = torch.from_numpy

    def barrier(self) -> None:
        self._run("barrier", self._begin("barrier"))

    def close(self) -> None:
        self._close_parts()
        self._broken = self._broken or CLOSED
        if self._whole is self:
            self._membership.close()

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        what = self._begin("split")
        if self._whole is not self:
            raise CollectiveError("split: this group is a part of another one already; split the whole.")
        try:
            group = self._membership.split(groups, mine, self.timeout, "gloo")
        except RuntimeError as error:
            self._lose(error, what, None)
        if len(mine) == 1:
            return SingleCommunicator(self.timeout, self.members[mine[0]])
        return GlooCommunicator(self._membership, self.timeout, self, mine, group)

    def _sum(self, flat: Array, what: What) -> None:
        self._run("all_reduce", what, self._tensor(flat))

    def _gather(self, raw: Array, out: Array, what: What) -> None:
        self._run(self._membership.gather, what, self._tensor(out), self._readable(raw))

    def _exchange(self, raw: Array, out: Array, what: What) -> None:
        self._run("all_to_all_single", what, self._tensor(out), self._readable(raw))

    def _spread(self, raw: Array, root: int, what: What) -> None:
        self._run("broadcast", what, self._readable(raw), src=self.members[root])

    def _send(self, raw: Array, peer: int, what: What) -> None:
        self._run("send", what, self._readable(raw), peer=peer, dst=self.members[peer])

    def _receive(self, raw: Array, peer: int, what: What) -> None:
        self._run("recv", what, self._tensor(raw), peer=peer, src=self.members[peer])

    def _readable(self, raw: Array) -> Any:
        """A tensor that is only read; torch warns about arrays that are read-only."""
        return self._tensor(raw if raw.flags.writeable else raw.copy())

    def _run(self, name: str, what: What, *tensors: Any, peer: int | None = None, **options: Any) -> None:
        try:
            getattr(self._dist, name)(*tensors, group=self._group, **options)
        except RuntimeError as error:
            self._lose(error, what, peer)

    def _lose(self, error: Exception, what: What, peer: int | None) -> NoReturn:
        # The kernel closes a dead rank's connections one by one, so that this may come a little later.
        late = "imed out" in str(error)
        lost = self._membership.lost(0.0 if late else 0.2, self.members if late else None)
        if lost is None and (peer is not None or self.size == 2):
            lost = self.members[1 - self.rank if peer is None else peer]
        # Tells ranks that wait for us and not for the one that was lost.
        self._membership.disband()
        self._fail(translate(error, what(), self.members[self.rank], self.timeout, lost))


def connect(identity: Identity, timeout: float, backend: str) -> Communicator:
    """Joins a torch.distributed group. Raises `DeviceError` where torch, backend or device is missing."""
    try:
        dist: Any = torch_import.load("torch.distributed")
    except ImportError as error:
        raise DeviceError(
            f"The {backend} collectives need torch, which is not installed ({error}): pip install "
            f"torch, in the build that fits this machine."
        ) from error
    if not dist.is_available():
        raise DeviceError(
            f"The {backend} collectives need a torch with torch.distributed, which this one lacks."
        )
    if backend == "gloo":
        if not dist.is_gloo_available():
            raise DeviceError("This torch was built without Gloo: install another build, or use mpi.")
        return GlooCommunicator(Membership(identity, timeout, backend), timeout)
    from ranks.collectives.torch_device import connect_device

    return connect_device(identity, timeout, backend)


def translate(error: Exception, what: str, rank: int, timeout: float, peer: int | None) -> CollectiveError:
    """torch's error as one of ours; torch has one class for all, so its text decides."""
    text = str(error)
    who = f"Rank {peer}" if peer is not None else "Another rank"
    reason = text.strip().splitlines()[0][:200] if text.strip() else type(error).__name__
    if "imed out" in text or "timeout" in text.lower():
        return CollectiveTimeoutError(
            f"{who} did not come to {what} within {timeout:g} s (rank {rank} waited): look for what holds "
            f"it up, or "
            "raise SHARDRUN_TIMEOUT."
        )
    lost = ("onnection closed", "onnection reset", "roken pipe", "onnection refused", "remote process exited")
    if any(words in text for words in lost):
        return PeerLostError(f"{who} ended while rank {rank} waited in {what} ({reason}).", peer)
    return CollectiveError(f"{what} failed on rank {rank}: {reason}")


def _remote_store(identity: Identity, address: str, port: str, timeout: float) -> Any:
    dist: Any = torch_import.load("torch.distributed")
    if not address or not port:
        missing = " and ".join(
            name for name, value in (("MASTER_ADDR", address), ("MASTER_PORT", port)) if not value
        )
        raise CollectiveError(
            f"The {identity.world_size} ranks are not known to be on one host and {missing} is not set: set "
            "MASTER_ADDR to rank 0's host and MASTER_PORT to a free port there, the same on every rank."
        )
    if not (port.isascii() and port.isdecimal() and 0 < int(port) < 65536):
        raise CollectiveError(f"MASTER_PORT must be a port number from 1 to 65535, but is {port[:40]!r}.")
    # Under torchrun its agent listens there already.
    agent = os.environ.get("TORCHELASTIC_USE_AGENT_STORE", "") == "True"
    serves = identity.rank == 0 and not agent
    deadline = time.monotonic() + timeout
    if not serves:
        _until_listening(address, int(port), identity.rank, timeout, deadline)
    # An elastic launcher's store outlives a restart of the ranks.
    meeting = f"shardrun-meeting-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    size, patience = identity.world_size, timedelta(seconds=timeout)
    try:
        # torch's own waiting takes twice the time-out, and prints its C++ frames.
        store = dist.TCPStore(address, int(port), size, serves, patience, wait_for_workers=False)
        _until_all_came(dist.PrefixStore(meeting, store), identity, timeout, deadline)
        return store
    except (RuntimeError, OSError) as error:
        first = str(error).strip().splitlines()[0][:200]
        if "in use" in str(error):
            raise CollectiveError(
                f"Port {port} (MASTER_PORT) is in use on this host: choose another one."
            ) from error
        raise CollectiveTimeoutError(
            f"Rank {identity.rank} did not reach all ranks through {address}:{port} (MASTER_ADDR, "
            f"MASTER_PORT) within "
            f"{timeout:g} s: {first}"
        ) from error


def _until_listening(address: str, port: int, rank: int, timeout: float, deadline: float) -> None:
    """Waits until rank 0 can be connected to."""
    while True:
        left = deadline - time.monotonic()
        try:
            socket.create_connection((address, port), timeout=max(0.1, left)).close()
            return
        except OSError as error:
            if time.monotonic() + _AGAIN > deadline:
                raise CollectiveTimeoutError(
                    f"Rank {rank} did not reach rank 0 at {address}:{port} (MASTER_ADDR, MASTER_PORT) within "
                    f"{timeout:g} s ({error.strerror or error}): see that rank 0 has started, that it is on "
                    "that host, and that no firewall is between."
                ) from error
        time.sleep(_AGAIN)


def _until_all_came(store: Any, identity: Identity, timeout: float, deadline: float) -> None:
    """Waits until every rank is connected to the store."""
    store.set(str(identity.rank), "here")
    missing = list(range(identity.world_size))
    while missing := [rank for rank in missing if not store.check([str(rank)])]:
        if time.monotonic() > deadline:
            who = f"Rank{'s' * (len(missing) > 1)} {', '.join(map(str, missing[:_SHOWN]))}"
            raise CollectiveTimeoutError(
                f"{who} of {identity.world_size} did not join within {timeout:g} s (rank {identity.rank} "
                "waited): look at their hosts, or raise SHARDRUN_TIMEOUT."
            )
        time.sleep(_AGAIN)
