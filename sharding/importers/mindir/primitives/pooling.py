"""Pooling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.conv import PAD_MODES, last, paired, same_pads
from sharding.importers.mindir.primitives.matmul import channels_last
from sharding.importers.mindir.primitives.operands import (
    INT32,
    INT64,
    computable,
    element_type,
    floating,
    integers,
    known_rank,
    lengths_product,
    number,
    scalar,
    text,
)
from sharding.importers.mindir.primitives.windows import completed, last_windows, places_of_largest

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import Builder


def _of_two(setting: Operand, b: Builder, what: str, flip: bool) -> list[int]:
    """Kernel lengths and strides of two axes; of four numbers, the channels' place goes by the layout."""
    found = integers(b, setting, what)
    if len(found) == 4 and flip:
        return list(found[1:3])
    return last(found, 2, what)


def _classic(
    b: Builder, node: Node, op_type: str, x: Value, kernel: Operand, strides: Operand, mode: Operand,
    layout: Operand,
) -> Value:  # fmt: skip
    flip = channels_last(layout)
    wide = b.transpose(computable(b, x), [0, 3, 1, 2]) if flip else computable(b, x)
    sizes = _of_two(kernel, b, "kernel_size", flip)
    steps = _of_two(strides, b, "strides", flip)
    padding = same_pads(b, wide, sizes, steps, [1, 1]) if text(mode, "pad_mode", PAD_MODES) == "same" else {}
    found = b.op(op_type, [wide], {"kernel_shape": sizes, "strides": steps, **padding})
    return b.transpose(found, [0, 2, 3, 1]) if flip else found


_POOL = ("kernel_size", "strides", "pad_mode", "data_format")


def _layout(node: Node, setting: Operand) -> Operand:
    return node.attributes.get("format", setting) if setting == "NCHW" else setting


@primitive("MaxPool", "MaxPoolV1", settings=_POOL)
def max_pool(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = 1,
    strides: Operand = 1,
    pad_mode: Operand = "valid",
    data_format: Operand = "NCHW",
) -> Value:
    """The largest of each window."""
    layout = _layout(node, data_format)
    return _classic(b, node, "MaxPool", x, kernel_size, strides, pad_mode, layout)


@primitive("AvgPool", "AvgPoolV1", settings=_POOL)
def avg_pool(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = 1,
    strides: Operand = 1,
    pad_mode: Operand = "valid",
    data_format: Operand = "NCHW",
) -> Value:
    """The mean of each window; padding does not count."""
    layout = _layout(node, data_format)
    return _classic(b, node, "AveragePool", x, kernel_size, strides, pad_mode, layout)


def pooled(
    b: Builder,
    op_type: str,
    x: Value,
    kernel: Sequence[int],
    strides: Sequence[int],
    pads: Sequence[int],
    *,
    ceil: bool = False,
    count_padding: bool | None = None,
    dilations: Sequence[int] | None = None,
) -> Value:
    """Windows with pads in ONNX's order; one axis more in front if the batch is missing."""
    lone = known_rank(x) == len(kernel) + 1
    wide = computable(b, b.unsqueeze(x, [0]) if lone else x)
    gaps = list(dilations) if dilations and any(item != 1 for item in dilations) else None
    if ceil:
        wide, pads, ceil = last_windows(b, wide, kernel, strides, pads, gaps, op_type == "MaxPool")
    attributes: dict[str, Any] = {
        "kernel_shape": list(kernel),
        "strides": list(strides),
        "pads": list(pads),
        "ceil_mode": int(ceil),
        "dilations": gaps,
        "count_include_pad": None if count_padding is None else int(count_padding),
    }
    found = b.op(op_type, [wide], attributes)
    return b.squeeze(found, [0]) if lone else found


_POOL3D = ("kernel_size", "strides", "pad_mode", "pad_list", "ceil_mode")


@primitive("MaxPool3D", settings=_POOL3D)
def max_pool3d(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = 1,
    strides: Operand = 1,
    pad_mode: Operand = "valid",
    pad_list: Operand = 0,
    ceil_mode: Operand = None,
) -> Value:
    """The largest of each window of three axes."""
    kernel = last(integers(b, kernel_size, "kernel_size"), 3, "kernel_size")
    steps = last(integers(b, strides, "strides"), 3, "strides")
    return _in_volume(b, "MaxPool", x, kernel, steps, pad_mode, pad_list, bool(ceil_mode), None)


