"""Numbers and tuples of numbers as values: lengths of tensors and what is computed of them.

What is known while converting is computed at once; the rest becomes int64 tensors.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np

from sharding.importers.mindir.primitives.arithmetic import floored, rest
from sharding.importers.mindir.primitives.base import (
    Node,
    Operand,
    RefusedError,
    Value,
    element_type,
    primitive,
    table,
)
from sharding.importers.mindir.primitives.operands import Builder, is_float

_MOST = 1 << 62
_MOST_ITEMS = 1 << 16
"""Of a tuple that is repeated: a small file can ask for any number."""


@primitive("Shape", "shape")
def shape(b: Builder, node: Node, x: Operand) -> Operand:
    """The lengths of a tensor: a tuple, or a tensor where the file says so."""
    found = b.shape_of(b.value(x))
    if node.result is None:
        return found
    return b.ints(found) if isinstance(found, tuple) else found


@primitive("Rank", "rank")
def rank(b: Builder, x: Operand) -> Operand:
    """The number of axes."""
    value = b.value(x)
    return value.rank if value.rank is not None else b.op("Size", [b.op("Shape", [value])])


@primitive("Size", "size")
def size(b: Builder, x: Operand) -> Operand:
    """The number of elements."""
    return b.op("Size", [b.value(x)])


def _common(b: Builder, x: Operand, y: Operand) -> list[Value]:
    """Two numbers, at least one of them of a run, in one type: whole ones stay whole among themselves."""
    held = [item.dtype for item in (x, y) if isinstance(item, Value)]
    floats = [dtype for dtype in held if is_float(dtype)]
    if floats or isinstance(x, float) or isinstance(y, float):
        kind = floats[0] if floats else np.dtype(np.float32)
    else:
        kind = max((dtype for dtype in held if dtype.kind != "b"), key=lambda dtype: dtype.itemsize,
                   default=np.dtype(np.int64))  # fmt: skip
    return [b.cast(b.value(item, None if isinstance(item, Value) else kind), kind) for item in (x, y)]


def _quotient(b: Builder, x: Operand, y: Operand) -> Value:
    """True division, as floating point."""
    return b.op("Div", [b.cast(x, np.float32), b.cast(y, np.float32)])


def _whole_quotient(b: Builder, x: Operand, y: Operand) -> Value:
    """Division that rounds down."""
    one, other = _common(b, x, y)
    if one.dtype.kind == "i":
        return floored(b, one, other)
    return b.op("Floor", [b.op("Div", [one, other])])


def _rest(b: Builder, x: Operand, y: Operand) -> Value:
    """The rest of that division, with the divisor's sign."""
    one, other = _common(b, x, y)
    if one.dtype.kind == "i":
        return rest(b, one, other)
    return b.op("Sub", [one, b.op("Mul", [b.op("Floor", [b.op("Div", [one, other])]), other])])


def _power(x: float, y: float) -> float:
    """A power of two numbers; of whole ones, whole."""
    if abs(y) > _MOST.bit_length() and abs(x) > 1:
        raise RefusedError("its result is beyond 64-bit integers")
    result: object = x**y
    if not isinstance(result, (int, float)):
        raise RefusedError("its result is no real number")
    return result


_Later = str | Callable[[Builder, Operand, Operand], Value]
_ARITHMETIC: dict[str, tuple[Callable[[float, float], float], _Later]] = {
    "add": (operator.add, "Add"), "sub": (operator.sub, "Sub"), "mul": (operator.mul, "Mul"),
    "gt": (operator.gt, "Greater"), "ge": (operator.ge, "GreaterOrEqual"), "lt": (operator.lt, "Less"),
    "le": (operator.le, "LessOrEqual"), "eq": (operator.eq, "Equal"),
    "max": (max, "Max"), "min": (min, "Min"), "pow": (_power, "Pow"),
    "div": (operator.truediv, _quotient), "mod": (operator.mod, _rest),
    "floor_div": (operator.floordiv, _whole_quotient), "floordiv": (operator.floordiv, _whole_quotient),
}  # fmt: skip
"""Python's function of known numbers, and ONNX's of such as only a run tells."""


