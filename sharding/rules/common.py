"""What the rules share: building options, reading axes, constants for this rank."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
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
    """An option with these inputs (all others, and those that are absent, replicated) and these outputs, as
    far as the node has them (a single placement: all outputs)."""
    placed = [REPLICATED if absent(node, i) else inputs.get(i, REPLICATED) for i in range(len(node.shapes))]
    count = len(node.output_shapes)
    made = [outputs] * count if isinstance(outputs, Placement) else outputs[:count]
    return Option(tuple(placed), tuple(made), emit, divides_work)


def partial_option(node: NodeView, inputs: Sequence[int] = (0,), emit: Emit | None = None) -> list[Option]:
    """The operator is linear in these inputs taken together: summands in, summands out."""
    if not all(summable(node.dtypes[i]) for i in inputs):
        return []
    return [option(node, dict.fromkeys(inputs, PARTIAL), PARTIAL, emit, divides_work=False)]


def splits(node: NodeView, shape: Shape | None, axes: Iterable[int] | None = None) -> Iterator[Split]:
    """Every split of these axes (default: all) of a value of this shape that divides over the ranks."""
    if shape is None:
        return
    for axis in range(len(shape)) if axes is None else axes:
        for blocks in node.blocks(shape[axis]):
            yield Split(axis, blocks)


def kept(node: NodeView, axes: Iterable[int] | None = None) -> list[Option]:
    """The first input and every output split alike, on one of these axes (default: all)."""
    return [option(node, {0: split}, split) for split in splits(node, node.shapes[0], axes)]


def others(node: NodeView, *axes: int | None) -> list[Option]:
    """The same on an axis that is none of these (negative: from the end); nothing where one is not known."""
    rank = rank_of(node)
    if rank is None or None in axes:
        return []
    return kept(node, (axis for axis in range(rank) if axis not in axes and axis - rank not in axes))


def moved(
    node: NodeView, axes: Mapping[int, int], index: int = 0, *, divides_work: bool = True
) -> list[Option]:
    """An input split on one of these axes, and every output on that which it has become."""
    return [
        option(node, {index: split}, Split(axes[split.axis], split.blocks), divides_work=divides_work)
        for split in splits(node, node.shapes[index], axes)
    ]


def dim(shape: Shape | None, axis: int) -> Dim:
    """The length of an axis (negative: from the end), None where it is unknown or there is no such axis."""
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    return shape[axis]


def rank_of(node: NodeView, index: int = 0) -> int | None:
    """The number of axes of an input."""
    shape = node.shapes[index]
    return None if shape is None else len(shape)


def last_axis(node: NodeView) -> int:
    """The last axis of the first input; -1 where there is none, or their number is not known."""
    return (rank_of(node) or 0) - 1


def absent(node: NodeView, index: int) -> bool:
    """Whether an optional input is left out."""
    return index >= len(node.present) or not node.present[index]


def constant(node: NodeView, index: int) -> Array | None:
    """The value of an input, None where it is absent or not a known constant."""
    return None if absent(node, index) else node.constants[index]


def shape_of(node: NodeView, index: int) -> Shape | None:
    """The shape of an input, None where it is absent or of unknown rank."""
    return None if absent(node, index) else node.shapes[index]


def one_number(node: NodeView, index: int) -> bool:
    """Whether an input is surely a single number."""
    shape, value = node.shapes[index], constant(node, index)
    ones = shape is not None and all(length == 1 for length in shape)
    return ones or (value is not None and value.size == 1)


def normalized(axis: int, rank: int | None) -> int | None:
    """An axis counted from the front; None if the tensor has no such axis, or of an unknown number."""
    return axis % rank if rank is not None and -rank <= axis < rank else None


def axis_attribute(node: NodeView, default: int, name: str = "axis", *, added: int = 0) -> int | None:
    """The ``axis`` attribute counted from the front; None if the first input, with so many axes added, has no
    such axis."""
    rank = rank_of(node)
    return None if rank is None else normalized(integer(node.attributes, name, default), rank + added)


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


def axes_parameter(node: NodeView, index: int) -> list[int] | None:
    """Like ``list_parameter``, for axes of the first input: counted from the front; None also where one does
    not exist."""
    axes, rank = list_parameter(node, "axes", index), rank_of(node)
    found = [normalized(axis, rank) for axis in axes or ()]
    known = [axis for axis in found if axis is not None]
    return known if axes is not None and rank is not None and len(known) == len(found) else None


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


def own_length(node: NodeView, index: int, count: int, position: int, whole: Dim) -> Emit:
    """The node, in whose input ``index``, ``count`` lengths, one is this rank's part of the whole."""
    assert isinstance(whole, int)
    known = constant(node, index)
    lengths: list[int | None] = [None] * count if known is None else [int(n) for n in known.reshape(-1)]
    lengths[position] = whole // node.world

    def emit(e: Emitter, values: Values) -> Values:
        return e.copy([*values[:index], with_lengths(e, values[index], lengths), *values[index + 1 :]])

    return emit


def first_rank_only(e: Emitter, values: Values, index: int) -> list[Value]:
    """The inputs with the optional input ``index`` (a bias) left out on all ranks but the first."""
    kept = list(values)
    if e.rank != 0 and index < len(kept):
        kept[index] = None
    while kept and kept[-1] is None:
        kept.pop()
    return kept


def biased(node: NodeView, index: int | None) -> Emit | None:
    """The node as it is, its optional input ``index`` (a bias) on the first rank only."""
    if index is None or absent(node, index):
        return None
    return lambda e, values: e.copy(first_rank_only(e, values, index))


def shape_like(node: NodeView) -> Shape | None:
    """The shape of the first output, None where its rank is unknown."""
    return node.output_shapes[0] if node.output_shapes else None


def divided(**counts: int) -> Emit:
    """The node with these attributes divided by the number of ranks."""
    return lambda e, values: e.copy(values, **{name: count // e.world for name, count in counts.items()})
