"""Passing a message from one rank to the others by collective, as the same frame that a socket carries."""

from __future__ import annotations

import numpy as np

from ranks.collectives.base import Communicator
from ranks.talk import wire
from sharding.common.arrays import Array
from sharding.importers import torch_import

# The first broadcast has this many bytes always, so that a small message takes one collective and no rank
# has to be told a length first.
BLOCK = 16 << 10


class Spreader:
    """One rank gives a message, every rank gets it."""

    def __init__(self, communicator: Communicator) -> None:
        self._communicator = communicator
        self.rank, self.size, self.timeout = communicator.rank, communicator.size, communicator.timeout
        self._on_device = communicator.on_device
        self._block = np.zeros(BLOCK, np.uint8)

    def spread(self, message: wire.Message | None, root: int = 0) -> wire.Message:
        """The ``message`` of rank ``root`` (the others pass None). A collective: every rank must call it."""
        if self._communicator.size == 1 and message is not None:
            return message
        if message is not None:
            self._give(message, root)
            return message
        return self._take(root)

    def _give(self, message: wire.Message, root: int) -> None:
        pieces = [np.frombuffer(piece, np.uint8) for piece in wire.encode(message)[0]]
        position = 0
        for piece in pieces:
            if position < BLOCK:
                head = piece[: BLOCK - position]
                self._block[position : position + len(head)] = head
            position += len(piece)
        self.broadcast(self._block, root)
        if position <= BLOCK:
            return
        position = 0
        for piece in pieces:
            if position + len(piece) > BLOCK:
                self.broadcast(piece[max(0, BLOCK - position) :], root)
            position += len(piece)

    def _take(self, root: int) -> wire.Message:
        self.broadcast(self._block, root)
        position = 0

        def fill(target: memoryview, first: bool = False) -> None:
            nonlocal position
            inline = min(len(target), max(0, BLOCK - position))
            target[:inline] = self._block[position : position + inline].data
            if inline < len(target):
                self.broadcast(np.frombuffer(target[inline:], np.uint8), root)
            position += len(target)

        return wire.read_frame(fill)

    def all_failed(self, why: str) -> bool:
        """As `Communicator.all_failed`."""
        return self._communicator.all_failed(why)

    def broadcast(self, data: Array, root: int = 0) -> None:
        """Overwrites a host array with rank ``root``'s. A collective."""
        if not self._on_device:
            self._communicator.broadcast(data, root)
            return
        torch = torch_import.load()
        buffer = self._communicator.allocate(data.shape, data.dtype)
        buffer.copy_(torch.from_numpy(data if data.flags.writeable else data.copy()))  # torch would warn
        self._communicator.broadcast(buffer, root)
        if self._communicator.rank != root:
            data[...] = buffer.cpu().numpy()
