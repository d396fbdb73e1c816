"""What is known of small integer values before a model runs: the shape arithmetic of exporters.

The value of ``Shape`` of [batch, 12, 64] is the vector (batch, 12, 64): partly a symbol. These vectors are
followed through the operators that exporters use on shapes, so that the target of a Reshape is known where it
can be. Elements are int (known), str (a symbol, never negative), `Above` or None (unknown).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from typing import TypeAlias, TypeGuard

import numpy as np

from sharding.common.arrays import Array
from sharding.graph.fold import ENDS, EXACT, HALF
from sharding.graph.symbols import MADE_UP, is_made_up
from sharding.onnx_files.attributes import integers
from sharding.rules.base import Dim
from sharding.rules.products import length_of, product, quotient
from sharding.slices.expressions import MARK

Known: TypeAlias = Array
"""Object array of at most one axis."""
Element: TypeAlias = "int | str | Above | None"
"""A number, a symbol for a length, what is known to be above a length, or nothing that is known."""
Operation: TypeAlias = Callable[[Mapping[str, object], Sequence[Known | None]], Known | None]

MAX_ELEMENTS = 64
LEAST = f"{MADE_UP}least_"
"""Before a number and a symbol: the less of both, a made-up name for a length."""


@dataclass(frozen=True)
class Above:
    """A number above an open length: what exporters divide where they round up."""

    length: str
    number: int


def known(elements: Sequence[Dim] | Array) -> Known:
    """An object array of these elements."""
    if isinstance(elements, np.ndarray):
        return elements.astype(object)  # numpy's integers become Python's
    result = np.empty(len(elements), object)
    result[:] = list(elements)
    return result


def evaluate(op_type: str, attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    """The known elements of an operator's only output; None where nothing is known of it."""
    operation = _OPERATIONS.get(op_type)
    if operation is None or not inputs or inputs[0] is None:
        return None
    try:
        result = operation(attributes, inputs)
    except (IndexError, TypeError, ValueError, ZeroDivisionError):
        return None  # an invalid model, or symbols where numbers are wanted: nothing is known
    if result is None or np.ndim(result) > 1 or np.size(result) > MAX_ELEMENTS:
        return None
    return np.asarray(result, object)


def reshape_target(shape: Sequence[Dim] | None, target: Known, *, allow_zero: bool) -> tuple[Dim, ...]:
    """The output shape of Reshape: 0 copies the input's axis unless ``allow_zero``, -1 takes what is left."""
    axes: list[Dim] = list(target)
    for index, length in enumerate(axes):
        if length == 0 and not allow_zero:
            axes[index] = shape[index] if shape is not None and index < len(shape) else None
    if -1 in axes:
        axes[axes.index(-1)] = _left_over(shape, [length for length in axes if length != -1])
    return tuple(None if isinstance(length, int) and length < 0 else length for length in axes)


def expand_target(shape: Sequence[Dim], target: Known) -> tuple[Dim, ...]:
    """The output shape of Expand: both shapes broadcast against each other."""
    rank = max(len(shape), len(target))
    pairs = zip(
        [1] * (rank - len(shape)) + list(shape), [1] * (rank - len(target)) + list(target), strict=True
    )
    return tuple(b if a == 1 else a if b == 1 or isinstance(a, int) or a == b else None for a, b in pairs)


def tile_target(shape: Sequence[Dim], repeats: Known) -> tuple[Dim, ...]:
    """The output shape of Tile: each axis as often as its repeats say."""
    times = repeats.tolist() if repeats.size == len(shape) else [None] * len(shape)
    lengths = (_multiply(length, count) for length, count in zip(shape, times, strict=True))
    return tuple(None if isinstance(length, Above) else length for length in lengths)


def slice_target(shape: Sequence[Dim], count: int, bounds: Sequence[Known | None]) -> tuple[Dim, ...] | None:
    """The output shape of Slice with ``count`` starts: axes that are not cut stay as long as they are.

    ``bounds``: what is known of the starts, ends, axes and steps.
    """
    starts, ends, named, steps = [*bounds, None, None, None, None][:4]
    if len(bounds) > 2 and named is None:
        return None
    axes = list(range(count)) if named is None else named.reshape(-1).tolist()
    if len(axes) != count or not all(type(axis) is int and -len(shape) <= axis < len(shape) for axis in axes):
        return None
    if any(bound is not None and bound.size != count for bound in (starts, ends, steps)):
        return None
    lengths = list(shape)
    for place, axis in enumerate(axes):
        first, last = (None if bound is None else bound.reshape(-1)[place] for bound in (starts, ends))
        step = 1 if len(bounds) < 4 else None if steps is None else steps.reshape(-1)[place]
        length = lengths[axis]
        numbers = [item for item in (first, last, step, length) if type(item) is int]
        if len(numbers) == 4 and step:
            lengths[axis] = len(range(*_bounds(*numbers)))
        elif not (first == 0 and step == 1 and last is not None and (last == length or _is_end(last))):
            lengths[axis] = at_most(length, last) if first == 0 and step == 1 else None
    return tuple(lengths)


