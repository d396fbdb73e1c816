"""Arithmetic of two and more tensors and numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import (
    BOOL,
    FLOAT32,
    INT64,
    Builder,
    is_float,
    tensors,
)

ROUNDING = ("none", "trunc", "floor")


def binary(b: Builder, node: Node, op_type: str, x: Operand, y: Operand) -> Value:
    """An operator of ONNX's on two operands in their common type."""
    pair = b.promoted(x, y)
    if op_type in _BEYOND and pair[0].dtype.name in {"uint32", "uint64"}:
        return b.op(op_type, pair)
    first, second = _computed(b, node, pair)
    return further(b, op_type, first, second) if op_type in _BEYOND else b.op(op_type, [first, second])


_BEYOND = {"Max": "Greater", "Min": "Less"}


def further(b: Builder, op_type: str, first: Value, second: Value) -> Value:
    """The larger (Max) or smaller (Min) of two. ONNX Runtime's own kernels for int64 take 2**31 for less
    than 0: they compare the lower halves of two numbers as signed ones (1.31)."""
    if first.dtype != INT64:
        return b.op(op_type, [first, second])
    return b.op("Where", [b.op(_BEYOND[op_type], [first, second]), first, second])


def common(b: Builder, node: Node, x: Operand, y: Operand) -> list[Value]:
    """Both in the type to compute in; a floating-point result decides where both operands are integers."""
    return _computed(b, node, b.promoted(x, y))


def _computed(b: Builder, node: Node, promoted: Sequence[Value]) -> list[Value]:
    pair = [b.computable(item) for item in promoted]
    if node.result is not None and is_float(node.result.dtype) and not is_float(pair[0].dtype):
        wanted = node.result.dtype if node.result.dtype.kind == "f" else FLOAT32
        return [b.cast(item, wanted) for item in pair]
    return pair


@table({("Add", "AddV2"): "Add", "Sub": "Sub", ("Mul", "Muls"): "Mul", "Maximum": "Max", "Minimum": "Min",
        ("Pow", "PowTensorScalar", "PowScalarTensor"): "Pow"})  # fmt: skip
