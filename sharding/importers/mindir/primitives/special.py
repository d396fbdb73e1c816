"""Special functions: those of Bessel, the logarithm of the gamma function and its derivative.

The approximations are those of M. Abramowitz and I. Stegun, Handbook of Mathematical Functions (1964), 9.4
and 9.8, in the form of W. Press et al., Numerical Recipes, 6.5 and 6.6; the logarithm of gamma is by C.
Lanczos's series, its derivative the asymptotic one. All are computed in float64, which their large
coefficients need, but only the last two have more than the digits of float32. docs/mindir.md says how
far each may be off.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sharding.importers.mindir.doubles import Coefficients, Number
from sharding.importers.mindir.primitives.base import Value, table
from sharding.importers.mindir.primitives.operands import Builder
from sharding.importers.mindir.primitives.steps import FLOAT64

_I_NEAR = (
    (1.0, 3.5156229, 3.0899424, 1.2067492, 0.2659732, 0.360768e-1, 0.45813e-2),
    (0.5, 0.87890594, 0.51498869, 0.15084934, 0.2658733e-1, 0.301532e-2, 0.32411e-3),
)
_I_FAR = (
    (0.39894228, 0.1328592e-1, 0.225319e-2, -0.157565e-2, 0.916281e-2, -0.2057706e-1, 0.2635537e-1,
     -0.1647633e-1, 0.392377e-2),
    (0.39894228, -0.3988024e-1, -0.362018e-2, 0.163801e-2, -0.1031555e-1, 0.2282967e-1, -0.2895312e-1,
     0.1787654e-1, -0.420059e-2),
)  # fmt: skip
_K_NEAR = (
    (-0.57721566, 0.42278420, 0.23069756, 0.3488590e-1, 0.262698e-2, 0.10750e-3, 0.74e-5),
    (1.0, 0.15443144, -0.67278579, -0.18156897, -0.1919402e-1, -0.110404e-2, -0.4686e-4),
)
_K_FAR = (
    (1.25331414, -0.7832358e-1, 0.2189568e-1, -0.1062446e-1, 0.587872e-2, -0.251540e-2, 0.53208e-3),
    (1.25331414, 0.23498619, -0.3655620e-1, 0.1504268e-1, -0.780353e-2, 0.325614e-2, -0.68245e-3),
)
_J_NEAR = (
    ((57568490574.0, -13362590354.0, 651619640.7, -11214424.18, 77392.33017, -184.9052456),
     (57568490411.0, 1029532985.0, 9494680.718, 59272.64853, 267.8532712, 1.0)),
    ((72362614232.0, -7895059235.0, 242396853.1, -2972611.439, 15704.48260, -30.16036606),
     (144725228442.0, 2300535178.0, 18583304.74, 99447.43394, 376.9991397, 1.0)),
)  # fmt: skip
_Y_NEAR = (
    ((-2957821389.0, 7062834065.0, -512359803.6, 10879881.29, -86327.92757, 228.4622733),
     (40076544269.0, 745249964.8, 7189466.438, 47447.26470, 226.1030244, 1.0)),
    ((-0.4900604943e13, 0.1275274390e13, -0.5153438139e11, 0.7349264551e9, -0.4237922726e7, 0.8511937935e4),
     (0.2499580570e14, 0.4244419664e12, 0.3733650367e10, 0.2245904002e8, 0.1020426050e6, 0.3549632885e3,
      1.0)),
)  # fmt: skip
_FAR = (
    ((1.0, -0.1098628627e-2, 0.2734510407e-4, -0.2073370639e-5, 0.2093887211e-6),
     (-0.1562499995e-1, 0.1430488765e-3, -0.6911147651e-5, 0.7621095161e-6, -0.934945152e-7)),
    ((1.0, 0.183105e-2, -0.3516396496e-4, 0.2457520174e-5, -0.240337019e-6),
     (0.04687499995, -0.2002690873e-3, 0.8449199096e-5, -0.88228987e-6, 0.105787412e-6)),
)  # fmt: skip
_FIRST_FAR, _FIRST_FAR_I, _FIRST_FAR_K = 8.0, 3.75, 2.0
_PI_HALVES = 0.636619772
"""2 / pi, as the approximations have it."""


def _odd(x: Number, found: Number, order: int) -> Number:
    return found * x.apply("Sign") if order else found


def _i(x: Number, order: int, scaled: bool) -> Number:
    """The modified function of the first kind, times exp(-|x|) if ``scaled``."""
    size = x.apply("Abs")
    near_size = size.most(_FIRST_FAR_I)
    square = near_size / _FIRST_FAR_I
    near = (square * square).polynomial(_I_NEAR[order])
    near = near * near_size if order else near
    far_size = size.least(_FIRST_FAR_I)
    far = far_size.under(_FIRST_FAR_I).polynomial(_I_FAR[order]) / far_size.apply("Sqrt")
    if scaled:
        near = near * near_size.apply("Neg").apply("Exp")
    else:
        far = far * far_size.apply("Exp")
    return _odd(x, size.where_below(_FIRST_FAR_I, near, far), order)


def _k(x: Number, order: int, scaled: bool) -> Number:
    """The modified function of the second kind, times exp(x) if ``scaled``; below 0 it is no number."""
    close = x.most(_FIRST_FAR_K)
    half = close / 2
    series = (half * half).polynomial(_K_NEAR[order])
    growth = half.apply("Log") * _i(close, order, scaled=False)
    near = growth + series / close if order else series - growth
    distant = x.least(_FIRST_FAR_K)
    far = distant.under(2.0).polynomial(_K_FAR[order]) / distant.apply("Sqrt")
    if scaled:
        near = near * close.apply("Exp")
    else:
        far = far * distant.apply("Neg").apply("Exp")
    return x.where_equal(0, np.inf, x.where_below(_FIRST_FAR_K, near, far))


def _ratio(x: Number, parts: tuple[Coefficients, Coefficients]) -> Number:
    square = x * x
    return square.polynomial(parts[0]) / square.polynomial(parts[1])


def _far(size: Number, order: int, kinds: tuple[str, str], sign: int) -> Number:
    """The wave that the functions of the first and second kind become."""
    distant = size.least(_FIRST_FAR)
    slope = distant.under(_FIRST_FAR)
    square = slope * slope
    phase = distant - (2 * order + 1) * np.pi / 4
    one = phase.wave(kinds[0]) * square.polynomial(_FAR[order][0])
    other = phase.wave(kinds[1]) * square.polynomial(_FAR[order][1]) * slope
    return distant.under(_PI_HALVES).apply("Sqrt") * (one + other * sign)


def _j(x: Number, order: int) -> Number:
    """The function of the first kind."""
    size = x.apply("Abs")
    close = size.most(_FIRST_FAR)
    near = _ratio(close, _J_NEAR[order])
    near = near * close if order else near
    return _odd(x, size.where_below(_FIRST_FAR, near, _far(size, order, ("Cos", "Sin"), -1)), order)


def _y(x: Number, order: int) -> Number:
    """The function of the second kind; below 0 it is no number."""
    close = x.most(_FIRST_FAR)
    ratio = _ratio(close, _Y_NEAR[order])
    growth = close.apply("Log") * _j(close, order)
    near = ratio * close + (growth - close.under(1.0)) * _PI_HALVES if order else ratio + growth * _PI_HALVES
    found = x.where_below(_FIRST_FAR, near, _far(x, order, ("Sin", "Cos"), 1))
    return x.where_equal(0, -np.inf, found)


_LANCZOS = (0.99999999999980993, 676.5203681218851, -1259.1392167224028, 771.32342877765313,
            -176.61502916214059, 12.507343278686905, -0.13857109526572012, 9.9843695780195716e-6,
            1.5056327351493116e-7)  # fmt: skip
_SHIFT = 8
"""How far `digamma` goes up before its series is right."""


def lgamma(x: Number) -> Number:
    """C. Lanczos's series, and from the other side of 1/2 the reflection."""
    mirrored = x.where_below(0.5, (x - 1).apply("Neg"), x) - 1
    series = mirrored * 0 + _LANCZOS[0]
    for place, coefficient in enumerate(_LANCZOS[1:], 1):
        series += (mirrored + place).under(coefficient)
    base = mirrored + 7.5
    right = base.apply("Log") * (mirrored + 0.5) - base + series.apply("Log") + 0.5 * np.log(2 * np.pi)
    left = (_turn(x) * np.pi).apply("Sin").apply("Abs").apply("Log").apply("Neg") + np.log(np.pi) - right
    whole = x.make("Equal", x.value, x.apply("Floor").value)
    pole = x.make("And", whole.value, x.b.op("Less", [x.value, x.of(0.5)]))
    found = x.where_equal(np.inf, np.inf, x.where_below(0.5, left, right))
    return x.make("Where", pole.value, x.of(np.inf), found.value)


