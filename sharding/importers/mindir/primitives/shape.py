"""Shapes: other lengths, other orders."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import Builder, Ints, joined_length, known_rank
from sharding.importers.mindir.primitives.running import flipped


@primitive("Reshape", "View")
def reshape(b: Builder, x: Value, shape: Operand) -> Value:
    """Another shape; -1 is what is left."""
    return b.reshape(x, shape)


@primitive("ViewAs")
def view_as(b: Builder, x: Value, other: Value) -> Value:
    """The shape of another."""
    return b.reshape(x, b.shape_of(other))


@primitive("Transpose", "TransposeView")
def transpose(b: Builder, x: Value, perm: Operand) -> Value:
    """Axes in another order."""
    if x.rank is None and b.known_ints(perm) is None and isinstance(perm, (tuple, Value)):
        return _transposed_later(b, x, b.ints(perm))
    order = [b.axis(axis, x) for axis in b.integers(perm, "perm")]
    if sorted(order) != list(range(len(order))):
        raise RefusedError(f"perm {order} is no order of axes")
    return b.transpose(x, order)


_MOST_AXES = 8
"""Of MindSpore's tensors."""


def _transposed_later(b: Builder, x: Value, perm: Value) -> Value:
    """Axes in an order that only a run tells, of an unknown number of axes: each element's place is computed,
    with axes of length 1 in front up to the most there are."""
    shape = b.op("Shape", [x])
    missing = b.op("Sub", [_MOST_AXES, b.op("Size", [shape])])
    ones = b.op("Expand", [b.const(1, np.int64), b.reshape(missing, (1,))])
    lengths = b.op("Concat", [ones, shape], {"axis": 0})
    front = b.op("Range", [b.const(0, np.int64), missing, b.const(1, np.int64)])
    rank = b.op("Size", [shape])
    own = b.op("Where", [b.op("Less", [perm, 0]), b.op("Add", [perm, rank]), perm])
    order = b.op("Concat", [front, b.op("Add", [own, missing])], {"axis": 0})
    turned = b.op("Gather", [lengths, order], {"axis": 0})
    step = b.const([1], np.int64)
    steps: list[Value] = []
    for axis in reversed(range(_MOST_AXES)):
        steps.insert(0, step)
        step = b.op("Mul", [step, b.op("Gather", [lengths, b.const([axis], np.int64)], {"axis": 0})])
    strides = b.op("Gather", [b.op("Concat", steps, {"axis": 0}), order], {"axis": 0})
    places = b.const(0, np.int64)
    for axis in range(_MOST_AXES):
        length, stride = (
            b.op("Gather", [item, b.const(axis, np.int64)], {"axis": 0}) for item in (turned, strides)
        )
        line = b.op("Mul", [b.op("Range", [b.const(0, np.int64), length, b.const(1, np.int64)]), stride])
        places = b.op("Add", [places, b.unsqueeze(line, range(1, _MOST_AXES - axis))])
    flat = b.op("Gather", [b.reshape(x, (-1,)), b.reshape(places, (-1,))], {"axis": 0})
    return b.op("Reshape", [flat, b.op("Gather", [shape, own], {"axis": 0})])


@primitive("TransposeExtView", "TransposeExt")
def transpose_two(b: Builder, x: Value, first: Operand, second: Operand) -> Value:
    """Two axes exchanged."""
    if x.rank is not None:
        order = list(range(x.rank))
        one, other = b.axis(b.integer(first, "dim0"), x), b.axis(b.integer(second, "dim1"), x)
        order[one], order[other] = order[other], order[one]
        return b.transpose(x, order)
    axes = _all_axes(b, x)
    low, high = (b.op("Mod", [b.ints(item), _rank(b, x)]) for item in (first, second))
    swapped = b.op("Where", [b.op("Equal", [axes, low]), high, axes])
    return _transposed_later(b, x, b.op("Where", [b.op("Equal", [axes, high]), low, swapped]))


def _rank(b: Builder, x: Value) -> Value:
    return b.op("Size", [b.op("Shape", [x])])


def _all_axes(b: Builder, x: Value) -> Value:
    return b.op("Range", [b.const(0, np.int64), _rank(b, x), b.const(1, np.int64)])