def simple(op_type: str, b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """ONNX's operator on the common type; in floating point where the file says that the result is one."""
    return binary(b, node, op_type, x, y)


def _true_division(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    first, second = (b.floating(item) for item in common(b, node, x, y))
    return b.op("Div", [first, second])


@primitive("Div", "RealDiv", "Divs")
def div(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """A true division; of integers with an integer result, one that rounds towards zero."""
    if node.result is not None and not is_float(node.result.dtype):
        return truncate_div(b, node, x, y)
    return _true_division(b, node, x, y)


@primitive("DivMod", "DivMods")
def div_mod(b: Builder, node: Node, x: Operand, y: Operand, *, rounding_mode: Operand = None) -> Value:
    """A division that rounds down, towards zero, or not at all."""
    kind = "none" if rounding_mode is None else b.text(rounding_mode, "rounding_mode", ROUNDING)
    if kind == "none":
        return _true_division(b, node, x, y)
    return floor_div(b, node, x, y) if kind == "floor" else truncate_div(b, node, x, y)


@primitive("FloorDiv", "FloorDivScalar")
def floor_div(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """Rounded down."""
    first, second = common(b, node, x, y)
    if is_float(first.dtype):
        # In double precision: the nearest quotient of floats may be the whole number above the true one.
        quotient = b.op("Div", [b.cast(first, np.float64), b.cast(second, np.float64)])
        return b.cast(b.op("Floor", [quotient]), first.dtype)
    low, high = _limits(node, first)
    signs = [b.op(kind, [first, b.scalar(0, first)]) for kind in ("Less", "Greater")]
    above = b.op("Where", [signs[1], b.scalar(high, first), b.scalar(0, first)])
    endless = b.op("Where", [signs[0], b.scalar(low, first), above])
    return _of_whole(b, second, endless, lambda divisor: floored(b, first, divisor))


def _limits(node: Node, x: Value) -> tuple[int, int]:
    """The least and the largest number of the result's type, as far as the type to compute in has them."""
    dtype, wide = node.result.dtype if node.result is not None else x.dtype, np.iinfo(x.dtype)
    own = np.iinfo(dtype) if dtype.kind in "iu" else None
    return (int(max(own.min, wide.min)), int(min(own.max, wide.max))) if own is not None else (0, 1)


def _unknown(b: Builder, node: Node, x: Value) -> Value:
    """What MindSpore's kernels for the CPU have for a remainder of a division by 0, and for a quotient
    that is rounded towards zero: what x86 makes an integer of that is none."""
    low, high = _limits(node, x)
    return b.scalar(low if high >= 2**31 - 1 else 0, x)


def _of_whole(b: Builder, divisor: Value, none: Value, form: Callable[[Value], Value]) -> Value:
    """What a division gives; of integers something else where the divisor is 0, for there ONNX Runtime ends
    the run, even where the network does not use what comes out."""
    if is_float(divisor.dtype) or (divisor.constant is not None and bool(divisor.constant.all())):
        return form(divisor)
    zero = b.op("Equal", [divisor, b.scalar(0, divisor)])
    return b.op("Where", [zero, none, form(b.op("Where", [zero, b.scalar(1, divisor), divisor]))])


def floored(b: Builder, x: Value, y: Value) -> Value:
    """Division of integers that rounds down. ONNX's rounds towards zero: one less where the remainder has the
    other sign."""

    def form(divisor: Value) -> Value:
        quotient = b.op("Div", [x, divisor])
        remainder = b.op("Sub", [x, b.op("Mul", [quotient, divisor])])
        return b.op("Sub", [quotient, b.cast(_turns(b, remainder, divisor), x.dtype)])

    return _quotient(b, x, y, form)


def _quotient(b: Builder, x: Value, y: Value, form: Callable[[Value], Value]) -> Value:
    """A quotient of integers; by -1, the opposite, which of the least number is itself, as in MindSpore."""
    divisor, turned = _unturned(b, y)
    found = form(divisor)
    return found if turned is None else b.op("Where", [turned, b.op("Neg", [x]), found])


def rest(b: Builder, x: Value, y: Value, fmod: bool = False) -> Value:
    """The remainder of integers, with the divisor's sign or with the dividend's. By -1 it is that by 1."""
    return b.op("Mod", [x, _unturned(b, y)[0]], {"fmod": 1} if fmod else {})


def _unturned(b: Builder, divisor: Value) -> tuple[Value, Value | None]:
    """Integers with 1 in place of -1, and where that is. Processors of the kind x86 stop a process that
    divides the least number by -1: a request could end a rank."""
    if divisor.constant is not None and not bool((divisor.constant == -1).any()):
        return divisor, None
    turned = b.op("Equal", [divisor, b.scalar(-1, divisor)])
    return b.op("Where", [turned, b.scalar(1, divisor), divisor]), turned


def _turns(b: Builder, remainder: Value, divisor: Value) -> Value:
    """Where a remainder is not 0 and has another sign than the divisor."""
    zero = b.scalar(0, remainder)
    uneven = b.op("Not", [b.op("Equal", [remainder, zero])])
    opposite = b.op("Xor", [b.op("Less", [remainder, zero]), b.op("Less", [divisor, zero])])
    return b.op("And", [uneven, opposite])


@primitive("TruncateDiv")
def truncate_div(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """Rounded towards zero."""
    first, second = common(b, node, x, y)
    if is_float(first.dtype):
        return truncated(b, b.op("Div", [first, second]))

    def form(divisor: Value) -> Value:
        return _quotient(b, first, divisor, lambda safe: b.op("Div", [first, safe]))

    return _of_whole(b, second, _unknown(b, node, first), form)


def truncated(b: Builder, x: Value) -> Value:
    """Floating-point numbers without their fractions."""
    return b.op("Mul", [b.op("Sign", [x]), b.op("Floor", [b.op("Abs", [x])])])


@primitive("FloorMod", "RemainderTensorTensor", "RemainderTensorScalar", "RemainderScalarTensor")
def floor_mod(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """The remainder with the divisor's sign."""
    first, second = common(b, node, x, y)
    if not is_float(first.dtype):
        return _of_whole(b, second, _unknown(b, node, first), lambda divisor: rest(b, first, divisor))
    remainder = b.op("Mod", [first, second], {"fmod": 1})
    return b.op("Where", [_turns(b, remainder, second), b.op("Add", [remainder, second]), remainder])


@primitive("Mod", "TruncateMod", "FmodTensor", "FmodScalar")
def truncate_mod(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """The remainder with the dividend's sign."""
    first, second = common(b, node, x, y)
    if is_float(first.dtype):
        return b.op("Mod", [first, second], {"fmod": 1})
    none = _unknown(b, node, first)
    return _of_whole(b, second, none, lambda divisor: rest(b, first, divisor, fmod=True))


@table({("AddExt", "AddScalar"): "Add", ("SubExt", "SubScalar"): "Sub"})
def scaled(op_type: str, b: Builder, node: Node, x: Operand, y: Operand, *, alpha: Operand = 1) -> Value:
    """x + alpha y or x - alpha y"""
    first, second = common(b, node, x, y)
    if isinstance(alpha, Value) or b.number(alpha, "alpha") != 1:
        second = b.op("Mul", [second, b.cast(b.value(alpha), second.dtype)])
    return b.op(op_type, [first, second])


@primitive("DivNoNan")
def div_no_nan(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """A division that gives 0 where the divisor is 0."""
    first, second = common(b, node, x, y)
    zero = b.op("Equal", [second, b.scalar(0, second)])
    safe = b.op("Where", [zero, b.scalar(1, second), second])
    return b.op("Where", [zero, b.scalar(0, first), b.op("Div", [first, safe])])


@table({"MulNoNan": (1, "Mul"), "Xdivy": (0, "Div")})
def zero_where(row: tuple[int, str], b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """x y, which is 0 where y is, or x / y, which is 0 where x is, whatever the other."""
    place, op_type = row
    pair = common(b, node, x, y)
    zero = b.op("Equal", [pair[place], b.scalar(0, pair[place])])
    return b.op("Where", [zero, b.scalar(0, pair[0]), b.op(op_type, pair)])


@primitive("Xlogy", "XLogYScalarOther", "XLogYScalarSelf")
def xlogy(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """x log y, 0 where x is."""
    first, second = (b.floating(item) for item in common(b, node, x, y))
    zero = b.op("Equal", [first, b.scalar(0, first)])
    product = b.op("Mul", [first, b.op("Log", [second])])
    return b.op("Where", [zero, b.scalar(0, first), product])


@primitive("SquaredDifference")
def squared_difference(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """(x - y) squared."""
    difference = binary(b, node, "Sub", x, y)
    return b.op("Mul", [difference, difference])


@primitive("Hypot")
def hypot(b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """The hypotenuse, scaled by the longer side so that squares stay in range."""
    first, second = (b.op("Abs", [b.floating(item)]) for item in common(b, node, x, y))
    longer, shorter = b.op("Max", [first, second]), b.op("Min", [first, second])
    safe = b.op("Where", [b.op("Equal", [longer, b.scalar(0, longer)]), b.scalar(1, longer), longer])
    ratio = b.op("Div", [shorter, safe])
    root = b.op("Sqrt", [b.op("Add", [b.op("Mul", [ratio, ratio]), b.scalar(1, ratio)])])
    endless = b.op("Equal", [longer, b.scalar(np.inf, longer)])
    return b.op("Where", [endless, longer, b.op("Mul", [longer, root])])


@primitive("Atan2", "Atan2Ext")
def atan2(b: Builder, node: Node, y: Operand, x: Operand) -> Value:
    """The angle of the point (x, y), in radians from -pi to pi."""
    first, second = (b.floating(item) for item in common(b, node, y, x))
    zero, pi = b.scalar(0, first), b.scalar(np.pi, first)
    # a point endlessly far in both directions is on a diagonal
    far = b.op("And", [b.op("IsInf", [item]) for item in (first, second)])
    first, second = (b.op("Where", [far, b.op("Sign", [item]), item]) for item in (first, second))
    axis = b.op("Equal", [second, zero])
    angle = b.op("Atan", [b.op("Div", [first, b.op("Where", [axis, b.scalar(1, first), second])])])
    below = signed_below(b, first)
    turned = b.op("Add", [angle, b.op("Where", [below, b.op("Neg", [pi]), pi])])
    angle = b.op("Where", [b.op("Less", [second, zero]), turned, angle])
    upright = b.op("Mul", [b.op("Sign", [first]), b.scalar(np.pi / 2, first)])
    # 0 itself lies on the side from which both zeros come
    origin = b.op("Equal", [first, zero])
    side = b.op("Where", [below, b.op("Neg", [pi]), pi])
    upright = b.op("Where", [origin, side, upright])
    right = b.op("And", [origin, b.op("Not", [signed_below(b, second)])])
    return b.op("Where", [b.op("And", [axis, b.op("Not", [right])]), upright, angle])


def signed_below(b: Builder, x: Value) -> Value:
    """Whether floating-point numbers have a minus, -0.0 too, which only its reciprocal tells."""
    zero = b.scalar(0, x)
    inverse = b.op("Div", [b.scalar(1, x), x])
    return b.op("Or", [b.op("Less", [item, zero]) for item in (x, inverse)])


@primitive("AddN", "AccumulateNV2")
def add_n(b: Builder, node: Node, *items: Operand) -> Value:
    """The sum of all."""
    found = tensors(items[0] if len(items) == 1 else items)
    total = found[0]
    for item in found[1:]:
        total = binary(b, node, "Add", total, item)
    return total


def _combined(b: Builder, node: Node, x: Operand, inner: Callable[..., Value], value: Operand) -> Value:
    """x + value * (a combination of two others)."""
    change = inner()
    if isinstance(x, Value) and not is_float(x.dtype) and isinstance(value, Value):
        value = b.cast(value, x.dtype)  # MindSpore cuts off its fraction first
    if isinstance(value, Value) or b.number(value, "value") != 1:
        change = binary(b, node, "Mul", change, value)
    return binary(b, node, "Add", x, change)


@primitive("Addcmul", "AddcmulExt")
def addcmul(b: Builder, node: Node, x: Operand, y: Operand, z: Operand, value: Operand = 1) -> Value:
    """x + value y z"""
    return _combined(b, node, x, lambda: binary(b, node, "Mul", y, z), value)


@primitive("Addcdiv", "AddcdivExt")
def addcdiv(b: Builder, node: Node, x: Operand, y: Operand, z: Operand, value: Operand = 1) -> Value:
    """x + value y / z"""
    return _combined(b, node, x, lambda: _true_division(b, node, y, z), value)


@primitive("Lerp", "LerpScalar")
def lerp(b: Builder, node: Node, start: Operand, end: Operand, weight: Operand) -> Value:
    """start + weight (end - start)"""
    change = binary(b, node, "Mul", binary(b, node, "Sub", end, start), weight)
    return binary(b, node, "Add", start, change)


def log_add(b: Builder, first: Value, second: Value, base: float) -> Value:
    """The logarithm of the sum of two powers of a base, without overflow; not of two infinities."""
    larger = b.op("Max", [first, second])
    distance = b.op("Neg", [b.op("Abs", [b.op("Sub", [first, second])])])
    scale = b.scalar(np.log(base), distance)
    raised = b.op("Exp", [b.op("Mul", [distance, scale])])
    added = b.op("Div", [b.op("Log", [b.op("Add", [raised, b.scalar(1, raised)])]), scale])
    return b.op("Add", [larger, added])


@table({"LogAddExp": np.e, "LogAddExp2": 2.0})
def log_add_powers(base: float, b: Builder, node: Node, x: Operand, y: Operand) -> Value:
    """The logarithm of the sum of two powers of a base, without overflow."""
    first, second = (b.floating(item) for item in common(b, node, x, y))
    return log_add(b, first, second, base)


@table({
    (f"Bitwise{kind}", f"Bitwise{kind}Tensor", f"Bitwise{kind}Scalar"): kind for kind in ("And", "Or", "Xor")
})  # fmt: skip
def bitwise(kind: str, b: Builder, x: Operand, y: Operand) -> Value:
    """Each pair of bits combined; of truth values, the values."""
    first, second = b.promoted(x, y)
    if is_float(first.dtype):
        raise RefusedError(f"bits of {first.dtype} cannot be combined")
    return b.op(kind if first.dtype == BOOL else f"Bitwise{kind}", [first, second])


@primitive("Invert", "BitwiseNot")
def invert(b: Builder, x: Value) -> Value:
    """Every bit turned; of truth values, the opposite."""
    return b.op("Not" if x.dtype == BOOL else "BitwiseNot", [x])
