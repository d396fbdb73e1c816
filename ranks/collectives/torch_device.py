"""NCCL and HCCL: collectives on torch tensors of the rank's device, through torch.distributed."""

from __future__ import annotations

import os
import time
from typing import Any, ClassVar

import numpy as np

from ranks import devices
from ranks.collectives.base import Communicator, Groups
from ranks.collectives.host import CLOSED
from ranks.collectives.single import SingleCommunicator
from ranks.collectives.torch_dist import Membership, translate
from ranks.errors import CollectiveError, CollectiveTimeoutError, DeviceError, PeerLostError
from ranks.identity import Identity
from sharding.importers import torch_import

_TESTS = 2000  # of an operation before the processor is offered to others
_AWAKE = 1e-3  # seconds before the first sleep
_NAP_SHARE, _SHORTEST_NAP, _LONGEST_NAP = 8, 5e-5, 5e-3
_WATCH = 0.05  # seconds between looks for ranks that have ended


class DeviceCommunicator(Communicator):
    """Ranks that each hold a device. Buffers are contiguous tensors on that device.

    An operation has completed on the device when its call returns, so that its buffer may be used on any
    stream; what filled the buffer must have completed, or be on torch's current stream.
    """

    names: ClassVar[dict[str, str]] = {"nccl": "cuda", "hccl": "npu"}

    def __init__(
        self,
        membership: Membership,
        timeout: float,
        backend: str,
        device: Any,
        *,
        whole: DeviceCommunicator | None = None,
        members: tuple[int, ...] | None = None,
        group: Any = None,
    ) -> None:
        torch = torch_import.load()
        self.name = backend
        self.members = tuple(range(membership.identity.world_size)) if members is None else members
        self.rank = self.members.index(membership.identity.rank)
        self.size = len(self.members)
        self.timeout = timeout
        self._whole = self if whole is None else whole
        self.device = device
        self._torch = torch
        self._membership = membership
        self._dist = membership.dist
        self._group = membership.group if group is None else group
        self._broken = ""

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Any:
        """A tensor on the rank's device."""
        name = np.dtype(dtype).name
        kind = getattr(self._torch, name, None)
        if not isinstance(kind, self._torch.dtype):
            raise CollectiveError(f"torch has no tensors of {name}.")
        return self._torch.empty(shape, dtype=kind, device=self.device)

    def all_reduce(self, buffer: Any) -> None:
        tensor = self._check(buffer, "all_reduce")
        if buffer.dtype == self._torch.bool:
            raise CollectiveError(
                "all_reduce: tensors of bool cannot be summed; convert them to another type."
            )
        self._run("all_reduce", buffer, "all_reduce", tensor)

    def all_gather(self, buffer: Any, out: Any, axis: int = 0) -> None:
        self._check(buffer, "all_gather")
        self._check(out, "all_gather")
        if not -buffer.dim() <= axis < buffer.dim():
            raise CollectiveError(
                f"all_gather: axis {axis} does not exist in a buffer of shape {list(buffer.shape)}."
            )
        axis %= buffer.dim()
        wanted = list(buffer.shape)
        wanted[axis] *= self.size
        if list(out.shape) != wanted or out.dtype != buffer.dtype:
            raise CollectiveError(
                f"all_gather along axis {axis} over {self.size} ranks of "
                f"{buffer.dtype}{list(buffer.shape)} needs an "
                f"output of {buffer.dtype}{wanted}, but it is {out.dtype}{list(out.shape)}."
            )
        outer = int(np.prod(buffer.shape[:axis], dtype=np.int64))
        if outer == 1:
            self._run("all_gather", buffer, self._membership.gather, _raw(out), _raw(buffer))
            return
        parts = self._torch.empty((self.size, *buffer.shape), dtype=buffer.dtype, device=buffer.device)
        self._run("all_gather", buffer, self._membership.gather, _raw(parts), _raw(buffer))
        # (rank, outer..., axis, inner...) -> (outer..., rank, axis, inner...)
        out.view(*buffer.shape[:axis], self.size, *buffer.shape[axis:]).copy_(parts.movedim(0, axis))
        self._settle()

    def all_to_all(self, buffer: Any, out: Any) -> None:
        self._check(buffer, "all_to_all")
        self._check(out, "all_to_all")
        if (
            out.shape != buffer.shape
            or out.dtype != buffer.dtype
            or not buffer.dim()
            or buffer.shape[0] % self.size
        ):
            raise CollectiveError(
                f"all_to_all: buffer {buffer.dtype}{list(buffer.shape)} and output "
                f"{out.dtype}{list(out.shape)} must "
                f"have one type and shape, and axis 0 must divide into {self.size} equal parts."
            )
        self._run("all_to_all", buffer, "all_to_all_single", _raw(out), _raw(buffer))

    def broadcast(self, buffer: Any, root: int = 0) -> None:
        if not 0 <= root < self.size:
            raise CollectiveError(f"broadcast: the root {root} is not a rank of {self.size}.")
        self._check(buffer, "broadcast")
        source = self.members[root]
        self._run(f"broadcast from rank {source}", buffer, "broadcast", _raw(buffer), src=source)

    def send(self, buffer: Any, peer: int) -> None:
        self._check_peer("send", peer)
        self._check(buffer, "send")
        self._run(f"send to rank {self.members[peer]}", buffer, "isend", _raw(buffer), dst=self.members[peer])

    def recv(self, buffer: Any, peer: int) -> None:
        self._check_peer("recv", peer)
        self._check(buffer, "recv")
        source = self.members[peer]
        self._run(f"recv from rank {source}", buffer, "irecv", _raw(buffer), src=source)

    def barrier(self) -> None:
        token = self._torch.zeros(1, dtype=self._torch.int32, device=self.device)
        self._run("barrier", token, "all_reduce", token)

    def close(self) -> None:
        self._close_parts()
        self._broken = self._broken or CLOSED
        if self._whole is self:
            self._membership.close()

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        self._check_usable()
        if self._whole is not self:
            raise CollectiveError("split: this group is a part of another one already; split the whole.")
        try:
            group = self._membership.split(groups, mine, self.timeout, self.name)
        except RuntimeError as error:
            mapped = translate(error, "split", self.rank, self.timeout, self._membership.lost())
            self._break(str(mapped))
            raise mapped from error
        if len(mine) == 1:
            return SingleDevice(self, mine[0])
        return DeviceCommunicator(
            self._membership, self.timeout, self.name, self.device, whole=self, members=mine, group=group
        )

    def _check_usable(self) -> None:
        if broken := self._broken or self._whole._broken:
            raise CollectiveError(f"The group cannot be used any more: {broken}")

    def _break(self, why: str) -> None:
        self._broken = why
        self._whole._broken = self._whole._broken or why

    def _check(self, buffer: Any, what: str) -> Any:
        if not isinstance(buffer, self._torch.Tensor) or buffer.device != self.device:
            where = getattr(buffer, "device", type(buffer).__name__)
            raise CollectiveError(f"{what}: the buffer must be a tensor on {self.device}, but is on {where}.")
        if not buffer.is_contiguous():
            raise CollectiveError(f"{what}: the tensor of shape {list(buffer.shape)} is not contiguous.")
        return buffer

    def _check_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise CollectiveError(
                f"{what}: rank {self.rank} of {self.size} cannot exchange with rank {peer!r}."
            )

    def _run(self, operation: str, buffer: Any, name: str, *tensors: Any, **options: Any) -> None:
        self._check_usable()
        if not tensors[0].numel():
            return
        what = f"{operation} of {str(buffer.dtype).removeprefix('torch.')}{list(buffer.shape)}"
        if name not in {"isend", "irecv"}:
            options["async_op"] = True
        try:
            self._wait(getattr(self._dist, name)(*tensors, group=self._group, **options), what)
        except CollectiveError as error:
            self._break(str(error))
            raise
        except RuntimeError as error:
            rank = self.members[self.rank]
            mapped = translate(error, what, rank, self.timeout, self._membership.lost())
            self._break(str(mapped))
            raise mapped from error

    def _wait(self, work: Any, what: str) -> None:
        """Waits for the device without blocking in the library, where a lost peer would not be noticed."""
        for _ in range(_TESTS):
            if work.is_completed():
                work.wait()
                return
        start = looked = time.monotonic()
        while not work.is_completed():
            now = time.monotonic()
            if now - looked > _WATCH:
                looked = now
                peer = self._membership.lost(among=self.members)
                if peer is not None:
                    time.sleep(_WATCH)  # it may have ended after its part of this operation was done
                    if not work.is_completed():
                        raise PeerLostError(
                            f"Rank {peer} ended while rank {self.members[self.rank]} waited in {what}.", peer
                        )
            if now - start > self.timeout:
                two = self.size == 2
                who = f"Rank {self.members[1 - self.rank]}" if two else "One or more of the other ranks"
                rank = self.members[self.rank]
                raise CollectiveTimeoutError(
                    f"{who} did not come to {what} within {self.timeout:g} s (rank {rank} waited): "
                    "look for what holds it up, or raise SHARDRUN_TIMEOUT."
                )
            if now - start < _AWAKE:
                os.sched_yield()
            else:
                time.sleep(min(max((now - start) / _NAP_SHARE, _SHORTEST_NAP), _LONGEST_NAP))
        work.wait()

    def _settle(self) -> None:
        getattr(self._torch, self.device.type).synchronize(self.device)


