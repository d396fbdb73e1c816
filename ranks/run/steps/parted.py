"""Logits of which each rank has those of a part of the vocabulary: gathered only where all of them count."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ranks.collectives.buffers import HostMemory

if TYPE_CHECKING:
    from ranks.collectives.base import Communicator
    from ranks.run.steps.parts import Parts
    from ranks.sessions.cut import Collective
    from ranks.tokens.chooser import Chooser
    from sharding.common.arrays import Array

_LAST = frozenset({-1, 2})
"""The axis of logits (batch, positions, vocabulary) along which a head is split by vocabulary."""


def gather_of(parts: Parts, name: str) -> Collective | None:
    """The collective that puts an output together, where nothing of the model reads that: a step can do
    without it, and give each rank its own part."""
    cut = parts.cut
    made = [c for level in cut.collectives for c in level if c.output == name]
    if not made or name not in cut.outputs or any(cut.controls) or parts.mail is not None:
        return None
    (found,) = made
    if found.op != "AllGather" or found.attributes["axis"] not in _LAST:
        return None
    read = {taken for segment in cut.segments for taken in segment.inputs}
    read.update(c.input for level in cut.collectives for c in level if c.input)
    return found if name not in read and isinstance(parts.memory, HostMemory) else None


class Parted:
    """What joins the ranks that have the parts."""

    def __init__(self, group: Communicator) -> None:
        self._group = group

    @property
    def size(self) -> int:
        """The number of parts."""
        return self._group.size

    def shown(self, chooser: Chooser, part: Array) -> Array | None:
        """What all ranks show of their logits (batch, positions, part), of which the last row counts; None
        where the chooser needs all logits. A collective."""
        row = np.asarray(part.reshape(-1, part.shape[-1])[-1], np.float32)
        count = chooser.shows(len(row))
        if count is None:
            return None
        return self._gathered(chooser.show(row, self._group.rank * len(row), count)[None], 0)

    def whole(self, part: Array) -> Array:
        """The logits of all ranks. A collective."""
        return self._gathered(part, -1)

    def _gathered(self, array: Array, axis: int) -> Array:
        axis %= array.ndim
        mine = self._group.allocate(array.shape, array.dtype)
        mine[...] = array
        shape = (*array.shape[:axis], array.shape[axis] * self.size, *array.shape[axis + 1 :])
        everyone = np.empty(shape, array.dtype)
        self._group.all_gather(mine, everyone, axis)
        return everyone
