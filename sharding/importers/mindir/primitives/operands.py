"""What the families share: settings in their two spellings, element types to compute in, pieces of graphs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias, Union

import numpy as np

from sharding.common.arrays import DType
from sharding.importers.mindir.builder import GraphBuilder
from sharding.importers.mindir.primitives import base
from sharding.importers.mindir.primitives.base import Node, Operand, Primitive, RefusedError, Value

FLOAT32 = np.dtype(np.float32)
INT32 = np.dtype(np.int32)
INT64 = np.dtype(np.int64)
BOOL = np.dtype(np.bool_)
_MOST_ELEMENTS = 1 << 26
"""Of a constant that numbers of the file alone decide."""

Formula = Callable[["Builder", Value], Value]
"""A row of a table: what a tensor becomes, once it is in a type to compute in."""


def is_float(dtype: DType) -> bool:
    """Whether it is a floating-point type; numpy does not count bfloat16 as one."""
    return dtype.kind == "f" or dtype.name == "bfloat16"


def shown(operand: Operand) -> str:
    """An operand in a message."""
    return "a tensor" if isinstance(operand, Value) else repr(operand)[:80]


def known_rank(x: Value) -> int:
    """The number of axes. Raises `RefusedError` where it is not known."""
    if x.shape is None:
        raise RefusedError("it needs an operand whose number of axes is known")
    return len(x.shape)


Number: TypeAlias = float
"""As it is given: a whole number stays one."""
Ints: TypeAlias = tuple[int, ...]
Axis: TypeAlias = int
"""Of the first operand, counted from the front. A default is taken as it is: it must be counted so."""
Axes = Union[Sequence[int], Value, None]  # noqa: UP007 - Value has no `|` while types are checked
"""Axes of a reduction: numbers, what only a run tells, or None for all of them, of an unknown number."""


def tensors(operand: Operand, what: str = "its operand") -> list[Value]:
    """The tensors of a tuple; of a single tensor, itself."""
    items = operand if isinstance(operand, tuple) else (operand,)
    found = [item for item in items if isinstance(item, Value)]
    if not found or len(found) != len(items):
        raise RefusedError(f"{what} must be a tuple of tensors, found {shown(operand)}")
    return found


def _literal(item: Operand, dtype: DType | None) -> DType | None:
    return None if isinstance(item, (Value, tuple)) else dtype


def _wider(a: DType, c: DType) -> DType:
    """The type that holds both, a floating-point type winning over integers of any width as in MindSpore."""
    if a == c:
        return a
    if is_float(a) != is_float(c):
        return a if is_float(a) else c
    if a.kind == "V" or c.kind == "V":  # bfloat16 with another floating-point type
        return FLOAT32 if FLOAT32 in {a, c} or "float16" in {a.name, c.name} else np.dtype(np.float64)
    return np.promote_types(a, c)


def ranked(x: Value, rank: int) -> Value:
    """The same value, of which the file does not say how many axes it has."""
    return x if x.shape is not None else replace(x, shape=(None,) * rank)


def joined_length(x: Value, axes: Iterable[int]) -> int:
    """The length of axes that become one, for a reshape: -1, what is left, where it is not known. A tensor
    without elements has nothing that is left to tell it by."""
    product = 1
    for axis in axes:
        length = None if x.shape is None else x.shape[axis]
        if length is None:
            return -1
        product *= length
    return product


def flattened(operand: Operand) -> Operand:
    """Nested tuples as one."""
    if not isinstance(operand, tuple):
        return operand
    items: list[Operand] = []
    for item in operand:
        inner = flattened(item)
        items.extend(inner if isinstance(inner, tuple) else (inner,))
    return tuple(items)


class Builder(GraphBuilder):
    """What primitives are given: the graph under construction, and the pieces that their families share."""

    def typed(
        self, known: Primitive, positional: Sequence[object], settings: Mapping[str, object]
    ) -> tuple[list[object], dict[str, object]]:
        """Operands and settings, as Python's own where the primitive's annotations say so."""
        names = list(known.typed) if known.operands is not None else []
        first = positional[0] if positional else None

        def own(name: str, operand: object) -> object:
            kind = known.typed.get(name, "")
            if operand is None and kind.endswith(" | None"):
                return None
            convert = self._CONVERT.get(kind.removesuffix(" | None"))
            return operand if convert is None else convert(self, operand, name, first)

        found = [own(*pair) for pair in zip(names, positional, strict=False)]
        return [*found, *positional[len(found) :]], {name: own(name, item) for name, item in settings.items()}

    _CONVERT: Mapping[str, Callable[..., object]] = {
        "int": lambda b, operand, what, _: b.integer(operand, what),
        "Axis": lambda b, operand, what, x: b.axis(b.integer(operand, what), x),
        "Ints": lambda b, operand, what, _: b.integers(operand, what),
        "float": lambda b, operand, what, _: float(b.number(operand, what)),
        "Number": lambda b, operand, what, _: b.number(operand, what),
        "bool": lambda b, operand, what, _: bool(operand),
    }
    """By annotation: from (builder, operand, its name, the first operand)."""

    @staticmethod
    def element_type(setting: Operand, default: DType) -> DType:
        """An element type: numpy's own (version 1), MindSpore's number (version 3), None for the default."""
        return default if setting is None else base.element_type(setting)

    @staticmethod
    def result_type(node: Node, default: DType) -> DType:
        """The element type that the file declares for the first result."""
        return node.result.dtype if node.result is not None else default

    @staticmethod
    def number(operand: Operand, what: str) -> float | int | bool:
        """One number that is known while converting."""
        if isinstance(operand, Value) and operand.constant is not None and operand.constant.size == 1:
            found = operand.constant.reshape(-1)[0].item()
            if isinstance(found, (bool, int, float)):
                return found
        if isinstance(operand, (bool, int, float)):
            return operand
        raise RefusedError(f"{what} must be a number that is known before a run, found {shown(operand)}")

    @staticmethod
    def text(setting: Operand, what: str, numbered: Sequence[str]) -> str:
        """An enumeration: its name (version 1, in any case) or its place among ``numbered`` (version 3)."""
        found = setting.lower() if isinstance(setting, str) else None
        if isinstance(setting, int) and 0 <= setting < len(numbered):
            found = numbered[setting]
        if found not in numbered:
            raise RefusedError(f"{what} must be one of {', '.join(numbered)}, found {shown(setting)}")
        return str(found)

    def integer(self, operand: Operand, what: str) -> int:
        """One integer that is known while converting."""
        found = self.known_ints(operand) if operand is not None else None
        if found is None or len(found) != 1:
            raise RefusedError(
                f"{what} must be one integer that is known before a run, found {shown(operand)}"
            )
        return found[0]

    def integers(self, operand: Operand, what: str, count: int | None = None) -> tuple[int, ...]:
        """Integers known while converting; one stands for ``count`` equal ones."""
        found = self.known_ints(operand) if operand is not None else None
        if found is None:
            raise RefusedError(f"{what} must be integers that are known before a run, found {shown(operand)}")
        if count is not None and len(found) == 1:
            found *= count
        if count is not None and len(found) != count:
            raise RefusedError(f"{what} must have {count} numbers, found {shown(found)}")
        return found

    def axes_of(self, setting: Operand, x: Value) -> Axes:
        """Axes, counted from the front and in order; all of them for none. Of a tensor whose number of axes
        is open, they may be known in a run only."""
        if setting is None or setting == ():
            return None if x.shape is None else list(range(len(x.shape)))
        if x.shape is None and self.known_ints(setting) is None and isinstance(setting, (tuple, Value)):
            return self.ints(setting)
        found = self.integers(setting, "axis")
        if x.rank == 0:  # MindSpore lets the axes of a scalar be 0 and -1
            return []
        axes = [self.axis(axis, x) for axis in found]
        if len(set(axes)) != len(axes):
            raise RefusedError(f"axis {axes} names one axis twice")
        return sorted(axes) if all(axis >= 0 for axis in axes) else axes

    def promoted(self, *operands: Operand) -> list[Value]:
        """Operands in one element type: that of the tensors; numbers take it unless they are of a higher
        kind."""
        kinds = [item.dtype for item in operands if isinstance(item, Value)]
        dtype = kinds[0] if kinds else None
        for kind in kinds[1:]:
            dtype = _wider(dtype, kind) if dtype is not None else kind
        for item in operands:
            if isinstance(item, float) and (dtype is None or not is_float(dtype)):
                dtype = FLOAT32
            elif isinstance(item, int) and not isinstance(item, bool) and (dtype is None or dtype == BOOL):
                dtype = INT64
        return [self.cast(self.value(item, _literal(item, dtype)), dtype or BOOL) for item in operands]

    def computable(self, x: Value) -> Value:
        """The value in a type that ONNX Runtime computes in on every provider: narrow integers and bool
        widened, bfloat16 as float32. The result is converted back by who called the conversion."""
        if x.dtype.kind in "fi" and x.dtype.itemsize >= 4:
            return x
        if x.dtype.name == "bfloat16":
            return self.cast(x, FLOAT32)
        if x.dtype.kind == "f":
            return x
        if x.dtype == BOOL:
            return self.cast(x, INT32)
        if x.dtype.kind in "iu":
            return self.cast(x, INT64 if x.dtype.itemsize >= 4 else INT32)
        raise RefusedError(f"there is no arithmetic for {x.dtype}")

    def floating(self, x: Value) -> Value:
        """The value as a floating-point tensor: integers become float32, as MindSpore has it."""
        if x.dtype.kind == "f":
            return x
        return self.cast(x, FLOAT32)

    def scalar(self, amount: float | int | bool, like: Value) -> Value:
        """A number in another value's element type."""
        return self.const(np.asarray(amount).astype(like.dtype))

    def bounded(self, *lengths: int) -> int:
        """How many elements a table of these lengths has. Raises `RefusedError` where it is too large to be
        made: a small file can ask for any."""
        count = math.prod(max(length, 0) for length in lengths)
        if count > _MOST_ELEMENTS:
            raise RefusedError(f"a table of {' x '.join(map(str, lengths))} is too large for a constant")
        return count

    def single(self, operand: Operand, dtype: DType) -> Value:
        """A number, or the one element of a tensor, as a tensor without axes."""
        found = self.cast(self.value(operand, None if isinstance(operand, Value) else dtype), dtype)
        return self.op("Reshape", [found, self.const([], np.int64)]) if found.rank != 0 else found

    def full_like(self, x: Value, amount: Value | float, dtype: DType | None = None) -> Value:
        """A tensor of one value in the shape of another."""
        return self.filled(self.shape_of(x), amount, dtype or x.dtype)

    def filled(self, shape: Operand, amount: Value | float, dtype: DType) -> Value:
        """A tensor of one value, in a shape of integers known or not."""
        known = self.known_ints(shape)
        if isinstance(amount, Value):
            flat = self.cast(self.op("Reshape", [amount, self.const([], np.int64)]), dtype)
        else:
            flat = self.const(np.asarray(amount).astype(dtype))
        if known == ():
            return flat
        result = self.op("Expand", [flat, self.ints(shape)])
        if known is not None:
            result.shape = known
        return result

    def reduced(self, kind: str, x: Value, axes: Axes, keep: bool, *, empty_is_all: bool = True) -> Value:
        """A reduction of ONNX's over axes; None is all of them."""
        if x.rank is None and axes is not None:
            axes = self._from_front(x, axes)
        if isinstance(axes, Value):
            return self.op(kind, [x, axes], {"keepdims": int(keep)})
        if axes is not None and not axes and not (empty_is_all and x.rank != 0):
            return x
        constant = self.const(list(axes), np.int64) if axes else None
        return self.op(kind, [x, constant], {"keepdims": int(keep)})

    def _from_front(self, x: Value, axes: Sequence[int] | Value) -> Sequence[int] | Value:
        """Axes of a tensor of any number of axes, counted from the front by a run; see
        `sharding.importers.mindir.kernels.from_front`."""
        if not isinstance(axes, Value) and all(axis >= 0 for axis in axes):
            return axes
        given = self.ints(axes if isinstance(axes, Value) else tuple(axes))
        rank = self.op("Size", [self.op("Shape", [x])])
        if given.constant is not None and bool((given.constant < 0).all()):
            return self.op("Add", [given, rank])
        return self.op("Where", [self.op("Less", [given, 0]), self.op("Add", [given, rank]), given])

    def behind(self, x: Value, vector: Value, axis: int) -> Value:
        """A vector along one axis of a tensor, with an axis of length 1 for each one behind it."""
        if x.rank is not None:
            return self.op("Reshape", [vector, self.ints((-1, *[1] * (x.rank - axis - 1)))])
        count = self.op("Sub", [self.op("Size", [self.op("Shape", [x])]), axis + 1])
        ones = self.op("Expand", [self.const(1, np.int64), self.reshape(self.op("Max", [count, 0]), (1,))])
        return self.op(
            "Reshape", [vector, self.op("Concat", [self.const([-1], np.int64), ones], {"axis": 0})]
        )

    def moved(self, x: Value, source: int, target: int) -> Value:
        """The value with one axis at another place."""
        rank = known_rank(x)
        order = [axis for axis in range(rank) if axis != source % rank]
        order.insert(target % rank, source % rank)
        return self.transpose(x, order)

    def lengths_product(self, x: Value, axes: Iterable[int] | Value | None) -> Value:
        """The number of elements along axes, as an int64 scalar."""
        if isinstance(axes, Value):
            lengths = self.op("Gather", [self.op("Shape", [x]), axes], {"axis": 0})
            return self.op("ReduceProd", [lengths], {"keepdims": 0})
        axes = list(axes) if axes is not None else None
        if x.shape is not None:
            chosen = range(len(x.shape)) if axes is None else axes
            if all(x.shape[axis] is not None for axis in chosen):
                return self.const(
                    int(np.prod([x.shape[axis] or 0 for axis in chosen], dtype=np.int64)), np.int64
                )
        shape = self.op("Shape", [x])
        if axes is not None:
            shape = self.op("Gather", [shape, self.const(axes, np.int64)], {"axis": 0})
        return self.op("ReduceProd", [shape], {"keepdims": 0})
