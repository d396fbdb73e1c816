"""Options whose nodes exchange something themselves, where no cut of the operator alone is exact.

A rule says what each rank can do by itself. Two quantized operators need one look at all ranks in their
middle, and are then as cheap to cut as their floating-point forms; so does a normalization:

- DynamicQuantizeLinear of a split tensor: the range of the whole tensor. The ranks exchange the least and
  the greatest element of their parts, and DynamicQuantizeLinear of just these gives scale and zero point.
- QLinearMatMul with the summed axis split: the sums of int32 before they are rounded. MatMulInteger makes
  them, and the scales' quotient and QuantizeLinear finish as the kernel does.

- LayerNormalization of an axis that is cut, as that of heads where queries and keys are normalized over all
  of them. The ranks exchange mean and variance of their parts, from which come those of the whole.

The first two give the whole operator's result bit for bit. As rules these options would say that an axis is
computed apart (which data parallelism relies on), so they stand here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from sharding.graph.sizes import Sizes
from sharding.rewrite.joined_means import AXES_INPUT
from sharding.rules.base import Dim, Emitter, NodeView, Option, Value, Values
from sharding.rules.common import axis_attribute, dim, int64, shape_like, shape_of, splits
from sharding.rules.quantization import quantized_product
from sharding.search.cost import COLLECTIVE_SECONDS, ELEMENTS_PER_SECOND, NODE_SECONDS, reshard_seconds
from sharding.search.reshard import with_collectives
from sharding.slices.placement import PARTIAL, REPLICATED, Partial, Split

TENSOR_FLOAT = 1
"""TensorProto.FLOAT"""
_NORMALIZE_PASSES = 3
"""How long a LayerNormalization that is taken apart takes, where the node itself takes one pass over its
input: half of it was measured at 1.3 to 2 times the whole. Most of its operators that pass over all find in
cache what the one before left there."""
_NORMALIZE_NODES = 14
"""Operators that it becomes."""


def exchanging_options(view: NodeView, sizes: Sizes | None = None) -> list[Option]:
    """The options of this kind for a node; none for most."""
    sizes = sizes or Sizes()
    if view.domain or view.world == 1 or not all(view.present):
        return []
    if view.op_type == "DynamicQuantizeLinear" and len(view.shapes) == 1:
        return _quantize(view, sizes)
    if view.op_type == "LayerNormalization" and len(view.output_shapes) == 1:
        return _normalize(view, sizes)
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


def _normalize(view: NodeView, sizes: Sizes) -> list[Option]:
    shape, rank = shape_of(view, 0), len(shape_of(view, 0) or ())
    last = axis_attribute(view, -1) == rank - 1 and view.attributes.get("stash_type", 1) == 1
    floats = all(kind == np.float32 for kind in view.dtypes)
    if shape is None or rank < 2 or not (last and floats):
        return []
    if any(list(shape_of(view, index) or ()) != [shape[-1]] for index in range(1, len(view.shapes))):
        return []
    numbers = 2 * sizes.count(shape[:-1])
    seconds = reshard_seconds(Split(rank - 1), REPLICATED, 4 * numbers * view.world, view.world)
    more = (_NORMALIZE_PASSES - 1) * sizes.count(shape) / view.world / ELEMENTS_PER_SECOND
    return [
        Option(
            inputs=(split, *[Split(0, split.blocks)] * (len(view.shapes) - 1)),
            outputs=(split,),
            emit=partial(_emit_normalize, tuple(shape[:-1]), _epsilon(view)),
            seconds=seconds + more + _NORMALIZE_NODES * NODE_SECONDS,
        )
        for split in splits(view, shape, [rank - 1])
    ]


def _epsilon(view: NodeView) -> float:
    found = view.attributes.get("epsilon", 1e-5)
    return float(found) if isinstance(found, int | float) else 1e-5


def _emit_normalize(rows: tuple[Dim, ...], epsilon: float, e: Emitter, values: Values) -> list[Value]:
    x, scale, *shift = values
    rank = len(rows) + 1

    def mean(value: Value) -> Value:
        if e.version >= AXES_INPUT:
            return e.op("ReduceMean", [value, int64(e, [rank - 1])], keepdims=1)[0]
        return e.op("ReduceMean", [value], axes=[rank - 1], keepdims=1)[0]

    def of(kind: str, *items: Value) -> Value:
        return e.op(kind, items)[0]

    own = mean(x)
    apart = of("Sub", x, own)
    both = e.op("Concat", [own, mean(of("Mul", apart, apart))], axis=rank - 1)[0]
    gathered = _collective(e, "AllGather", both, (*rows, 2), np.float32, axis=rank - 1, group_size=e.world)
    means, variances = (
        e.op("Gather", [gathered, int64(e, list(range(place, 2 * e.world, 2)))], axis=rank - 1)[0]
        for place in (0, 1)
    )
    whole = mean(means)
    between = of("Sub", means, whole)
    variance = mean(of("Add", variances, of("Mul", between, between)))
    deviation = of("Sqrt", of("Add", variance, e.constant(np.asarray(epsilon, np.float32))))
    found = of("Mul", of("Div", of("Sub", x, whole), deviation), scale)
    return [of("Add", found, item) for item in shift] or [found]


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
