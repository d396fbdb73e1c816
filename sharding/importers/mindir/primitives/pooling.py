"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.common.arrays import DType
from sharding.importers.mindir.primitives.base import Node, Operand, Value, primitive, table
from sharding.importers.mindir.primitives.conv import PAD_MODES, last, paired, same_padding, spatial_lengths
from sharding.importers.mindir.primitives.matmul import channels_last
from sharding.importers.mindir.primitives.operands import INT32, INT64, Builder, Ints, Number
from sharding.importers.mindir.primitives.windows import Windows, completed, last_windows

_PAD_MODES = (*PAD_MODES, "calculated")


def _of_two(setting: Operand, b: Builder, what: str, flip: bool) -> list[int]:
    """Kernel lengths and strides of two axes; of four numbers, the channels' place goes by the layout."""
    found = b.integers(setting, what)
    if len(found) == 4 and flip:
        return list(found[1:3])
    return last(found, 2, what)


def _is_open(b: Builder, *settings: Operand) -> bool:
    """Whether a kernel or a stride is a pair that only a run tells."""
    return any(b.known_ints(item) is None and isinstance(item, tuple) for item in settings)


def _means_later(b: Builder, x: Value, kernel: Operand, strides: Operand, flip: bool) -> Value:
    """Means of windows, without padding, whose lengths only a run tells: each window's places are taken
    apart, one axis after the other."""
    assert isinstance(kernel, tuple)
    steps = strides if isinstance(strides, tuple) else (strides, strides)
    found, zero, one = b.floating(x), b.const(0, np.int64), b.const(1, np.int64)
    for place, pair in enumerate(zip(kernel[-2:], steps[-2:], strict=True)):
        axis = place + (1 if flip else 2)
        size, step = (b.reshape(b.ints(item), ()) for item in pair)
        before = b.op("Div", [b.op("Sub", [b.value(b.dim(found, axis)), size]), step])
        number = b.op("Range", [zero, b.op("Add", [before, one]), one])
        starts = b.unsqueeze(b.op("Mul", [number, step]), [1])
        places = b.op("Add", [starts, b.op("Range", [zero, size, one])])
        apart = b.op("Gather", [found, places], {"axis": axis})
        found = b.op("ReduceMean", [apart, b.ints((axis + 1,))], {"keepdims": 0})
    return found


def _same(b: Builder, x: Value, kernel: list[int], steps: list[int]) -> tuple[Value, dict[str, object]]:
    """The operand and attributes of a pooling with ceil(length / stride) windows. Where a stride leaves gaps
    between windows, what lies behind the last one goes first: padding cannot be negative."""
    gaps = [axis for axis in range(len(kernel)) if steps[axis] > kernel[axis]]
    if None in spatial_lengths(x, len(kernel)) and gaps:
        places = b.const(np.array(gaps) + 2)
        lengths = b.op("Gather", [b.op("Shape", [x]), places], {"axis": 0})
        step, size = (b.const(np.array(item)[gaps], np.int64) for item in (steps, kernel))
        before = b.op("Div", [b.op("Sub", [lengths, 1]), step])  # windows but one
        ends = b.op("Add", [b.op("Mul", [before, step]), size])
        x = b.op("Slice", [x, b.ints((0,) * len(gaps)), ends, places])
    return same_padding(b, x, kernel, steps, [1] * len(kernel))


@table({("MaxPool", "MaxPoolV1"): "MaxPool", ("AvgPool", "AvgPoolV1"): "AveragePool"}, rank=4)
def pool(
    op_type: str,
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = 1,
    strides: Operand = 1,
    pad_mode: Operand = "valid",
    data_format: Operand = "NCHW",
) -> Value:
    """The largest of each window, or its mean, in which padding does not count."""
    flip = channels_last(node, data_format)
    wide = b.transpose(b.computable(x), [0, 3, 1, 2]) if flip else b.computable(x)
    mode = b.text(pad_mode, "pad_mode", PAD_MODES)
    if op_type == "AveragePool" and mode == "valid" and _is_open(b, kernel_size, strides):
        return _means_later(b, x, kernel_size, strides, flip)
    sizes = _of_two(kernel_size, b, "kernel_size", flip)
    steps = _of_two(strides, b, "strides", flip)
    padding: dict[str, object] = {}
    if mode == "same":
        wide, padding = _same(b, wide, sizes, steps)
    found = b.op(op_type, [wide], {"kernel_shape": sizes, "strides": steps, **padding})
    return b.transpose(found, [0, 2, 3, 1]) if flip else found


def _mean(b: Builder, op_type: str, x: Value, windows: Windows, divisor: float) -> Value:
    """What windows give, as sums by another divisor where there is one."""
    if divisor and windows.ceil:
        x, windows = completed(b, b.floating(x), windows)
    found = pooled(b, op_type, x, windows)[0]
    return _divided(b, found, windows.kernel, divisor)


