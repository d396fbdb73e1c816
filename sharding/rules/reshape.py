"""Reshape and Flatten: a split axis followed into the axes it becomes part of.

Numbering the elements in row-major order, ``Split(axis, blocks)`` of a shape says: the rank is one digit of
the element's number, with ``outer = lengths before the axis * blocks`` values above that digit and ``inner``
below it. A reshape keeps every element's number, so it maps the split of an input axis to the output axis and
blocks with the same ``outer`` (or the same ``inner``: enough where a symbolic length is on one side).
"""

from __future__ import annotations

import math
from functools import partial

from sharding.onnx_files.attributes import integer
from sharding.rules.base import Dim, Emitter, NodeView, Option, Value, Values, rule
from sharding.rules.common import (
    Shape,
    constant,
    dim,
    int64,
    option,
    partial_option,
    shape_like,
    with_lengths,
)
from sharding.rules.products import product, quotient, whole_quotient
from sharding.slices.placement import Split

MAX_BLOCKS = 4
"""A reshape offers more blocks only where the graph has them already: heads merged into one axis and cut
inside the head would be 12 or more blocks that nothing else wants, and each is an option in many nodes."""


def follow(node: NodeView, split: Split, source: Shape, target: Shape) -> Split | None:
    """Where a split of ``source`` lies in ``target``, a shape with the same elements in the same order."""
    length = source[split.axis]
    assert isinstance(length, int)  # the caller's splits are of known lengths
    world = node.world
    outer = product([*source[: split.axis], split.blocks])
    inner = product([*source[split.axis + 1 :], length // (world * split.blocks)])
    for axis, own in enumerate(target):
        if not isinstance(own, int):
            continue
        blocks = whole_quotient(outer, product(target[:axis]))
        if blocks is None:
            whole, below = product(target[axis:]), inner and (inner[0] * world, inner[1])
            blocks = whole_quotient(whole, below)
        if blocks and node.divisible(own, blocks):
            return Split(axis, blocks)
    return None


def _pairs(node: NodeView, source: Shape, target: Shape) -> list[tuple[Split, Split]]:
    """(input split, output split) of the plain splits and the graph's blocks, seen from either side."""
    pairs: dict[tuple[Split, Split], None] = {}
    for backward, (near, far) in enumerate(((source, target), (target, source))):
        for axis, length in enumerate(near):
            for blocks in node.blocks(length):
                found = follow(node, Split(axis, blocks), near, far)
                if found is None:
                    continue
                if found.blocks <= MAX_BLOCKS or found.blocks in node.blocks(dim(far, found.axis)):
                    pair = (Split(axis, blocks), found)
                    pairs[pair[::-1] if backward else pair] = None
    return list(pairs)


@rule("Flatten")
def flatten(node: NodeView) -> list[Option]:
    """All axes before ``axis`` become one, all others another."""
    shape = node.shapes[0]
    axis = integer(node.attributes, "axis", 1)
    if shape is None or not -len(shape) <= axis <= len(shape):
        return []
    axis += len(shape) if axis < 0 else 0
    target = [_known_product(shape[:axis]), _known_product(shape[axis:])]
    if None in target and (declared := shape_like(node)) is not None and len(declared) == 2:
        target = [mine if mine is not None else theirs for mine, theirs in zip(target, declared, strict=True)]
    options = [option(node, {0: before}, after) for before, after in _pairs(node, shape, target)]
    return options + partial_option(node)


def _known_product(lengths: Shape) -> Dim:
    return (
        math.prod(n for n in lengths if isinstance(n, int))
        if all(isinstance(n, int) for n in lengths)
        else None
    )


def _target(node: NodeView, source: Shape) -> list[Dim] | None:
    """The output shape, from what is declared and from a constant shape input."""
    declared, value = shape_like(node), constant(node, 1)
    if value is None:
        return None if declared is None else list(declared)
    target: list[Dim] = []
    for i, entry in enumerate(int(item) for item in value.reshape(-1)):
        if entry > 0 or (entry == 0 and node.attributes.get("allowzero", 0)):
            target.append(entry)
        else:
            target.append(dim(source, i) if entry == 0 else None)
    if declared is not None and len(declared) == len(target):
        target = [theirs if mine is None else mine for mine, theirs in zip(target, declared, strict=True)]
    if target.count(None) == 1:
        rest = quotient(product(source), product(length for length in target if length is not None))
        target = [rest if length is None else length for length in target]
    return target


@rule("Reshape")
def reshape(node: NodeView) -> list[Option]:
    """The shape input is given this rank's length on the split axis, whether it is a constant or computed."""
    source = node.shapes[0]
    target = None if source is None else _target(node, source)
    if source is None or target is None or node.version < 5:
        return []
    options = []
    for before, after in _pairs(node, source, target):
        emit = partial(_emit_reshape, node, target, (before.axis, after.axis))
        options.append(option(node, {0: before}, after, emit))
    return options + partial_option(node)


def _emit_reshape(
    node: NodeView, target: Shape, axes: tuple[int, int], e: Emitter, values: Values
) -> list[Value]:
    before, after = axes
    part = target[after]
    assert isinstance(part, int)
    value = constant(node, 1)
    if value is None:
        # What is computed is right for all other axes; but a 0 would copy this rank's length of the input.
        # (It cannot be a 0 where that length is open: an axis that is copied keeps its split.)
        lengths: list[int | None] = [None] * len(target)
        copied = dim(target, before)
        if isinstance(copied, int) and not node.attributes.get("allowzero", 0):
            lengths[before] = copied
        lengths[after] = part // e.world
        return e.copy([values[0], with_lengths(e, values[1], lengths)])
    entries = [int(item) for item in value.reshape(-1)]
    whole = dim(node.shapes[0], before)
    if before < len(entries) and entries[before] == 0 and isinstance(whole, int):
        entries[before] = whole
    entries[after] = part // e.world
    return e.copy([values[0], int64(e, entries)])
