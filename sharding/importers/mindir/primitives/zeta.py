"""Hurwitz's zeta function, and the derivatives of digamma, which are multiples of it.

By L. Euler's and C. Maclaurin's formula: the first terms, an integral for all others, and what the
Bernoulli numbers correct of that.
"""

from __future__ import annotations

import math

import numpy as np

from sharding.importers.mindir.doubles import Number
from sharding.importers.mindir.primitives.base import Operand, Value, primitive
from sharding.importers.mindir.primitives.operands import Builder
from sharding.importers.mindir.primitives.special import digamma, lgamma
from sharding.importers.mindir.primitives.steps import FLOAT64

_TERMS = 9
"""So many are added one by one."""
_BERNOULLI = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6, -3617 / 510, 43867 / 798,
              -174611 / 330, 854513 / 138, -236364091 / 2730)  # fmt: skip
"""Those of even order, from the second on."""
_STEEP = 1e4
"""From such an exponent on only the first terms count."""


def _of_positive(x: Number, q: Number) -> Number:
    """The sum of (q + k) ** -x over all k, of x above 1 and q above 0."""
    down = x.apply("Neg")
    total = q.make("Pow", q.value, down.value)
    for place in range(1, _TERMS):
        total += q.make("Pow", (q + place).value, down.value)
    rest = q + _TERMS
    exponent = x.most(_STEEP)
    slope = rest.under(1.0)
    correction = rest / (exponent - 1.0) + 0.5
    factor = exponent * slope
    for order, bernoulli in zip(range(2, 2 * len(_BERNOULLI) + 1, 2), _BERNOULLI, strict=True):
        correction += factor * (bernoulli / math.factorial(order))
        factor = factor * (exponent + (order - 1)) * slope * ((exponent + order) * slope)
    return total + q.make("Pow", rest.value, exponent.apply("Neg").value) * correction


def _of_any(x: Number, q: Number, pole: Value) -> Number:
    """The same; of a q below 0, whole exponents only: the terms before the pole that is next to q, then
    those behind it. The former are the difference of two sums of positive numbers. ``pole``: what it is
    where q is one."""
    b = q.b
    below = b.op("Less", [q.value, q.of(0.0)])
    steps = q.apply("Neg").apply("Ceil")
    first = q.make("Where", below, (q + steps).value, q.value)
    near = q.make("Where", below, (q.apply("Neg") - (steps - 1.0)).value, q.of(1.0))
    far = q.make("Where", below, q.minus(1.0).value, q.of(1.0))
    parts = [b.unsqueeze(item.value, [0]) for item in (first, near, far)]
    sums = _of_positive(x, Number(b, b.op("Concat", parts, {"axis": 0})))
    behind, before, beyond = (
        Number(b, b.op("Gather", [sums.value, b.const(place, np.int64)], {"axis": 0})) for place in range(3)
    )
    # A sum that has no end leaves nothing to take away from it.
    ahead = before - beyond.where_below(np.inf, beyond, 0.0)
    even = _is_even(x)
    signed = x.make("Where", even, ahead.value, ahead.apply("Neg").value)
    found = q.make("Where", below, (behind + signed).value, behind.value)
    found = q.where_equal(np.inf, 0.0, found)
    whole = b.op("Equal", [x.value, x.apply("Floor").value])
    lost = b.op("And", [below, b.op("Not", [whole])])
    found = q.make("Where", lost, q.of(np.nan), found.value)
    early = b.op("LessOrEqual", [q.value, q.of(0.0)])
    on_pole = b.op("And", [early, b.op("Equal", [q.value, q.apply("Floor").value])])
    return q.make("Where", on_pole, pole, found.value)


def _is_even(x: Number) -> Value:
    """Whether it is a whole number, and even: all from 2 ** 53 on."""
    half = x * 0.5
    odd = (half - half.apply("Floor")).value
    large = x.b.op("GreaterOrEqual", [x.value, x.of(2.0**53)])
    return x.b.op("Or", [large, x.b.op("Equal", [odd, x.of(0.0)])])


@primitive("Zeta")
def hurwitz(b: Builder, x: Value, q: Value) -> Value:
    """The sum of (q + k) ** -x over all k from 0 on; at poles what MindSpore gives: endless for an even
    exponent, no number for others."""
    exponent, start = (Number(b, b.cast(item, FLOAT64)) for item in (x, q))
    pole = exponent.make("Where", _is_even(exponent), exponent.of(np.inf), exponent.of(np.nan)).value
    found = _of_any(exponent.least(1.0), start, pole)
    above = b.op("Greater", [exponent.value, exponent.of(1.0)])
    other = exponent.where_equal(1.0, np.inf, exponent * np.nan)
    return b.cast(exponent.make("Where", above, found.value, other.value).value, b.floating(q).dtype)


@primitive("Polygamma")
def polygamma(b: Builder, order: Operand, x: Value) -> Value:
    """The derivative of digamma of an order, which may be known in a run only."""
    place = Number(b, b.single(order, FLOAT64))
    given = Number(b, b.cast(x, FLOAT64))
    factorial = lgamma(place + 1.0).apply("Exp")
    positive = _of_any(place.least(1.0) + 1.0, given, given.of(np.inf)) * factorial
    signed = place.make("Where", _is_even(place), positive.apply("Neg").value, positive.value)
    found = place.where_equal(0.0, digamma(given), signed)
    return b.cast(place.where_below(0.0, np.nan, found).value, b.floating(x).dtype)