def _in_volume(
    b: Builder,
    op_type: str,
    x: Value,
    kernel: list[int],
    steps: list[int],
    pad_mode: Operand,
    pad_list: Operand,
    ceil: bool,
    count_padding: bool | None,
) -> Value:
    mode = text(pad_mode, "pad_mode", (*PAD_MODES, "calculated"))
    if mode == "same":
        wide = computable(b, x)
        padding = same_pads(b, wide, kernel, steps, [1, 1, 1])
        counted = None if count_padding is None else int(count_padding)
        attributes = {"kernel_shape": kernel, "strides": steps, "count_include_pad": counted, **padding}
        return b.op(op_type, [wide], attributes)
    pads = paired(integers(b, pad_list, "pad_list"), 3, "pad_list") if mode != "valid" else [0] * 6
    return pooled(b, op_type, x, kernel, steps, pads, ceil=ceil, count_padding=count_padding)


_AVERAGE3D = (*_POOL3D, "count_include_pad", "divisor_override")


@primitive("AvgPool3D", settings=_AVERAGE3D)
def avg_pool3d(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = 1,
    strides: Operand = 1,
    pad_mode: Operand = "valid",
    pad_list: Operand = 0,
    ceil_mode: Operand = False,
    count_include_pad: Operand = True,
    divisor_override: Operand = 0,
) -> Value:
    """The mean of each window of three axes."""
    kernel = last(integers(b, kernel_size, "kernel_size"), 3, "kernel_size")
    steps = last(integers(b, strides, "strides"), 3, "strides")
    divisor = number(divisor_override, "divisor_override") if divisor_override is not None else 0
    counted = bool(count_include_pad) or bool(divisor)
    around = pad_list
    if divisor and ceil_mode and text(pad_mode, "pad_mode", (*PAD_MODES, "calculated")) != "same":
        valid = text(pad_mode, "pad_mode", (*PAD_MODES, "calculated")) == "valid"
        pads = [0] * 6 if valid else paired(integers(b, pad_list, "pad_list"), 3, "pad_list")
        x, around, ceil_mode, pad_mode = completed(b, floating(b, x), kernel, steps, pads), 0, False, "valid"
    found = _in_volume(b, "AveragePool", x, kernel, steps, pad_mode, around, bool(ceil_mode), counted)
    return _divided(b, found, kernel, divisor)


def _divided(b: Builder, x: Value, kernel: Sequence[int], divisor: float) -> Value:
    """Means as sums by another divisor."""
    return b.op("Mul", [x, scalar(b, np.prod(kernel) / divisor, x)]) if divisor else x


_AVERAGE = ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")


@primitive("AvgPool1D", "AvgPool2D", "AvgPool3DExt", settings=_AVERAGE)
def avg_pool_ext(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = 1,
    stride: Operand = None,
    padding: Operand = 0,
    ceil_mode: Operand = False,
    count_include_pad: Operand = True,
    divisor_override: Operand = None,
) -> Value:
    """The mean of each window, the same padding at both ends."""
    count = {"AvgPool1D": 1, "AvgPool2D": 2}.get(node.op_type, 3)
    kernel = last(integers(b, kernel_size, "kernel_size"), count, "kernel_size")
    steps = kernel if stride in (None, ()) else last(integers(b, stride, "stride"), count, "stride")
    around = last(integers(b, padding, "padding"), count, "padding") * 2
    divisor = 0 if divisor_override is None else number(divisor_override, "divisor_override")
    counted = bool(count_include_pad) or bool(divisor)
    wide, ceil = floating(b, x), bool(ceil_mode)
    if divisor and ceil:
        wide, around, ceil = completed(b, wide, kernel, steps, around), [0] * (2 * count), False
    found = pooled(b, "AveragePool", wide, kernel, steps, around, ceil=ceil, count_padding=counted)
    return _divided(b, found, kernel, divisor)


_WITH_PLACES = ("kernel_size", "strides", "pads", "dilation", "ceil_mode", "argmax_type")
_PLACE_TYPES = {"int32": INT32, "int64": INT64, 3: INT32, 4: INT64}
"""The places' element type as classic primitives name or number it."""


@primitive("MaxPoolWithMask", "MaxPoolWithIndices", "MaxPoolWithArgmaxV2", "MaxPool3DWithArgmax",
           settings=_WITH_PLACES)  # fmt: skip
