"""Collectives of host memory on buffers of a device, by way of memory that is kept for it."""

from __future__ import annotations

import time

import numpy as np

from ranks.collectives.base import Buffer, Communicator, Groups
from ranks.collectives.buffers import Memory
from sharding.common.arrays import Array

_ROUND = 1 << 16  # bytes: blocks grow in multiples, so that the next larger value often fits


class Staging:
    """Two blocks of host memory, one for what goes out and one for what comes in; each as large as the
    largest value was so far. What is in them holds good until the next collective."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._blocks: dict[str, Array] = {}

    def view(self, role: str, buffer: Buffer) -> Array:
        """Host memory for a value like ``buffer``, with anything in it."""
        element, shape = self._memory.dtype(buffer), self._memory.shape(buffer)
        size = int(np.prod(shape, dtype=np.int64)) * element.itemsize
        block = self._blocks.get(role)
        if block is None or block.size < size:
            block = self._blocks[role] = self._memory.staging(-(-max(size, 1) // _ROUND) * _ROUND)
        return block[:size].view(element).reshape(shape)


class HostStaged(Communicator):
    """A host communicator that takes a device's buffers. Only what is read is fetched from the device, and
    only what is written is put there; each copy has ended when a call returns."""

    def __init__(self, inner: Communicator, memory: Memory, staging: Staging | None = None) -> None:
        self.inner = inner
        self.memory = memory
        self.name, self.rank, self.size, self.timeout = inner.name, inner.rank, inner.size, inner.timeout
        self.members = inner.members
        self.sends_kept = inner.sends_kept
        self._staging = staging or Staging(memory)

    def _split(self, groups: Groups, mine: tuple[int, ...]) -> Communicator:
        return HostStaged(self.inner.split(groups), self.memory, self._staging)

    def all_reduce(self, buffer: Buffer) -> None:
        host = self._fetched(buffer)
        self.inner.all_reduce(host)
        self.memory.load(buffer, host)

    def broadcast(self, buffer: Buffer, root: int = 0) -> None:
        if root == self.rank:
            self.inner.broadcast(self._fetched(buffer), root)
            return
        host = self._staging.view("in", buffer)
        self.inner.broadcast(host, root)
        self.memory.load(buffer, host)

    def recv(self, buffer: Buffer, peer: int) -> None:
        host = self._staging.view("in", buffer)
        self.inner.recv(host, peer)
        self.memory.load(buffer, host)

    def send(self, buffer: Buffer, peer: int) -> None:
        self.inner.send(self._fetched(buffer), peer)

    def all_gather(self, buffer: Buffer, out: Buffer, axis: int = 0) -> None:
        source, target = self._fetched(buffer), self._staging.view("in", out)
        self.inner.all_gather(source, target, axis)
        self.memory.load(out, target)

    def all_to_all(self, buffer: Buffer, out: Buffer) -> None:
        source, target = self._fetched(buffer), self._staging.view("in", out)
        self.inner.all_to_all(source, target)
        self.memory.load(out, target)

    def barrier(self) -> None:
        self.inner.barrier()

    def all_failed(self, why: str) -> bool:
        return self.inner.all_failed(why)

    def close(self) -> None:
        self._close_parts()
        self.inner.close()

    def _fetched(self, buffer: Buffer) -> Array:
        host = self._staging.view("out", buffer)
        began = time.perf_counter()
        self.memory.settle()
        self.computing_seconds += time.perf_counter() - began
        self.memory.fetch_into(host, buffer)
        return host


def on_device(communicator: Communicator, memory: Memory) -> Communicator:
    """The communicator itself if it takes device memory, else one that stages through the host."""
    return communicator if communicator.on_device else HostStaged(communicator, memory)
