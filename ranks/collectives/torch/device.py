"""NCCL and HCCL: collectives on torch tensors of the rank's device, through torch.distributed."""

from __future__ import annotations

import os
import time
from functools import partial
from typing import Any, NoReturn

import numpy as np

from ranks.collectives.base import Buffer, Communicator, Groups
from ranks.collectives.single import SingleCommunicator
from ranks.collectives.torch.error import is_loss, translate
from ranks.collectives.torch.group import Membership
from ranks.collectives.torch.protocols import Device, Store, Tensor, Work
from ranks.collectives.torch.store import all_have_read, said_by_all
from ranks.collectives.torch.types import moved, raw, summed, torch_type
from ranks.collectives.whole import WholeOrPart
from ranks.devices import devices, owners
from ranks.errors import CollectiveError, CollectiveTimeoutError, DeviceError, PeerLostError
from ranks.identity.place import Identity
from sharding.common.arrays import DType
from sharding.importers import torch_import

_TESTS = 2000  # of an operation before the processor is offered to others
_AWAKE = 1e-3  # seconds before the first sleep
_NAP_SHARE, _SHORTEST_NAP, _LONGEST_NAP = 8, 5e-5, 5e-3
_WATCH = 0.05  # seconds between looks for ranks that have ended
_BETWEEN_TWO = frozenset({"isend", "irecv"})


class DeviceCommunicator(WholeOrPart):
    """Ranks that each hold a device. Buffers are contiguous tensors on that device.

    What filled a buffer must have completed, or be on torch's current stream; what an operation leaves in one
    is there for whatever follows on that stream. When a call returns, its communication has completed on the
    device. Where it fails, all that the device did for this group has been ended before the error is raised:
    buffers and sessions can then be freed, which would otherwise wait for ever.
    """

    on_device = True

    def __init__(
        self,
        membership: Membership,
        timeout: float,
        backend: str,
        device: Device,
        *,
        whole: DeviceCommunicator | None = None,
        members: tuple[int, ...] | None = None,
        group: object = None,
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
        runtime = getattr(torch, device.type)
        self._begun: Any = runtime.Event() if device.type != "cpu" else None

    def allocate(self, shape: tuple[int, ...], dtype: DType) -> Buffer:
        """A tensor on the rank's device."""
        kind = torch_type(np.dtype(dtype).name)
        if kind is None:
            raise CollectiveError(f"torch has no tensors of {np.dtype(dtype).name}.")
        return self._torch.empty(shape, dtype=kind, device=self.device)

    def all_reduce(self, buffer: Buffer) -> None:
        tensor, back = summed(self._check(buffer, "all_reduce"))
        self._run("all_reduce", buffer, "all_reduce", tensor)
        back()

    def all_gather(self, buffer: Buffer, out: Buffer, axis: int = 0) -> None:
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
                f"all_gather along axis {axis} over {self.size} ranks of {buffer.dtype}{list(buffer.shape)} "
                f"needs an output of {buffer.dtype}{wanted}, but it is {out.dtype}{list(out.shape)}."
            )
        outer = int(np.prod(buffer.shape[:axis], dtype=np.int64))
        if outer == 1:
            self._run("all_gather", buffer, self._membership.gather, raw(out), raw(buffer))
            return
        parts = self._torch.empty((self.size, *buffer.shape), dtype=buffer.dtype, device=buffer.device)
        self._run("all_gather", buffer, self._membership.gather, raw(parts), raw(buffer))
        # (rank, outer..., axis, inner...) -> (outer..., rank, axis, inner...)
        whole = moved(out).view(*buffer.shape[:axis], self.size, *buffer.shape[axis:])
        whole.copy_(moved(parts).movedim(0, axis))

    def all_to_all(self, buffer: Buffer, out: Buffer) -> None:
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
        self._run("all_to_all", buffer, "all_to_all_single", raw(out), raw(buffer))

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        if not 0 <= root < self.size:
            raise CollectiveError(f"broadcast: the root {root} is not a rank of {self.size}.")
        self._check(buffer, "broadcast")
        source = self.members[root]
        self._run(f"broadcast from rank {source}", buffer, "broadcast", raw(buffer), src=source)

    def send(self, buffer: Buffer, peer: int) -> None:
        self._check_peer("send", peer)
        self._check(buffer, "send")
        self._run(f"send to rank {self.members[peer]}", buffer, "isend", raw(buffer), dst=self.members[peer])

    def recv(self, buffer: Buffer, peer: int) -> None:
        self._check_peer("recv", peer)
        self._check(buffer, "recv")
        source = self.members[peer]
        self._run(f"recv from rank {source}", buffer, "irecv", raw(buffer), src=source)

    def barrier(self) -> None:
        token = self._torch.zeros(1, dtype=self._torch.int32, device=self.device)
        self._run("barrier", token, "all_reduce", token)

    def close(self) -> None:
        if self._shut():
            self._membership.close()

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        self._check_usable()
        self._check_whole(self._whole)
        try:
            group = self._membership.split(groups, mine)
        except BaseException as error:
            self._fail(error, "split", None)
        if len(mine) == 1:
            return SingleDevice(self, mine[0])
        return DeviceCommunicator(
            self._membership, self.timeout, self.name, self.device, whole=self, members=mine, group=group
        )

    def _check(self, buffer: Buffer, what: str) -> Tensor:
        if not isinstance(buffer, self._torch.Tensor) or buffer.device != self.device:
            where = getattr(buffer, "device", type(buffer).__name__)
            raise CollectiveError(f"{what}: the buffer must be a tensor on {self.device}, but is on {where}.")
        if not buffer.is_contiguous():
            raise CollectiveError(f"{what}: the tensor of shape {list(buffer.shape)} is not contiguous.")
        tensor: Tensor = buffer
        return tensor

    def _check_peer(self, what: str, peer: int) -> None:
        if not 0 <= peer < self.size or peer == self.rank:
            raise CollectiveError(
                f"{what}: rank {self.rank} of {self.size} cannot exchange with rank {peer!r}."
            )

    def _run(self, operation: str, buffer: Buffer, name: str, *tensors: Tensor, **options: Any) -> None:
        self._check_usable()
        if not tensors[0].numel():
            return
        what = f"{operation} of {str(buffer.dtype).removeprefix('torch.')}{list(buffer.shape)}"
        peer = options.get("dst", options.get("src")) if name in _BETWEEN_TWO else None
        if name not in _BETWEEN_TWO:
            options["async_op"] = True
        try:
            if self._begun is not None:
                self._begun.record()
            work = getattr(self._dist, name)(*tensors, group=self._group, **options)
            if self._begun is not None:
                # What comes before on the stream is this rank's own: no peer is late as long as that lasts,
                # and the library waits for it more closely than by naps.
                began = time.perf_counter()
                self._begun.synchronize()
                self.computing_seconds += time.perf_counter() - began
            self._wait(work, what)
        except BaseException as error:
            self._fail(error, what, peer)

    def _fail(self, error: BaseException, what: str, peer: int | None) -> NoReturn:
        """Raises what an operation ended with, once the device is free of it."""
        if isinstance(error, CollectiveError):
            mapped: BaseException = error
        elif isinstance(error, Exception):
            # The kernel closes a dead rank's connections one by one, so that word of it may come later.
            lost = self._membership.lost(0.2 if is_loss(error) else 0.0)
            if lost is None and is_loss(error):
                lost = self.members[1 - self.rank] if self.size == 2 else peer
            mapped = translate(error, what, self.members[self.rank], self.timeout, lost)
        else:  # the program was interrupted, so this rank is no longer in step with the others
            mapped = error
            self._break(f"{what} was interrupted.")
        if isinstance(mapped, CollectiveError):
            self._break(str(mapped))
        self._membership.abort(self._group, mapped.peer if isinstance(mapped, PeerLostError) else None)
        raise mapped from (None if mapped is error else error)

    def _wait(self, work: Work, what: str) -> None:
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


