"""Windows put back where they were taken from."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.conv import last
from sharding.importers.mindir.primitives.operands import INT64, Builder, joined_length, known_rank


@primitive("Col2Im", "Col2ImExt")
def col2im(
    b: Builder,
    x: Value,
    output_size: Operand,
    *,
    kernel_size: Operand = 1,
    dilation: Operand = 1,
    padding: Operand = 0,
    stride: Operand = 1,
) -> Value:
    """The sum of windows at their places: (batch, channel, place in the window, window) or, with the channels
    and the places in the window as one axis, torch's."""
    kernel, gaps, around, steps = (
        last(b.integers(item, what), 2, what)
        for item, what in (
            (kernel_size, "kernel_size"), (dilation, "dilation"), (padding, "padding"), (stride, "stride")
        )
    )  # fmt: skip
    image = b.integers(output_size, "output_size", 2)
    wide = b.floating(x)
    if known_rank(wide) == 4:
        joined = joined_length(wide, (1, 2))
        wide = b.reshape(wide, (b.dim(wide, 0), joined, b.dim(wide, 3)))
    return b.op("Col2Im", [wide, b.const(image, np.int64), b.const(kernel, np.int64)], {
        "dilations": gaps, "pads": around * 2, "strides": steps
    })  # fmt: skip


@primitive("MaxUnpool2D", "MaxUnpool3D")
def max_unpool(b: Builder, node: Node, x: Value, places: Value) -> Value:
    """Each element at its place of a tensor that is 0 elsewhere; places count over the last axes."""
    count = 3 if node.op_type == "MaxUnpool3D" else 2
    shape = node.result.shape if node.result is not None else None
    if shape is None or any(length is None for length in shape[-count:]):
        raise RefusedError("the result's lengths must be known")
    if str(node.attributes.get("format", "NCHW")) not in {"NCHW", "NCDHW"}:
        raise RefusedError("the channels last have no conversion")
    ends = [length or 0 for length in shape[-count:]]
    front = tuple(b.dim(x, axis) for axis in range(known_rank(x) - count))
    joined = joined_length(x, range(-count, 0))
    empty = b.filled((*front, int(np.prod(ends))), 0, x.dtype)
    where = b.cast(b.reshape(places, (*front, joined)), INT64)
    found = b.op("ScatterElements", [empty, where, b.reshape(x, (*front, joined))], {"axis": len(front)})
    return b.reshape(found, (*front, *ends))
