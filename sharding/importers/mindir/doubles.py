"""Functions of float64 for which ONNX Runtime's CPU kernels have fewer digits, or only those of float32.

They are written with those that have them: sine, exponential, logarithm, square root and hyperbolic tangent.
The rational approximations of the arc tangent and the error function are those of S. Moshier's Cephes library
(atan.c, ndtr.c). What a difference from 1 would lose is kept by W. Kahan's corrections. All are right to
2e-15 of themselves, but for erfc, which is right to 1e-13 where it is small, and the tangent near its zeros
beside 0, to 2e-16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sharding.importers.mindir.primitives.base import Value

if TYPE_CHECKING:
    from sharding.importers.mindir.builder import GraphBuilder

Coefficients = tuple[float, ...]
"""Of a polynomial, the lowest power first."""
_FLOAT64 = np.dtype(np.float64)


@dataclass(frozen=True)
class Number:
    """A value in float64, with Python's operators."""

    b: GraphBuilder
    value: Value

    def of(self, other: Number | float) -> Value:
        """The other operand."""
        return other.value if isinstance(other, Number) else self.b.const(np.asarray(other, np.float64))

    def make(self, kind: str, *inputs: Value) -> Number:
        """What an operator makes of inputs."""
        return Number(self.b, self.b.op(kind, list(inputs)))

    def __add__(self, other: Number | float) -> Number:
        return self.make("Add", self.value, self.of(other))

    def __sub__(self, other: Number | float) -> Number:
        return self.make("Sub", self.value, self.of(other))

    def __mul__(self, other: Number | float) -> Number:
        return self.make("Mul", self.value, self.of(other))

    def __truediv__(self, other: Number | float) -> Number:
        return self.make("Div", self.value, self.of(other))

    def under(self, other: float) -> Number:
        """A number divided by this one."""
        return self.make("Div", self.of(other), self.value)

    def minus(self, other: float) -> Number:
        """This one taken from a number."""
        return self.make("Sub", self.of(other), self.value)

    def wave(self, kind: str) -> Number:
        """Sine or cosine. Of a number up to a million it is the sine of the distance to the next zero, which
        parts of pi / 2 tell; a quarter of a turn added to a larger one would be lost."""
        if kind == "Sin":
            return self.apply("Sin")
        half = (self / 2).apply("Sin")
        far = (half * half * 2 - 1).apply("Neg")
        turns = (self / np.pi - 0.5).apply("Round").most(1e6).least(-1e6)
        odd = turns * 2 + 1
        place = self
        for part in _HALF_PI:
            place = place - odd * part
        even = (turns * 0.5 - (turns * 0.5).apply("Floor")) * 4 - 1
        return self.apply("Abs").where_below(1e6, place.apply("Sin") * even, far)

    def apply(self, kind: str) -> Number:
        """An operator of one input."""
        return self.make(kind, self.value)

    def least(self, other: float) -> Number:
        """No less than a number."""
        return self.make("Max", self.value, self.of(other))

    def most(self, other: float) -> Number:
        """No more than a number."""
        return self.make("Min", self.value, self.of(other))

    def polynomial(self, coefficients: Coefficients) -> Number:
        """A polynomial of this one, by Horner's rule."""
        found = Number(self.b, self.of(coefficients[-1]))
        for coefficient in reversed(coefficients[:-1]):
            found = found * self + coefficient
        return found

    def where_equal(self, amount: float, yes: Number | float, no: Number) -> Number:
        """One number where this is just so much, else another."""
        return self.make("Where", self.b.op("Equal", [self.value, self.of(amount)]), self.of(yes), no.value)

    def where_below(self, bound: Number | float, yes: Number | float, no: Number | float) -> Number:
        """One number where this is less, else another, also where this is none."""
        return self.make("Where", self.b.op("Less", [self.value, self.of(bound)]), self.of(yes), self.of(no))

    def signed(self, like: Number) -> Number:
        """This one, which is not below 0, with another's sign, that of 0 too: a choice would lose it."""
        near = like.most(1.0).least(-1.0)
        size = near.apply("Abs")
        return self * (near / size.where_equal(0.0, 1.0, size))


_HALF_PI = (1.57079625129699707031, 7.54978941586159635336e-8, 5.39030285815811905290e-15)
"""Parts of pi / 2, of which the first two have few digits: products of whole numbers with them are exact."""


def log1p(x: Number) -> Number:
    """log(1 + x)."""
    return _log1p(x).apply("Abs").signed(x)


def _log1p(x: Number) -> Number:
    """The same but for the sign of a zero."""
    raised = x + 1.0
    distance = raised - 1.0
    found = raised.apply("Log") * (x / distance.where_equal(0.0, 1.0, distance))
    near = distance.where_equal(0.0, x, found)
    return x.apply("Abs").where_below(1.0, near, raised.apply("Log"))