def pooled(b: Builder, op_type: str, x: Value, windows: Windows, outputs: int = 1) -> list[Value]:
    """What windows give; one axis more in front if the batch is missing. A second result are the places among
    all of a channel."""
    count, gaps = len(windows.kernel), windows.dilations and list(windows.dilations)
    lone = x.rank == count + 1
    wide = b.computable(b.unsqueeze(x, [0]) if lone else x)
    if windows.ceil:
        wide, windows = last_windows(b, wide, windows, op_type == "MaxPool")
    more: dict[str, object] = {"pads": list(windows.pads), "ceil_mode": int(windows.ceil), "dilations": gaps}
    found = b.ops(op_type, [wide], {**windows.attributes, **more}, outputs=outputs)
    if outputs > 1:  # ONNX counts over all channels of all batch entries
        found[1] = b.op("Mod", [found[1], b.lengths_product(wide, range(2, 2 + count))])
    return [b.squeeze(item, [0]) for item in found] if lone else found


@table({"MaxPool3D": "MaxPool", "AvgPool3D": "AveragePool"}, rank=5)
def pool3d(
    op_type: str,
    b: Builder,
    x: Value,
    *,
    kernel_size: Ints = (1,),
    strides: Ints = (1,),
    pad_mode: Operand = "valid",
    pad_list: Operand = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Number | None = None,
) -> Value:
    """The largest of each window of three axes, or its mean."""
    kernel, steps = last(kernel_size, 3, "kernel_size"), last(strides, 3, "strides")
    divisor, mode = divisor_override or 0, b.text(pad_mode, "pad_mode", _PAD_MODES)
    counted = None if op_type == "MaxPool" else count_include_pad or bool(divisor)
    if mode == "same":  # as much as keeps the number of windows
        wide, padding = _same(b, b.computable(x), kernel, steps)
        found = b.op(op_type, [wide], {**Windows(kernel, steps, counted=counted).attributes, **padding})
        return _divided(b, found, kernel, divisor)
    pads = paired(b.integers(pad_list, "pad_list"), 3, "pad_list") if mode != "valid" else [0] * 6
    return _mean(b, op_type, x, Windows(kernel, steps, pads, ceil_mode, counted), divisor)


def _divided(b: Builder, x: Value, kernel: Sequence[int], divisor: float) -> Value:
    """Means as sums by another divisor."""
    return b.op("Mul", [x, b.scalar(np.prod(kernel) / divisor, x)]) if divisor else x


@primitive("AvgPool1D", "AvgPool2D", "AvgPool3DExt")
def avg_pool_ext(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Ints = (1,),
    stride: Operand = None,
    padding: Ints = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: Number | None = None,
) -> Value:
    """The mean of each window, the same padding at both ends."""
    count = {"AvgPool1D": 1, "AvgPool2D": 2}.get(node.op_type, 3)
    kernel = last(kernel_size, count, "kernel_size")
    steps = kernel if stride in (None, ()) else last(b.integers(stride, "stride"), count, "stride")
    around = last(padding, count, "padding") * 2
    divisor = divisor_override or 0
    windows = Windows(kernel, steps, around, ceil_mode, count_include_pad or bool(divisor))
    return _mean(b, "AveragePool", b.floating(x), windows, divisor)


_PLACE_TYPES: dict[str | int, DType] = {"int32": INT32, "int64": INT64, 3: INT32, 4: INT64}
"""The places' element type as classic primitives name or number it."""


@primitive("MaxPoolWithMask", "MaxPoolWithIndices", "MaxPoolWithArgmaxV2", "MaxPool3DWithArgmax")  # fmt: skip
def max_pool_places(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = None,
    strides: Operand = None,
    pads: Ints = (0,),
    dilation: Ints = (1,),
    ceil_mode: bool = False,
    argmax_type: Operand = None,
) -> Operand:
    """The largest of each window, and its place among all of its channel.

    MaxPoolWithMask, whose second result is made for one device's gradient, gives the first alone.
    """
    count = 3 if node.op_type == "MaxPool3DWithArgmax" else 2
    setting = node.attributes.get("ksize", 1) if kernel_size is None else kernel_size
    kernel = last(b.integers(setting, "kernel_size"), count, "kernel_size")
    steps = kernel if strides in (None, ()) else last(b.integers(strides, "strides"), count, "strides")
    around = last(pads, count, "pads") * 2
    gaps = last(dilation, count, "dilation")
    windows = Windows(kernel, steps, around, ceil_mode, dilations=gaps)
    if node.op_type == "MaxPoolWithMask":
        return (pooled(b, "MaxPool", x, windows)[0],)
    values, places = pooled(b, "MaxPool", x, windows, 2)
    if isinstance(argmax_type, (str, int)) and argmax_type in _PLACE_TYPES:
        return values, b.cast(places, _PLACE_TYPES[argmax_type])
    return values, b.cast(places, b.element_type(argmax_type, INT64))