@table(
    {(f"Scalar{name.title().replace('_', '')}", f"scalar_{name}"): row for name, row in _ARITHMETIC.items()}
)
def arithmetic(
    row: tuple[Callable[[float, float], float], _Later], b: Builder, x: Operand, y: Operand
) -> Operand:
    """What two numbers give."""
    python, later = row
    if isinstance(x, (bool, int, float)) and isinstance(y, (bool, int, float)):
        result: Operand = python(x, y)
        if isinstance(result, int) and abs(result) > _MOST:
            raise RefusedError("its result is beyond 64-bit integers")
        return result
    return b.op(later, _common(b, x, y)) if isinstance(later, str) else later(b, x, y)


@primitive("ScalarNe", "scalar_ne")
def scalar_ne(b: Builder, x: Operand, y: Operand) -> Operand:
    """Whether two numbers differ."""
    if not isinstance(x, Value) and not isinstance(y, Value):
        return x != y
    return b.op("Not", [b.op("Equal", _common(b, x, y))])


@primitive("SequenceMax", "SequenceMin")
def sequence_extreme(b: Builder, node: Node, x: Operand) -> Operand:
    """The largest or smallest number of a tuple."""
    largest = node.op_type == "SequenceMax"
    if isinstance(x, tuple) and x and all(isinstance(item, (int, float)) for item in x):
        return max(x) if largest else min(x)  # type: ignore[type-var]
    kind = "ReduceMax" if largest else "ReduceMin"
    return b.op(kind, [b.ints(x)], {"keepdims": 0})


@primitive("ScalarLog", "scalar_log")
def scalar_log(b: Builder, x: Operand) -> Operand:
    """The natural logarithm, as floating point."""
    return b.op("Log", [b.cast(b.value(x), np.float32)])


@primitive("is_", "is_not")
def same_object(b: Builder, node: Node, x: Operand, y: Operand) -> Operand:
    """Whether two are the same, which is decided for what is no tensor of a run: None, truths, texts."""
    if isinstance(x, (Value, tuple)) and isinstance(y, (Value, tuple)):
        raise RefusedError("whether two tensors are one has no conversion")
    same = not isinstance(x, (Value, tuple)) and not isinstance(y, (Value, tuple)) and x == y
    same = same and type(x) is type(y)
    return same if node.op_type == "is_" else not same


@primitive("ScalarUsub", "ScalarSub1", "scalar_usub")
def scalar_usub(b: Builder, x: Operand) -> Operand:
    """The negative number."""
    return -x if isinstance(x, (int, float)) else b.op("Neg", [b.value(x)])


@primitive("ScalarUadd", "scalar_uadd")
def scalar_uadd(b: Builder, x: Operand) -> Operand:
    """The number itself."""
    return x


def _truth(b: Builder, x: Operand) -> Value | bool:
    return b.cast(x, np.bool_) if isinstance(x, Value) else bool(x)


@primitive("bool_not", "ScalarNot")
def bool_not(b: Builder, x: Operand) -> Operand:
    """Not."""
    truth = _truth(b, x)
    return not truth if isinstance(truth, bool) else b.op("Not", [truth])


@table({("BoolAnd", "bool_and", "ScalarAnd"): False, ("BoolOr", "bool_or", "ScalarOr"): True})
def combined(decisive: bool, b: Builder, x: Operand, y: Operand) -> Operand:
    """Both, which one that is false decides; or at least one, which one that is true decides."""
    one, other = _truth(b, x), _truth(b, y)
    if isinstance(one, bool):
        return decisive if one is decisive else other
    if isinstance(other, bool):
        return decisive if other is decisive else one
    return b.op("Or" if decisive else "And", [one, other])


@primitive("BoolEq", "bool_eq")
def bool_eq(b: Builder, x: Operand, y: Operand) -> Operand:
    """Whether two truths are the same."""
    one, other = _truth(b, x), _truth(b, y)
    if isinstance(one, bool) and isinstance(other, bool):
        return one == other
    return b.op("Equal", [b.value(one), b.value(other)])


