"""Complex numbers: ONNX Runtime has no arithmetic for them, so each is two tensors, the real and the
imaginary parts.

What is linear is done to both parts alike; a product, a quotient and the like have a form of their own here.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharding.common.arrays import Array
from sharding.importers.mindir.primitives.arithmetic import atan2, signed_below
from sharding.importers.mindir.primitives.base import (
    ComplexValue,
    Node,
    Operand,
    Primitive,
    RefusedError,
    Value,
    primitive,
)
from sharding.importers.mindir.primitives.operands import Builder

_LINEAR = frozenset(
    {
        "Reshape", "View", "ViewAs", "Transpose", "TransposeView", "TransposeExt", "TransposeExtView", "TExt",
        "ExpandDims", "ExpandDimsView", "Unsqueeze", "Squeeze", "Flatten", "FlattenExt", "ReverseV2", "Roll",
        "Concat", "Stack", "StackExt", "Split", "SplitTensor", "SplitTensorView", "SplitWithSize", "Chunk",
        "ChunkView", "SplitWithSizeView", "Unstack", "UnstackExtView", "Slice", "StridedSlice", "SliceExt",
        "SliceExtView", "Narrow", "NarrowView", "SelectExt", "SelectExtView", "Gather", "GatherD", "GatherNd",
        "IndexSelect", "BroadcastTo", "BroadcastToView", "Expand", "ExpandAs", "Tile", "Pad", "PadV3",
        "ConstantPadND", "Neg", "ReduceSum", "ReduceMean", "SumExt", "MeanExt", "Muls", "Divs", "AddN",
        "AddExt", "SubExt", "Add", "Sub", "FFTShift", "IFFTShift", "Contiguous", "Identity", "Copy", "Clone",
        "StopGradient", "Diagonal", "Triu", "Tril", "CumSum", "ZerosLike", "Repeat",
    }
)  # fmt: skip
"""Primitives that do the same to the real and to the imaginary parts."""
_SHAPES = frozenset({"Shape", "shape", "TensorShape", "DynamicShape", "Rank", "rank", "Size", "size"})


def holds_complex(operand: object) -> bool:
    """Whether an operand is complex, or holds what is."""
    if isinstance(operand, tuple):
        return any(holds_complex(item) for item in operand)
    return isinstance(operand, ComplexValue)


def converted(
    b: Builder, known: Primitive, node: Node, positional: list[object], settings: dict[str, object]
) -> Operand:
    """A primitive with operands some of which are complex. Raises `RefusedError` for one that has no form."""
    if known.of_complex:
        return known.convert(b, node, *positional, **settings)
    if (own := _FORMS.get(node.op_type)) is not None:
        return own(b, *positional)
    if node.op_type == "Log":
        (x,) = positional
        assert isinstance(x, ComplexValue)
        return _logarithm(b, node, x)
    if node.op_type in _SHAPES:
        return known.convert(b, node, *[_part(b, item, False, False) for item in positional], **settings)
    if node.op_type not in _LINEAR:
        raise RefusedError("it has no conversion for complex numbers")
    adds = node.op_type in {"Add", "Sub", "AddExt", "SubExt"}
    parts = [
        known.convert(b, node, *[_part(b, item, imaginary, adds) for item in positional], **settings)
        for imaginary in (False, True)
    ]
    return _joined(parts[0], parts[1])


def _joined(real: Operand, imaginary: Operand) -> Operand:
    if isinstance(real, tuple) and isinstance(imaginary, tuple):
        return tuple(_joined(one, other) for one, other in zip(real, imaginary, strict=True))
    if not isinstance(real, Value) or not isinstance(imaginary, Value):
        raise RefusedError("it gives numbers of which only some are complex")
    return made(real, imaginary)


def made(real: Value, imaginary: Value) -> ComplexValue:
    """A complex value of its parts."""
    dtype = np.dtype(np.complex128 if real.dtype == np.float64 else np.complex64)
    return ComplexValue(real.name, dtype, real.shape, real=real, imaginary=imaginary)


def parts_of_array(b: Builder, array: Array) -> ComplexValue:
    """A constant of complex numbers."""
    return made(b.const(np.ascontiguousarray(array.real)), b.const(np.ascontiguousarray(array.imag)))


def _part(b: Builder, operand: object, imaginary: bool, among: bool) -> object:
    """One part of an operand; of a real one among complex ones, zeros."""
    if isinstance(operand, tuple):
        inside = holds_complex(operand)
        return tuple(_part(b, item, imaginary, inside) for item in operand)
    if isinstance(operand, ComplexValue):
        return operand.imaginary if imaginary else operand.real
    if among and imaginary and isinstance(operand, Value):
        return b.full_like(operand, 0)
    return 0.0 if among and imaginary and isinstance(operand, (int, float)) else operand


def parts_of(b: Builder, operand: Operand) -> tuple[Value, Value]:
    """The real and the imaginary parts, of real numbers too."""
    if isinstance(operand, ComplexValue):
        return operand.real, operand.imaginary
    real = b.floating(b.value(operand))
    return real, b.full_like(real, 0)


@primitive("Complex")
def complex_(b: Builder, real: Value, imaginary: Value) -> Value:
    """Of its parts."""
    one, other = (b.floating(item) for item in b.promoted(real, imaginary))
    shape = b.op("Shape", [b.op("Add", [one, other])]) if one.shape != other.shape else None
    if shape is not None:
        one, other = (b.op("Expand", [item, shape]) for item in (one, other))
    return made(one, other)


@primitive("Polar")
def polar(b: Builder, size: Value, angle: Value) -> Value:
    """Of a distance from 0 and an angle."""
    one, other = (b.floating(item) for item in b.promoted(size, angle))
    return made(*(b.op("Mul", [one, b.op(kind, [other])]) for kind in ("Cos", "Sin")))


@primitive("Real", of_complex=True)
def real(b: Builder, x: Value) -> Value:
    """The real part."""
    return x.real if isinstance(x, ComplexValue) else x


@primitive("Imag", of_complex=True)
def imaginary_part(b: Builder, x: Value) -> Value:
    """The imaginary part."""
    return x.imaginary if isinstance(x, ComplexValue) else b.full_like(x, 0)


@primitive("Conj", of_complex=True)
def conjugate(b: Builder, x: Value) -> Value:
    """With the other sign of the imaginary part."""
    return made(x.real, b.op("Neg", [x.imaginary])) if isinstance(x, ComplexValue) else x


@primitive("Angle", of_complex=True)
def angle(b: Builder, node: Node, x: Value) -> Value:
    """The angle to the positive numbers."""
    if isinstance(x, ComplexValue):
        found = atan2(b, node, x.imaginary, x.real)
        assert isinstance(found, Value)
        return found
    wide = b.computable(x)
    known = b.floating(x)
    found = b.op(
        "Where", [b.op("Less", [wide, b.scalar(0, wide)]), b.scalar(np.pi, known), b.scalar(0, known)]
    )
    return b.op("Where", [b.op("IsNaN", [wide]), known, found]) if x.dtype.kind == "f" else found


@primitive("ComplexAbs", of_complex=True)
def complex_abs(b: Builder, x: Value) -> Value:
    """The distance from 0."""
    return _size(b, x)


def _size(b: Builder, x: Operand) -> Value:
    greater, scaled = _scaled(b, *parts_of(b, x))
    return b.op("Mul", [greater, _hypotenuse(b, *scaled)])


def _scaled(b: Builder, one: Value, other: Value) -> tuple[Value, tuple[Value, Value]]:
    """The greater magnitude of both parts, and the parts divided by it, whose squares neither overflow nor
    vanish. Beside an endless part, what is finite or no number counts as nothing."""
    zero, unit = b.scalar(0, one), b.scalar(1, one)
    endless = [b.op("IsInf", [item]) for item in (one, other)]
    greater = b.op("Max", [b.op("Abs", [item]) for item in (one, other)])
    greater = b.op("Where", [b.op("Or", endless), b.scalar(np.inf, one), greater])
    divisor = b.op("Where", [b.op("Equal", [greater, zero]), unit, greater])
    parts = []
    for item, its, others in ((one, *endless), (other, *reversed(endless))):
        finite = b.op("Where", [b.op("And", [others, b.op("IsNaN", [item])]), zero, item])
        parts.append(b.op("Where", [its, b.op("Sign", [item]), b.op("Div", [finite, divisor])]))
    return greater, (parts[0], parts[1])


def _hypotenuse(b: Builder, one: Value, other: Value) -> Value:
    squares = [b.op("Mul", [item, item]) for item in (one, other)]
    return b.op("Sqrt", [b.op("Add", squares)])


@primitive("ViewAsReal", "AsReal", of_complex=True)
def view_as_real(b: Builder, x: Value) -> Value:
    """Both parts along a last axis."""
    last = b.ints((-1,))
    return b.op("Concat", [b.op("Unsqueeze", [part, last]) for part in parts_of(b, x)], {"axis": -1})


def _product(b: Builder, x: Operand, y: Operand) -> Value:
    (a, c), (d, e) = parts_of(b, x), parts_of(b, y)
    one = b.op("Sub", [b.op("Mul", [a, d]), b.op("Mul", [c, e])])
    other = b.op("Add", [b.op("Mul", [a, e]), b.op("Mul", [c, d])])
    return made(one, other)


def _quotient(b: Builder, x: Operand, y: Operand) -> Value:
    (a, c), (d, e) = parts_of(b, x), parts_of(b, y)
    # R. Smith's form, in which no square overflows or vanishes
    sizes = [b.op("Abs", [item]) for item in (d, e)]
    level = b.op("GreaterOrEqual", sizes)
    long, short = (b.op("Where", [level, *pair]) for pair in ((d, e), (e, d)))
    first, second = (b.op("Where", [level, *pair]) for pair in ((a, c), (c, a)))
    ratio = b.op("Div", [short, long])
    below = b.op("Add", [b.scalar(1, ratio), b.op("Mul", [ratio, ratio])])
    one = b.op("Add", [first, b.op("Mul", [second, ratio])])
    other = b.op("Sub", [second, b.op("Mul", [first, ratio])])
    other = b.op("Where", [level, other, b.op("Neg", [other])])
    none = b.op("Equal", [long, b.scalar(0, long)])
    parts = []
    for part, whole, size in ((one, a, sizes[0]), (other, c, sizes[1])):
        shared = b.op("Div", [b.op("Div", [part, below]), long])
        parts.append(b.op("Where", [none, b.op("Div", [whole, size]), shared]))
    return made(parts[0], parts[1])


def _matrix_product(b: Builder, x: Operand, y: Operand) -> Value:
    (a, c), (d, e) = parts_of(b, x), parts_of(b, y)
    one = b.op("Sub", [b.op("MatMul", [a, d]), b.op("MatMul", [c, e])])
    return made(one, b.op("Add", [b.op("MatMul", [a, e]), b.op("MatMul", [c, d])]))


def _exponential(b: Builder, x: Operand) -> Value:
    one, other = parts_of(b, x)
    size, zero = b.op("Exp", [one]), b.scalar(0, one)
    # an endless size keeps its size, and 0 is 0, whatever the angle; a real number stays real
    wild = b.op("And", [b.op("IsInf", [one]), b.op("IsNaN", [b.op("Sub", [other, other])])])
    calm = b.op("Where", [wild, zero, other])
    turned = b.op("Sin", [b.op("Where", [b.op("Less", [one, zero]), calm, other])])
    imaginary = b.op("Where", [b.op("Equal", [other, zero]), other, b.op("Mul", [size, turned])])
    return made(b.op("Mul", [size, b.op("Cos", [calm])]), imaginary)


def _logarithm(b: Builder, node: Node, x: ComplexValue) -> Value:
    greater, scaled = _scaled(b, x.real, x.imaginary)
    size = b.op("Add", [b.op("Log", [item]) for item in (greater, _hypotenuse(b, *scaled))])
    return made(size, angle(b, node, x))


def _root(b: Builder, x: ComplexValue) -> Value:
    """The square root. Of a + ci with a >= 0 it is t + c/2t i, t = sqrt((a + |a + ci|) / 2); with a < 0 both
    parts change places, and the imaginary one has the sign of c, also of a zero."""
    greater, (a, c) = _scaled(b, x.real, x.imaginary)
    half, zero = b.scalar(0.5, a), b.scalar(0, a)
    unit = b.scalar(1, a)
    length = b.op("Sqrt", [greater])
    sum_ = b.op("Add", [b.op("Abs", [a]), _hypotenuse(b, a, c)])
    long = b.op("Sqrt", [b.op("Mul", [sum_, half])])
    short = b.op("Div", [b.op("Mul", [c, half]), b.op("Where", [b.op("Equal", [long, zero]), unit, long])])
    none = b.op("Equal", [short, zero])  # times an endless length it stays 0
    short = b.op("Mul", [short, b.op("Where", [none, unit, length])])
    short = b.op("Where", [b.op("IsNaN", [x.imaginary]), x.imaginary, short])
    long = b.op("Mul", [long, length])
    signed = b.op("Where", [signed_below(b, x.imaginary), b.op("Neg", [long]), long])
    left = b.op("Less", [x.real, zero])
    return made(b.op("Where", [left, b.op("Abs", [short]), long]), b.op("Where", [left, signed, short]))


@primitive("Cast", of_complex=True)
def cast(b: Builder, node: Node, x: Operand, *, dst_type: Operand = None) -> Value:
    """Another element type; of a complex number a real one has the real part."""
    value = x if isinstance(x, ComplexValue) else b.value(x)
    wanted = b.element_type(dst_type, b.result_type(node, value.dtype))
    if wanted.kind == "c":
        half = np.float64 if wanted == np.complex128 else np.float32
        parts = parts_of(b, value if isinstance(value, ComplexValue) else b.cast(value, half))
        return made(b.cast(parts[0], half), b.cast(parts[1], half))
    return b.cast(value.real if isinstance(value, ComplexValue) else value, wanted)


_FORMS: dict[str, Callable[..., Operand]] = {
    "Abs": _size,
    "Mul": _product,
    "Square": lambda b, x: _product(b, x, x),
    "Div": _quotient,
    "RealDiv": _quotient,
    "Reciprocal": lambda b, x: _quotient(b, b.scalar(1, parts_of(b, x)[0]), x),
    "MatMulExt": _matrix_product,
    "BatchMatMulExt": _matrix_product,
    "Exp": _exponential,
    "Sqrt": _root,
}
"""Primitives of complex operands that have a form of their own."""
