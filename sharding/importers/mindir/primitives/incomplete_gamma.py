"""The incomplete gamma functions, as shares of the whole: P up to a place, Q from it on.

One of both is computed, the smaller one, the other is what it leaves of 1. Far from the peak P is a series,
Q a continued fraction (W. Gautschi). About the peak of a large order they need too many steps: there the
density is integrated from the place away from the peak, as far as it matters (C. F. Gauss's rule).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sharding.importers.mindir.doubles import Number, expm1, log1p
from sharding.importers.mindir.primitives.base import Value, table
from sharding.importers.mindir.primitives.operands import INT64, Builder
from sharding.importers.mindir.primitives.special import lgamma
from sharding.importers.mindir.primitives.steps import FLOAT64, repeated

_LARGE = 20.0
"""From such an order on there is a peak, and J. Stirling's series is right."""
_NEAR = 0.3
"""How far about the peak is integrated, as a share of the order."""
_TURNS = 400
"""At most; about 100 do."""
_POINTS = 40
"""In which the density is added up."""
_FAR = 40.0
"""How far the density's logarithm falls up to where nothing is left of it."""
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680, 1 / 1188)
_FLAT = tuple((-1.0) ** (place + 1) / place for place in range(2, 14))
"""log(1 + x) - x, divided by x * x, for small x."""


_SMALL = 0.1
"""Below such an order P may be so near 1 that Q has no digits left of it."""
_LOG_GAMMA = (
    -0.5772156649015329,
    0.8224670334241133,
    -0.4006856343865313,
    0.27058080842778454,
    -0.2073855510286741,
    0.16955717699740813,
    -0.14404989676884614,
    0.12550966952474307,
    -0.11133426586956473,
    0.10009945751278182,
    -0.09095401714582904,
    0.08335384054610899,
    -0.0769325164113522,
    0.07143294629536133,
    -0.06666870588242048,
    0.06250095514121302,
    -0.058823978658684564,
)
"""log(gamma(1 + a)) in powers of a, from the first one on."""
_ALTERNATING = 22
"""Terms of the series for a place up to 1 + _SMALL."""


def _stirling(a: Number) -> Number:
    """What log(gamma) is above its first terms."""
    slope = a.under(1.0)
    return (slope * slope).polynomial(_STIRLING) * slope


def _density(a: Number, x: Number) -> Number:
    """x ** a * exp(-x) / gamma(a), far from the peak."""
    small = a.most(_LARGE)
    near = small * x.apply("Log") - x - lgamma(small)
    large = a.least(_LARGE)
    ratio = (x / large).apply("Log") * large - (x - large)
    far = ratio + (large / (2 * np.pi)).apply("Log") * 0.5 - _stirling(large)
    return a.where_below(_LARGE, near, far).apply("Exp")


def _any(b: Builder, where: Value) -> Value:
    return b.op("Greater", [b.op("ReduceSum", [b.cast(where, INT64)], {"keepdims": 0}), b.const(0, np.int64)])


def _series(b: Builder, a: Number, x: Number) -> Number:
    """1 + x / (a + 1) + x * x / ((a + 1) * (a + 2)) + ..."""

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], Value]:
        term, total = (Number(b, item) for item in carried)
        term = term * x / (a + Number(b, b.cast(turn, FLOAT64)) + 1.0)
        total = total + term
        return [term.value, total.value], _any(b, b.op("Greater", [term.value, (total * 1e-17).value]))

    one = b.full_like(a.value, 1.0)
    return Number(b, repeated(b, _TURNS, [one, one], step)[1])


def _rest_of_small(b: Builder, a: Number, x: Number) -> Number:
    """Q of a small order up to a place beside 1, with all its digits: 1 - x ** a / gamma(1 + a), which the
    first terms of P leave, and the others, -x / (a + 1) + x ** 2 / (2 * (a + 2)) - ..., by W. Gautschi."""
    exponent = a * (x.apply("Log") - a.polynomial(_LOG_GAMMA))
    places = np.arange(1.0, _ALTERNATING)
    signs = np.cumprod(-1 / places)
    wide, order = (Number(b, b.unsqueeze(item.value, [-1])) for item in (x, a))
    shares = wide.make("Pow", wide.value, b.const(places)) * Number(b, b.const(signs))
    terms = shares / (order + Number(b, b.const(places)))
    rest = Number(b, b.reduced("ReduceSum", terms.value, [-1], False))
    return (expm1(exponent) + exponent.apply("Exp") * a * rest).apply("Neg")


def _fraction(b: Builder, a: Number, x: Number) -> Number:
    """1 / (x + 1 - a - (1 - a) / (x + 3 - a - 2 * (2 - a) / (x + 5 - a - ...))), from the front."""
    start = x + 1.0 - a

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], Value]:
        above, below, found = (Number(b, item) for item in carried)
        place = Number(b, b.cast(turn, FLOAT64)) + 1.0
        top, bottom = (a - place) * place, start + place * 2.0
        below = (top * below + bottom).under(1.0)
        above = bottom + top / above
        change = above * below
        found = found * change
        away = (change - 1.0).apply("Abs")
        return [above.value, below.value, found.value], _any(b, b.op("Greater", [away.value, away.of(2e-16)]))

    first = start.under(1.0).value
    return Number(b, repeated(b, _TURNS, [b.full_like(a.value, 1e300), first, first], step)[2])


