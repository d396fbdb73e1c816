"""Convolutions whose settings are attributes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.matmul import channels_last
from sharding.importers.mindir.primitives.operands import Builder

PAD_MODES = ("pad", "same", "valid")
"""In the order of version 3's numbers."""


def last(found: Sequence[int], count: int, what: str) -> list[int]:
    """The numbers for the spatial axes: of a list with the other two axes in front, or of one for all."""
    items = list(found)
    if len(items) == 1:
        items *= count
    elif len(items) == count + 2:
        items = items[2:]
    if len(items) != count:
        raise RefusedError(f"{what} must have {count} numbers, found {list(found)}")
    return items


def paired(found: Sequence[int], count: int, what: str) -> list[int]:
    """ONNX's order, all the fronts and then all the ends, of MindSpore's, front and end of each axis; or of
    one number for each axis, or for all."""
    items = list(found)
    if len(items) == 1:
        return items * (2 * count)
    if len(items) == count and count > 1:
        return items * 2
    if len(items) != 2 * count:
        raise RefusedError(f"{what} must have {2 * count} numbers, found {items}")
    return items[0::2] + items[1::2]


def same_padding(
    b: Builder, x: Value, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int]
) -> tuple[Value, dict[str, object]]:
    """An operand of a convolution and the attributes for padding that keeps ceil(length / stride); the odd
    place goes to the end. What only a run tells is added to the operand, as zeros."""
    axes = list(zip(spatial_lengths(x, len(kernel)), kernel, strides, dilations, strict=True))
    totals = [_same_total(*axis) for axis in axes]
    if None not in totals:
        return x, {"pads": _halves([total or 0 for total in totals])}
    if all(gap == 1 for gap in dilations):
        return x, {"auto_pad": "SAME_UPPER"}  # no runtime has that for kernels with gaps
    shape = b.op("Shape", [x])
    places = b.const(np.arange(2, 2 + len(kernel)))
    lengths = b.op("Gather", [shape, places], {"axis": 0})
    reach, step = (
        b.const([(size - 1) * gap + 1 for size, gap in zip(kernel, dilations, strict=True)], np.int64),
        b.const(list(strides), np.int64),
    )
    before = b.op("Div", [b.op("Sub", [lengths, 1]), step])  # windows but one
    needed = b.op("Add", [b.op("Mul", [before, step]), reach])
    total = b.op("Max", [b.op("Sub", [needed, lengths]), 0])
    front = b.op("Div", [total, 2])
    none = b.const([0, 0], np.int64)
    amounts = b.op("Concat", [none, front, none, b.op("Sub", [total, front])], {"axis": 0})
    padded = b.op("Pad", [x, amounts])
    padded.shape = None if x.shape is None else (*x.shape[:2], *[None] * len(kernel))
    return padded, {}