@primitive("ScalarCast", "scalar_cast", "ScalarBool", "scalar_bool", "TensorToScalar")
def scalar_cast(b: Builder, node: Node, x: Operand, *, dtype: Operand = None) -> Operand:
    """A number of another type."""
    kind = np.dtype(np.bool_) if "ool" in node.op_type else None if dtype is None else element_type(dtype)
    if isinstance(x, (bool, int, float)):
        if kind is None:
            return x
        return bool(x) if kind.kind == "b" else int(x) if kind.kind in "iu" else float(x)
    value = b.value(x)
    if value.rank == 1 and not value.sequence:
        value = b.squeeze(value, [0])
    return value if kind is None else b.cast(value, kind)


@primitive("ScalarToTensor", "scalar_to_tensor")
def scalar_to_tensor(b: Builder, x: Operand, *, dtype: Operand = None) -> Operand:
    """A number as a tensor without axes."""
    return b.cast(x, element_type(dtype)) if dtype is not None else b.value(x)


@primitive("TupleToTensor", "ListToTensor", "tuple_to_tensor")
def tuple_to_tensor(b: Builder, x: Operand, *, dtype: Operand = None) -> Operand:
    """Numbers as a tensor with one axis."""
    kind = element_type(dtype) if dtype is not None else None
    if isinstance(x, tuple) and any(isinstance(item, float) for item in x):
        if not all(isinstance(item, (int, float)) for item in x):
            raise RefusedError("numbers that are known and such that are not, in one tuple")
        return b.const(np.array(x, kind or np.float32))
    return b.ints(x) if kind is None else b.cast(b.ints(x), kind)


@primitive("TensorToTuple", "TensorToList", declared=False)
def tensor_to_tuple(b: Builder, x: Operand) -> Operand:
    """A tensor of integers with one axis as a tuple."""
    known = b.known_ints(x)
    if known is not None:
        return known
    value = b.ints(x)
    length = value.shape[0] if value.shape is not None else None
    if length is None or length > 64:
        return Value(value.name, value.dtype, value.shape, sequence=True)
    return tuple(b.op("Gather", [value, b.const(index, np.int64)], {"axis": 0}) for index in range(length))


def _whole(b: Builder, x: Operand) -> Value:
    value = b.ints(x)
    return Value(value.name, value.dtype, value.shape, value.constant, sequence=True)


@primitive("TupleToList", "ListToTuple", declared=False)
def other_sequence(b: Builder, x: Operand) -> Operand:
    """A tuple as a list and the other way round."""
    return x


@primitive("sequence_len", "SequenceLen", "tuple_len", "list_len")
def sequence_len(b: Builder, x: Operand) -> Operand:
    """How many items a tuple has."""
    if isinstance(x, tuple):
        return len(x)
    return b.op("Size", [b.value(x)])


@primitive("SequenceAdd", "tuple_add", "list_add", declared=False)
def sequence_add(b: Builder, x: Operand, y: Operand) -> Operand:
    """Two tuples joined."""
    if isinstance(x, tuple) and isinstance(y, tuple):
        return (*x, *y)
    joined = b.op("Concat", [_whole(b, x), _whole(b, y)], {"axis": 0})
    joined.sequence = True
    return joined


@primitive("SequenceMul", declared=False)
def sequence_mul(b: Builder, x: Operand, times: Operand) -> Operand:
    """A tuple again and again."""
    known = b.known_ints(times) if times is not None else None
    if isinstance(x, tuple) and known is not None and len(known) == 1:
        if len(x) * known[0] > _MOST_ITEMS:
            raise RefusedError(f"a tuple of {len(x) * known[0]} items is too long")
        return x * known[0]
    repeated = b.op("Tile", [_whole(b, x), b.op("Max", [b.ints(times), 0])])
    repeated.sequence = True
    return repeated


