"""Whole state in, whole state out: what a model with split state takes to be run without a session.

The rank model's own inputs and outputs are this rank's part. A caller that keeps caches itself gives them
whole: each rank takes its part of them, and gathers everyone's parts of the new ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ranks.collectives.base import Communicator
from ranks.collectives.buffers import Memory
from ranks.common.tensors import ELEMENT_TYPES, TensorSpec, element_number
from ranks.errors import ModelError
from sharding.common.arrays import Array
from sharding.slices.placement import Split, parse_placement
from sharding.slices.state import StatePair


def split_of(pair: StatePair) -> Split | None:
    """How ranks hold a pair, where each holds a part of it."""
    placement = parse_placement(pair.placement)
    return placement if isinstance(placement, Split) else None


def part(array: Array, pair: StatePair, rank: int, size: int) -> Array:
    """This rank's part of a whole value. Raises `ModelError` where it cannot be cut so."""
    split = split_of(pair)
    if split is None or size == 1:
        return array
    parts = split.parts(size)
    length = array.shape[split.axis]
    if length % (parts * split.blocks):
        raise ModelError(
            f"The state {pair.input!r} has the length {length} along axis {split.axis}, which {parts} ranks "
            "cannot share equally: give it as the model declares it."
        )
    here = split.part(rank)
    pieces = [np.split(block, parts, split.axis)[here] for block in np.split(array, split.blocks, split.axis)]
    return np.ascontiguousarray(pieces[0] if len(pieces) == 1 else np.concatenate(pieces, split.axis))


def whole_specs(specs: Sequence[TensorSpec], pairs: Mapping[str, StatePair], size: int) -> list[TensorSpec]:
    """What the whole model has in place of a rank's inputs or outputs; ``pairs``: those that are state, by
    name."""
    return [_whole(spec, pairs[spec.name], size) if spec.name in pairs else spec for spec in specs]


def _whole(spec: TensorSpec, pair: StatePair, size: int) -> TensorSpec:
    split = split_of(pair)
    if split is None or split.axis >= len(spec.shape):
        return spec
    shape = list(spec.shape)
    length = shape[split.axis]
    shape[split.axis] = length * split.parts(size) if isinstance(length, int) else length
    return spec._replace(shape=tuple(shape))


class Gatherer:
    """Gathers everyone's parts of state outputs on the host. A collective."""

    def __init__(self, pairs: Sequence[StatePair], group: Communicator, memory: Memory) -> None:
        self._pairs = {pair.output: pair for pair in pairs if split_of(pair) is not None}
        self._group = group
        self._memory = memory

    def whole(self, name: str, array: Array) -> Array:
        """The whole value of an output of which ``array`` is this rank's part."""
        pair = self._pairs.get(name)
        size = self._group.size
        split = split_of(pair) if pair is not None else None
        if split is None or size == 1:
            return array
        element = _element(array)
        mine = self._memory.allocate(array.shape, element, exchanged=True)
        self._memory.load(mine, array)
        together = (
            *array.shape[: split.axis],
            array.shape[split.axis] * size,
            *array.shape[split.axis + 1 :],
        )
        everyone = self._memory.allocate(together, element, exchanged=True)
        self._group.all_gather(mine, everyone, split.axis)
        pieces = np.split(self._memory.fetch(everyone), size, split.axis)[:: split.copies]
        if split.blocks > 1:
            cut = [np.split(piece, split.blocks, split.axis) for piece in pieces]
            pieces = [blocks[number] for number in range(split.blocks) for blocks in cut]
        return np.concatenate(pieces, split.axis)


def _element(array: Array) -> int:
    for ort_name, (_, numpy_name) in ELEMENT_TYPES.items():
        if array.dtype.name == numpy_name:
            return element_number(f"tensor({ort_name})") or 0
    raise ModelError(f"State of type {array.dtype} cannot be gathered from the ranks.")
