"""The networks of `scripts/mindir_cases.py`: a primitive, its use, and inputs.

``op`` makes the primitive; ``call`` uses it as ``op`` on ``x0``, ``x1``, ...; inputs are descriptions of arrays.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

Make = Callable[[np.random.RandomState], np.ndarray]


@dataclass(frozen=True)
class Case:
    """One network."""

    name: str
    op: str
    call: str
    inputs: tuple[Make, ...]

    def arrays(self) -> list[np.ndarray]:
        """The inputs, the same each time."""
        random = np.random.RandomState(zlib.crc32(self.name.encode()))
        return [make(random) for make in self.inputs]


CASES: list[Case] = []


def case(name: str, op: str, call: str, *inputs: Make) -> None:
    """Adds a case."""
    if any(known.name == name for known in CASES):
        raise ValueError(f"{name} is there twice")
    CASES.append(Case(name, op, call, inputs))


def f(*shape: int, low: float = -2.0, high: float = 2.0, dtype: Any = np.float32) -> Make:
    """Numbers between two bounds."""
    return lambda random: random.uniform(low, high, shape).astype(dtype)


def pos(*shape: int) -> Make:
    """Positive numbers."""
    return f(*shape, low=0.2, high=3.0)


def unit(*shape: int) -> Make:
    """Numbers within -1 and 1."""
    return f(*shape, low=-0.95, high=0.95)


def i(*shape: int, low: int = -5, high: int = 6, dtype: Any = np.int32) -> Make:
    """Integers from low up to before high."""
    return lambda random: random.randint(low, high, shape).astype(dtype)


def nz(*shape: int, dtype: Any = np.int32) -> Make:
    """Integers that are not 0."""
    return lambda random: (random.randint(1, 5, shape) * random.choice([-1, 1], shape)).astype(dtype)


def flag(*shape: int) -> Make:
    """Truth values."""
    return lambda random: random.rand(*shape) > 0.5


def lit(data: Any, dtype: Any = np.float32) -> Make:
    """These."""
    return lambda random: np.asarray(data, dtype)


def distinct(*shape: int, dtype: Any = np.float32) -> Make:
    """Different numbers, in no order."""
    return lambda random: random.permutation(int(np.prod(shape))).reshape(shape).astype(dtype)


# Functions of each element

for _name, _make in {
    "Abs": f, "Neg": f, "Exp": f, "Log": pos, "Log1p": pos, "Expm1": f, "Sqrt": pos, "Rsqrt": pos, "Square": f,
    "Reciprocal": pos, "Inv": pos, "Sign": f, "Floor": f, "Ceil": f, "Rint": f, "Round": f, "Trunc": f, "Sin": f, "Cos": f,
    "Tan": unit, "Asin": unit, "ACos": unit, "Atan": f, "Sinh": f, "Cosh": f, "Tanh": f, "Asinh": f,
    "Acosh": lambda *shape: f(*shape, low=1.1, high=4), "Atanh": unit, "Erf": f, "Erfc": f, "Erfinv": unit,
    "ReLU": f, "ReLU6": lambda *shape: f(*shape, low=-4, high=9), "Sigmoid": f,
    "HSigmoid": lambda *shape: f(*shape, low=-5, high=5), "HSwish": lambda *shape: f(*shape, low=-5, high=5),
    "GeLU": f, "FastGeLU": f, "SeLU": f, "Mish": f, "Softplus": f, "Softsign": f, "ZerosLike": f,
    "OnesLike": f, "L2Loss": f, "Identity": f,
}.items():  # fmt: skip
    case(_name, f"P.{_name}()", "op(x0)", _make(3, 4))

for _name in (
    "Exp2", "Log2", "Log10", "Sinc", "Frac", "LogSigmoid", "MishExt", "SeLUExt", "AsinExt", "AcosExt", "AtanExt",
    "AsinhExt", "IsNegInf", "Copy", "Clone", "Contiguous", "Detach", "TExt", "Max", "Min", "Any", "MedianExt",
    "NonZeroExt", "IsFinite", "ZerosLikeExt", "OnesLikeExt", "Trace", "TraceExt", "BitwiseNot",
):  # fmt: skip
    _make = i if _name == "BitwiseNot" else pos if _name.startswith("Log1") or _name == "Log2" else unit
    case(_name, f"A.{_name}()", "op(x0)", _make(4, 5))
case("SiLU", "nn.SiLU()", "op(x0)", f(3, 4))
case("ReLUV3", "nn_ops.ReLUV3()", "op(x0)", f(3, 4))
case("AcoshExt", "A.AcoshExt()", "op(x0)", f(3, 4, low=1.1, high=4))
case("Abs_int", "P.Abs()", "op(x0)", i(3, 4))
case("Neg_int64", "P.Neg()", "op(x0)", i(3, 4, dtype=np.int64))
case("ReLU_int", "P.ReLU()", "op(x0)", i(3, 4))
case("Exp_half", "P.Exp()", "op(x0)", f(3, 4, dtype=np.float16))
case("Exp_double", "P.Exp()", "op(x0)", f(3, 4, dtype=np.float64))
case("Rint_halves", "P.Rint()", "op(x0)", lit([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3]))
case("Round_halves", "P.Round()", "op(x0)", lit([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5, 0.3]))
case("Square_int", "P.Square()", "op(x0)", i(3, 4))
_ODD = lit([1.5, np.nan, np.inf, -np.inf, 0.0])
case("IsNan", "P.IsNan()", "op(x0)", _ODD)
case("IsInf", "P.IsInf()", "op(x0)", _ODD)
case("IsFinite_odd", "P.IsFinite()", "op(x0)", _ODD)
case("NanToNum", "P.NanToNum(0.5, 2.0, -2.0)", "op(x0)", _ODD)
case("NanToNum_default", "P.NanToNum()", "op(x0)", _ODD)
case("Sign_int", "P.Sign()", "op(x0)", i(3, 4))
case("Invert", "P.Invert()", "op(x0)", i(3, 4, dtype=np.int16))
case("Logit", "P.Logit(1e-2)", "op(x0)", f(3, 4, low=0, high=1))
case("DropoutCell", "nn.Dropout(p=0.3)", "op(x0)", f(3, 4))
for _dtype in ("float16", "int32", "int64", "bool_", "uint8", "int8", "float64", "bfloat16"):
    case(f"Cast_{_dtype}", "P.Cast()", f"op(x0, mindspore.{_dtype}).astype(mindspore.float32)", f(3, 4, low=0, high=9))
case("Cast_from_bool", "P.Cast()", "op(x0, mindspore.float32)", flag(3, 4))
case("Cast_int", "P.Cast()", "op(x0, mindspore.int16)", i(3, 4, low=-70000, high=70000))
case("TypeAs", "P.TypeAs()", "op(x0, x1)", f(3, 4), i(2, 3))
case("Fills", "P.Fills()", "op(x0, 2.5)", f(3, 4))
case("FullLike", "A.FullLike()", "op(x0, 2.5)", f(3, 4))
case("ClampScalar", "A.ClampScalar()", "op(x0, -1.0, 1.0)", f(3, 4))
case("ClampScalar_low", "A.ClampScalar()", "op(x0, 0, None)", i(3, 4))
case("ClampTensor", "A.ClampTensor()", "op(x0, x1, x2)", f(3, 4), f(3, 4, high=-0.1), f(4, low=0.1))
case("clip_by_value", "", "ops.clip_by_value(x0, -0.5, 0.7)", f(3, 4))

# Two and more operands

for _name in ("Add", "Sub", "Mul", "Maximum", "Minimum", "SquaredDifference"):
    case(_name, f"P.{_name}()", "op(x0, x1)", f(2, 3, 4), f(3, 1))
    case(f"{_name}_int", f"P.{_name}()", "op(x0, x1)", i(2, 3), i(3))
for _name in ("Div", "RealDiv", "FloorDiv", "Mod", "FloorMod", "TruncateDiv", "TruncateMod", "DivNoNan", "Xdivy"):
    case(_name, f"P.{_name}()", "op(x0, x1)", f(2, 3, 4), nz(3, 1, dtype=np.float32))
    case(f"{_name}_int", f"P.{_name}()", "op(x0, x1)", i(2, 8, low=-9, high=9), nz(8))
case("DivNoNan_zero", "P.DivNoNan()", "op(x0, x1)", f(5), lit([0, 1, 0, 2, -1]))
case("MulNoNan", "P.MulNoNan()", "op(x0, x1)", lit([np.inf, 1, np.nan, 2]), lit([0, 1, 0, 2]))
case("Xlogy", "P.Xlogy()", "op(x0, x1)", lit([0, 1, 2, 0]), lit([0.5, 2, 3, 0.1]))
case("Xdivy_zero", "P.Xdivy()", "op(x0, x1)", lit([0, 1, 2, 0]), lit([0, 2, 3, 1]))
case("Hypot", "P.Hypot()", "op(x0, x1)", f(3, 4), f(3, 4))
case("Pow", "P.Pow()", "op(x0, x1)", pos(2, 3), f(3))
case("Pow_int", "P.Pow()", "op(x0, x1)", i(2, 3), i(3, low=0, high=4))
case("Pow_scalar", "P.Pow()", "op(x0, 3.0)", pos(2, 3))
case("Pow_two", "", "x0 ** 2", f(2, 3))
case("Pow_int_float", "", "x0 ** 0.5", i(2, 3, low=0))
case("Atan2", "P.Atan2()", "op(x0, x1)", f(6, 5), f(6, 5))
case("Atan2_axes", "P.Atan2()", "op(x0, x1)", lit([1.0, -1, 0, 0, 1]), lit([0, 0, 1.0, -1, -1]))
case("AddN", "P.AddN()", "op((x0, x1, x2))", f(2, 3), f(2, 3), f(2, 3))
case("AccumulateNV2", "P.AccumulateNV2()", "op((x0, x1))", f(2, 3), f(2, 3))
case("Addcmul", "P.Addcmul()", "op(x0, x1, x2, x3)", f(2, 3), f(2, 3), f(2, 3), lit([0.5]))
case("Addcdiv", "P.Addcdiv()", "op(x0, x1, x2, x3)", f(2, 3), f(2, 3), pos(2, 3), lit([0.5]))
case("Lerp", "P.Lerp()", "op(x0, x1, 0.3)", f(2, 3), f(2, 3))
case("Lerp_tensor", "P.Lerp()", "op(x0, x1, x2)", f(2, 3), f(2, 3), f(2, 3))
case("LogAddExp", "A.LogAddExp()", "op(x0, x1)", f(2, 3), f(2, 3))
case("LogAddExp2", "A.LogAddExp2()", "op(x0, x1)", f(2, 3), f(2, 3))
case("AddExt", "A.AddExt()", "op(x0, x1, 2.0)", f(2, 3), f(2, 3))
case("SubExt", "A.SubExt()", "op(x0, x1, 2)", i(2, 3), i(3))
case("AddScalar", "A.AddScalar()", "op(x0, 3, 2)", f(2, 3))
case("SubScalar", "A.SubScalar()", "op(x0, 3, 2)", f(2, 3))
case("Muls", "", "x0 * 1.5", f(2, 3))
case("Muls_int", "", "x0 * 3", i(2, 3))
case("Muls_int_float", "", "x0 * 1.5", i(2, 3))
case("radd", "", "2 + x0", i(2, 3))
case("rsub", "", "1.0 - x0", f(2, 3))
case("rdiv", "", "1.0 / x0", pos(2, 3))
case("div_int", "", "x0 / 2", i(2, 3))
case("floordiv", "", "x0 // 2", i(2, 3))
case("floordiv_float", "", "x0 // 0.7", f(2, 3))
case("mod_negative", "", "x0 % 3", i(2, 6, low=-9, high=9))
case("DivMod_floor", "A.DivMod()", "op(x0, x1, 'floor')", f(2, 3), pos(3))
case("DivMod_trunc", "A.DivMod()", "op(x0, x1, 'trunc')", f(2, 3), pos(3))
case("DivMods", "A.DivMods()", "op(x0, 0.7, 'floor')", f(2, 3))
case("Divs", "A.Divs()", "op(x0, 3)", f(2, 3))
case("FloorDivScalar", "A.FloorDivScalar()", "op(x0, 2)", i(2, 6))
case("RemainderTensorTensor", "A.RemainderTensorTensor()", "op(x0, x1)", f(2, 6), nz(6, dtype=np.float32))
case("RemainderTensorScalar", "A.RemainderTensorScalar()", "op(x0, -3)", i(2, 6))
case("RemainderScalarTensor", "A.RemainderScalarTensor()", "op(7, x0)", nz(2, 6, dtype=np.int64))
case("FmodTensor", "A.FmodTensor()", "op(x0, x1)", f(2, 6), nz(6, dtype=np.float32))
case("FmodScalar", "A.FmodScalar()", "op(x0, 3)", i(2, 6))
case("PowTensorScalar", "A.PowTensorScalar()", "op(x0, 3)", f(2, 3))
case("PowScalarTensor", "A.PowScalarTensor()", "op(2, x0)", f(2, 3))
case("mixed_types", "P.Add()", "op(x0, x1)", f(2, 3), i(2, 3))
case("mixed_half", "P.Mul()", "op(x0, x1)", f(2, 3, dtype=np.float16), f(2, 3))
case("Add_uint8", "P.Add()", "op(x0, x1)", i(2, 3, low=0, high=250, dtype=np.uint8), i(3, low=0, high=250, dtype=np.uint8))
case("Add_bool", "P.Add()", "op(x0, x1)", flag(2, 3), flag(3))
case("Mul_int8", "P.Mul()", "op(x0, x1)", i(2, 3, dtype=np.int8), i(3, dtype=np.int8))
for _name in ("BitwiseAnd", "BitwiseOr", "BitwiseXor"):
    case(_name, f"P.{_name}()", "op(x0, x1)", i(2, 3), i(3))
    case(f"{_name}Tensor", f"A.{_name}Tensor()", "op(x0, x1)", i(2, 3), i(3))
    case(f"{_name}Scalar", f"A.{_name}Scalar()", "op(x0, 3)", i(2, 3))
case("LeftShift", "A.LeftShift()", "op(x0, x1)", i(2, 6), i(6, low=0, high=5))
case("RightShift", "A.RightShift()", "op(x0, x1)", i(2, 6, low=-90, high=90), i(6, low=0, high=5))

# Comparisons and choices

for _name in ("Equal", "NotEqual", "Greater", "GreaterEqual", "Less", "LessEqual"):
    case(_name, f"P.{_name}()", "op(x0, x1)", i(2, 8), i(8))
    case(f"{_name}_float", f"P.{_name}()", "op(x0, 0.5)", f(2, 8))
    case(f"{_name}_uint8", f"P.{_name}()", "op(x0, x1)", i(2, 8, low=0, high=3, dtype=np.uint8), i(8, low=0, high=3, dtype=np.uint8))
case("Equal_bool", "P.Equal()", "op(x0, x1)", flag(2, 8), flag(8))
case("EqScalar", "A.EqScalar()", "op(x0, 2)", i(2, 8))
case("GreaterEqualScalar", "A.GreaterEqualScalar()", "op(x0, 2)", i(2, 8))
case("LessScalar", "A.LessScalar()", "op(x0, 2)", i(2, 8))
case("EqualExt", "A.EqualExt()", "op(x0, x0)", i(2, 8))
for _name in ("LogicalAnd", "LogicalOr", "LogicalXor"):
    case(_name, f"P.{_name}()", "op(x0, x1)", flag(2, 8), flag(8))
case("LogicalNot", "P.LogicalNot()", "op(x0)", flag(2, 8))
case("LogicalNot_float", "P.LogicalNot()", "op(x0)", i(2, 8, low=0, high=2))
case("IsClose", "P.IsClose(0.1, 0.1, True)", "op(x0, x1)", lit([1.5, np.nan, np.inf, -np.inf, 0.0, 1]), lit([1.6, np.nan, np.inf, np.inf, 1, 3]))
case("ApproximateEqual", "P.ApproximateEqual(0.5)", "op(x0, x1)", f(2, 8), f(2, 8))
case("Heaviside", "P.Heaviside()", "op(x0, x1)", i(2, 8, low=-1, high=2, dtype=np.float32), f(8))
case("Fmax", "math_ops.Fmax()" , "op(x0, x1)", lit([1, np.nan, 2]), lit([2, 1, np.nan]))
case("Fmin", "math_ops.Fmin()" , "op(x0, x1)", lit([1, np.nan, 2]), lit([2, 1, np.nan]))
case("Select", "P.Select()", "op(x0, x1, x2)", flag(3, 4), f(3, 4), f(3, 4))
case("Select_broadcast", "P.Select()", "op(x0, x1, x2)", flag(3, 1), f(3, 4), f(3, 4))
case("SelectV2", "A.SelectV2()", "op(x0, x1, x2)", flag(4), f(3, 4), f(3, 1))
case("where", "", "ops.where(x0, x1, 0.0)", flag(3, 4), f(3, 4))
case("MaskedFill", "P.MaskedFill()", "op(x0, x1, -1e4)", f(2, 3, 4), flag(3, 4))
case("MaskedFill_tensor", "P.MaskedFill()", "op(x0, x1, x2)", f(2, 3, 4), flag(3, 4), lit(7))
case("MaskedFillScalar", "A.MaskedFillScalar()", "op(x0, x1, 2.0)", f(2, 3, 4), flag(3, 4))
case("MaskedSelect", "P.MaskedSelect()", "op(x0, x1)", f(3, 4), flag(4))
case("CheckValid", "P.CheckValid()", "op(x0, x1)", lit([[1, 1, 5, 5], [-1, 0, 3, 3], [2, 2, 30, 3]]), lit([10, 20, 1]))

# Activations

case("Elu", "P.Elu()", "op(x0)", f(3, 4))
case("EluExt", "A.EluExt(0.5)", "op(x0)", f(3, 4))
case("CeLU", "P.CeLU(0.7)", "op(x0)", f(3, 4))
case("PReLU", "P.PReLU()", "op(x0, x1)", f(2, 3, 4, 4), pos(3))
case("PReLU_one", "P.PReLU()", "op(x0, x1)", f(2, 3), pos(1))
case("LeakyReLU", "nn.LeakyReLU(0.1)", "op(x0)", f(3, 4))
case("LeakyReLUExt", "A.LeakyReLUExt()", "op(x0, 0.1)", f(3, 4))
case("SoftplusExt", "A.SoftplusExt()", "op(x0, 2, 3)", f(3, 4))
case("SoftShrink", "P.SoftShrink(0.4)", "op(x0)", f(3, 4))
case("HShrink", "P.HShrink(0.4)", "op(x0)", f(3, 4))
case("Hardtanh", "A.Hardtanh()", "op(x0, -0.5, 1.0)", f(3, 4))
case("Threshold", "A.Threshold()", "op(x0, 0.3, 9.0)", f(3, 4))
case("GeluExt", "A.GeluExt()", "op(x0, 'none')", f(3, 4))
case("GeluExt_tanh", "A.GeluExt()", "op(x0, 'tanh')", f(3, 4))
case("GELU_cell", "nn.GELU(approximate=False)", "op(x0)", f(3, 4))
case("GLU", "A.GLU(-1)", "op(x0)", f(3, 4))
case("glu", "", "ops.glu(x0)", f(3, 4))
case("Swiglu", "A.Swiglu()", "op(x0, -1)", f(3, 4))
case("Softmax", "P.Softmax()", "op(x0)", f(3, 4))
case("Softmax_first", "P.Softmax(0)", "op(x0)", f(3, 4, 2))
case("Softmax_axes", "P.Softmax((1, 2))", "op(x0)", f(3, 4, 2))
case("Softmax_half", "P.Softmax()", "op(x0)", f(3, 4, dtype=np.float16))
case("LogSoftmax", "P.LogSoftmax()", "op(x0)", f(3, 4))
case("LogSoftmaxExt", "A.LogSoftmaxExt()", "op(x0, 0, None)", f(3, 4))
case("HSwish_cell", "nn.HSwish()", "op(x0)", f(2, 3, 4, 4))

# Reductions

for _name in ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd"):
    case(_name, f"P.{_name}()", "op(x0, 1)", f(2, 3, 4))
    case(f"{_name}_all", f"P.{_name}()", "op(x0)", f(2, 3))
    case(f"{_name}_keep", f"P.{_name}(True)", "op(x0, (0, -1))", f(2, 3, 4))
case("ReduceSum_int", "P.ReduceSum()", "op(x0, 1)", i(2, 3))
case("ReduceSum_skip", "A.ReduceSum(False, True)", "op(x0, ())", f(2, 3))
case("ReduceAll", "P.ReduceAll()", "op(x0, 1)", flag(8, 2))
case("ReduceAny", "P.ReduceAny(True)", "op(x0, 1)", flag(8, 2))
case("ReduceAny_all", "P.ReduceAny()", "op(x0)", flag(8, 2))
case("EuclideanNorm", "P.EuclideanNorm()" , "op(x0, Tensor([1], mindspore.int32))", f(3, 4))
case("AnyExt", "A.AnyExt()", "op(x0, 1, True)", flag(8, 2))
for _name in ("SumExt", "MeanExt", "ProdExt"):
    case(_name, f"A.{_name}()", "op(x0, 1, True, None)", f(2, 3, 4))
    case(f"{_name}_all", f"A.{_name}()", "op(x0)", f(2, 3, 4))
case("SumExt_int", "", "x0.sum(axis=1)", i(2, 3))
case("SumExt_bool", "", "x0.sum()", flag(2, 9))
case("Nansum", "A.Nansum()", "op(x0, 0, False, None)", lit([[1, np.nan], [2, 3]]))
case("Argmax", "P.Argmax()", "op(x0)", f(3, 5))
case("Argmax_axis", "P.Argmax(0, mindspore.int64)", "op(x0)", f(3, 5))
case("Argmin", "P.Argmin()", "op(x0)", f(3, 5))
case("ArgMaxExt", "A.ArgMaxExt()", "op(x0, 1, True)", f(3, 5))
case("ArgMaxExt_all", "A.ArgMaxExt()", "op(x0)", f(3, 5))
case("ArgMinExt", "A.ArgMinExt()", "op(x0, 0)", f(3, 5))
case("ArgMaxWithValue", "P.ArgMaxWithValue(1)", "op(x0)", f(3, 5))
case("ArgMinWithValue", "P.ArgMinWithValue(1, True)", "op(x0)", f(3, 5))
case("MaxDim", "A.MaxDim()", "op(x0, 1)", f(3, 5))
case("MinDim", "A.MinDim()", "op(x0, 1, True)", f(3, 5))
for _name in ("Var", "Std", "VarMean", "StdMean"):
    case(_name, f"A.{_name}()", "op(x0, 1, 1, False)", f(3, 5))
    case(f"{_name}_all", f"A.{_name}()", "op(x0, None, 0, True)", f(3, 5))
case("ReduceStd", "P.ReduceStd((1,), True, False)", "op(x0)", f(3, 5))
case("var_method", "", "x0.var(1)", f(3, 5))
case("std_method", "", "x0.std(1)", f(3, 5))
case("LogSumExp", "A.LogSumExp()", "op(x0, 1, True)", f(3, 5))
case("logsumexp", "", "ops.logsumexp(x0, 1)", f(3, 5))
for _p in ("1.0", "2.0", "3.0", "float('inf')"):
    case(f"Norm_{_p[:3]}", "A.Norm()", f"op(x0, {_p.replace(chr(39) + 'inf' + chr(39), chr(39) + 'inf' + chr(39))}, 1)", f(3, 5))
case("LinalgVectorNorm", "A.LinalgVectorNorm()", "op(x0, 3, 1, True)", f(3, 5))
case("LpNorm", "P.LpNorm([0, 1], 2)", "op(x0)", f(3, 5))
case("LpNormV2", "A.LpNormV2()", "op(x0, 2, 1, True)", f(3, 5))
case("SquareSumAll", "P.SquareSumAll()", "op(x0, x1)", f(3, 5), f(3, 5))
case("CountNonZero", "A.CountNonZero()", "op(x0, 1)", i(3, 9, low=0, high=2))
case("CumSum", "P.CumSum()", "op(x0, 1)", f(3, 5))
case("CumSum_reverse", "P.CumSum(True, True)", "op(x0, 1)", f(3, 5))
case("CumsumExt", "A.CumsumExt()", "op(x0, 1, None)", f(3, 5))
case("CumProd", "P.CumProd()", "op(x0, 1)", f(3, 5))
case("CumProd_reverse", "P.CumProd(True, True)", "op(x0, 1)", f(3, 5))
case("Cummax", "P.Cummax(1)", "op(x0)", i(3, 7, dtype=np.float32))
case("Cummin", "P.Cummin(1)", "op(x0)", f(3, 7))
case("cummin", "", "ops.cummin(x0, 0)", f(3, 7))
case("L2Normalize", "P.L2Normalize(1)", "op(x0)", f(3, 5))

# Products

case("MatMul", "P.MatMul()", "op(x0, x1)", f(3, 4), f(4, 5))
case("MatMul_turned", "P.MatMul(True, True)", "op(x0, x1)", f(4, 3), f(5, 4))
case("BatchMatMul", "P.BatchMatMul()", "op(x0, x1)", f(2, 1, 3, 4), f(5, 4, 6))
case("BatchMatMul_turned", "P.BatchMatMul(False, True)", "op(x0, x1)", f(2, 3, 4), f(2, 5, 4))
case("BatchMatMul_half", "P.BatchMatMul()", "op(x0, x1)", f(2, 3, 4, dtype=np.float16), f(2, 4, 6, dtype=np.float16))
for _name, _a, _b in (
    ("MatMulExt", (2, 3, 4), (4, 5)), ("BatchMatMulExt", (2, 3, 4), (2, 4, 5)), ("Mm", (3, 4), (4, 5)),
    ("Mv", (3, 4), (4,)), ("Dot", (4,), (4,)), ("Outer", (3,), (4,)), ("Ger", (3,), (4,)),
):  # fmt: skip
    case(_name, f"{'P' if _name == 'Ger' else 'A'}.{_name}()", "op(x0, x1)", f(*_a), f(*_b))
case("matmul_vectors", "", "ops.matmul(x0, x1)", f(4), f(4))
case("Dense", "A.Dense()", "op(x0, x1, x2)", f(2, 3, 4), f(5, 4), f(5))
case("Dense_bare", "A.Dense()", "op(x0, x1)", f(3, 4), f(5, 4))
case("Dense_cell", "nn.Dense(4, 5, activation='relu')", "op(x0)", f(2, 3, 4))
case("BiasAdd", "P.BiasAdd()", "op(x0, x1)", f(2, 3, 4, 4), f(3))
case("BiasAdd_matrix", "P.BiasAdd()", "op(x0, x1)", f(2, 3), f(3))
case("Addmm", "A.Addmm()", "op(x0, x1, x2, 0.5, 2.0)", f(3, 5), f(3, 4), f(4, 5))
case("Baddbmm", "A.Baddbmm()", "op(x0, x1, x2, 1, 1)", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5))
case("Addbmm", "A.Addbmm()", "op(x0, x1, x2, 1, 1)", f(3, 5), f(2, 3, 4), f(2, 4, 5))
case("baddbmm", "", "ops.baddbmm(x0, x1, x2)", f(2, 3, 5), f(2, 3, 4), f(2, 4, 5))
case("Einsum", "P.Einsum('bij,bjk->bik')", "op((x0, x1))", f(2, 3, 4), f(2, 4, 5))
case("EinsumExt", "A.EinsumExt()", "op('bij,bjk->bik', (x0, x1))", f(2, 3, 4), f(2, 4, 5))

# Shapes

case("Reshape", "P.Reshape()", "op(x0, (2, -1))", f(2, 3, 4))
case("Reshape_scalar", "P.Reshape()", "op(x0, ())", f(1, 1))
case("View", "A.View()", "op(x0, (4, 6))", f(2, 3, 4))
case("ViewAs", "A.ViewAs()", "op(x0, x1)", f(2, 6), f(3, 4))
case("Transpose", "P.Transpose()", "op(x0, (2, 0, 1))", f(2, 3, 4))
case("TransposeView", "A.TransposeView()", "op(x0, (0, -1, 1))", f(2, 3, 4))
case("TransposeExtView", "A.TransposeExtView()", "op(x0, 0, -1)", f(2, 3, 4))
case("ExpandDims", "P.ExpandDims()", "op(x0, -1)", f(2, 3))
case("ExpandDimsView", "A.ExpandDimsView()", "op(x0, 0)", f(2, 3))
case("unsqueeze", "", "ops.unsqueeze(x0, 1)", f(2, 3))
case("Squeeze", "P.Squeeze()", "op(x0)", f(2, 1, 3, 1))
case("Squeeze_axis", "P.Squeeze((1, -1))", "op(x0)", f(2, 1, 3, 1))
case("Flatten", "P.Flatten()", "op(x0)", f(2, 3, 4))
case("FlattenExt", "A.FlattenExt()", "op(x0, 1, 2)", f(2, 3, 4, 2))
case("Concat", "P.Concat(1)", "op((x0, x1))", f(2, 3), f(2, 4))
case("Concat_mixed", "P.Concat(-1)", "op((x0, x1, x0))", f(2, 3), f(2, 3))
case("Stack", "P.Stack(-1)", "op((x0, x1))", f(2, 3), f(2, 3))
case("StackExt", "A.StackExt(1)", "op((x0, x1))", f(2, 3), f(2, 3))
case("Unstack", "P.Unstack(1)", "op(x0)", f(2, 3))
case("UnstackExtView", "A.UnstackExtView()", "op(x0, 0)", f(2, 3))
case("Split", "P.Split(1, 2)", "op(x0)", f(2, 4))
case("SplitTensor", "A.SplitTensor()", "op(x0, 3, 1)", f(2, 7))
case("SplitTensorView", "A.SplitTensorView()", "op(x0, 3, 1)", f(2, 6))
case("SplitWithSize", "A.SplitWithSize()", "op(x0, (1, 4, 2), 1)", f(2, 7))
case("SplitWithSizeView", "A.SplitWithSizeView()", "op(x0, (1, 4, 2), -1)", f(2, 7))
case("SplitV", "P.SplitV((1, -1, 2), 1, 3)", "op(x0)", f(2, 7))
case("split_function", "", "ops.split(x0, [1, 3], 1)", f(2, 4))
case("Chunk", "A.Chunk()", "op(x0, 3, 1)", f(2, 7))
case("ChunkView", "A.ChunkView()", "op(x0, 3, 1)", f(2, 7))
case("chunk_function", "", "ops.chunk(x0, 2, 1)", f(2, 8))
case("Tile", "P.Tile()", "op(x0, (2, 3))", f(2, 3))
case("Tile_more", "P.Tile()", "op(x0, (2, 1, 3))", f(2, 3))
case("Tile_fewer", "A.Repeat()", "op(x0, (2, 1, 3))", f(2, 3))
case("RepeatInterleaveInt", "A.RepeatInterleaveInt()", "op(x0, 2, 1, None)", f(2, 3))
case("RepeatInterleaveTensor", "A.RepeatInterleaveTensor()", "op(x0, Tensor([1, 0, 2]), 1, None)", f(2, 3))
case("repeat_interleave", "", "ops.repeat_interleave(x0, 2, 1)", f(2, 3))
case("repeat_elements", "", "ops.repeat_elements(x0, 2, 1)", f(2, 3))
case("BroadcastTo", "P.BroadcastTo((4, 2, 3))", "op(x0)", f(2, 1))
case("BroadcastTo_keep", "P.BroadcastTo((4, -1, 3))", "op(x0)", f(2, 1))
case("BroadcastToView", "A.BroadcastToView()", "op(x0, (4, 2, 3))", f(2, 1))
case("ExpandAs", "A.ExpandAs()", "op(x0, x1)", f(2, 1), f(4, 2, 3))
case("broadcast_to", "", "ops.broadcast_to(x0, (4, 2, 3))", f(2, 1))
case("ReverseV2", "P.ReverseV2((0, 2))", "op(x0)", f(2, 3, 4))
case("Roll", "A.Roll((1, -2), (0, 1))", "op(x0)", f(3, 5))
case("roll", "", "ops.roll(x0, 2, 1)", f(3, 5))
case("Meshgrid", "P.Meshgrid('ij')", "op((x0, x1))", f(3), f(4))
case("Meshgrid_xy", "P.Meshgrid('xy')", "op((x0, x1, x2))", f(3), f(4), f(2))
case("SpaceToDepth", "P.SpaceToDepth(2)", "op(x0)", f(2, 3, 4, 6))
case("DepthToSpace", "P.DepthToSpace(2)", "op(x0)", f(2, 8, 2, 3))
case("PixelShuffle", "A.PixelShuffle()", "op(x0, 2)", f(2, 8, 2, 3))
case("pixel_shuffle", "", "ops.pixel_shuffle(x0, 2)", f(2, 8, 2, 3))
case("ChannelShuffle", "P.ChannelShuffle(2)", "op(x0)", f(2, 6, 2, 3))
case("SpaceToBatch", "P.SpaceToBatch(2, [[0, 0], [0, 2]])", "op(x0)", f(1, 2, 4, 4))
case("SpaceToBatchND", "P.SpaceToBatchND([2, 2], [[0, 0], [0, 2]])", "op(x0)", f(1, 2, 4, 4))
case("BatchToSpace", "P.BatchToSpace(2, [[0, 0], [0, 1]])", "op(x0)", f(4, 2, 3, 3))
case("BatchToSpaceND", "P.BatchToSpaceND([2, 2], [[0, 0], [0, 1]])", "op(x0)", f(4, 2, 3, 3))
case("batch_to_space_nd", "", "ops.batch_to_space_nd(x0, [2, 2], [[0, 0], [0, 1]])", f(4, 2, 3, 3))
case("space_to_batch_nd", "", "ops.space_to_batch_nd(x0, [2, 2], [[0, 0], [0, 2]])", f(1, 2, 4, 4))
case("Pad", "P.Pad(((1, 2), (0, 1)))", "op(x0)", f(2, 3))
case("PadV3", "P.PadV3()", "op(x0, (1, 2, 0, 1), 1.5)", f(2, 3))
case("PadV3_apart", "P.PadV3('constant', False)", "op(x0, (1, 0, 2, 1), 1.5)", f(2, 3))
case("PadV3_reflect", "P.PadV3('reflect')", "op(x0, (1, 2))", f(2, 2, 4))
case("PadV3_edge", "P.PadV3('edge')", "op(x0, (1, 2))", f(2, 2, 4))
case("MirrorPad_const", "P.MirrorPad('REFLECT')", "op(x0, Tensor([[1, 2], [2, 1]]))", f(3, 4))
case("MirrorPad_symmetric", "P.MirrorPad('SYMMETRIC')", "op(x0, Tensor([[1, 2], [2, 1]]))", f(3, 4))
case("Pad_cell", "nn.Pad(((1, 2), (2, 1)), mode='SYMMETRIC')", "op(x0)", f(3, 4))
case("ConstantPadND", "A.ConstantPadND()", "op(x0, (1, 2), 0.5)", f(3, 4))
for _d in (1, 2, 3):
    case(f"ReflectionPad{_d}D", f"A.ReflectionPad{_d}D()", f"op(x0, {(1, 2) * _d})", f(2, *[3] * (_d + 1)))
    case(f"ReplicationPad{_d}D", f"A.ReplicationPad{_d}D()", f"op(x0, {(1, 2) * _d})", f(2, *[3] * (_d + 1)))
case("ReflectionPad2d_cell", "nn.ReflectionPad2d((1, 2, 0, 1))", "op(x0)", f(2, 3, 4, 4))
case("ReplicationPad2d_cell", "nn.ReplicationPad2d((1, 2, 0, 1))", "op(x0)", f(2, 3, 4, 4))
case("ZeroPad2d_cell", "nn.ZeroPad2d((1, 2, 0, 1))", "op(x0)", f(2, 3, 4, 4))
case("pad_function", "", "ops.pad(x0, [1, 2, 0, 1], mode='constant', value=0.5)", f(2, 3, 4))
case("pad_circular", "", "ops.pad(x0, [1, 2], mode='circular')", f(2, 3, 4))
case("Size", "P.Size()", "op(x0) + x0", f(2, 3))
case("TensorShape", "P.TensorShape()", "op(x0)", f(2, 3))
case("Shape", "P.Shape()", "x0.reshape(x0.shape[::-1])", f(2, 3))

# Made tensors

case("Fill", "", "ops.fill(mindspore.float32, (2, 3), 1.5) + x0", f(3))
case("FillV2", "P.FillV2()", "op((2, 3), Tensor(1.5, mindspore.float32)) + x0", f(3))
case("FillScalar", "A.FillScalar()", "op((2, 3), 1.5, mindspore.float32) + x0", f(3))
case("FillTensor", "A.FillTensor()", "op((2, 3), x0, mindspore.float32)", f())
case("Zeros", "P.Zeros()", "op((2, 3), mindspore.float32) + x0", f(3))
case("Ones", "P.Ones()", "op((2, 3), mindspore.float32) + x0", f(3))
case("NewZeros", "A.NewZeros()", "op(x0, (2, 3), mindspore.int32)", f(3))
case("NewOnes", "A.NewOnes()", "op(x0, (2, 3), None)", f(3))
case("NewFull", "A.NewFull()", "op(x0, (2, 3), 4, None)", f(3))
case("Range", "P.Range()", "op(x0, x1, x2)", lit(1, np.int32), lit(9, np.int32), lit(2, np.int32))
case("Range_float", "P.Range()", "op(x0, x1, x2)", lit(1), lit(4), lit(0.5))
case("Arange", "A.Arange()", "op(1, 9, 2, mindspore.float32) + x0", f(1))
case("arange", "", "ops.arange(0, 6, 2) + x0", f(1))
case("LinSpace", "P.LinSpace()", "op(x0, x1, 5)", lit(1), lit(4))
case("LinSpaceExt", "A.LinSpaceExt()", "op(0, 1, 5, mindspore.float32) + x0", f(1))
case("Eye", "P.Eye()", "op(3, 4, mindspore.float32) * x0", f(4))
case("Triu", "P.Triu(1)" , "op(x0)", f(3, 4))
case("Tril", "P.Tril(-1)", "op(x0)", f(3, 4))
case("TrilExt", "A.TrilExt()", "op(x0, 1)", f(2, 3, 4))
case("tril", "", "ops.tril(x0, 1)", f(3, 4))
case("MatrixBandPart", "array_ops.MatrixBandPart()", "op(x0, 1, -1)", f(2, 4, 4))
case("Diag", "P.Diag()", "op(x0)", f(4))
case("DiagExt", "A.DiagExt()", "op(x0, -1)", f(4))
case("DiagExt_matrix", "A.DiagExt()", "op(x0, 1)", f(3, 5))
case("DiagPart", "P.DiagPart()", "op(x0)", f(4, 4))
case("Diagonal", "A.Diagonal(1, 0, 2)", "op(x0)", f(3, 4, 5))
case("DiagonalView", "A.DiagonalView()", "op(x0, -1, 0, 1)", f(3, 4, 5))
case("diagonal", "", "ops.diagonal(x0, 1)", f(3, 4))
case("OneHot", "P.OneHot()", "op(x0, 4, Tensor(2.0, mindspore.float32), Tensor(-1.0, mindspore.float32))", lit([0, 3, -1, 5], np.int32))
case("OneHot_axis", "P.OneHot(1)", "op(x0, 4, x1, x2)", i(3, 5, low=0, high=4), lit(1), lit(0))
case("OneHotExt", "A.OneHotExt(-1)", "op(x0, 4, x1, x2)", i(6, low=0, high=4, dtype=np.int64), lit(1, np.int64), lit(0, np.int64))

# Indexing

case("Gather", "P.Gather()", "op(x0, x1, 0)", f(5, 3), i(2, 4, low=0, high=5))
case("Gather_axis", "P.Gather()", "op(x0, x1, -1)", f(2, 5, 3), i(4, low=0, high=3, dtype=np.int64))
case("Gather_batch", "P.Gather(1)", "op(x0, x1, 2)", f(2, 4, 5, 3), i(2, 6, low=0, high=5))
case("gather_scalar", "", "x0[1]", f(3, 4))
case("SparseGatherV2", "P.SparseGatherV2()", "op(x0, x1, 0)", f(5, 3), i(2, 4, low=0, high=5))
case("Embedding", "A.Embedding()", "op(x0, x1)", i(2, 4, low=0, high=5), f(5, 3))
case("Embedding_cell", "nn.Embedding(5, 3)", "op(x0)", i(2, 4, low=0, high=5))
case("EmbeddingLookup", "P.EmbeddingLookup()", "op(x0, x1, 2)", f(5, 3), i(2, 4, low=0, high=9))
case("GatherD", "P.GatherD()", "op(x0, 1, x1)", f(3, 4), i(3, 2, low=0, high=4))
case("gather_elements", "", "ops.gather_elements(x0, 0, x1)", f(3, 4), i(2, 4, low=0, high=3, dtype=np.int64))
case("GatherNd", "P.GatherNd()", "op(x0, x1)", f(3, 4, 2), i(5, 2, low=0, high=3))
case("GatherNdExt", "A.GatherNdExt()", "op(x0, x1)", f(3, 4, 2), i(5, 2, low=0, high=3, dtype=np.int64))
case("IndexSelect", "A.IndexSelect()", "op(x0, 1, x1)", f(3, 4), i(5, low=0, high=4))
case("Take", "A.Take()", "op(x0, x1)", f(3, 4), i(5, low=0, high=12, dtype=np.int64))
case("StridedSlice", "P.StridedSlice()", "op(x0, (0, 1, 0), (2, 3, 4), (1, 1, 2))", f(2, 3, 4))
case("StridedSlice_masks", "P.StridedSlice(1, 2, 0, 0, 4)", "op(x0, (1, 1, -1), (2, 2, 0), (1, 1, 1))", f(2, 3, 4))
case("StridedSlice_ellipsis", "P.StridedSlice(0, 0, 2, 1, 0)", "op(x0, (0, 0, 1), (0, 0, 3), (1, 1, 1))", f(2, 3, 4))
case("slice_new", "", "x0[None, ..., 1, None]", f(2, 3, 4))
case("slice_step", "", "x0[1::2, :-1]", f(5, 4))
case("slice_tensor", "", "x0[x1]", f(5, 4), i(3, low=0, high=5))
case("slice_tensors", "", "x0[x1, x2]", f(5, 4), i(3, low=0, high=5), i(3, low=0, high=4))
case("slice_mixed", "", "x0[:, x1]", f(5, 4), i(3, low=0, high=4))
case("Slice", "P.Slice()", "op(x0, (0, 1), (2, -1))", f(3, 4))
case("Slice_flat", "P.StridedSlice()", "op(x0, (4,), (0,), (-2,))", f(6))
case("slice_back", "", "x0[::-2]", f(6))
case("SliceExt", "A.SliceExt()", "op(x0, 1, 1, 3, 1)", f(3, 4))
case("SliceExtView", "A.SliceExtView()", "op(x0, 1, 0, 4, 2)", f(3, 4))
case("Narrow", "A.Narrow()", "op(x0, 1, 1, 2)", f(3, 4))
case("NarrowView", "A.NarrowView()", "op(x0, 0, 1, 2)", f(3, 4))
case("SelectExtView", "A.SelectExtView()", "op(x0, 1, -1)", f(3, 4))
case("TopK", "P.TopK()", "op(x0, 2)", distinct(3, 5))
case("TopkExt", "A.TopkExt()", "op(x0, 2, 0, False, True)", distinct(3, 5))
case("Sort", "P.Sort(0, True)", "op(x0)", distinct(3, 5))
case("Sort_half", "P.Sort()", "op(x0)", distinct(3, 5, dtype=np.float16))
case("SortExt", "A.SortExt()", "op(x0, -1, True, True)", distinct(3, 5))
case("ArgSort", "A.ArgSort()", "op(x0, 1, False, True)", distinct(3, 5))
case("NonZero", "P.NonZero()", "op(x0)", i(3, 5, low=0, high=2))
case("SearchSorted", "A.SearchSorted(mindspore.int32, True)", "op(x0, x1, None)", lit([[0, 1, 1, 2.0], [1, 2, 3, 4]]), lit([[1.0, 0.5], [4, 5]]))
case("InvertPermutation", "P.InvertPermutation()", "x0.transpose(op((2, 0, 1)))", f(2, 3, 4))
case("Unique", "P.Unique()", "op(x0)", i(9, low=0, high=4))
case("ReverseSequence", "P.ReverseSequence(1, 0)", "op(x0, x1)", f(3, 5, 2), lit([2, 5, 0], np.int32))
case("ReverseSequence_far", "P.ReverseSequence(2, 1)", "op(x0, x1)", f(3, 3, 5), lit([2, 5, 1], np.int64))
for _name in ("Update", "Add", "Sub", "Max", "Min", "Mul"):
    case(f"TensorScatter{_name}", f"P.TensorScatter{_name}()", "op(x0, x1, x2)", f(5, 3), lit([[0], [2], [4]], np.int32), f(3, 3))
case("TensorScatterAdd_twice", "P.TensorScatterAdd()", "op(x0, x1, x2)", f(5, 3), lit([[0], [2], [0]], np.int32), f(3, 3))
case("ScatterNd", "P.ScatterNd()", "op(x0, x1, (5, 3))", lit([[0], [2], [0]], np.int32), f(3, 3))
case("TensorScatterElements", "P.TensorScatterElements(1, 'add')", "op(x0, x1, x2)", f(3, 4), i(3, 2, low=0, high=4), f(3, 2))
case("ScatterAddExt", "A.ScatterAddExt()", "op(x0, 1, x1, x2)", f(3, 4), i(2, 2, low=0, high=4, dtype=np.int64), f(3, 3))
case("Scatter", "A.Scatter()", "op(x0, 1, x1, x2, 'none')", f(3, 4), lit([[0, 2], [1, 3], [0, 1]], np.int64), f(3, 2))
case("ScatterValue", "A.ScatterValue()", "op(x0, 1, x1, 7.0, 'none')", f(3, 4), lit([[0, 2], [1, 3], [0, 1]], np.int64))
case("IndexAddExt", "A.IndexAddExt()", "op(x0, 1, x1, x2, 2)", f(3, 4), lit([0, 2, 0], np.int64), f(3, 3))
case("IndexFill", "array_ops.IndexFill()", "op(x0, 1, x1, x2)", f(3, 4), lit([0, 2], np.int32), lit(5))
case("IndexFillScalar", "A.IndexFillScalar()", "op(x0, 1, x1, 5.0)", f(3, 4), lit([0, 2], np.int64))
for _name in ("Sum", "Max", "Min"):
    case(f"UnsortedSegment{_name}", f"P.UnsortedSegment{_name}()", "op(x0, x1, 4)", f(5, 3), lit([0, 2, -1, 2, 0] if _name == "Sum" else [0, 2, 1, 2, 0], np.int32))
case("setitem", "", "ops.tensor_scatter_elements(x0, x1, x2, 0)", f(3, 4), lit([[0, 1, 2, 0]], np.int32), f(1, 4))

# Convolutions and pooling

for _mode, _pad in (("same", "0"), ("valid", "0"), ("pad", "1"), ("pad", "(1, 2, 0, 1)")):
    for _s in (1, 2):
        case(f"Conv2D_{_mode}_{_s}_{len(_pad)}", f"P.Conv2D(4, (3, 2), pad_mode='{_mode}', pad={_pad}, stride={_s})", "op(x0, x1)", f(2, 3, 7, 8), f(4, 3, 3, 2))
case("Conv2D_group", "P.Conv2D(6, 3, pad_mode='same', group=3, dilation=2)", "op(x0, x1)", f(2, 3, 7, 8), f(6, 1, 3, 3))
case("Conv2D_cell", "nn.Conv2d(3, 4, 3, has_bias=True)", "op(x0)", f(2, 3, 7, 8))
case("Conv1d_cell", "nn.Conv1d(3, 4, 3, has_bias=True)", "op(x0)", f(2, 3, 7))
case("Conv3D", "P.Conv3D(4, 3, pad_mode='same', stride=2)", "op(x0, x1)", f(2, 3, 5, 6, 7), f(4, 3, 3, 3, 3))
case("Conv3D_pad", "P.Conv3D(4, 3, pad_mode='pad', pad=(1, 0, 1, 2, 0, 1))", "op(x0, x1)", f(2, 3, 5, 6, 7), f(4, 3, 3, 3, 3))
case("DepthwiseConv2dNative", "P.DepthwiseConv2dNative(2, 3, pad_mode='same')", "op(x0, x1)", f(2, 3, 7, 8), f(2, 3, 3, 3))
for _mode, _pad in (("same", "0"), ("valid", "0"), ("pad", "1"), ("pad", "(1, 0, 1, 1)")):
    for _s in (1, 2, 3):
        case(f"Conv2DTranspose_{_mode}_{_s}_{len(_pad)}", f"nn.Conv2dTranspose(3, 4, (3, 2), pad_mode='{_mode}', padding={_pad}, stride={_s})", "op(x0)", f(2, 3, 4, 5))
case("Conv2DTranspose_output", "nn.Conv2dTranspose(3, 4, 3, pad_mode='pad', padding=1, stride=2, output_padding=1, has_bias=True)", "op(x0)", f(2, 3, 4, 5))
case("Conv2DTranspose_group", "nn.Conv2dTranspose(4, 4, 3, pad_mode='same', stride=2, group=2, dilation=2)", "op(x0)", f(2, 4, 4, 5))
case("Conv3DTranspose", "P.Conv3DTranspose(3, 4, 3, pad_mode='pad', pad=1, stride=2, output_padding=1)", "op(x0, x1)", f(2, 3, 3, 4, 3), f(3, 4, 3, 3, 3))
for _d in (1, 2, 3):
    case(f"Conv{_d}DExt", f"A.Conv{_d}DExt()", f"op(x0, x1, x2, {(2,) * _d}, {(1,) * _d}, {(1,) * _d}, 1)", f(2, 3, *[6] * _d), f(4, 3, *[3] * _d), f(4))
    case(f"Conv{_d}DPadding", f"A.Conv{_d}DPadding()", f"op(x0, x1, x2, {(1,) * _d}, 'same', {(1,) * _d}, 1)", f(2, 3, *[6] * _d), f(4, 3, *[3] * _d), f(4))
case("Convolution", "A.Convolution()", "op(x0, x1, x2, (2, 2), (1, 0), (1, 1), False, (0, 0), 1)", f(2, 3, 6, 6), f(4, 3, 3, 3), f(4))
case("ConvolutionStr", "A.ConvolutionStr()", "op(x0, x1, None, (1, 1), 'same', (1, 1), False, (0, 0), 1)", f(2, 3, 6, 6), f(4, 3, 3, 3))
case("ConvTranspose2D", "A.ConvTranspose2D()", "op(x0, x1, x2, (2, 2), (1, 1), (1, 1), 1, (1, 1))", f(2, 3, 4, 4), f(3, 4, 3, 3), f(4))
case("ExtractImagePatches", "A.ExtractImagePatches((1, 1, 2, 2), (1, 1, 2, 2), (1, 1, 1, 1), 'VALID')", "op(x0)", f(2, 3, 6, 6))
case("unfold", "", "ops.unfold(x0, kernel_size=2, stride=2)", f(2, 3, 6, 6))
for _mode in ("same", "valid"):
    for _s in (1, 2):
        case(f"MaxPool_{_mode}_{_s}", f"P.MaxPool((3, 2), {_s}, '{_mode}')", "op(x0)", f(2, 3, 7, 8))
        case(f"AvgPool_{_mode}_{_s}", f"P.AvgPool((3, 2), {_s}, '{_mode}')", "op(x0)", f(2, 3, 7, 8))
case("MaxPool2d_cell", "nn.MaxPool2d(3, 2, pad_mode='pad', padding=1)", "op(x0)", f(2, 3, 7, 8))
case("MaxPool2d_ceil", "nn.MaxPool2d(3, 2, pad_mode='pad', padding=1, ceil_mode=True)", "op(x0)", f(2, 3, 8, 9))
case("AvgPool2d_cell", "nn.AvgPool2d(3, 2, pad_mode='pad', padding=1)", "op(x0)", f(2, 3, 7, 8))
case("AvgPool2d_bare", "nn.AvgPool2d(3, 2, pad_mode='pad', padding=1, count_include_pad=False)", "op(x0)", f(2, 3, 7, 8))
case("AvgPool1d_cell", "nn.AvgPool1d(3, 2)", "op(x0)", f(2, 3, 8))
case("MaxPool1d_cell", "nn.MaxPool1d(3, 2)", "op(x0)", f(2, 3, 8))
case("MaxPool3D", "P.MaxPool3D(3, 2, 'same')", "op(x0)", f(2, 3, 5, 6, 7))
case("MaxPool3D_pad", "P.MaxPool3D(3, 2, 'pad', 1, False)", "op(x0)", f(2, 3, 5, 6, 7))
case("AvgPool3D", "P.AvgPool3D(3, 2, 'same')", "op(x0)", f(2, 3, 5, 6, 7))
case("AvgPool3D_pad", "P.AvgPool3D(3, 2, 'pad', 1)", "op(x0)", f(2, 3, 5, 6, 7))
case("AvgPool3D_bare", "P.AvgPool3D(3, 2, 'pad', 1, count_include_pad=False)", "op(x0)", f(2, 3, 5, 6, 7))
case("AvgPool3D_divisor", "P.AvgPool3D(3, 2, 'pad', 1, divisor_override=5)", "op(x0)", f(2, 3, 5, 6, 7))
case("MaxPoolWithMask", "A.MaxPoolWithMask((3, 3), (2, 2), (1, 1))", "op(x0)[0]", f(2, 3, 7, 8))
case("MaxPoolWithIndices", "A.MaxPoolWithIndices((3, 3), (2, 2), (1, 1))", "op(x0)", f(2, 3, 7, 8))
case("MaxPoolWithArgmaxV2", "P.MaxPoolWithArgmaxV2((3, 3), (2, 2), (1, 1))", "op(x0)[0]", f(2, 3, 7, 8))
case("AvgPool1D", "A.AvgPool1D()", "op(x0, 3, 2, 1)", f(2, 3, 8))
case("AvgPool2D", "A.AvgPool2D()", "op(x0, (3, 3), (2, 2), (1, 1), False, False, None)", f(2, 3, 8, 8))
case("AdaptiveAvgPool1D", "A.AdaptiveAvgPool1D()", "op(x0, 3)", f(2, 3, 8))
case("AdaptiveAvgPool2D", "P.AdaptiveAvgPool2D((2, 3))", "op(x0)", f(2, 3, 8, 8))
case("AdaptiveAvgPool2D_one", "P.AdaptiveAvgPool2D(1)", "op(x0)", f(2, 3, 8, 8))
case("AdaptiveAvgPool2D_keep", "P.AdaptiveAvgPool2D((None, 4))", "op(x0)", f(2, 3, 5, 8))
case("AdaptiveAvgPool2DExt", "A.AdaptiveAvgPool2DExt()", "op(x0, (2, 3))", f(2, 3, 8, 8))
case("AdaptiveAvgPool3D", "nn_ops.AdaptiveAvgPool3D((2, 3, 4))", "op(x0)", f(2, 3, 5, 6, 8))
case("AdaptiveMaxPool2D", "A.AdaptiveMaxPool2D((2, 3))", "op(x0)[0]", f(2, 3, 8, 8))
case("AdaptiveMaxPool1D", "A.AdaptiveMaxPool1D()", "op(x0, 3)", f(2, 3, 8))
case("AdaptiveMaxPool2d_cell", "nn.AdaptiveMaxPool2d((2, 3))", "op(x0)", f(2, 3, 8, 8))
case("AdaptiveMaxPool1d_cell", "nn.AdaptiveMaxPool1d(4)", "op(x0)", f(2, 3, 8))
case("AdaptiveAvgPool1d_cell", "nn.AdaptiveAvgPool1d(4)", "op(x0)", f(2, 3, 8))

# Normalization

case("BatchNorm", "P.BatchNorm(is_training=False, epsilon=1e-3)", "op(x0, x1, x2, x3, x4)[0]", f(2, 3, 4, 4), pos(3), f(3), f(3), pos(3))
case("BatchNorm2d_cell", "nn.BatchNorm2d(3)", "op(x0)", f(2, 3, 4, 4))
case("BatchNorm1d_cell", "nn.BatchNorm1d(3)", "op(x0)", f(2, 3))
case("BatchNorm2d_batch", "nn.BatchNorm2d(3, use_batch_statistics=True)", "op(x0)", f(2, 3, 4, 4))
case("BatchNormExt", "A.BatchNormExt()", "op(x0, x1, x2, x3, x4, False, 0.1, 1e-3)[0]", f(2, 3, 4, 4), pos(3), f(3), f(3), pos(3))
case("LayerNorm", "P.LayerNorm(-1, -1, 1e-5)", "op(x0, x1, x2)", f(2, 3, 4), pos(4), f(4))
case("LayerNorm_axes", "P.LayerNorm(1, 1, 1e-3)", "op(x0, x1, x2)", f(2, 3, 4), pos(3, 4), f(3, 4))
case("LayerNorm_apart", "P.LayerNorm(1, 2, 1e-3)", "op(x0, x1, x2)", f(2, 3, 4), pos(4), f(4))
case("LayerNormV3", "A.LayerNormV3(-1, -1, 1e-5)", "op(x0, x1, x2)", f(2, 3, 4), pos(4), f(4))
case("LayerNormExt", "A.LayerNormExt()", "op(x0, (3, 4), x1, x2, 1e-4)", f(2, 3, 4), pos(3, 4), f(3, 4))
case("LayerNormExt_bare", "A.LayerNormExt()", "op(x0, (4,), x1, None, 1e-4)[0]", f(2, 3, 4), pos(4))
case("GroupNorm", "A.GroupNorm()", "op(x0, 2, x1, x2, 1e-4)", f(2, 4, 3, 3), pos(4), f(4))
case("GroupNorm_cell", "nn.GroupNorm(2, 4)", "op(x0)", f(2, 4, 3, 3))
case("InstanceNorm2d_cell", "nn.InstanceNorm2d(3)", "op(x0)", f(2, 3, 4, 4))
case("RmsNorm", "A.RmsNorm(1e-5)", "op(x0, x1)", f(2, 3, 4), pos(4))
case("AddRmsNorm", "A.AddRmsNorm()", "op(x0, x1, x2, 1e-5)", f(2, 3, 4), f(2, 3, 4), pos(4))
case("AddLayerNormV2", "A.AddLayerNormV2()", "op(x0, x1, x2, x3, 1e-5, True)", f(2, 3, 4), f(2, 3, 4), pos(4), f(4))
case("LRN", "P.LRN(2, 1.5, 0.3, 0.6)", "op(x0)", f(2, 7, 4, 4))
case("l2_norm_cell", "", "ops.L2Normalize(axis=1, epsilon=1e-12)(x0)", f(2, 7))

# Images

for _h, _w in ((7, 11), (2, 3)):
    for _a, _c in ((False, False), (True, False), (False, True)):
        _tag = f"{_h}_{'align' if _a else 'half' if _c else 'plain'}"
        case(f"ResizeBilinearV2_{_tag}", f"P.ResizeBilinearV2({_a}, {_c})", f"op(x0, ({_h}, {_w}))", f(2, 3, 4, 5))
        case(f"ResizeNearestNeighborV2_{_tag}", f"P.ResizeNearestNeighborV2({_a}, {_c})", f"op(x0, ({_h}, {_w}))", f(2, 3, 4, 5))
        case(f"ResizeBicubic_{_tag}", f"P.ResizeBicubic({_a}, {_c})", f"op(x0, ({_h}, {_w}))", f(2, 3, 4, 5))
    for _a in (False, True):
        case(f"ResizeNearestNeighbor_{_h}_{_a}", f"P.ResizeNearestNeighbor(({_h}, {_w}), {_a})", "op(x0)", f(2, 3, 4, 5))
        case(f"UpsampleBilinear2D_{_h}_{_a}", "A.UpsampleBilinear2D()", f"op(x0, ({_h}, {_w}), None, {_a})", f(2, 3, 4, 5))
        case(f"UpsampleBicubic2D_{_h}_{_a}", "A.UpsampleBicubic2D()", f"op(x0, ({_h}, {_w}), None, {_a})", f(2, 3, 4, 5))
    for _mode in ("align_corners", "half_pixel", "asymmetric"):
        case(f"ResizeLinear1D_{_h}_{_mode}", f"A.ResizeLinear1D('{_mode}')", f"op(x0, ({_h},))", f(2, 3, 5))
case("UpsampleNearest1D", "A.UpsampleNearest1D()", "op(x0, (7,), None)", f(2, 3, 5))
case("UpsampleNearest2D", "A.UpsampleNearest2D()", "op(x0, None, (2.0, 1.5))", f(2, 3, 4, 4))
case("UpsampleNearest3D", "A.UpsampleNearest3D()", "op(x0, (3, 5, 7), None)", f(2, 3, 2, 3, 4))
case("UpsampleLinear1D", "A.UpsampleLinear1D()", "op(x0, (7,), None, False)", f(2, 3, 5))
case("UpsampleTrilinear3D", "A.UpsampleTrilinear3D(False)", "op(x0, (3, 5, 7), None)", f(2, 3, 2, 3, 4))
case("UpsampleTrilinear3D_align", "A.UpsampleTrilinear3D(True)", "op(x0, (3, 5, 7), None)", f(2, 3, 2, 3, 4))
case("interpolate_nearest", "", "ops.interpolate(x0, size=(6, 9), mode='nearest')", f(2, 3, 4, 5))
case("interpolate_bilinear", "", "ops.interpolate(x0, size=(6, 9), mode='bilinear', align_corners=True)", f(2, 3, 4, 5))
case("interpolate_area", "", "ops.interpolate(x0, size=(2, 3), mode='area')", f(2, 3, 4, 6))
case("Upsample_cell", "nn.Upsample(size=(6, 9), mode='bilinear')", "op(x0)", f(2, 3, 4, 5))
for _mode in ("bilinear", "nearest"):
    for _pad in ("zeros", "border", "reflection"):
        case(f"GridSampler2D_{_mode}_{_pad}", f"A.GridSampler2D('{_mode}', '{_pad}', {_pad == 'border'})", "op(x0, x1)", f(2, 3, 4, 5), f(2, 3, 3, 2, low=-1.3, high=1.3))
case("CropAndResize", "image_ops.CropAndResize('bilinear', 0.5)", "op(x0, x1, x2, (3, 4))", f(2, 6, 7, 3), lit([[0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1], [-0.1, 0.2, 0.7, 1.2]]), lit([0, 1, 1], np.int32))
case("CropAndResize_nearest", "image_ops.CropAndResize('nearest', 0.5)", "op(x0, x1, x2, (3, 4))", f(2, 6, 7, 3), lit([[0.1, 0.2, 0.8, 0.9], [0, 0, 1, 1]]), lit([0, 1], np.int32))
case("ROIAlign", "P.ROIAlign(2, 3, 0.5, 2)", "op(x0, x1)", f(2, 3, 8, 8), lit([[0, 1, 2, 9, 11], [1, 0, 0, 5.5, 7], [1, 3, 3, 3.5, 3.2]]))
case("ROIAlign_end0", "P.ROIAlign(2, 3, 0.5, 2, 0)", "op(x0, x1)", f(2, 3, 8, 8), lit([[0, 1, 2, 9, 11], [1, 0, 0, 5.5, 7], [1, 3, 3, 3.5, 3.2]]))
case("IOU", "P.IOU()", "op(x0, x1)", lit([[0, 0, 4, 4], [1, 1, 3, 5], [7, 7, 9, 9]]), lit([[1, 1, 4, 4], [0, 0, 9, 9]]))
case("IOU_iof", "P.IOU('iof')", "op(x0, x1)", lit([[0, 0, 4, 4], [1, 1, 3, 5], [7, 7, 9, 9]]), lit([[1, 1, 4, 4], [0, 0, 9, 9]]))
case("BoundingBoxDecode", "P.BoundingBoxDecode(max_shape=(20, 30), means=(0.0, 0.1, 0.0, 0.0), stds=(1.0, 0.5, 0.2, 0.2))", "op(x0, x1)", lit([[1, 2, 6, 9], [10, 3, 25, 18]]), f(2, 4))
case("BoundingBoxEncode", "P.BoundingBoxEncode(means=(0.0, 0.1, 0.0, 0.0), stds=(1.0, 0.5, 0.2, 0.2))", "op(x0, x1)", lit([[1, 2, 6, 9], [10, 3, 25, 18]]), lit([[2, 2, 7, 8], [9, 3, 26, 16]]))
case("NMSWithMask", "P.NMSWithMask(0.4)", "op(x0)", lit([[0, 0, 10, 10, 0.5], [1, 1, 11, 11, 0.9], [20, 20, 30, 30, 0.7], [21, 20, 30, 31, 0.6], [40, 40, 45, 45, 0.1]]))
case("NonMaxSuppressionV3", "image_ops.NonMaxSuppressionV3()", "op(x0, x1, x2, x3, x4)", lit([[0, 0, 1, 1], [0, 0.1, 1, 1.1], [0, 5, 1, 6], [0, 10, 1, 11]]), lit([0.9, 0.75, 0.6, 0.2]), lit(3, np.int32), lit(0.5), lit(0.3))
case("HSVToRGB", "P.HSVToRGB()", "op(x0)", f(1, 2, 5, 3, low=0, high=1))

# Recurrent layers

case("LSTM", "nn.LSTM(3, 5, 1)", "op(x0, (x1, x2))", f(4, 2, 3), f(1, 2, 5), f(1, 2, 5))
case("LSTM_two", "nn.LSTM(3, 5, 2, bidirectional=True, batch_first=True)", "op(x0, (x1, x2))", f(2, 4, 3), f(4, 2, 5), f(4, 2, 5))
case("LSTM_op", "P.LSTM(3, 5, 1, True, False, 0.0)", "op(x0, x1, x2, x3)[:3]", f(4, 2, 3), f(1, 2, 5), f(1, 2, 5), f(180, 1, 1))
case("LSTM_both", "P.LSTM(3, 5, 1, True, True, 0.0)", "op(x0, x1, x2, x3)[:3]", f(4, 2, 3), f(2, 2, 5), f(2, 2, 5), f(360, 1, 1))
case("LSTM_bare", "P.LSTM(3, 5, 1, False, False, 0.0)", "op(x0, x1, x2, x3)[:3]", f(4, 2, 3), f(1, 2, 5), f(1, 2, 5), f(160, 1, 1))
case("GRU", "nn.GRU(3, 5, 1)", "op(x0, x1)", f(3, 2, 3), f(1, 2, 5))
case("RNN", "nn.RNN(3, 5, 1)", "op(x0, x1)", f(3, 2, 3), f(1, 2, 5))

# Losses

case("SoftmaxCrossEntropyWithLogits", "P.SoftmaxCrossEntropyWithLogits()", "op(x0, x1)", f(3, 5), f(3, 5, low=0, high=1))
case("SparseSoftmaxCrossEntropyWithLogits", "P.SparseSoftmaxCrossEntropyWithLogits()", "op(x0, x1)", f(3, 5), lit([0, 4, 2], np.int32))
case("SigmoidCrossEntropyWithLogits", "P.SigmoidCrossEntropyWithLogits()", "op(x0, x1)", f(3, 5), f(3, 5, low=0, high=1))
case("BCEWithLogitsLoss", "P.BCEWithLogitsLoss('mean')", "op(x0, x1, x2, x3)", f(3, 5), f(3, 5, low=0, high=1), pos(3, 5), pos(5))
for _r in ("none", "mean", "sum"):
    case(f"BinaryCrossEntropy_{_r}", f"P.BinaryCrossEntropy('{_r}')", "op(x0, x1, x2)", f(3, 5, low=0.05, high=0.95), f(3, 5, low=0, high=1), pos(3, 5))
    case(f"KLDivLoss_{_r}", f"P.KLDivLoss('{_r}')", "op(x0, x1)", f(3, 5), f(3, 5, low=0.05, high=1))
    case(f"NLLLoss_{_r}", f"P.NLLLoss('{_r}')", "op(x0, x1, x2)", f(3, 5), lit([0, 4, 2], np.int32), pos(5))
    case(f"SmoothL1Loss_{_r}", f"A.SmoothL1Loss(0.7, '{_r}')", "op(x0, x1)", f(3, 5), f(3, 5))
    case(f"MSELossExt_{_r}", "A.MSELossExt()", f"op(x0, x1, '{_r}')", f(3, 5), f(3, 5))
    case(f"L1LossExt_{_r}", "A.L1LossExt()", f"op(x0, x1, '{_r}')", f(3, 5), f(3, 5))
case("SmoothL1Loss_v1", "P.SmoothL1Loss(1.0)", "op(x0, x1)", f(3, 5), f(3, 5))