def _bounds(start: int, end: int, step: int, length: int) -> tuple[int, int, int]:
    """Start, end and step of a Slice along an axis, as of `range`. Backwards, a start before the first
    element is the first one in ONNX; in Python nothing is left. So it is of an end that stands for the end of
    the axis, which ONNX Runtime takes for its other end then."""
    if step < 0:
        start, end = max(start, -length), -length - 1 if end in ENDS else end
    return slice(start, end, step).indices(length)


def at_most(length: Dim, bound: object) -> Dim:
    """The length of what is cut from a known length at a symbol: the less of both."""
    if not isinstance(length, int) or not isinstance(bound, str) or MARK in bound or length < 1:
        return None
    return f"{LEAST}{length}_{bound}"


def broadcast(lengths: Iterable[Dim]) -> Dim:
    """The one symbol that lengths of a broadcast axis agree on, where none can be longer; else None."""
    others = {length for length in lengths if length != 1}
    exact = [length for length in others if isinstance(length, str) and not is_made_up(length)]
    if len(exact) != 1:
        return None
    rest = others.difference(exact)
    shorter = re.compile(rf"{re.escape(LEAST)}\d+_{re.escape(exact[0])}")
    return exact[0] if all(isinstance(item, str) and shorter.fullmatch(item) for item in rest) else None


def _is_end(bound: object) -> bool:
    """Whether exporters write this where they mean the end."""
    return isinstance(bound, int) and bound >= min(ENDS)


def _left_over(shape: Sequence[Dim] | None, taken: Sequence[Dim]) -> Dim:
    """What remains of a shape's elements for one axis."""
    return None if shape is None else quotient(product(shape), product(taken))


