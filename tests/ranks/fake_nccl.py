"""A stand-in for torch.distributed with NCCL: what it refuses, when it waits, and what it was asked in which
order. Its tensors lie in host memory."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ranks.collectives.torch import group as torch_group
from ranks.collectives.torch import store as torch_store
from ranks.collectives.torch.device import DeviceCommunicator
from ranks.identity.place import Identity
from sharding.importers import torch_import
from tests.ranks.fake_communicator import FakeCommunicator

_NAMES = ("uint8", "int8", "int32", "int64", "bool", "float16", "bfloat16", "float32", "float64")
TAKEN = {getattr(torch, name) for name in (*_NAMES, "float8_e4m3fn", "float8_e5m2")}
"""The types of tensors that torch's NCCL group takes."""


class Work:
    """An operation that has completed, or that never will until it is aborted."""

    def __init__(self, library: Library | None = None) -> None:
        self._library = library

    def is_completed(self) -> bool:
        return self._library is None or bool(self._library.error) or self._library.free.is_set()

    def wait(self) -> None:
        if self._library is not None and (self._library.error or self._library.free.is_set()):
            raise RuntimeError(self._library.error or "NCCL communicator was aborted on rank 0.")


class Group:
    """One of torch's groups."""

    def __init__(self, name: str, end: Callable[[str], None]) -> None:
        self.group_name = name
        self.bound_device_id: Any = None
        self.abort = partial(end, f"end {name}")


class Library:
    """torch.distributed of one process. ``said`` is what it was asked, in order."""

    def __init__(self, rank: int = 0, size: int = 2, *, initialised: bool = False) -> None:
        self.said: list[str] = []
        self.settings: list[dict[str, str]] = []
        self.devices: list[Any] = []  # that new groups are connected for
        self.patience: list[float] = []  # seconds after which groups give up
        self.stuck = False  # operations do not end
        self.error = ""  # what the library finds wrong with the connection while an operation waits
        self.free = threading.Event()  # the device does nothing for a group any more
        self.free.set()
        self._rank, self._size = rank, size
        self._initialised = initialised
        self._groups = 0
        self.group = SimpleNamespace(WORLD=Group("world", self._ended))
        self.keys: dict[str, bytes] = {}

    def _ended(self, what: str) -> None:
        self.said.append(what)
        self.free.set()

    # torch.distributed

    def is_initialized(self) -> bool:
        return self._initialised

    def get_rank(self) -> int:
        return self._rank

    def get_world_size(self) -> int:
        return self._size

    def PrefixStore(self, prefix: str, store: Any) -> Any:
        assert store is not None
        return store

    def init_process_group(self, backend: str, **options: Any) -> None:
        self.said.append(f"init {backend}")
        self.patience.append(options["timeout"].total_seconds())
        self._note()
        self._initialised = True

    def new_group(
        self, ranks: Any = None, timeout: Any = None, backend: Any = None, device_id: Any = None
    ) -> Any:
        self._groups += 1
        self.devices.append(device_id)
        self.patience.append(timeout.total_seconds())
        self.said.append(f"new {backend}{'' if ranks is None else ranks}")
        self._note()
        return Group(f"group{self._groups}", self._ended)

    def _note(self) -> None:
        found = {n: v for n, v in os.environ.items() if n.startswith(("TORCH_NCCL", "NCCL_SOCKET"))}
        self.settings.append(found)

    def destroy_process_group(self, group: Any = None) -> None:
        """Waits for what the device does, as torch's does."""
        self.said.append(f"destroy {'all' if group is None else group.group_name}")
        self.free.wait()

    def all_reduce(self, tensor: Any, **_: Any) -> Work:
        self.said.append("all_reduce")
        if self.stuck:
            self.free.clear()
        return Work(self if self.stuck else None)

    isend = irecv = all_reduce

    # torch.distributed.distributed_c10d

    def _abort_process_group(self, group: Any = None) -> None:
        self._ended(f"abort {'all' if group is None else group.group_name}")

    def _get_default_store(self) -> Any:
        return self

    def check(self, keys: list[str]) -> bool:
        return all(key in self.keys for key in keys)

    def get(self, key: str) -> bytes:
        return self.keys[key]

    def set(self, key: str, value: str) -> None:
        self.keys[key] = value.encode()


