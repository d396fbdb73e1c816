"""Functions of each element alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharding.common.arrays import DType
from sharding.importers.mindir import doubles
from sharding.importers.mindir.primitives.arithmetic import binary, truncated
from sharding.importers.mindir.primitives.base import Node, Operand, Value, alike, primitive, table
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder, Formula, Number, is_float


@table(alike("Exp", "Log", "Sqrt", "Sin", "Cos", "Tan", "Sinh", "Cosh", "Tanh", "Atanh", "Erf") | {
    ("Asin", "AsinExt"): "Asin", ("ACos", "AcosExt"): "Acos", ("Atan", "AtanExt"): "Atan",
    ("Asinh", "AsinhExt"): "Asinh", ("Acosh", "AcoshExt"): "Acosh", ("Reciprocal", "Inv"): "Reciprocal",
})  # fmt: skip
def of_floats(op_type: str, b: Builder, x: Value) -> Value:
    """ONNX's function of floating-point numbers; integers become float32."""
    return b.op(op_type, [b.floating(x)])


_FORMULAS: dict[str, Formula] = {
    "Rsqrt": lambda b, x: b.op("Reciprocal", [b.op("Sqrt", [x])]),
    "Exp2": lambda b, x: b.op("Pow", [b.scalar(2, x), x]),
    "Log2": lambda b, x: b.op("Mul", [b.op("Log", [x]), b.scalar(1 / np.log(2), x)]),
    "Log10": lambda b, x: b.op("Mul", [b.op("Log", [x]), b.scalar(1 / np.log(10), x)]),
    "IsNan": lambda b, x: b.op("IsNaN", [x]),
    "IsNegInf": lambda b, x: b.op("Equal", [x, b.scalar(-np.inf, x)]),
}


@table(_FORMULAS)
def of_float(formula: Formula, b: Builder, x: Value) -> Value:
    """A formula of floating-point numbers."""
    return formula(b, b.floating(x))


_OF_NUMBERS: dict[str, Formula] = {
    "Square": lambda b, x: b.op("Mul", [x, x]),
    "Frac": lambda b, x: b.op("Sub", [x, truncated(b, x)]),
}


@table(_OF_NUMBERS)
def of_number(formula: Formula, b: Builder, x: Value) -> Value:
    """A formula of integers too."""
    return formula(b, b.computable(x))


@table(alike("Abs", "Neg", "Sign"))
def of_numbers(op_type: str, b: Builder, x: Value) -> Value:
    """ONNX's function of integers too."""
    return b.op(op_type, [b.computable(x)])


@table({"Floor": "Floor", "Ceil": "Ceil", "Rint": "Round"})
def rounded(op_type: str, b: Builder, x: Value) -> Value:
    """ONNX's way of rounding, which does nothing to integers."""
    return b.op(op_type, [b.computable(x)]) if is_float(x.dtype) else x


@primitive("Identity", "Copy", "Clone", "Contiguous", "Detach", "StopGradient", "AShardIdentity",
           "CopyToDevice", "CopyToHost", "ToDevice", "FormatCast")  # fmt: skip
def identity(b: Builder, x: Value, *rest: Operand) -> Value:
    """The value itself; where it lies and who may change it does not matter here."""
    return x


@primitive("IdentityN")
def identity_n(b: Builder, x: Operand) -> Operand:
    """The values themselves."""
    return x


@primitive("Expm1")
def expm1(b: Builder, x: Value) -> Value:
    """exp(x) - 1, with the digits that the difference would not have for small x."""
    return _in_doubles(b, x, doubles.expm1)


@primitive("Log1p")
def log1p(b: Builder, x: Value) -> Value:
    """log(1 + x), with the digits that the sum would not have for small x."""
    return _in_doubles(b, x, doubles.log1p)


@primitive("Erfc")
def erfc(b: Builder, x: Value) -> Value:
    """1 - erf(x), with the digits that a difference from 1 would not have."""
    return _in_doubles(b, x, doubles.erfc)


def _in_doubles(b: Builder, x: Value, form: Callable[[doubles.Number], doubles.Number]) -> Value:
    wide = b.floating(x)
    return b.cast(form(doubles.Number(b, b.cast(wide, np.float64))).value, wide.dtype)


@primitive("Sinc")
def sinc(b: Builder, x: Value) -> Value:
    """sin(pi x) / (pi x), 1 at 0."""
    wide = b.floating(x)
    angle = b.op("Mul", [wide, b.scalar(np.pi, wide)])
    zero = b.op("Equal", [wide, b.scalar(0, wide)])
    ratio = b.op("Div", [b.op("Sin", [angle]), b.op("Where", [zero, b.scalar(1, wide), angle])])
    return b.op("Where", [zero, b.scalar(1, wide), ratio])


@primitive("Round")
def round_(b: Builder, x: Value, *, decimals: Number = 0) -> Value:
    """Rounded, halves to even, to this many decimals."""
    if not is_float(x.dtype):
        return x
    wide = b.computable(x)
    if decimals == 0:
        return b.op("Round", [wide])
    scale = b.scalar(10.0**decimals, wide)
    return b.op("Div", [b.op("Round", [b.op("Mul", [wide, scale])]), scale])


@primitive("Trunc")
def trunc(b: Builder, x: Value) -> Value:
    """Without the fraction."""
    return truncated(b, b.computable(x)) if is_float(x.dtype) else x


@primitive("IsInf")
def is_inf(b: Builder, x: Value) -> Value:
    """Where it is infinite."""
    wide = b.floating(x)
    return b.op("Equal", [b.op("Abs", [wide]), b.scalar(np.inf, wide)])


