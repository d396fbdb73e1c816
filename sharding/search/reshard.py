"""What joins differing placements: a local slice or a collective, written into one rank's graph.

The collectives are named as ONNX Runtime's contrib operators are (domain com.microsoft), with their
attributes: AllReduce sums; AllGather concatenates the ranks' parts along ``axis``; AllToAll sends the r-th of
``group_size`` equal parts of axis 0 to rank r, and the r-th part of its output came from rank r.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, cast

import numpy as np

from sharding.rules.base import Dim, Emitter, Value
from sharding.slices.placement import PARTIAL, REPLICATED, Partial, Placement, Replicated, Split, is_finer

if TYPE_CHECKING:
    import onnx_ir as ir

COLLECTIVES = frozenset({"AllReduce", "AllGather", "AllToAll"})


class CollectiveEmitter(Emitter, Protocol):
    """An emitter that can write collectives too."""

    version: int
    """Version of the default opset."""
    moving: ir.Value | None
    """The value of the model that is being brought to another placement; collectives are named after it."""

    node: ir.Node | None
    """The node of the model that is being written."""

    def collective(self, op_type: str, value: Value, shape: Sequence[Dim], **attributes: int) -> Value:
        """A collective whose input on each rank is ``value``, of this shape."""


def with_collectives(e: Emitter) -> CollectiveEmitter:
    """The emitter of a rank's graph, which the solver's own options are given: it can write collectives."""
    return cast("CollectiveEmitter", e)


def local_shape(shape: Sequence[Dim], placement: Placement, world: int) -> tuple[Dim, ...]:
    """The shape of what one rank holds of a value of this whole shape."""
    axes = list(shape)
    if isinstance(placement, Split):
        length = axes[placement.axis]
        assert isinstance(length, int)
        axes[placement.axis] = length // placement.parts(world)
    return tuple(axes)


def reshard(
    e: CollectiveEmitter, value: Value, source: Placement, target: Placement, shape: Sequence[Dim]
) -> Value:
    """Writes the nodes that bring this rank's part of a value from one placement to another.

    ``shape`` is the whole value's. The ways, cheapest first: nothing; a slice of what is whole or of a larger
    part; AllReduce of summands; AllToAll from one split axis to another; AllGather. A sum that is wanted in
    parts is reduced whole and sliced: there is no contrib operator that reduces and scatters.
    """
    if source == target:
        return value
    if isinstance(source, Replicated) and isinstance(target, Split):
        return _own_part(e, value, target, shape, e.rank)
    if isinstance(source, Partial):
        whole = e.collective("AllReduce", value, shape)
        return reshard(e, whole, REPLICATED, target, shape)
    assert isinstance(source, Split) and target != PARTIAL
    if isinstance(target, Split) and is_finer(target, source):
        return _finer_part(e, value, source, target, shape)
    if isinstance(target, Split) and target.axis != source.axis and source.copies == target.copies == 1:
        return _exchange(e, value, source, target, shape)
    held = local_shape(shape, source, e.world)
    whole = e.collective("AllGather", value, held, axis=source.axis, group_size=e.world)
    return reshard(e, _in_order(e, whole, source, shape), REPLICATED, target, shape)


def _exchange(
    e: CollectiveEmitter, value: Value, source: Split, target: Split, shape: Sequence[Dim]
) -> Value:
    """Each rank sends every other its part of the target axis and joins what it gets on the source axis."""
    held = local_shape(shape, source, e.world)
    parts = [_stacked(e, _own_part(e, value, target, held, rank)) for rank in range(e.world)]
    packed = e.op("Concat", parts, axis=0)[0]
    part = local_shape(held, target, e.world)
    received = e.collective("AllToAll", packed, (e.world, *part), group_size=e.world)
    pieces = [
        e.op("Gather", [received, e.constant(np.asarray(rank, np.int64))], axis=0)[0]
        for rank in range(e.world)
    ]
    joined = e.op("Concat", pieces, axis=source.axis)[0]
    return _in_order(e, joined, source, local_shape(shape, target, e.world))


def _own_part(e: CollectiveEmitter, value: Value, target: Split, shape: Sequence[Dim], rank: int) -> Value:
    """The rank's part of a value of this shape, by local slices."""
    parts, part = target.parts(e.world), target.part(rank)
    size = _length(shape, target.axis) // (parts * target.blocks)
    starts = [(block * parts + part) * size for block in range(target.blocks)]
    return _pieces(e, value, target.axis, starts, size)


def _finer_part(
    e: CollectiveEmitter, value: Value, source: Split, target: Split, shape: Sequence[Dim]
) -> Value:
    """This rank's part of a value with more copies: of each block, the piece at its place among these."""
    ways = source.copies // target.copies
    size = _length(shape, target.axis) // (target.parts(e.world) * target.blocks)
    place = target.part(e.rank) % ways
    starts = [(block * ways + place) * size for block in range(target.blocks)]
    return _pieces(e, value, target.axis, starts, size)


def _in_order(e: CollectiveEmitter, gathered: Value, source: Split, shape: Sequence[Dim]) -> Value:
    """Puts gathered parts, each with a piece of every block, into block order; takes the first of copies."""
    if source.blocks == 1 and source.copies == 1:
        return gathered
    parts = source.parts(e.world)
    size = _length(shape, source.axis) // (parts * source.blocks)
    starts = [
        (part * source.copies * source.blocks + block) * size
        for block in range(source.blocks)
        for part in range(parts)
    ]
    return _pieces(e, gathered, source.axis, starts, size)


def _pieces(e: CollectiveEmitter, value: Value, axis: int, starts: Sequence[int], size: int) -> Value:
    """Slices of one axis of the same size, joined."""
    pieces = [slice_axis(e, value, axis, start, start + size) for start in starts]
    return pieces[0] if len(pieces) == 1 else e.op("Concat", pieces, axis=axis)[0]


def _length(shape: Sequence[Dim], axis: int) -> int:
    length = shape[axis]
    assert isinstance(length, int)
    return length


def slice_axis(e: CollectiveEmitter, value: Value, axis: int, start: int, end: int) -> Value:
    """Elements ``start`` to ``end`` of one axis."""
    if e.version < 10:
        return e.op("Slice", [value], axes=[axis], starts=[start], ends=[end])[0]
    bounds = [e.constant(np.asarray([number], np.int64)) for number in (start, end, axis)]
    return e.op("Slice", [value, *bounds])[0]


def _stacked(e: CollectiveEmitter, value: Value) -> Value:
    """The value with a new first axis of length 1."""
    if e.version < 13:
        return e.op("Unsqueeze", [value], axes=[0])[0]
    return e.op("Unsqueeze", [value, e.constant(np.asarray([0], np.int64))])[0]
