"""Convolutions with all settings as operands, and windows as channels."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.conv import PAD_MODES, kernel_of, last, paired, same_padding
from sharding.importers.mindir.primitives.operands import Builder, Ints, known_rank

# The later functions, with all settings as numbers


@dataclass(frozen=True)
class _Steps:
    """How a window moves; ``padding`` are ONNX's attributes of it, None keeps the lengths."""

    stride: Operand
    dilation: Operand
    groups: Operand
    padding: dict[str, object] | None
    transposed: bool = False
    output_padding: Operand = None


def _ext(b: Builder, x: Value, w: Value, bias: Operand, steps: _Steps) -> Value:
    padding, transposed = steps.padding, steps.transposed
    spatial = known_rank(w) - 2
    lone = x.rank == spatial + 1
    x = b.unsqueeze(x, [0]) if lone else x
    operands = [b.computable(item) for item in b.promoted(x, w)]
    kernel = kernel_of(w)
    strides = last(b.integers(steps.stride, "stride"), spatial, "stride")
    dilations = last(b.integers(steps.dilation, "dilation"), spatial, "dilation")
    if padding is None:
        operands[0], padding = same_padding(b, operands[0], kernel, strides, dilations)
    if isinstance(bias, Value):
        operands.append(b.cast(bias, operands[0].dtype))
    more: list[int] = []
    if transposed:
        more = last(b.integers(steps.output_padding, "output_padding"), spatial, "output_padding")
    found = b.op("ConvTranspose" if transposed else "Conv", operands, {
        "kernel_shape": kernel, "strides": strides, "dilations": dilations,
        "group": b.integer(steps.groups, "groups"), "output_padding": more if any(more) else None, **padding,
    })  # fmt: skip
    return b.squeeze(found, [0]) if lone else found


def _around(b: Builder, padding: Operand, w: Value, named: bool) -> dict[str, object] | None:
    """Padding by its name, or from one number for each axis; None keeps the lengths."""
    if named:
        return None if b.text(padding, "padding", PAD_MODES) == "same" else {}
    each = last(b.integers(padding, "padding"), known_rank(w) - 2, "padding")
    return {"pads": each * 2}


_PLAIN = "stride padding dilation groups"


@table({"ConvTranspose2D": "transposed"}, settings="stride padding output_padding groups dilation")
@table({("Conv1DPadding", "Conv2DPadding", "Conv3DPadding"): "named"}, settings=_PLAIN)
@table({("Conv1DExt", "Conv2DExt", "Conv3DExt"): ""}, settings=_PLAIN)
@table({"Convolution": "", "ConvolutionStr": "named"})
def convolution(
    kind: str,
    b: Builder,
    x: Value,
    w: Value,
    bias: Operand = None,
    *,
    stride: Operand = 1,
    padding: Operand = 0,
    dilation: Operand = 1,
    transposed: bool = False,
    output_padding: Operand = 0,
    groups: Operand = 1,
) -> Value:
    """A convolution with a bias, or its gradient; padded the same at both ends of an axis, or in a named way,
    by what keeps the lengths."""
    around = _around(b, padding, w, kind == "named")
    transposed = transposed or kind == "transposed"
    return _ext(b, x, w, bias, _Steps(stride, dilation, groups, around, transposed, output_padding))


def _windows(b: Builder, x: Value, ksizes: Operand) -> tuple[list[int], int, int]:
    """(a window's lengths, the number of channels, that of places in a window)"""
    kernel = last(b.integers(ksizes, "ksizes"), 2, "ksizes")
    channels = b.dim(x, 1)
    if not isinstance(channels, int):
        raise RefusedError("the number of channels must be known")
    places = kernel[0] * kernel[1]
    return kernel, channels, places


@primitive("ExtractImagePatches")
def extract_patches(
    b: Builder,
    x: Value,
    *,
    ksizes: Operand = 1,
    strides: Operand = 1,
    rates: Operand = 1,
    padding: Operand = "valid",
) -> Value:
    """Each window's places as channels: a convolution with one weight of 1 for each place."""
    kernel, channels, places = _windows(b, x, ksizes)
    b.bounded(places, channels, channels, places)
    weight = np.zeros((places, channels, channels, places), np.float32)
    for place in range(places):  # the window's place changes slowest in the result
        weight[place, range(channels), range(channels), place] = 1
    w = b.const(weight.reshape(places * channels, channels, *kernel).astype(x.dtype))
    around = _around(b, padding, w, True)
    return _ext(b, x, w, None, _Steps(strides, rates, 1, around))


@primitive("Im2Col")
def im2col(
    b: Builder,
    node: Node,
    x: Value,
    *,
    ksizes: Operand = 1,
    strides: Operand = 1,
    dilations: Operand = 1,
    pads: Ints = (0,),
) -> Value:
    """Each window's places, (batch, channel, place in the window, window): a convolution of each channel
    alone with one weight of 1 for each place."""
    mode = b.text(
        node.attributes.get("padding_mode", "calculated"), "padding_mode", ("calculated", *PAD_MODES)
    )
    around: dict[str, object] | None = None
    if mode != "same":
        around = {"pads": paired(pads, 2, "pads")} if mode != "valid" else {}
    found, channels, places = _columns(b, x, ksizes, _Steps(strides, dilations, 1, around))
    return b.reshape(found, (b.dim(x, 0), channels, places, -1))


def _columns(b: Builder, x: Value, ksizes: Operand, steps: _Steps) -> tuple[Value, int, int]:
    """(the places of each channel's windows as channels, the number of channels, that of places)"""
    kernel, channels, places = _windows(b, x, ksizes)
    b.bounded(channels, places, places)
    weight = np.tile(np.eye(places).reshape(places, 1, *kernel), (channels, 1, 1, 1))
    w = b.const(weight.astype(x.dtype))
    return _ext(b, x, w, None, replace(steps, groups=channels)), channels, places


@primitive("Im2ColExt")
def im2col_ext(
    b: Builder,
    x: Value,
    *,
    kernel_size: Operand = 1,
    dilation: Operand = 1,
    padding: Ints = (0,),
    stride: Operand = 1,
) -> Value:
    """The same, (batch, channels and places in the window as one, window)."""
    pads = last(padding, 2, "padding") * 2
    channels = b.dim(x, 1)
    # Channels of which it is not known how many there are become entries of the batch.
    apart = x if isinstance(channels, int) else b.reshape(x, (-1, 1, b.dim(x, 2), b.dim(x, 3)))
    found, own, places = _columns(b, apart, kernel_size, _Steps(stride, dilation, 1, {"pads": pads}))
    rows = own * places if isinstance(channels, int) else b.op("Mul", [channels, places])
    windows = b.op("Mul", [b.value(b.dim(found, axis)) for axis in (2, 3)])
    return b.reshape(found, (b.dim(x, 0), rows, windows))
