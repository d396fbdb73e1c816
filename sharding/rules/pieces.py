"""Concat, Split and Slice: joining and cutting along an axis.

Pieces of an axis whose lengths are multiples of one unit are blocks of it: where each rank holds its part of
every block, it can join or cut its parts by itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from sharding.onnx_files.attributes import integer
from sharding.rules.base import Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    axes_parameter,
    axis_attribute,
    dim,
    int64,
    list_parameter,
    normalized,
    option,
    others,
    partial_option,
    shape_of,
)
from sharding.slices.placement import Split

MAX_BLOCKS = 64
"""Blocks of an axis that pieces of unequal length are made of, at most."""

Bounds = tuple[list[int], list[int]]
"""The starts and the ends of a slice."""


def _units(node: NodeView, lengths: list[int]) -> list[int] | None:
    """Each piece's number of blocks, the blocks as long as they can be; None if a block does not divide."""
    unit = math.gcd(*lengths)
    if not lengths or not node.divisible(unit) or sum(lengths) // unit > MAX_BLOCKS:
        return None
    return [length // unit for length in lengths]


@rule("Concat")
def concat(node: NodeView) -> list[Option]:
    """Another axis in all inputs, or the joined axis as blocks."""
    return joined(node, range(len(node.shapes))) + partial_option(node, range(len(node.shapes)))


def joined(node: NodeView, indices: Sequence[int]) -> list[Option]:
    """The options of joining these inputs along ``axis``."""
    shapes = [node.shapes[index] for index in indices]
    first = next((shape for shape in shapes if shape is not None), None)
    if first is None or any(shape is not None and len(shape) != len(first) for shape in shapes):
        return []
    axis = normalized(integer(node.attributes, "axis", 1), len(first))
    if axis is None:
        return []
    options = []
    for other in range(len(first)) if None not in shapes else ():
        # The lengths agree, so one that is known is that of all.
        length = next((n for shape in shapes if isinstance(n := dim(shape, other), int)), None)
        for blocks in node.blocks(length) if other != axis else ():
            options.append(option(node, dict.fromkeys(indices, Split(other, blocks)), Split(other, blocks)))
    lengths = [dim(shape, axis) for shape in shapes]
    pieces = [length for length in lengths if isinstance(length, int) and length > 0]
    units = _units(node, pieces) if len(pieces) == len(lengths) else None
    if units is not None:
        parts = {i: Split(axis, unit) for i, unit in zip(indices, units, strict=True)}
        options.append(option(node, parts, Split(axis, sum(units))))
    return options


@rule("Split")
def split(node: NodeView) -> list[Option]:
    """Another axis, or the cut axis as blocks: each rank cuts its part of it."""
    shape, axis = node.shapes[0], axis_attribute(node, 0)
    if shape is None or axis is None:
        return []
    sizes = _sizes(node, shape[axis], axis)
    options = others(node, axis)
    units = None if sizes is None or 0 in sizes else _units(node, sizes)
    if sizes is not None and units is not None:
        emit = partial(_emit_split, node.version, axis, sizes)
        for finer in _finer(node, sizes, units):
            outputs = [Split(axis, unit * finer) for unit in units]
            options.append(option(node, {0: Split(axis, sum(units) * finer)}, outputs, emit))
    return options + partial_option(node)


def _finer(node: NodeView, sizes: Sequence[int], units: Sequence[int]) -> list[int]:
    """Into how many blocks each unit may be cut: pieces of these lengths are held so elsewhere."""
    asked = {
        blocks // unit
        for size, unit in zip(sizes, units, strict=True)
        for blocks in node.blocks(size)
        if blocks % unit == 0
    }
    return sorted(
        count
        for count in {1, *asked}
        if sum(units) * count <= MAX_BLOCKS
        and all(size % (node.world * unit * count) == 0 for size, unit in zip(sizes, units, strict=True))
    )


def _sizes(node: NodeView, length: object, axis: int) -> list[int] | None:
    """The lengths of the pieces, None where they are not known."""
    count = len(node.output_shapes)
    sizes = list_parameter(node, "split", 1)
    if not isinstance(length, int) or sizes is None:
        return None
    if not sizes:
        size = math.ceil(length / count)
        sizes = [size] * (count - 1) + [length - size * (count - 1)]
    return sizes if len(sizes) == count and sum(sizes) == length else None


def _emit_split(version: int, axis: int, sizes: list[int], e: Emitter, values: Values) -> list[Value]:
    local = [size // e.world for size in sizes]
    if version < 13:
        return e.copy(values, split=local)
    return e.op("Split", [values[0], int64(e, local)], outputs=len(sizes), axis=axis)


@rule("Slice")
def slice_(node: NodeView) -> list[Option]:
    """An axis that is kept whole, or pieces of an axis that are blocks of it."""
    shape = node.shapes[0]
    if shape is None:
        return []
    starts, ends = list_parameter(node, "starts", 1), list_parameter(node, "ends", 2)
    axes, steps = axes_parameter(node, 3), list_parameter(node, "steps", 4)
    if axes is None:
        return []
    if not axes:
        count = len(starts) if starts is not None else dim(shape_of(node, 1), 0)
        if not isinstance(count, int) or count > len(shape):
            return []
        axes = list(range(count))
    cut, options = set(axes), list[Option]()
    if starts is None or ends is None or steps is None or not len(starts) == len(ends) == len(axes):
        return others(node, *cut) + partial_option(node)
    for position, axis in enumerate(axes):
        length, step = shape[axis], steps[position] if steps else 1
        if step < 1 or not isinstance(length, int):
            continue
        start, end, _ = slice(starts[position], ends[position]).indices(length)
        piece = _Piece(node, (starts, ends), position, axis, start, end)
        if step > 1:
            options += _interleaved(piece, length, step)
        elif (start, end) == (0, length):
            cut.discard(axis)
        elif 0 <= start < end:
            options += _block_slice(piece, length)
    return options + others(node, *cut) + partial_option(node)


@dataclass(frozen=True)
class _Piece:
    """What a slice takes of one of its axes."""

    node: NodeView
    bounds: Bounds
    """Starts and ends of all of its axes."""
    position: int
    """Of this axis among them."""
    axis: int
    start: int
    end: int

    def option(self, before: Split, after: Split, own: tuple[int, int]) -> Option:
        """The option in which each rank takes ``own`` start and end of its part."""
        starts, ends = list(self.bounds[0]), list(self.bounds[1])
        starts[self.position], ends[self.position] = own
        return option(self.node, {0: before}, after, partial(_emit_slice, self.node, (starts, ends)))


def _interleaved(piece: _Piece, length: int, step: int) -> list[Option]:
    """One of every ``step`` elements, of columns that alternate: each rank takes its own of whole groups."""
    node, start = piece.node, piece.start
    if length % step or start >= step or piece.end <= length - step + start:
        return []
    return [
        piece.option(Split(piece.axis, blocks), Split(piece.axis, blocks), (start, length // node.world))
        for blocks in node.blocks(length)
        if node.divisible(length, blocks * step)
    ]


def _block_slice(piece: _Piece, length: int) -> list[Option]:
    node, start, end = piece.node, piece.start, piece.end
    units = _units(node, [size for size in (start, end - start, length - end) if size])
    if units is None:
        return []
    taken = Split(piece.axis, (end - start) * sum(units) // length)
    return [piece.option(Split(piece.axis, sum(units)), taken, (start // node.world, end // node.world))]


def _emit_slice(node: NodeView, bounds: Bounds, e: Emitter, values: Values) -> list[Value]:
    starts, ends = bounds
    if node.version < 10:
        return e.copy(values, starts=starts, ends=ends)
    kind = node.dtypes[1] or np.dtype(np.int64)
    return e.copy([values[0], *(e.constant(np.asarray(bound, dtype=kind)) for bound in bounds), *values[3:]])