@primitive("SequenceSlice", "SequenceSliceGetItem", "tuple_slice", declared=False)
def sequence_slice(b: Builder, x: Operand, *bounds: Operand) -> Operand:
    """Part of a tuple."""
    if not 2 <= len(bounds) <= 3:
        raise RefusedError(
            f"expected a tuple and where its part begins and ends, found {1 + len(bounds)} inputs"
        )
    start, stop, step = (*bounds, 1)[:3]
    if isinstance(x, tuple):
        known = [(None,) if item is None else b.known_ints(item) for item in (start, stop, step)]
        numbers = [item[0] for item in known if item is not None and len(item) == 1]
        if len(numbers) == len(known):
            first, last, stride = numbers
            return x[first:last:stride]
    first_value, last_value = b.ints(0 if start is None else start), b.ints(_MOST if stop is None else stop)
    stride_value = b.ints(1 if step is None else step)
    found = b.op("Slice", [_whole(b, x), first_value, last_value, b.const([0]), stride_value])
    found.sequence = True
    return found


def _same_lengths(b: Builder, x: Value, y: Value) -> Value:
    """The same, of tuples whose length only a run tells."""
    sizes = [b.op("Shape", [item]) for item in (x, y)]
    shorter = b.op("Min", sizes)
    ends = [b.op("Slice", [item, b.ints(0), shorter, b.ints(0)]) for item in (x, y)]
    differ = b.cast(b.op("Not", [b.op("Equal", ends)]), np.int64)
    count = b.op("ReduceSum", [differ], {"keepdims": 0})
    lengths_differ = b.op("Sub", [b.reshape(item, ()) for item in sizes])
    return b.op("Equal", [b.op("Add", [count, b.op("Abs", [lengths_differ])]), 0])


@primitive("tuple_equal", "list_equal", "TupleEqual", "ListEqual")
def sequence_equal(b: Builder, x: Operand, y: Operand) -> Operand:
    """Whether two tuples of integers are the same."""
    one, other = b.known_ints(x), b.known_ints(y)
    if one is not None and other is not None:
        return one == other
    if not isinstance(x, tuple) or not isinstance(y, tuple):
        return _same_lengths(b, *(_whole(b, item) for item in (x, y)))
    if len(x) != len(y):
        return False
    unknown: list[tuple[Operand, Operand]] = []
    for first, second in zip(x, y, strict=True):
        here, there = b.known_ints(first), b.known_ints(second)
        if here is not None and there is not None:
            if here != there:
                return False
        elif not (isinstance(first, Value) and isinstance(second, Value) and first.name == second.name):
            unknown.append((first, second))
    if not unknown:
        return True
    left, right = (b.ints(tuple(items)) for items in zip(*unknown, strict=True))
    same = b.op("ReduceMin", [b.cast(b.op("Equal", [left, right]), np.int32)], {"keepdims": 0})
    return b.reshape(b.cast(same, np.bool_), ())


@primitive("InSequence", "in_sequence")
def in_sequence(b: Builder, x: Operand, items: Operand) -> Operand:
    """Whether a number or text is one of a sequence."""
    if isinstance(items, Value) and items.sequence:
        found = b.cast(b.op("Equal", [items, b.cast(x, items.dtype)]), np.int32)
        return b.op("Greater", [b.op("ReduceSum", [found], {"keepdims": 0}), 0])
    if not isinstance(items, tuple):
        raise RefusedError("expected a sequence of numbers or texts")
    rest = [item for item in items if isinstance(x, Value) or isinstance(item, Value)]
    if not rest:
        return x in items
    if isinstance(x, (bool, int, float, str)) and any(x == item for item in items if item not in rest):
        return True
    result: Value | None = None
    for item in rest:
        if not all(isinstance(operand, (Value, bool, int, float)) for operand in (x, item)):
            continue
        like = next(operand.dtype for operand in (x, item) if isinstance(operand, Value))
        here = b.op("Equal", [b.value(x, like), b.value(item, like)])
        result = here if result is None else b.op("Or", [result, here])
    return False if result is None else result