@primitive("IsFinite")
def is_finite(b: Builder, x: Value) -> Value:
    """Where it is neither infinite nor no number."""
    return b.op("Not", [b.op("Or", [is_inf(b, x), b.op("IsNaN", [b.floating(x)])])])


@primitive("NanToNum")
def nan_to_num(
    b: Builder,
    x: Value,
    *,
    nan: Number | None = None,
    posinf: Number | None = None,
    neginf: Number | None = None,
) -> Value:
    """Numbers in place of those that are none or infinite; by default 0 and the largest there are."""
    if not is_float(x.dtype):
        return x
    wide = b.computable(x)
    limits = np.finfo(x.dtype) if x.dtype.kind == "f" else np.finfo(np.float32)
    instead = {
        "nan": 0.0 if nan is None else nan,
        "posinf": float(limits.max) if posinf is None else posinf,
        "neginf": float(limits.min) if neginf is None else neginf,
    }
    found = b.op("Where", [b.op("IsNaN", [wide]), b.scalar(instead["nan"], wide), wide])
    upper = b.op("Equal", [wide, b.scalar(np.inf, wide)])
    lower = b.op("Equal", [wide, b.scalar(-np.inf, wide)])
    found = b.op("Where", [upper, b.scalar(instead["posinf"], wide), found])
    return b.op("Where", [lower, b.scalar(instead["neginf"], wide), found])


@primitive("ToDtype", "ToOther", "TypeAs")
def to_type(b: Builder, node: Node, x: Value, *rest: Operand) -> Value:
    """The element type that the file declares."""
    return b.cast(x, b.result_type(node, x.dtype))


@table({("ZerosLike", "ZerosLikeExt"): 0, ("OnesLike", "OnesLikeExt"): 1})
def same_number_like(amount: int, b: Builder, node: Node, x: Value, dtype: Operand = None) -> Value:
    """Zeros or ones in the shape of another."""
    return b.full_like(x, amount, b.element_type(dtype, b.result_type(node, x.dtype)))


@primitive("FullLike", "Fills")
def fill_like(b: Builder, node: Node, x: Value, amount: Operand, dtype: Operand = None) -> Value:
    """One number in the shape of another."""
    value = amount if isinstance(amount, Value) else b.number(amount, "the number to fill with")
    return b.full_like(x, value, b.element_type(dtype, b.result_type(node, x.dtype)))


@primitive("ClampScalar", "ClampTensor")
def clamp(b: Builder, node: Node, x: Value, *, min: Operand = None, max: Operand = None) -> Value:
    """Between two bounds, numbers or tensors, either of which may be missing. The upper one wins."""
    found: Value = x
    for op_type, bound in (("Max", min), ("Min", max)):
        if bound is not None:
            found = binary(b, node, op_type, found, _held(bound, x.dtype))
    return found


def _held(bound: Operand, dtype: DType) -> Operand:
    """A bound as MindSpore's kernels have it: they cast a whole number to the tensor's type, and do not look
    whether it fits. Of uint8, 300 is 44."""
    if dtype.kind in "iu" and isinstance(bound, int) and not isinstance(bound, bool):
        return int(np.asarray(bound).astype(dtype))
    return bound


@primitive("Logit")
def logit(b: Builder, x: Value, *, eps: Operand = -1.0) -> Value:
    """log(x / (1 - x)), x held between eps and 1 - eps where eps is not negative."""
    wide = b.floating(x)
    margin = -1.0 if eps is None else b.number(eps, "eps")
    if margin >= 0:
        wide = b.op("Clip", [wide, b.scalar(margin, wide), b.scalar(1 - margin, wide)])
    return b.op("Log", [b.op("Div", [wide, b.op("Sub", [b.scalar(1, wide), wide])])])


@primitive("Erfinv")
def erfinv(b: Builder, x: Value) -> Value:
    """The inverse of erf, by the polynomials of M. Giles, Approximating the erfinv
    function (2010)."""
    wide = x if x.dtype == np.float64 else b.cast(x, FLOAT32)  # what the polynomials are for
    one = b.scalar(1, wide)
    w = b.op("Neg", [b.op("Log", [b.op("Mul", [b.op("Sub", [one, wide]), b.op("Add", [one, wide])])])])
    near = _polynomial(b, b.op("Sub", [w, b.scalar(2.5, w)]), _GILES_NEAR)
    far = _polynomial(b, b.op("Sub", [b.op("Sqrt", [w]), b.scalar(3.0, w)]), _GILES_FAR)
    chosen = b.op("Where", [b.op("Less", [w, b.scalar(5.0, w)]), near, far])
    found = b.op("Mul", [chosen, wide])
    limit = b.op("Equal", [b.op("Abs", [wide]), one])
    infinite = b.op("Mul", [wide, b.scalar(np.inf, wide)])
    if x.dtype == np.float64:
        return doubles.erfinv(doubles.Number(b, x), doubles.Number(b, found)).value
    return b.op("Where", [limit, infinite, found])


_GILES_NEAR = (2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503,
               -0.00417768164, 0.246640727, 1.50140941)  # fmt: skip
_GILES_FAR = (-0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773, -0.0076224613,
              0.00943887047, 1.00167406, 2.83297682)  # fmt: skip


def _polynomial(b: Builder, x: Value, coefficients: tuple[float, ...]) -> Value:
    """A polynomial by Horner's rule, the highest power first."""
    found = b.scalar(coefficients[0], x)
    for coefficient in coefficients[1:]:
        found = b.op("Add", [b.op("Mul", [found, x]), b.scalar(coefficient, x)])
    return found


@primitive("Dropout")
def dropout(b: Builder, x: Value, *rest: Operand) -> Operand:
    """Nothing is dropped in inference: the value, and a mask of ones."""
    return (x, b.full_like(x, 1))