def expm1(x: Number) -> Number:
    """exp(x) - 1."""
    return _expm1(x).apply("Abs").signed(x)


def _expm1(x: Number) -> Number:
    """The same but for the sign of a zero."""
    raised = x.apply("Exp")
    distance = raised - 1.0
    safe = distance.where_equal(0.0, np.e, raised)
    corrected = distance * x / safe.apply("Log")
    near = distance.where_equal(0.0, x, corrected)
    return x.apply("Abs").where_below(1.0, near, distance)


def _tan(x: Number) -> Number:
    return x.wave("Sin") / x.wave("Cos")


def _sinh(x: Number) -> Number:
    size = x.apply("Abs")
    half = _expm1(size)
    near = (half + half / (half + 1.0)) * 0.5
    return size.where_below(20.0, near, _half_exp(size)).signed(x)


def _cosh(x: Number) -> Number:
    size = x.apply("Abs")
    half = size.apply("Exp")
    return size.where_below(20.0, (half + half.under(1.0)) * 0.5, _half_exp(size))


def _half_exp(x: Number) -> Number:
    """exp(x) / 2, also where exp(x) is endless. Half of a number has all of its digits, a difference not."""
    root = (x * 0.5).apply("Exp")
    return root * 0.5 * root


def _asinh(x: Number) -> Number:
    size = x.apply("Abs")
    square = size * size
    near = _log1p(size + square / ((square + 1.0).apply("Sqrt") + 1.0))
    return size.where_below(1e10, near, size.apply("Log") + np.log(2)).signed(x)


def _acosh(x: Number) -> Number:
    beyond = x - 1.0
    near = _log1p(beyond + (beyond * beyond + beyond * 2.0).apply("Sqrt"))
    far = x.apply("Log") + np.log(2)
    return x.where_below(1.0, np.nan, x.where_below(1e10, near, far))


def _atanh(x: Number) -> Number:
    size = x.apply("Abs")
    left = size.minus(1.0)
    return (_log1p(size * 2.0 / left) * 0.5).signed(x)


_ATAN = (
    (-6.485021904942025371773e1, -1.228866684490136173410e2, -7.500855792314704667340e1,
     -1.615753718733365076637e1, -8.750608600031904122785e-1),
    (1.945506571482613964425e2, 4.853903996359136964868e2, 4.328810604912902668951e2,
     1.650270098316988542046e2, 2.485846490142306297962e1, 1.0),
)  # fmt: skip
_REST = 6.123233995736765886130e-17
"""What pi / 2 has beyond float64."""


def _atan(x: Number) -> Number:
    size = x.apply("Abs")
    far, middle = np.tan(3 * np.pi / 8), 0.66
    turned = size.where_equal(0.0, 1.0, size).under(-1.0)
    between = (size - 1.0) / (size + 1.0)
    # An endless number gives no quotient, and is far.
    place = size.where_below(middle, size, size.where_below(far, between, turned))
    square = place * place
    top, bottom = (square.polynomial(part) for part in _ATAN)
    found = place * (square * top / bottom) + place
    rest = Number(x.b, size.of(0.0))
    rest = size.where_below(middle, rest, size.where_below(far, _REST / 2, _REST))
    start = size.where_below(middle, 0.0, size.where_below(far, np.pi / 4, np.pi / 2))
    return (start + (found + rest)).signed(x)


def _asin(x: Number) -> Number:
    root = (x.minus(1.0) * (x + 1.0)).apply("Sqrt")
    return _atan(x / root)


def _acos(x: Number) -> Number:
    return _atan((x.minus(1.0) / (x + 1.0)).apply("Sqrt")) * 2.0


_ERF = (
    (5.55923013010394962768e4, 7.00332514112805075473e3, 2.23200534594684319226e3, 9.00260197203842689217e1,
     9.60497373987051638749e0),
    (4.92673942608635921086e4, 2.26290000613890934246e4, 4.59432382970980127987e3, 5.21357949780152679795e2,
     3.35617141647503099647e1, 1.0),
)  # fmt: skip
_ERFC = (
    (5.57535335369399327526e2, 1.02755188689515710272e3, 9.34528527171957607540e2, 5.26445194995477358631e2,
     1.96520832956077098242e2, 4.86371970985681366614e1, 7.46321056442269912687e0, 5.64189564831068821977e-1,
     2.46196981473530512524e-10),
    (5.57535340817727675546e2, 1.65666309194161350182e3, 2.24633760818710981792e3, 1.82390916687909736289e3,
     9.75708501743205489753e2, 3.54937778887819891062e2, 8.67072140885989742329e1, 1.32281951154744992508e1,
     1.0),
)  # fmt: skip
_ERFC_FAR = (
    (2.97886665372100240670e0, 7.40974269950448939160e0, 6.16021097993053585195e0, 5.01905042251180477414e0,
     1.27536670759978104416e0, 5.64189583547755073984e-1),
    (3.36907645100081516050e0, 9.60896809063285878198e0, 1.70814450747565897222e1, 1.20489539808096656605e1,
     9.39603524938001434673e0, 2.26052863220117276590e0, 1.0),
)  # fmt: skip