def _halves(totals: Sequence[int]) -> list[int]:
    return [total // 2 for total in totals] + [total - total // 2 for total in totals]


def spatial_lengths(x: Value, count: int) -> tuple[int | None, ...]:
    """The lengths of the axes behind batch and channels, None for those that only a run tells."""
    return x.shape[2:] if x.shape is not None else (None,) * count


def _same_total(length: int | None, size: int, step: int, gap: int) -> int | None:
    """What both ends need together; with a stride of 1 whatever the length."""
    if step == 1:
        return (size - 1) * gap
    if length is None:
        return None
    return max((-(-length // step) - 1) * step + (size - 1) * gap + 1 - length, 0)


@dataclass
class _Window:
    """The numbers of a classic convolution."""

    strides: list[int]
    dilations: list[int]
    group: int
    mode: str
    pads: Operand


def _window(b: Builder, node: Node, spatial: int) -> _Window:
    attributes = node.attributes

    def first(*names: str, default: Operand) -> Operand:
        return next((attributes[name] for name in names if attributes.get(name) is not None), default)

    return _Window(
        last(b.integers(first("stride", "strides", default=1), "stride"), spatial, "stride"),
        last(b.integers(first("dilation", "dilations", default=1), "dilation"), spatial, "dilation"),
        b.integer(first("group", "groups", default=1), "group"),
        b.text(first("pad_mode", default="valid"), "pad_mode", PAD_MODES),
        first("pad_list", "pad", default=0),
    )


def kernel_of(w: Value) -> list[int]:
    if w.shape is None or any(length is None for length in w.shape):
        raise RefusedError("the weight's shape must be known")
    return [length or 0 for length in w.shape[2:]]


def _classic(b: Builder, node: Node, x: Value, w: Value, spatial: int, group: int | None = None) -> Value:
    """A convolution whose settings are attributes; ``group`` instead of theirs."""
    window = _window(b, node, spatial)
    flip = channels_last(node, node.attributes.get("data_format", "NCHW"))
    rank = spatial + 2
    x, w = (b.computable(item) for item in b.promoted(x, w))
    if flip:
        x, w = (b.transpose(item, [0, rank - 1, *range(1, rank - 1)]) for item in (x, w))
    kernel = kernel_of(w)
    padding: dict[str, object] = {}
    if window.mode == "same":
        x, padding = same_padding(b, x, kernel, window.strides, window.dilations)
    elif window.mode == "pad":
        padding = {"pads": paired(b.integers(window.pads, "pad"), spatial, "pad")}
    found = b.op("Conv", [x, w], {
        "kernel_shape": kernel, "strides": window.strides, "dilations": window.dilations,
        "group": window.group if group is None else group, **padding,
    })  # fmt: skip
    return b.transpose(found, [0, *range(2, rank), 1]) if flip else found


# Weights are (out, in / group, depth, height, width); pads front, back, top, bottom, left, right.
primitive("Conv2D", rank=4)(lambda b, node, x, w: _classic(b, node, x, w, 2))
primitive("Conv3D", rank=5)(lambda b, node, x, w: _classic(b, node, x, w, 3))


@primitive("DepthwiseConv2dNative", rank=4)
def depthwise_conv(b: Builder, node: Node, x: Value, w: Value) -> Value:
    """Each channel alone; weights are (multiplier, channels, height, width)."""
    if channels_last(node, node.attributes.get("data_format", "NCHW")):
        raise RefusedError("a convolution of each channel with the channels last has no conversion")
    turned = b.transpose(w, [1, 0, 2, 3])
    kernel = kernel_of(w)
    channels = w.shape[1] if w.shape else None
    if channels is None:
        raise RefusedError("the weight's shape must be known")
    return _classic(b, node, x, b.reshape(turned, (-1, 1, *kernel)), 2, channels)


def _transposed(b: Builder, node: Node, x: Value, w: Value, shape: Operand, spatial: int) -> Value:
    """A convolution's gradient; what the wanted lengths have beyond the shortest is added at the end."""
    window = _window(b, node, spatial)
    if channels_last(node, node.attributes.get("data_format", "NCHW")):
        raise RefusedError("a transposed convolution with the channels last has no conversion")
    kernel = kernel_of(w)
    reach = [(size - 1) * gap + 1 for size, gap in zip(kernel, window.dilations, strict=True)]
    more = [max(step - size, 0) for step, size in zip(window.strides, reach, strict=True)]
    if window.mode == "pad":
        pads = paired(b.integers(window.pads, "pad"), spatial, "pad")
        added = node.attributes.get("output_padding")
        more = (
            last(b.integers(added, "output_padding"), spatial, "output_padding") if added else [0] * spatial
        )
    elif window.mode == "same":
        pads = _halves([max(size - step, 0) for step, size in zip(window.strides, reach, strict=True)])
    else:
        pads = [0] * (2 * spatial)
    wanted = _lengths(b, shape, spatial)
    if wanted is None and node.result is not None and node.result.shape is not None:
        declared = node.result.shape[2:]
        wanted = None if None in declared else tuple(length or 0 for length in declared)
    lengths = x.shape[2:] if x.shape is not None else None
    if wanted is not None and lengths is not None and None not in lengths:
        for axis in range(spatial):
            length = lengths[axis]
            assert length is not None
            bare = (length - 1) * window.strides[axis] + reach[axis]
            if window.mode == "same":
                total = max(bare - wanted[axis], 0)
                pads[axis], pads[axis + spatial] = total // 2, total - total // 2
            more[axis] = wanted[axis] - (bare - pads[axis] - pads[axis + spatial])
            if more[axis] < 0:  # shorter than without: cut at the end
                pads[axis + spatial] -= more[axis]
                more[axis] = 0
    first, second = (b.computable(item) for item in b.promoted(x, w))
    return b.op("ConvTranspose", [first, second], {
        "kernel_shape": kernel, "strides": window.strides, "dilations": window.dilations,
        "group": window.group, "pads": pads, "output_padding": more if any(more) else None,
    })  # fmt: skip


def _lengths(b: Builder, shape: Operand, spatial: int) -> tuple[int, ...] | None:
    """The wanted lengths of the spatial axes where they are known."""
    if shape is None:
        return None
    if isinstance(shape, tuple):
        found = b.known_ints(shape[-spatial:])
    else:
        found = b.known_ints(shape)
        found = found[-spatial:] if found is not None else None
    return found if found is None or all(length >= 0 for length in found) else None


@primitive("Conv2DTranspose", "Conv2DBackpropInput", rank=4)
def conv2d_transpose(b: Builder, node: Node, x: Value, w: Value, shape: Operand = None) -> Value:
    """Weights are (in, out / group, height, width)."""
    return _transposed(b, node, x, w, shape, 2)


@primitive("Conv3DTranspose", rank=5)
def conv3d_transpose(b: Builder, node: Node, x: Value, w: Value) -> Value:
    """Weights are (in, out / group, depth, height, width)."""
    return _transposed(b, node, x, w, node.attributes.get("input_size"), 3)
