"""Convolutions: output channels, input channels (a partial sum), groups or the batch split."""

from __future__ import annotations

from functools import partial
from typing import Any

from sharding.placement import PARTIAL, Placement, Split
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import Values, absent, dim, first_rank_only, option, splits, summable


@rule("Conv")
def conv(node: NodeView) -> list[Option]:
    """X [batch, channels, ...], W [out, channels / group, ...], B [out]."""
    return _convolution(node, out_axis=0, in_axis=1)


@rule("ConvTranspose")
def conv_transpose(node: NodeView) -> list[Option]:
    """X [batch, channels, ...], W [channels, out / group, ...], B [out]."""
    return _convolution(node, out_axis=1, in_axis=0)


def _convolution(node: NodeView, out_axis: int, in_axis: int) -> list[Option]:
    x, w = node.shapes[0], node.shapes[1]
    group = int(node.attributes.get("group", 1))
    if x is None or w is None or len(x) < 3 or len(w) != len(x) or group < 1:
        return []
    options = [option(node, {0: split}, split) for split in splits(node, x, (0,))]
    if group % node.world == 0:
        return options + _whole_groups(node, group, in_axis)
    bias = {} if absent(node, 2) else {2: 0}
    out: dict[int, Placement]
    # A weight holds one group's length of the axis that is not its first; the other tensors (and the first
    # axis) hold the groups' lengths one after the other: blocks.
    if group == 1:
        for blocks in node.blocks(w[out_axis]):
            out = {i: Split(axis, blocks) for i, axis in ({1: out_axis} | bias).items()}
            options.append(option(node, out, Split(1, blocks)))
    elif node.divisible(dim(w, 0) if out_axis == 0 else dim(w, 1), group if out_axis == 0 else 1):
        out = {1: Split(0, group) if out_axis == 0 else Split(1)}
        out |= {2: Split(0, group)} if bias else {}
        options.append(option(node, out, Split(1, group)))
    if summable(node.dtypes[0]):
        emit = _bias_once if bias else None
        for blocks in node.blocks(w[in_axis]) if group == 1 else ():
            options.append(option(node, {0: Split(1, blocks), 1: Split(in_axis, blocks)}, PARTIAL, emit))
        if group > 1 and node.divisible(x[1], group):
            weight = Split(1) if in_axis == 1 else Split(0, group)
            options.append(option(node, {0: Split(1, group), 1: weight}, PARTIAL, emit))
    return options


def _bias_once(e: Emitter, values: Values) -> list[Any]:
    return e.copy(first_rank_only(e, values, 2))


def _whole_groups(node: NodeView, group: int, in_axis: int) -> list[Option]:
    """Each rank computes its own groups."""
    first, second = dim(node.shapes[1], 0), dim(node.shapes[1], 1)
    channels = first if in_axis == 0 else second * group if isinstance(second, int) else None
    options = []
    for blocks in node.blocks(channels):
        if group % (node.world * blocks) == 0 and node.divisible(first, blocks):
            parts: dict[int, Placement] = {0: Split(1, blocks), 1: Split(0, blocks)}
            if not absent(node, 2):
                parts[2] = Split(0, blocks)
            options.append(option(node, parts, Split(1, blocks), partial(_emit_groups, group)))
    return options


def _emit_groups(group: int, e: Emitter, values: Values) -> list[Any]:
    return e.copy(values, group=group // e.world)