def installed(library: Library, patch: pytest.MonkeyPatch) -> None:
    """Lets memberships of ranks on several hosts use ``library``."""
    real = torch_import.load

    def load(name: str = "torch") -> Any:
        return library if name.startswith("torch.distributed") else real(name)

    patch.setattr(torch_import, "load", load)
    patch.setattr(torch_group, "remote_store", lambda identity, timeout: library)
    assert torch_store.torch_import is torch_import


def connected(library: Library, identity: Identity, timeout: float = 60.0) -> DeviceCommunicator:
    """A communicator as NCCL's, of the installed library."""
    device = torch.device("cpu")
    membership = torch_group.Membership(identity, timeout, "nccl", device)
    return DeviceCommunicator(membership, timeout, "nccl", device)


class Threads:
    """torch.distributed of one of several ranks that are threads, which really exchanges tensors. A group is
    the threads' communicator."""

    def __init__(self, host: FakeCommunicator) -> None:
        self.host = host

    def _all(self, name: str, tensor: Any, group: FakeCommunicator) -> list[Any]:
        self._check(name, tensor)
        return group._exchange(tensor.clone())

    @staticmethod
    def _check(name: str, tensor: Any) -> None:
        if tensor.dtype not in TAKEN or (name == "all_reduce" and "float8" in str(tensor.dtype)):
            raise TypeError(f"Input tensor data type is not supported for NCCL process group: {tensor.dtype}")

    def all_reduce(self, tensor: Any, group: FakeCommunicator, **_: Any) -> Work:
        parts = self._all("all_reduce", tensor, group)
        tensor.copy_(torch.stack(parts).sum(0, dtype=tensor.dtype))
        return Work()

    def all_gather_into_tensor(self, out: Any, tensor: Any, group: FakeCommunicator, **_: Any) -> Work:
        out.copy_(torch.cat(self._all("all_gather", tensor, group)))
        return Work()

    def all_to_all_single(self, out: Any, tensor: Any, group: FakeCommunicator, **_: Any) -> Work:
        parts = self._all("all_to_all", tensor, group)
        out.copy_(torch.cat([part.chunk(group.size)[group.rank] for part in parts]))
        return Work()

    def broadcast(self, tensor: Any, src: int, group: FakeCommunicator, **_: Any) -> Work:
        tensor.copy_(self._all("broadcast", tensor, group)[group.members.index(src)])
        return Work()

    def isend(self, tensor: Any, dst: int, **_: Any) -> Work:
        self._check("send", tensor)
        self.host.board.mail[self.host.rank, dst].put(tensor.clone())
        return Work()

    def irecv(self, tensor: Any, src: int, **_: Any) -> Work:
        self._check("recv", tensor)
        tensor.copy_(self.host.board.mail[src, self.host.rank].get(timeout=60))
        return Work()


def on_threads(host: FakeCommunicator) -> DeviceCommunicator:
    """The communicator of device tensors over ranks that are threads."""
    membership: Any = SimpleNamespace(
        identity=Identity(host.rank, host.size),
        dist=Threads(host),
        group=host,
        gather="all_gather_into_tensor",
        lost=lambda *_, **__: None,
        abort=lambda *_, **__: None,
        split=lambda groups, mine: host.split(groups),
    )
    return DeviceCommunicator(membership, host.timeout, "nccl", torch.device("cpu"))


def main(script: Callable[[Library, DeviceCommunicator], None]) -> None:
    """Runs ``script`` in a process whose only rank of two has the stand-in as its torch.distributed."""
    library = Library()
    installed(library, pytest.MonkeyPatch())
    script(library, connected(library, Identity(0, 2, 0, 1), 30.0))
