"""What the rules share: building options, reading axes, constants for this rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypedDict

import numpy as np

from sharding.common.arrays import Array, DType
from sharding.onnx_files.attributes import integer
from sharding.rules.base import Dim, Emit, Emitter, NodeView, Option, Value, Values
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split

Shape = Sequence[Dim]
ALLOW_ZERO = 14
"""The first opset in which a 0 in the shape of Reshape can mean 0."""


class Allow(TypedDict, total=False):
    """The attribute of a Reshape."""

    allowzero: int


def zero_is_zero(opset: int) -> Allow:
    """The attributes of a Reshape whose target is made of lengths: one is 0 where a batch or sequence is
    empty: without them 0 copies a length of the input."""
    return {"allowzero": 1} if opset >= ALLOW_ZERO else {}


def option(
    node: NodeView,
    inputs: Mapping[int, Placement],
    outputs: Sequence[Placement] | Placement,
    emit: Emit | None = None,
    *,
    divides_work: bool = True,
) -> Option:
    """An option with these inputs (all others replicated) and outputs (a single placement: all outputs)."""
    return Option(
        inputs=tuple(inputs.get(i, REPLICATED) for i in range(len(node.shapes))),
        outputs=tuple([outputs] * len(node.output_shapes) if isinstance(outputs, Placement) else outputs),
        emit=emit,
        divides_work=divides_work,
    )


def partial_option(node: NodeView, inputs: Sequence[int] = (0,), emit: Emit | None = None) -> list[Option]:
    """The operator is linear in these inputs taken together: summands in, summands out."""
    if not all(summable(node.dtypes[i]) for i in inputs):
        return []
    return [option(node, dict.fromkeys(inputs, PARTIAL), PARTIAL, emit, divides_work=False)]


def splits(node: NodeView, shape: Shape | None, axes: Sequence[int] | None = None) -> Iterator[Split]:
    """Every split of these axes (default: all) of a value of this shape that divides over the ranks."""
    if shape is None:
        return
    for axis in range(len(shape)) if axes is None else axes:
        for blocks in node.blocks(shape[axis]):
            yield Split(axis, blocks)


def dim(shape: Shape | None, axis: int) -> Dim:
    """The length of an axis (negative: from the end), None where it is unknown or there is no such axis."""
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def absent(node: NodeView, index: int) -> bool:
    """Whether an optional input is left out."""
    return index >= len(node.present) or not node.present[index]


def constant(node: NodeView, index: int) -> Array | None:
    """The value of an input, None where it is absent or not a known constant."""
    return None if absent(node, index) else node.constants[index]


def shape_of(node: NodeView, index: int) -> Shape | None:
    """The shape of an input, None where it is absent or of unknown rank."""
    return None if absent(node, index) else node.shapes[index]


def normalized(axis: int, rank: int) -> int | None:
    """An axis counted from the front; None if the tensor has no such axis."""
    return axis % rank if -rank <= axis < rank else None


def axis_attribute(node: NodeView, default: int, rank: int, name: str = "axis") -> int | None:
    """The ``axis`` attribute counted from the front; None if the tensor has no such axis."""
    return normalized(integer(node.attributes, name, default), rank)


def list_parameter(node: NodeView, name: str, index: int) -> list[int] | None:
    """A list of integers that is an attribute in old opsets and input ``index`` in newer ones.

    Returns an empty list where it is left out, None where it is only known when the model runs.
    """
    value = node.attributes.get(name)
    if value is None:
        if absent(node, index):
            return []
        value = node.constants[index]
        if value is None:
            return None
    return [int(item) for item in np.asarray(value).reshape(-1)]


def axes_parameter(node: NodeView, index: int, rank: int) -> list[int] | None:
    """Like ``list_parameter``, for axes: counted from the front; None also where one does not exist."""
    axes = list_parameter(node, "axes", index)
    if axes is None or any(normalized(axis, rank) is None for axis in axes):
        return None
    return [axis % rank for axis in axes]


def floating(dtype: DType | None) -> bool:
    """Whether the type is a known floating-point type."""
    return dtype is not None and (dtype.kind == "f" or dtype.name == "bfloat16")


def summable(dtype: DType | None) -> bool:
    """Whether values of this type can be held as summands: what every collective can add."""
    return dtype is not None and (dtype.name in ("int32", "int64") or floating(dtype))


def same_shape(a: Shape | None, b: Shape | None) -> bool:
    """Whether two shapes are surely equal (equal symbols are equal lengths)."""
    return a is not None and b is not None and None not in a and list(a) == list(b)


def int64(e: Emitter, values: Sequence[int]) -> Value:
    """A one-dimensional int64 constant."""
    return e.constant(np.asarray(values, dtype=np.int64))


def with_lengths(e: Emitter, shape: Value, lengths: Sequence[int | None]) -> Value:
    """A shape with some entries replaced; those that are None in ``lengths`` keep their value at run time."""
    if all(length is not None for length in lengths):
        return int64(e, [length or 0 for length in lengths])
    mask = e.constant(np.asarray([length is not None for length in lengths]))
    return e.op("Where", [mask, int64(e, [length or 0 for length in lengths]), shape])[0]


def first_rank_only(e: Emitter, values: Values, index: int) -> list[Value]:
    """The inputs with the optional input ``index`` (a bias) left out on all ranks but the first."""
    kept = list(values)
    if e.rank != 0 and index < len(kept):
        kept[index] = None
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def bias_once(index: int, e: Emitter, values: Values) -> list[Value]:
    """The node as it is, its optional input ``index`` on the first rank only."""
    return e.copy(first_rank_only(e, values, index))


def shape_like(node: NodeView) -> Shape | None:
    """The shape of the first output, None where its rank is unknown."""
    return node.output_shapes[0] if node.output_shapes else None
