"""Comparisons, logic, and choices between values."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import BOOL, Builder, Number, is_float, known_rank


@table({
    ("Equal", "EqScalar"): "Equal", ("Less", "LessScalar"): "Less", "LessEqual": "LessOrEqual",
    "Greater": "Greater", ("GreaterEqual", "GreaterEqualScalar"): "GreaterOrEqual",
})  # fmt: skip
def comparison(op_type: str, b: Builder, x: Operand, y: Operand) -> Value:
    """A comparison of ONNX's in the operands' common type."""
    first, second = b.promoted(x, y)
    return b.op(op_type, [b.computable(first), b.computable(second)])


@primitive("NotEqual")
def not_equal(b: Builder, x: Operand, y: Operand) -> Value:
    """Where two differ."""
    return b.op("Not", [comparison("Equal", b, x, y)])


@primitive("EqualExt")
def equal_ext(b: Builder, x: Value, y: Value) -> Value:
    """Whether two tensors are equal in every element, as a vector of one."""
    same = b.cast(comparison("Equal", b, x, y), np.int32)
    return b.reshape(b.cast(b.op("ReduceMin", [same], {"keepdims": 0}), BOOL), (1,))


@table({f"Logical{kind}": kind for kind in ("And", "Or", "Xor")})
def logic(op_type: str, b: Builder, x: Operand, y: Operand) -> Value:
    """Of truth values; numbers are true where they are not 0."""
    return b.op(op_type, [b.cast(x, BOOL), b.cast(y, BOOL)])


@primitive("LogicalNot")
def logical_not(b: Builder, x: Operand) -> Value:
    """The opposite."""
    return b.op("Not", [b.cast(x, BOOL)])


@primitive("IsClose")
def is_close(
    b: Builder, x: Value, y: Value, *, rtol: Number = 1e-5, atol: Number = 1e-8, equal_nan: Number = False
) -> Value:
    """Where |x - y| <= atol + rtol |y|, or both are the same infinity, or, if wanted, no numbers."""
    first, second = (b.floating(item) for item in b.promoted(x, y))
    slack = b.op("Mul", [b.op("Abs", [second]), b.scalar(rtol, second)])
    bound = b.op("Add", [slack, b.scalar(atol, second)])
    close = b.op("LessOrEqual", [b.op("Abs", [b.op("Sub", [first, second])]), bound])
    infinite = b.op("Equal", [b.op("Abs", [second]), b.scalar(np.inf, second)])
    close = b.op("And", [close, b.op("Not", [infinite])])
    close = b.op("Or", [close, b.op("Equal", [first, second])])
    if equal_nan:
        close = b.op("Or", [close, b.op("And", [b.op("IsNaN", [first]), b.op("IsNaN", [second])])])
    return close


@primitive("ApproximateEqual")
def approximate_equal(b: Builder, x: Value, y: Value, *, tolerance: Number = 1e-5) -> Value:
    """Where |x - y| is below a bound."""
    first, second = b.promoted(x, y)
    distance = b.op("Abs", [b.op("Sub", [b.computable(first), b.computable(second)])])
    return b.op("Less", [distance, b.scalar(tolerance, distance)])


@primitive("Heaviside")
def heaviside(b: Builder, x: Value, values: Value) -> Value:
    """0 below 0, 1 above, and the second operand at 0."""
    first, second = (b.computable(item) for item in b.promoted(x, values))
    zero, one = b.scalar(0, first), b.scalar(1, first)
    sides = b.op("Where", [b.op("Greater", [first, zero]), one, zero])
    return b.op("Where", [b.op("Equal", [first, zero]), second, sides])


@table({"Fmax": "Max", "Fmin": "Min"})
def skipping_nan(op_type: str, b: Builder, x: Value, y: Value) -> Value:
    """The larger or the smaller; what is no number gives way."""
    first, second = (b.computable(item) for item in b.promoted(x, y))
    if not is_float(first.dtype):
        return b.op(op_type, [first, second])
    one = b.op("Where", [b.op("IsNaN", [first]), second, first])
    other = b.op("Where", [b.op("IsNaN", [second]), first, second])
    return b.op(op_type, [one, other])


@primitive("LeftShift")
def left_shift(b: Builder, x: Value, y: Value) -> Value:
    """Bits moved up: a product with a power of two, which wraps around as the shift does."""
    first, second = (b.cast(item, np.int64) for item in b.promoted(x, y))
    return b.op("Mul", [first, _two_to(b, second)])


@primitive("RightShift")
def right_shift(b: Builder, x: Value, y: Value) -> Value:
    """Bits moved down; the sign stays."""
    first, second = (b.cast(item, np.int64) for item in b.promoted(x, y))
    divisor = _two_to(b, second)
    rest = b.op("Mod", [first, divisor])
    return b.op("Div", [b.op("Sub", [first, rest]), divisor])


def _two_to(b: Builder, power: Value) -> Value:
    """2 to an integer power, from a table: exact where floating point is not."""
    table = b.const((np.uint64(1) << np.arange(64, dtype=np.uint64)).view(np.int64))
    return b.op("Gather", [table, power], {"axis": 0})


@primitive("Select", "SelectV2")
def select(b: Builder, node: Node, condition: Operand, x: Operand, y: Operand) -> Value:
    """The second operand where the first is true, else the third.

    MindSpore's Select lets a condition of fewer axes choose whole rows; SelectV2 broadcasts.
    """
    first, second = b.promoted(x, y)
    chosen = b.cast(condition, BOOL)
    if node.op_type == "Select" and chosen.shape is not None and first.shape is not None:
        missing = len(first.shape) - len(chosen.shape)
        if chosen.rank and missing > 0 and first.shape[: len(chosen.shape)] == chosen.shape:
            chosen = b.unsqueeze(chosen, range(len(chosen.shape), len(first.shape)))
    return b.op("Where", [chosen, first, second])


@primitive("MaskedFill", "MaskedFillScalar")
def masked_fill(b: Builder, x: Value, mask: Value, value: Operand) -> Value:
    """One number where the mask is true."""
    filler = b.cast(b.value(value, None if isinstance(value, Value) else x.dtype), x.dtype)
    return b.op("Where", [b.cast(mask, BOOL), filler, x])


@primitive("MaskedSelect")
def masked_select(b: Builder, x: Value, mask: Value) -> Value:
    """The elements where the mask is true, in row-major order."""
    chosen = b.cast(mask, BOOL)
    if x.shape is None or x.shape != chosen.shape or None in x.shape:
        shape = b.op("Shape", [b.op("Or", [b.op("Equal", [x, x]), chosen])])
        x, chosen = b.op("Expand", [x, shape]), b.op("Expand", [chosen, shape])
    if known_rank(x) == 0:
        raise RefusedError("it needs at least one axis")
    flat = b.op("Reshape", [chosen, b.const([-1], np.int64)])
    return b.op("Compress", [x, flat])


@primitive("BoolNot")
def bool_not(b: Builder, x: Operand) -> Operand:
    """The opposite of one truth value."""
    return not x if isinstance(x, bool) else b.op("Not", [b.cast(x, BOOL)])


@primitive("CheckValid")
def check_valid(b: Builder, node: Node, boxes: Value, image: Value) -> Value:
    """Which boxes (x0, y0, x1, y1) lie within an image of (height, width, ratio)."""
    first, meta = (b.cast(item, np.float32) for item in (boxes, image))
    height, width, ratio = (b.op("Gather", [meta, b.const([i], np.int64)], {"axis": 0}) for i in range(3))
    left_top = b.op("Slice", [first, b.ints((0,)), b.ints((2,)), b.ints((1,))])
    right_bottom = b.op("Slice", [first, b.ints((2,)), b.ints((4,)), b.ints((1,))])
    corner = b.op("Mul", [b.op("Concat", [width, height], {"axis": 0}), ratio])
    corner = b.op("Sub", [corner, b.scalar(1, corner)])
    inside = b.op("And", [
        b.op("GreaterOrEqual", [left_top, b.scalar(0, left_top)]),
        b.op("LessOrEqual", [right_bottom, corner]),
    ])  # fmt: skip
    counted = b.op("ReduceMin", [b.cast(inside, np.int32), b.ints((1,))], {"keepdims": 0})
    return b.cast(counted, b.result_type(node, BOOL))