def _turn(x: Number) -> Number:
    """How far to the nearest whole number, with all digits of a small number and the sign of -0.0."""
    # the whole number is chosen, not x: ONNX Runtime's Where gives 0.0 for -0.0
    return x - x.apply("Abs").where_below(0.5, Number(x.b, x.of(0)), x.apply("Round"))


def digamma(x: Number) -> Number:
    """The series of large numbers, to which smaller ones are led, and the reflection below 1/2."""
    mirrored = x.where_below(0.5, (x - 1).apply("Neg"), x)
    steps = mirrored.under(1.0)
    for place in range(1, _SHIFT):
        steps += (mirrored + place).under(1.0)
    large = mirrored + _SHIFT
    square = (large * large).under(1.0)
    tail = square.polynomial((0.0, 1 / 12, -1 / 120, 1 / 252, -1 / 240))
    right = large.apply("Log") - large.under(0.5) - tail - steps
    turn = _turn(x) * np.pi
    left = right - turn.wave("Cos") / turn.apply("Sin") * np.pi
    whole = x.make("Equal", x.value, x.apply("Floor").value)
    pole = x.make("And", whole.value, x.b.op("Less", [x.value, x.of(0)]))
    return x.make("Where", pole.value, x.of(np.nan), x.where_below(0.5, left, right).value)


def _converted(b: Builder, x: Value, form: Callable[[Number], Number]) -> Value:
    return b.cast(form(Number(b, b.cast(x, FLOAT64))).value, b.floating(x).dtype)


_FORMS: dict[str, Callable[[Number], Number]] = {
    "Lgamma": lgamma,
    "Digamma": digamma,
    "BesselI0": lambda x: _i(x, 0, scaled=False),
    "BesselI0e": lambda x: _i(x, 0, scaled=True),
    "BesselI1": lambda x: _i(x, 1, scaled=False),
    "BesselI1e": lambda x: _i(x, 1, scaled=True),
    "BesselK0": lambda x: _k(x, 0, scaled=False),
    "BesselK0e": lambda x: _k(x, 0, scaled=True),
    "BesselK1": lambda x: _k(x, 1, scaled=False),
    "BesselK1e": lambda x: _k(x, 1, scaled=True),
    "BesselJ0": lambda x: _j(x, 0),
    "BesselJ1": lambda x: _j(x, 1),
    "BesselY0": lambda x: _y(x, 0),
    "BesselY1": lambda x: _y(x, 1),
}


@table(_FORMS)
def special(form: Callable[[Number], Number], b: Builder, x: Value) -> Value:
    """A special function of each element."""
    return _converted(b, x, form)