def _gather(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    data, indices = inputs
    if data is None or indices is None or data.ndim != 1 or attributes.get("axis", 0) not in {0, -1}:
        return None
    places = np.asarray(indices.tolist(), np.int64)
    return data[places.reshape(-1)].reshape(places.shape)  # one element alone would be no array, perhaps None


def _slice(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    data = inputs[0]
    if data is None or data.ndim != 1:
        return None
    if "starts" in attributes:
        start, end, step = integers(attributes, "starts")[0], integers(attributes, "ends")[0], 1
    else:
        if any(item is None for item in inputs[1:]):
            return None
        start, end = (_number(item) for item in inputs[1:3])
        step = _number(inputs[4]) if len(inputs) > 4 else 1
    if not step:
        return None
    return data[np.arange(*_bounds(start, end, step, data.size))]


def _number(value: Known | None) -> int:
    assert value is not None
    number = value.reshape(-1)[0]
    if not isinstance(number, int):
        raise TypeError
    return number


def _concat(_: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    if any(item is None or item.ndim != 1 for item in inputs):
        return None
    return np.concatenate([item for item in inputs if item is not None])


def _unsqueeze(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    data, axes = inputs[0], attributes.get("axes", inputs[1] if len(inputs) > 1 else None)
    return data.reshape(1) if data is not None and data.ndim == 0 and np.asarray(axes).size == 1 else None


def _reshape(_: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    data, target = inputs[0], inputs[1] if len(inputs) > 1 else None
    if data is None or target is None or target.size > 1:
        return None
    return data.reshape(-1) if target.size else data.reshape(())


def _constant_of_shape(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    length = inputs[0]
    if length is None or length.size > 1 or (length.size and not 0 <= _number(length) <= MAX_ELEMENTS):
        return None
    fill = np.asarray(attributes.get("value", 0.0)).reshape(-1)[0]
    return known(np.full(tuple(length.tolist()), fill)) if fill.dtype.kind in "iub" else None


def _elementwise(operation: Callable[[Element, Element], Element]) -> Operation:
    def apply(_: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
        a, b = inputs
        if a is None or b is None:
            return None
        pairs = np.broadcast(a, b)
        result = np.empty(pairs.shape, object)
        result.reshape(-1)[:] = [operation(x, y) for x, y in pairs]
        return result

    return apply


def _add(x: Element, y: Element) -> Element:
    if x == 0 or y == 0:
        return y if x == 0 else x
    if isinstance(x, int) and isinstance(y, int):
        return x + y
    number, length = (x, y) if isinstance(x, int) else (y, x)
    return (
        Above(length, number) if isinstance(length, str) and isinstance(number, int) and number > 0 else None
    )


def _subtract(x: Element, y: Element) -> Element:
    if y == 0:
        return x
    return x - y if isinstance(x, int) and isinstance(y, int) else None


def _multiply(x: Element, y: Element) -> Element:
    if x == 1 or y == 1:
        return y if x == 1 else x
    if isinstance(x, int) and isinstance(y, int):
        return x * y
    found = product((x, y)) if _is_length(x) and _is_length(y) else None
    return None if found is None else length_of(found)


def _is_length(x: Element) -> TypeGuard[int | str]:
    return isinstance(x, str) or (isinstance(x, int) and x > 0)


def _divide(x: Element, y: Element) -> Element:
    if y == 1:
        return x
    # ONNX divides integers towards zero; Python's // agrees where both are positive.
    if isinstance(x, int) and isinstance(y, int):
        return x // y if x >= 0 and y > 0 else None
    if isinstance(x, Above) and isinstance(y, int) and x.number < y:  # of a multiple nothing is rounded
        x = x.length
    return quotient(product((x,)), product((y,))) if _is_length(x) and _is_length(y) else None


def _reduced(operation: Callable[[Element, Element], Element]) -> Operation:
    """All elements of a vector in one. ONNX Runtime adds and multiplies them as floating point."""

    def apply(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
        data, given = inputs[0], attributes.get("axes", inputs[1] if len(inputs) > 1 else ())
        axes = np.asarray(given)
        if data is None or given is None or not data.size or not {*axes.flat} <= {0, -1}:
            return None
        if not axes.size and attributes.get("noop_with_empty_axes"):
            return data
        steps = np.fromiter(accumulate(data.flat, operation), object)
        if any(isinstance(item, int) and abs(item) >= EXACT for item in steps):
            return None
        whole = steps[-1:]
        return whole if data.ndim and attributes.get("keepdims", 1) else whole.reshape(())

    return apply


def _chosen(choice: Callable[[int, int], int]) -> Callable[[Element, Element], Element]:
    """The greatest or least of two; of a length and another number nobody knows which it is."""

    def choose(x: Element, y: Element) -> Element:
        if isinstance(x, int) and isinstance(y, int) and min(x, y) >= -HALF and max(x, y) < HALF:
            return choice(x, y)
        return x if x == y else None

    return choose


def _variadic(operation: Callable[[Element, Element], Element]) -> Operation:
    both = _elementwise(operation)

    def apply(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
        return reduce(lambda x, y: both(attributes, (x, y)), inputs)

    return apply


def _equal(x: Element, y: Element) -> Element:
    if isinstance(x, int) and isinstance(y, int):
        return x == y
    number = x if isinstance(x, int) else y
    symbol = y if isinstance(x, int) else x
    return False if isinstance(symbol, str) and isinstance(number, int) and number < 0 else None


def _where(_: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    condition, a, b = inputs
    if condition is None or a is None or b is None:
        return None
    pairs = np.broadcast(condition, a, b)
    result = np.empty(pairs.shape, object)
    result.reshape(-1)[:] = [None if c is None else (x if c else y) for c, x, y in pairs]
    return result


def _cast(attributes: Mapping[str, object], inputs: Sequence[Known | None]) -> Known | None:
    """To int32 and int64; other types do not hold every length, or compute in another way."""
    data = inputs[0]
    if data is None or attributes.get("to") not in {6, 7}:
        return None
    result = np.empty(data.shape, object)
    result.reshape(-1)[:] = [int(item) if isinstance(item, bool) else item for item in data.flat]
    return result


_OPERATIONS: dict[str, Operation] = {
    "Add": _elementwise(_add),
    "Cast": _cast,
    "Concat": _concat,
    "ConstantOfShape": _constant_of_shape,
    "Div": _elementwise(_divide),
    "Equal": _elementwise(_equal),
    "Gather": _gather,
    "Identity": lambda _, inputs: inputs[0],
    "Max": _variadic(_chosen(max)),
    "Min": _variadic(_chosen(min)),
    "Mod": _elementwise(
        lambda x, y: x % y if isinstance(x, int) and isinstance(y, int) and x >= 0 and y > 0 else None
    ),
    "Mul": _elementwise(_multiply),
    "ReduceMax": _reduced(_chosen(max)),
    "ReduceMin": _reduced(_chosen(min)),
    "ReduceProd": _reduced(_multiply),
    "ReduceSum": _reduced(_add),
    "Reshape": _reshape,
    "Slice": _slice,
    "Squeeze": lambda _, inputs: (
        inputs[0].reshape(()) if inputs[0] is not None and inputs[0].size == 1 else None
    ),
    "Sub": _elementwise(_subtract),
    "Unsqueeze": _unsqueeze,
    "Where": _where,
}
