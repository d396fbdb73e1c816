"""Convolutions: output channels, input channels (a partial sum), groups or the batch split.

Which axes of the image are split never changes what lies around a pixel: spatial axes stay whole.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sharding.onnx_files.attributes import integer
from sharding.rules.base import Emit, NodeView, Option, rule
from sharding.rules.common import (
    absent,
    biased,
    dim,
    divided,
    one_number,
    option,
    splits,
    summable,
)
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL, Split


@dataclass(frozen=True)
class Layout:
    """Where a convolution has its operands."""

    x: int = 0
    """X [batch, channels, ...], or [batch, ..., channels] where ``last``."""
    w: int = 1
    out_axis: int = 0
    in_axis: int = 1
    """Axes of the weight, which is [out, in / group, ...], or [in, out / group, ...] in a transposed one."""
    per_channel: Sequence[int] = (2,)
    """Inputs with one value per output channel, or one number for all of them (scales, zero points)."""
    bias: int | None = 2
    """The input that only one summand may add."""
    residual: int | None = None
    """An input of the output's shape that is added."""
    linear: bool = True
    """Whether the result of parts of the input channels is a summand."""
    last: bool = False


@rule("Conv")
def conv(node: NodeView) -> list[Option]:
    """X [batch, channels, ...], W [out, channels / group, ...], B [out]."""
    return convolution(node, Layout(linear=summable(node.dtypes[0])))


@rule("ConvTranspose")
def conv_transpose(node: NodeView) -> list[Option]:
    """X [batch, channels, ...], W [channels, out / group, ...], B [out]."""
    return convolution(node, Layout(out_axis=1, in_axis=0, linear=summable(node.dtypes[0])))


@rule("ConvTransposeWithDynamicPads", domain=MICROSOFT)
def conv_transpose_dynamic_pads(node: NodeView) -> list[Option]:
    """X, W, the spatial pads, B."""
    return convolution(
        node, Layout(out_axis=1, in_axis=0, per_channel=(3,), bias=3, linear=summable(node.dtypes[0]))
    )


@rule("FusedConv", domain=MICROSOFT)
def fused_conv(node: NodeView) -> list[Option]:
    """X, W, B, Z: the activation of the convolution plus Z."""
    linear = summable(node.dtypes[0]) and not node.attributes.get("activation") and absent(node, 3)
    return convolution(node, Layout(residual=3, linear=linear))


def convolution(node: NodeView, layout: Layout) -> list[Option]:
    """The options of a convolution whose operands lie as ``layout`` says."""
    x, w = node.shapes[layout.x], node.shapes[layout.w]
    group = integer(node.attributes, "group", 1)
    if x is None or w is None or len(x) < 3 or len(w) != len(x) or group < 1:
        return []
    channel = len(x) - 1 if layout.last else 1
    options = []
    for split in splits(node, x, (0,)):
        options.append(option(node, {layout.x: split, **_residual(layout, split)}, split))
    if group % node.world == 0:
        return options + _whole_groups(node, layout, group, channel)
    # A weight holds one group's length of the axis that is not its first; the other tensors (and the first
    # axis) hold the groups' lengths one after the other: blocks.
    if group == 1:
        for blocks in node.blocks(w[layout.out_axis]):
            parts = {layout.w: Split(layout.out_axis, blocks)}
            options.append(_output_channels(node, layout, parts, Split(channel, blocks)))
    elif node.divisible(
        dim(w, 0) if layout.out_axis == 0 else dim(w, 1), group if layout.out_axis == 0 else 1
    ):
        parts = {layout.w: Split(0, group) if layout.out_axis == 0 else Split(1)}
        options.append(_output_channels(node, layout, parts, Split(channel, group)))
    if layout.linear:
        emit = biased(node, layout.bias)
        for blocks in node.blocks(w[layout.in_axis]) if group == 1 else ():
            summands = {layout.x: Split(channel, blocks), layout.w: Split(layout.in_axis, blocks)}
            options.append(option(node, summands, PARTIAL, emit))
        if group > 1 and node.divisible(x[channel], group):
            weight = Split(1) if layout.in_axis == 1 else Split(0, group)
            options.append(option(node, {layout.x: Split(channel, group), layout.w: weight}, PARTIAL, emit))
    return options


def _residual(layout: Layout, split: Split) -> dict[int, Split]:
    return {} if layout.residual is None else {layout.residual: split}


def _output_channels(
    node: NodeView, layout: Layout, parts: dict[int, Split], out: Split, emit: Emit | None = None
) -> Option:
    """With all that has one value per output channel cut as the channels are."""
    vectors = [
        index for index in layout.per_channel if not absent(node, index) and not one_number(node, index)
    ]
    inputs = {**parts, **dict.fromkeys(vectors, Split(0, out.blocks)), **_residual(layout, out)}
    return option(node, inputs, out, emit)


def _whole_groups(node: NodeView, layout: Layout, group: int, channel: int) -> list[Option]:
    """Each rank computes its own groups."""
    first, second = dim(node.shapes[layout.w], 0), dim(node.shapes[layout.w], 1)
    channels = first if layout.in_axis == 0 else second * group if isinstance(second, int) else None
    options = []
    for blocks in node.blocks(channels):
        if group % (node.world * blocks) == 0 and node.divisible(first, blocks):
            parts = {layout.x: Split(channel, blocks), layout.w: Split(0, blocks)}
            out = Split(channel, blocks)
            options.append(_output_channels(node, layout, parts, out, divided(group=group)))
    return options


@rule("DeformConv")
def deform_conv(node: NodeView) -> list[Option]:
    """X, W [out, in / group, ...], offsets [batch, ...], B [out], mask [batch, ...]; not the input channels,
    whose groups share offsets."""
    x, w = node.shapes[0], node.shapes[1]
    if x is None or w is None:
        return []
    options = [option(node, dict.fromkeys((0, 2, 4), split), split) for split in splits(node, x, (0,))]
    if integer(node.attributes, "group", 1) == 1:
        layout = Layout(per_channel=(3,), bias=3)
        for blocks in node.blocks(w[0]):
            options.append(_output_channels(node, layout, {1: Split(0, blocks)}, Split(1, blocks)))
    return options
