"""Collectives of torch.distributed: Gloo on numpy arrays, NCCL and HCCL on tensors of the rank's device.

Ranks of one host find each other through `ranks.collectives.rendezvous`, exchange addresses through a file
without a name, and connect over the loopback interface: torch's own store would listen on all interfaces, to
whoever comes. Ranks of several hosts meet through MASTER_ADDR and MASTER_PORT.
"""

from __future__ import annotations

import contextlib
from datetime import timedelta
from types import ModuleType
from typing import Any, NoReturn

from ranks.collectives.base import Communicator, Groups
from ranks.collectives.host import HostCommunicator, What
from ranks.collectives.single import SingleCommunicator
from ranks.collectives.torch.error import translate
from ranks.collectives.torch.group import Membership
from ranks.collectives.torch.protocols import Work
from ranks.errors import DeviceError, PeerLostError
from ranks.identity.place import Identity
from sharding.common.arrays import Array
from sharding.importers import torch_import

_LOOK = timedelta(seconds=2)
"""Between two looks for ranks that have ended. Gloo nearly always tells of one at once."""
_ONE_WAY = {"send", "recv"}
"""Of these Gloo ends the connection where they are not waited for to their end."""


class _UntoldError(RuntimeError):
    """A rank has ended, and Gloo waits for it."""


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
        group: object = None,
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
        if self._shut():
            self._membership.close()

    def _all_here(self, seconds: float) -> bool:
        # Not by a message of Gloo: one that nobody takes would hold up whoever leaves.
        return self._membership.last_word.said_by_all(self._membership.identity, seconds)

    def _withdraw(self, why: str) -> None:
        self._membership.last_word.say(self.members[self.rank], why)
        self._membership.disband()

    def last_word(self) -> tuple[int, str] | None:
        return self._membership.last_word.heard()

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        what = self._begin("split")
        self._check_whole(self._whole)
        try:
            group = self._membership.split(groups, mine)
        except RuntimeError as error:
            self._lose(error, what, None)
        except PeerLostError as error:
            self._membership.disband()
            self._fail(error)
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
        operation = getattr(self._dist, name)
        try:
            if name in _ONE_WAY:
                operation(*tensors, group=self._group, **options)
            elif (work := operation(*tensors, group=self._group, async_op=True, **options)) is not None:
                self._await(work)
        except RuntimeError as error:
            self._lose(error, what, peer)

    def _await(self, work: Work) -> None:
        """Waits for what Gloo does. Once in hundreds of times, on a busy host, it waits on for a rank whose
        connection has ended in the moment in which it began."""
        ended = False
        while True:
            with contextlib.suppress(RuntimeError):  # it goes on, or has failed
                work.wait(_LOOK)
                return
            if work.is_completed():
                work.wait()
                return
            if ended:
                raise _UntoldError("Connection closed, which Gloo has not told")
            # One that has had its part already may have ended well.
            ended = self._membership.lost(among=self.members) is not None

    def _lose(self, error: Exception, what: What, peer: int | None) -> NoReturn:
        # The kernel closes a dead rank's connections one by one, so that this may come a little later.
        late = "imed out" in str(error) or isinstance(error, _UntoldError)
        lost = self._membership.lost(0.0 if late else 0.2, self.members if late else None)
        if lost is None and (peer is not None or self.size == 2):
            lost = self.members[1 - self.rank if peer is None else peer]
        # Tells ranks that wait for us and not for the one that was lost.
        self._membership.disband()
        if (word := self.last_word()) is not None and word[0] != self.members[self.rank]:
            self._fail(PeerLostError(f"Rank {word[0]} could not go on: {word[1]}", word[0]))
        self._fail(translate(error, what(), self.members[self.rank], self.timeout, lost))


def connect(identity: Identity, timeout: float, backend: str, device: str = "cpu") -> Communicator:
    """Joins a torch.distributed group. Raises `DeviceError` where torch, backend or device is missing."""
    try:
        dist: ModuleType = torch_import.load("torch.distributed")
    except ImportError as error:
        raise DeviceError(
            f"The {backend} collectives need torch, which is not installed ({error}): pip install "
            f"torch, in the build that fits this machine."
        ) from error
    if not dist.is_available():
        raise DeviceError(
            f"The {backend} collectives need a torch with torch.distributed, which this one lacks."
        )
    if device == "cpu":
        if not dist.is_gloo_available():
            raise DeviceError("This torch was built without Gloo: install another build, or use mpi.")
        return GlooCommunicator(Membership(identity, timeout, backend), timeout)
    from ranks.collectives.torch.device import connect_device

    return connect_device(identity, timeout, backend, device)