def _about_peak(b: Builder, a: Number, x: Number) -> Number:
    """The share on that side of x which is away from the peak, at a - 1."""
    peak = a - 1.0
    away = x - peak
    size = away.apply("Abs")
    root = peak.apply("Sqrt")
    steep = size / root
    reach = root * 2 * _FAR / (steep + (steep * steep + 2 * _FAR).apply("Sqrt"))
    # A density falls more slowly above its peak than that of the normal distribution.
    longer = reach * ((reach + size * 2.0) / (peak * 3.0) + 1.0)
    shorter = reach.make("Min", reach.value, x.value)
    reach = away.where_below(0.0, shorter.apply("Neg"), longer)
    places, weights = np.polynomial.legendre.leggauss(_POINTS)
    known = [b.const(item) for item in (places / 2 + 0.5, weights / 2)]

    def step(turn: Value, carried: Sequence[Value]) -> tuple[Sequence[Value], None]:
        place, weight = (Number(b, b.op("Gather", [item, turn])) for item in known)
        far = (away + reach * place) / peak
        flat = far.most(0.03).least(-0.03)
        exponent = far.apply("Abs").where_below(0.03, flat * flat * flat.polynomial(_FLAT), log1p(far) - far)
        return [(Number(b, carried[0]) + (exponent * peak).apply("Exp") * weight).value], None

    (total,) = repeated(b, _POINTS, [b.full_like(a.value, 0.0)], step)
    scale = _stirling(peak).apply("Neg").apply("Exp") / (peak * (2 * np.pi)).apply("Sqrt")
    return Number(b, total) * reach.apply("Abs") * scale


def _choose(b: Builder, where: Value, yes: Number | float, no: Number | float) -> Number:
    one, other = (item.value if isinstance(item, Number) else b.const(np.float64(item)) for item in (yes, no))
    return Number(b, b.op("Where", [where, one, other]))


def _share(b: Builder, a: Number, x: Number, upper: bool) -> Number:
    """P or Q of a positive order and a positive place, both finite."""
    large = b.op("GreaterOrEqual", [a.value, a.of(_LARGE)])
    close = b.op("Less", [(x - a).apply("Abs").value, (a * _NEAR).value])
    near = b.op("And", [large, close])
    lower = b.op("Less", [x.value, (a + 1.0).value])
    # Each way computes all elements: those of another one are some that are no trouble.
    peak = _about_peak(b, _choose(b, near, a, 100.0), _choose(b, near, x, 100.0))
    before = b.op("And", [lower, b.op("Not", [near])])
    behind = b.op("Not", [b.op("Or", [lower, near])])
    density = _density(a, x)
    left = _series(b, _choose(b, before, a, 1.0), _choose(b, before, x, 0.5)) * density / a
    right = _fraction(b, _choose(b, behind, a, 1.0), _choose(b, behind, x, 3.0)) * density
    found = _choose(b, near, peak, _choose(b, lower, left, right)).least(0.0).most(1.0)
    on_left = b.op("Where", [near, b.op("Less", [x.value, (a - 1.0).value]), lower])
    if not upper:
        return _choose(b, on_left, found, found.minus(1.0))
    small = b.op("And", [before, b.op("Less", [a.value, a.of(_SMALL)])])
    left = _rest_of_small(b, _choose(b, small, a, _SMALL), _choose(b, small, x, 1.0))
    return _choose(b, small, left, _choose(b, on_left, found.minus(1.0), found))


@table({"Igamma": False, "Igammac": True})
def incomplete(upper: bool, b: Builder, a: Value, x: Value) -> Value:
    """The share of the gamma function up to a place, or from it on. Of an order of 0 or less there is none;
    up to 0 is nothing whatever the order, for MindSpore."""
    order, place = (Number(b, b.cast(item, FLOAT64)) for item in (a, x))
    none = Number(b, b.cast(b.op("Less", [order.value, place.value]), FLOAT64)) * 0.0
    order, place = order + none, place + none
    positive = b.op("Greater", [order.value, order.of(0.0)])
    after = b.op("Greater", [place.value, place.of(0.0)])
    given = [_choose(b, where, item, 1.0).most(1e300) for where, item in ((positive, order), (after, place))]
    found = _share(b, given[0], given[1], upper)
    start, end = (1.0, 0.0) if upper else (0.0, 1.0)
    found = place.where_equal(np.inf, order.where_equal(np.inf, np.nan, none + end), found)
    endless = b.op("And", [b.op("Equal", [order.value, order.of(np.inf)]),
                           b.op("Less", [place.value, place.of(np.inf)])])  # fmt: skip
    found = _choose(b, endless, start, found)
    found = _choose(b, after, found, place.where_equal(0.0, start, none + np.nan)) if upper else found
    found = _choose(b, positive, found, np.nan)
    if not upper:
        found = _choose(b, after, found, place.where_equal(0.0, start, none + np.nan))
    return b.cast(found.value, b.promoted(a, x)[0].dtype)