class SingleDevice(SingleCommunicator):
    """A part of one rank, whose buffers lie on its device."""

    def __init__(self, whole: DeviceCommunicator, member: int) -> None:
        super().__init__(whole.timeout, member)
        self.name = whole.name
        self.device = whole.device
        self.allocate = whole.allocate  # type: ignore[method-assign]  # the whole's tensors


def connect_device(identity: Identity, timeout: float, backend: str) -> DeviceCommunicator:
    """Joins an NCCL or HCCL group with the device of this rank: its device id, else its local rank."""
    torch, dist = torch_import.load(), torch_import.load("torch.distributed")

    kind = DeviceCommunicator.names[backend]
    if backend == "hccl":
        try:
            import torch_npu  # type: ignore[import-not-found]  # noqa: F401 - adds torch.npu and the backend
        except ImportError as error:
            raise DeviceError(
                "The hccl collectives need the Ascend driver, CANN and torch_npu, which cannot be loaded: "
                f"{error}."
            ) from error
    elif not dist.is_nccl_available():
        raise DeviceError(
            "This torch was built without NCCL: install its CUDA build, or use SHARDRUN_COLLECTIVES=gloo."
        )
    runtime = getattr(torch, kind)
    count = runtime.device_count() if runtime.is_available() else 0
    if not count:
        raise DeviceError(
            f"The {backend} collectives need a {kind} device, and this machine has none that torch can use."
        )
    index = devices.number_of(identity, count)
    if index >= count:
        raise DeviceError(
            f"Rank {identity.rank} needs {kind} device {index}, but this machine has {count}: start at "
            f"most {count} "
            "ranks on it."
        )
    device = torch.device(kind, index)
    runtime.set_device(device)
    membership = Membership(identity, timeout, backend, device if backend == "nccl" else None)
    return DeviceCommunicator(membership, timeout, backend, device)


def _raw(tensor: Any) -> Any:
    """The tensor's bytes: moved the same way whatever their type."""
    torch = torch_import.load()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.reshape(-1)
