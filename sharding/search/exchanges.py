"""Options whose nodes exchange something themselves, where no cut of the operator alone is exact.

A rule says what each rank can do by itself. Two quantized operators need one look at all ranks in their
middle, and are then as cheap to cut as their floating-point forms:

- DynamicQuantizeLinear of a split tensor: the range of the whole tensor. The ranks exchange the least and
  the greatest element of their parts, and DynamicQuantizeLinear of just these gives scale and zero point.
- QLinearMatMul with the summed axis split: the sums of int32 before they are rounded. MatMulInteger makes
  them, and the scales' quotient and QuantizeLinear finish as the kernel does.

Both give the whole operator's result bit for bit. As rules these options would say that an axis is computed
apart (which data parallelism relies on), so they stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sharding.graph.sizes import Sizes
from sharding.rules.base import Dim, Emitter, NodeView, Option, Value, Values
from sharding.rules.common import dim, shape_like, shape_of, splits
from sharding.rules.quantization import quantized_product
from sharding.search.cost import COLLECTIVE_SECONDS, ELEMENTS_PER_SECOND, reshard_seconds
from sharding.search.reshard import with_collectives
from sharding.slices.placement import PARTIAL, REPLICATED, Partial

TENSOR_FLOAT = 1
"""TensorProto.FLOAT"""


def exchanging_options(view: NodeView, sizes: Sizes | None = None) -> list[Option]:
    """The options of this kind for a node; none for most."""
    sizes = sizes or Sizes()
    if view.domain or view.world == 1 or not all(view.present):
        return []
    if view.op_type == "DynamicQuantizeLinear" and len(view.shapes) == 1:
        return _quantize(view, sizes)
    return _product(view, sizes) if view.op_type == "QLinearMatMul" and len(view.shapes) == 8 else []


def _quantize(view: NodeView, sizes: Sizes) -> list[Option]:
    shape = shape_of(view, 0)
    return [
        Option(
            inputs=(split,),
            outputs=(split, REPLICATED, REPLICATED),
            emit=partial(_emit_quantize, len(shape or ())),
            seconds=COLLECTIVE_SECONDS + sizes.count(shape or ()) / view.world / ELEMENTS_PER_SECOND,
        )
        for split in splits(view, shape)
    ]


def _emit_quantize(rank: int, e: Emitter, values: Values) -> list[Value]:
    ends = [e.op(name, [values[0]], keepdims=1)[0] for name in ("ReduceMin", "ReduceMax")]
    own = e.op("Concat", ends, axis=0)[0]
    shape = (2, *[1] * (rank - 1))
    ranges = _collective(e, "AllGather", own, shape, np.float32, axis=0, group_size=e.world)
    _, scale, zero = e.op("DynamicQuantizeLinear", [ranges], outputs=3)
    return [e.op("QuantizeLinear", [values[0], scale, zero])[0], scale, zero]


def _product(view: NodeView, sizes: Sizes) -> list[Option]:
    a, scales, points = shape_of(view, 0), shape_of(view, 4), shape_of(view, 5)
    bytes_, floats = [view.dtypes[i] for i in (0, 3, 7)], [view.dtypes[i] for i in (1, 4, 6)]
    if any(kind != np.float32 for kind in floats):
        return []
    if any(kind is None or kind.name not in ("int8", "uint8") for kind in bytes_):
        return []
    if a is None or any(not _is_one(view, i) for i in (1, 2, 6, 7)):
        return []
    if scales is None or points is None or len(scales) > 1 or len(points) > 1:
        return []
    out = shape_like(view)
    if out is None:
        return []
    sums = 4 * sizes.count(out)
    seconds = reshard_seconds(PARTIAL, REPLICATED, sums, view.world) + sums / ELEMENTS_PER_SECOND
    return [
        replace(found, outputs=(REPLICATED,), emit=partial(_emit_product, tuple(out)), seconds=seconds)
        for found in quantized_product(view, {0: [1, 2], 3: [4, 5]}, linear=True)
        if isinstance(found.outputs[0], Partial)
    ]


def _emit_product(out: tuple[Dim, ...], e: Emitter, values: Values) -> list[Value]:
    a, a_scale, a_zero, b, b_scale, b_zero, y_scale, y_zero = values
    own = e.op("MatMulInteger", [a, b, a_zero, b_zero])[0]
    sums = _collective(e, "AllReduce", own, out, np.int32)
    scale = e.op("Div", [e.op("Mul", [a_scale, b_scale])[0], y_scale])[0]
    scaled = e.op("Mul", [e.op("Cast", [sums], to=TENSOR_FLOAT)[0], scale])[0]
    return e.op("QuantizeLinear", [scaled, e.constant(np.asarray(1, np.float32)), y_zero])


def _is_one(view: NodeView, index: int) -> bool:
    """Whether an input is one number."""
    shape = shape_of(view, index)
    return shape is not None and (len(shape) == 0 or (len(shape) == 1 and dim(shape, 0) == 1))


def _collective(
    emitter: Emitter,
    op_type: str,
    value: Value,
    shape: Sequence[Dim],
    kind: type[np.generic],
    **attributes: int,
) -> Value:
    """A collective on a value that the source model does not have; it is named after the node's output."""
    import onnx_ir as ir

    e = with_collectives(emitter)
    outer, node = e.moving, e.node
    name = None if node is None else node.outputs[0].name
    e.moving = ir.Value(name=name, type=ir.TensorType(ir.DataType.from_numpy(np.dtype(kind))))
    result = e.collective(op_type, value, shape, **attributes)
    e.moving = outer
    return result