@primitive("TExt")
def transpose_all(b: Builder, x: Value) -> Value:
    """The axes in reverse order."""
    if x.rank is None:
        backwards = b.op("Sub", [b.op("Sub", [_rank(b, x), 1]), _all_axes(b, x)])
        return _transposed_later(b, x, backwards)
    return b.transpose(x, list(reversed(range(known_rank(x)))))


@primitive("ExpandDims", "ExpandDimsView", "Unsqueeze")
def expand_dims(b: Builder, node: Node, x: Operand, axis: Operand = None) -> Value:
    """A new axis of length 1."""
    places = node.attributes.get("axis") if axis is None else axis
    if isinstance(places, Value) and b.known_ints(places) is None:
        return b.op("Unsqueeze", [b.value(x), b.ints(places)])
    return b.unsqueeze(b.value(x), b.integers(places, "axis"))


@primitive("Squeeze")
def squeeze(b: Builder, node: Node, x: Value, *, axis: Operand = ()) -> Value:
    """Without these axes of length 1; without all of them if none is named."""
    if axis is not None and axis != ():
        chosen = [b.axis(item, x) for item in b.integers(axis, "axis")]
        return b.squeeze(x, chosen)
    if x.shape is None or None in x.shape:
        if node.result is None or node.result.shape is None or x.shape is None:
            return b.op("Squeeze", [x])
        wanted = len(node.result.shape)
        chosen = [place for place, length in enumerate(x.shape) if length == 1]
        if len(x.shape) - len(chosen) != wanted:
            raise RefusedError("it squeezes axes of which it is not known whether their length is 1")
        return b.squeeze(x, chosen)
    return b.squeeze(x, [place for place, length in enumerate(x.shape) if length == 1])


@primitive("Flatten")
def flatten(b: Builder, x: Value) -> Value:
    """All axes but the first as one."""
    return b.op("Flatten", [x], {"axis": 1})


@primitive("FlattenExt")
def flatten_ext(b: Builder, x: Value, *, start_dim: int = 0, end_dim: int = -1) -> Value:
    """Neighbouring axes as one; of a scalar, which has none, a vector."""
    if not known_rank(x):
        return b.reshape(x, (1,))
    first, last = b.axis(start_dim, x), b.axis(end_dim, x)
    if first == last:
        return x
    shape = b.lengths(x)
    joined = joined_length(x, range(first, last + 1))
    return b.reshape(x, (*shape[:first], joined, *shape[last + 1 :]))


@primitive("ReverseV2")
def reverse(b: Builder, x: Value, *, axis: Ints = ()) -> Value:
    """Axes in reverse."""
    axes = [b.axis(item, x) for item in axis]
    return flipped(b, x, axes) if axes else x


@primitive("Roll")
def roll(b: Builder, node: Node, x: Value, *, shifts: Operand = 0, dims: Operand = None) -> Value:
    """Places moved along axes, around the end; without axes, of the flattened tensor."""
    by = b.integers(node.attributes.get("shift", shifts), "shifts")
    setting = node.attributes.get("axis", node.attributes.get("dims")) if dims is None else dims
    if setting is None or setting == ():
        return b.reshape(_rolled(b, b.reshape(x, (-1,)), 0, by[0]), b.shape_of(x))
    for shift, axis in zip(by, b.integers(setting, "dims"), strict=True):
        x = _rolled(b, x, b.axis(axis, x), shift)
    return x


def _rolled(b: Builder, x: Value, axis: int, shift: int) -> Value:
    length = b.dim(x, axis)
    if isinstance(length, int):
        shift = shift % length if length else 0
    if not shift:
        return x
    cut = b.ints((-shift,))
    if not isinstance(length, int):  # a shift may be longer: whole turns change nothing
        cut = b.op("Mod", [cut, b.ints((b.op("Max", [length, b.const(1, np.int64)]),))])
    place = b.ints((axis,))
    tail = b.op("Slice", [x, cut, b.ints((2**62,)), place])
    head = b.op("Slice", [x, b.ints((0,)), cut, place])
    return b.op("Concat", [tail, head], {"axis": axis})


@primitive("TensorShape", "DynamicShape")
def tensor_shape(b: Builder, x: Value) -> Value:
    """The lengths as an int64 tensor."""
    return b.ints(b.shape_of(x))