def _erf_near(x: Number) -> Number:
    square = x * x
    top, bottom = (square.polynomial(part) for part in _ERF)
    return x * top / bottom


def _erfc_far(size: Number) -> Number:
    """1 - erf, from 1 on."""
    place = size.most(28.0)  # beyond it is 0, and powers would be endless
    square = (place * place).apply("Neg").apply("Exp")
    near, far = (place.polynomial(top) / place.polynomial(bottom) for top, bottom in (_ERFC, _ERFC_FAR))
    return square * place.where_below(8.0, near, far)


def _erf(x: Number) -> Number:
    size = x.apply("Abs")
    return size.where_below(1.0, _erf_near(size.most(1.0)), _erfc_far(size).minus(1.0)).signed(x)


def erfc(x: Number) -> Number:
    """1 - erf(x), with the digits that the difference would not have."""
    size = x.apply("Abs")
    far = _erfc_far(size)
    beyond = x.where_below(0.0, far.minus(2.0), far)
    return size.where_below(1.0, _erf_near(x.least(-1.0).most(1.0)).minus(1.0), beyond)


def erfinv(x: Number, first: Number) -> Number:
    """The inverse of erf, by two of Halley's steps from a value that is near: ``first``, up to 1 - 1e-7."""
    size = x.apply("Abs")
    left = size.minus(1.0)  # exact where it is small
    found = left.where_below(1e-7, _erfcinv_far(left), first.apply("Abs"))
    for _ in range(2):
        near, far = _erf(found) - size, left - erfc(found)
        slope = (found * found).apply("Neg").apply("Exp") * (2 / np.sqrt(np.pi))
        step = size.where_below(0.5, near, far) / slope
        found = found - step / (found * step + 1.0)
    return size.where_below(1.0, found, size.where_equal(1.0, np.inf, size * np.nan)).signed(x)


def _erfcinv_far(left: Number) -> Number:
    """Nearly the number whose erfc is so small: erfc(x) is about exp(-x * x) / (x * sqrt(pi))."""
    place = left.least(1e-17).apply("Log").apply("Neg")
    found = place.apply("Sqrt")
    for _ in range(2):
        found = (place - (found * np.sqrt(np.pi)).apply("Log")).apply("Sqrt")
    return found


def gelu(x: Number) -> Number:
    """x times the normal distribution's integral up to x."""
    return x * 0.5 * erfc(x / -np.sqrt(2))


def _softplus(x: Number) -> Number:
    return _log1p(x.apply("Abs").apply("Neg").apply("Exp")) + x.least(0.0)


def _leaky(x: Number, alpha: float = 0.01) -> Number:
    return x.where_below(0.0, x * alpha, x)


def _elu(x: Number, alpha: float = 1.0) -> Number:
    return x.where_below(0.0, _expm1(x) * alpha, x)


def _celu(x: Number, alpha: float = 1.0) -> Number:
    return x.where_below(0.0, _expm1(x / alpha) * alpha, x)


def _selu(
    x: Number, alpha: float = 1.67326319217681884765625, gamma: float = 1.05070102214813232421875
) -> Number:
    return _elu(x, alpha) * gamma


def _hard_sigmoid(x: Number, alpha: float = 0.2, beta: float = 0.5) -> Number:
    return (x * alpha + beta).least(0.0).most(1.0)


FORMS: Mapping[str, Callable[..., Number]] = {
    "Acos": _acos, "Acosh": _acosh, "Asin": _asin, "Asinh": _asinh, "Atan": _atan, "Atanh": _atanh,
    "Celu": _celu, "Cos": lambda x: x.wave("Cos"), "Cosh": _cosh, "Elu": _elu, "Erf": _erf,
    "HardSigmoid": _hard_sigmoid, "LeakyRelu": _leaky, "Selu": _selu,
    "Sigmoid": lambda x: (x.apply("Neg").apply("Exp") + 1.0).under(1.0), "Sinh": _sinh, "Softplus": _softplus,
    "Softsign": lambda x: x / (x.apply("Abs") + 1.0), "Tan": _tan,
    "PRelu": lambda x, slope: x.where_below(0.0, x * slope, x),
}  # fmt: skip


def written(
    b: GraphBuilder, op_type: str, values: Sequence[Value | None], attributes: Mapping[str, object]
) -> Value | None:
    """What an operator makes of float64; None for other types, and for operators that are not written so."""
    form = FORMS.get(op_type)
    given = [Number(b, value) for value in values if value is not None]
    if form is None or not given or any(item.value.dtype != _FLOAT64 for item in given):
        return None
    told = {name: value for name, value in attributes.items() if value is not None}
    return form(*given, **told).value