def max_pool_places(
    b: Builder,
    node: Node,
    x: Value,
    *,
    kernel_size: Operand = None,
    strides: Operand = None,
    pads: Operand = 0,
    dilation: Operand = 1,
    ceil_mode: Operand = False,
    argmax_type: Operand = None,
) -> Operand:
    """The largest of each window, and its place among all of its channel.

    MaxPoolWithMask, whose second result is made for one device's gradient, gives the first alone.
    """
    count = 3 if node.op_type == "MaxPool3DWithArgmax" else 2
    setting = node.attributes.get("ksize", 1) if kernel_size is None else kernel_size
    kernel = last(integers(b, setting, "kernel_size"), count, "kernel_size")
    steps = kernel if strides in (None, ()) else last(integers(b, strides, "strides"), count, "strides")
    around = last(integers(b, pads, "pads"), count, "pads") * 2
    gaps = last(integers(b, dilation, "dilation"), count, "dilation")
    if node.op_type == "MaxPoolWithMask":
        return (pooled(b, "MaxPool", x, kernel, steps, around, ceil=bool(ceil_mode), dilations=gaps),)
    lone = known_rank(x) == count + 1
    wide = b.unsqueeze(computable(b, x), [0]) if lone else computable(b, x)
    ceil = bool(ceil_mode)
    if ceil:
        wide, around, ceil = last_windows(b, wide, kernel, steps, around, gaps, True)
    attributes = {
        "kernel_shape": kernel, "strides": steps, "pads": around, "dilations": gaps, "ceil_mode": int(ceil),
    }  # fmt: skip
    values, places = b.ops("MaxPool", [wide], attributes, outputs=2)
    # ONNX counts over all channels of all batch entries.
    places = b.op("Mod", [places, lengths_product(b, wide, range(2, 2 + count))])
    if lone:
        values, places = b.squeeze(values, [0]), b.squeeze(places, [0])
    if isinstance(argmax_type, (str, int)) and argmax_type in _PLACE_TYPES:
        return values, b.cast(places, _PLACE_TYPES[argmax_type])
    return values, b.cast(places, element_type(argmax_type, INT64))


# Adaptive pooling


def _wanted(b: Builder, x: Value, setting: Operand, count: int) -> list[int | None]:
    """The result's lengths along the last axes; None keeps one."""
    if not isinstance(setting, (tuple, Value)):
        setting = (setting,)
    items = list(setting) if isinstance(setting, tuple) else list(integers(b, setting, "output_size"))
    items = items * count if len(items) == 1 else items
    found: list[int | None] = []
    for item in items:
        length = None if item is None else integers(b, item, "output_size")[0]
        found.append(None if length is None or length < 0 else length)
    if len(found) != count:
        raise RefusedError(f"output_size must have {count} numbers, found {len(found)}")
    return found


def _adaptive(b: Builder, x: Value, setting: Operand, count: int, largest: bool) -> Value:
    wide = floating(b, x) if not largest else computable(b, x)
    rank = known_rank(x)
    for axis, wanted in zip(range(rank - count, rank), _wanted(b, x, setting, count), strict=True):
        if wanted is not None:
            wide = _adapted(b, wide, axis, wanted, largest)
    return wide


def _adapted(b: Builder, x: Value, axis: int, wanted: int, largest: bool) -> Value:
    """One axis in windows from floor(i n / m) to ceil((i + 1) n / m)."""
    kind = "ReduceMax" if largest else "ReduceMean"
    if wanted == 1:
        return b.op(kind, [x, b.ints((axis,))], {"keepdims": 1})
    length = b.dim(x, axis)
    if not isinstance(length, int):
        raise RefusedError(f"the length along axis {axis} must be known")
    if length == wanted:
        return x
    if length % wanted == 0:
        shape = b.shape_of(x)
        assert isinstance(shape, tuple)
        cut = b.reshape(x, (*shape[:axis], wanted, length // wanted, *shape[axis + 1 :]))
        return b.op(kind, [cut, b.ints((axis + 1,))], {"keepdims": 0})
    bounds = [(i * length // wanted, -(-(i + 1) * length // wanted)) for i in range(wanted)]
    if not largest and axis == known_rank(x) - 1:
        weights = np.zeros((length, wanted))
        for place, (low, high) in enumerate(bounds):
            weights[low:high, place] = 1 / (high - low)
        return b.op("MatMul", [x, b.const(weights.astype(x.dtype))])
    parts = []
    for low, high in bounds:
        window = b.op("Slice", [x, b.ints((low,)), b.ints((high,)), b.ints((axis,))])
        parts.append(b.op(kind, [window, b.ints((axis,))], {"keepdims": 1}))
    return b.op("Concat", parts, {"axis": axis})


def _adaptive_family(count: int, largest: bool, *names: str) -> None:
    def convert(b: Builder, node: Node, x: Value, *, output_size: Operand = 1) -> Operand:
        found = _adaptive(b, x, output_size, count, largest)
        if len(node.result_types) < 2:
            return found
        places = places_of_largest(b, computable(b, x), _wanted(b, x, output_size, count))
        return (found,) if places is None else (found, places)

    kind = "largest" if largest else "mean"
    convert.__doc__ = f"The {kind} of as many windows as the result has places, along the last {count} axes."
    primitive(*names, settings=("output_size",))(convert)


_adaptive_family(1, False, "AdaptiveAvgPool1D")
_adaptive_family(2, False, "AdaptiveAvgPool2D", "AdaptiveAvgPool2DExt")
_adaptive_family(3, False, "AdaptiveAvgPool3D", "AdaptiveAvgPool3DExt")
_adaptive_family(1, True, "AdaptiveMaxPool1D")
_adaptive_family(2, True, "AdaptiveMaxPool2D")
_adaptive_family(3, True, "AdaptiveMaxPool3D")