class SingleDevice(SingleCommunicator):
    """A part of one rank, whose buffers lie on its device."""

    on_device = True

    def __init__(self, whole: DeviceCommunicator, member: int) -> None:
        super().__init__(whole.timeout, member)
        self.name = whole.name
        self.device = whole.device
        self.allocate = whole.allocate  # type: ignore[method-assign]  # the whole's tensors


def connect_device(identity: Identity, timeout: float, backend: str, kind: str) -> DeviceCommunicator:
    """Joins an NCCL or HCCL group with the device of this rank: its device id, else its local rank."""
    torch, dist = torch_import.load(), torch_import.load("torch.distributed")

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
    index = devices.number_of(identity, count if kind == "cuda" else None)
    if index >= count:
        raise DeviceError(
            f"Rank {identity.rank} needs {kind} device {index}, but this machine has {count}: start at most "
            f"{count} ranks on it."
        )
    device = torch.device(kind, index)
    runtime.set_device(device)
    if backend == "nccl":
        check = partial(_demand_own_gpu, identity, index, timeout)
        membership = Membership(identity, timeout, backend, device, check)
    else:
        membership = Membership(identity, timeout, backend)
    return DeviceCommunicator(membership, timeout, backend, device)


def _demand_own_gpu(identity: Identity, index: int, timeout: float, store: Store) -> None:
    """Raises `DeviceError`, on every rank, where two ranks have come to one GPU: NCCL would say so to these
    two alone, in its own words. ``store``: where all ranks meet."""
    mine = owners.uuid_of(index) if devices.visible() else ""  # torch has devices of other makers, too
    said = said_by_all(store, identity, f"{mine} {index}", timeout)
    held = ((uuid, int(number)) for uuid, _, number in (word.partition(" ") for word in said))
    if (shared := owners.first_shared(held)) is not None:
        all_have_read(store, identity, timeout)
        raise owners.refusal(*shared)
