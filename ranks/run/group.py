"""This process's group: made once, from the environment, when something first needs it."""

from __future__ import annotations

import atexit
import os

from ranks.collectives import connect, target_of
from ranks.collectives.absence import ABSENCE
from ranks.collectives.base import Communicator
from ranks.collectives.siblings import watched
from ranks.common import settings
from ranks.devices import devices
from ranks.errors import CollectiveError
from ranks.identity.identity import identify
from ranks.identity.place import Identity


class Groups:
    """The groups that this process is in. One per process, which is one rank, whatever it loads: its models
    exchange by the same groups."""

    def __init__(self) -> None:
        self.joined: dict[str, tuple[Identity, str, Communicator]] = {}
        """By the device of their buffers: who joined, by which collectives."""

    def join(
        self,
        identity: Identity | None = None,
        collectives: str | None = None,
        device: str = "cpu",
        timeout: float | None = None,
    ) -> Communicator:
        """The communicator of this process's group for buffers on ``device``, connected on the first call.

        ``identity`` defaults to `identify`, ``collectives`` to ``SHARDRUN_COLLECTIVES`` or "auto", and
        ``timeout`` (seconds to wait for another rank) to ``SHARDRUN_TIMEOUT``. All ranks must call it,
        devices in the same order. Raises `IdentityError` and what `ranks.collectives.connect`
        raises; `CollectiveError` where an earlier call joined as another rank or with other collectives.
        """
        name = collectives or settings.collectives()
        known = self.joined.get(device)
        if known is not None:
            was, used, communicator = known
            if identity is not None and (identity.rank, identity.world_size) != (was.rank, was.world_size):
                raise CollectiveError(
                    f"This process is rank {was.rank} of {was.world_size} already and cannot also be rank "
                    f"{identity.rank} "
                    f"of {identity.world_size}: leave the group first."
                )
            if collectives not in {None, "auto", used}:
                raise CollectiveError(
                    f"This process's group uses the {used} collectives already, not {collectives}."
                )
            return communicator
        who = identify(identity)
        if who.world_size > 1:
            from ranks.talk.guard import GUARD
            from ranks.talk.orphan import end_with_launcher

            GUARD.stand(who.rank, who.host, end_with_launcher())
            ABSENCE.stand(who, name)
            if device == "cuda":
                self._demand_own_gpu(who, timeout)
        try:
            with watched(who):
                communicator = connect(who, name, timeout, device)
        except CollectiveError as error:
            ABSENCE.failed(who, error)
            raise
        ABSENCE.over()
        self.joined[device] = who, communicator.name, communicator
        return communicator

    def _demand_own_gpu(self, identity: Identity, timeout: float | None) -> None:
        """Raises `DeviceError` where another rank of one host has this one's GPU. (Ranks of several hosts
        find it where they meet: `ranks.collectives.torch.device`.)"""
        count = devices.visible()
        if count and identity.shares_host:  # joining says that there is none
            from ranks.run import gpus

            host = self.join(identity, "auto", timeout=timeout)
            gpus.demand_own(host, devices.number_of(identity, count))

    def leave(self) -> None:
        """Closes this process's groups; the next `join` connects anew. Safe to call without a group."""
        while self.joined:
            self.joined.popitem()[1][2].close()


GROUPS = Groups()
join, leave = GROUPS.join, GROUPS.leave


def join_for(provider: str) -> Communicator:
    """`join` for buffers where ONNX Runtime's ``provider`` keeps its values, or on the host where the
    collectives that were asked for know no others."""
    device = devices.DEVICES.get(provider)
    if device is None or target_of(settings.collectives()) == "cpu":
        return join()
    return join(device=device.buffers)


def local_size(communicator: Communicator | None) -> int:
    """Ranks on this host; where the launcher does not say how many, all of them."""
    identity = identify()
    if identity.local_size is not None and identity.world_size > 1:
        return identity.local_size
    return communicator.size if communicator is not None else identity.world_size


atexit.register(leave)
os.register_at_fork(after_in_child=GROUPS.joined.clear)
