"""The floating-point number next to another one. ONNX's BitCast is of opsets that no model here has; a step
that rounding ends at the neighbour gives the same numbers (S. Rump, P. Zimmermann, S. Boldo, G. Melquiond:
Computing predecessor and successor in rounding to nearest, 2009)."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.doubles import Number
from sharding.importers.mindir.primitives.base import RefusedError, Value, primitive
from sharding.importers.mindir.primitives.operands import FLOAT32, Builder
from sharding.importers.mindir.primitives.steps import FLOAT64


def _next(size: Number, away: Number) -> Number:
    """A float32's neighbour, before it is rounded to one: ``away`` is 1 for the larger, -1 for the smaller
    one, 0 for itself. Any step between a half and one and a half of the distance ends there."""
    whole = size.most(2.0**128)
    step = (whole * (2.0**-24 * (1 + 2.0**-20))).least(2.0**-149)
    return whole + step * away


def _next_of_doubles(size: Number, away: Number) -> Number:
    """A float64's. The smallest lie at one distance; all others are moved to where no step is lost."""
    low = size.most(2.0**-1021) + away * 2.0**-1074
    scale = size.where_below(1.0, 2.0**200, 2.0**-200)
    back = size.where_below(1.0, 2.0**-200, 2.0**200)
    moved = (size.least(2.0**-1021) * scale).most(2.0**824)
    high = (moved + moved * (2.0**-53 * (1 + 2.0**-51)) * away) * back
    return size.where_below(2.0**-1021, low, high)


@primitive("NextAfter")
def next_after(b: Builder, x: Value, other: Value) -> Value:
    """The number after ``x`` on the way to ``other``; ``x`` where it is there."""
    if x.dtype not in {FLOAT32, FLOAT64}:
        raise RefusedError(f"it is for float32 and float64, found {x.dtype}")
    given, end = (Number(b, b.cast(item, FLOAT64)) for item in (x, other))
    upward = (end - given).most(1.0).least(-1.0).apply("Sign")
    zero = b.op("Equal", [given.value, given.of(0.0)])
    side = given.make("Where", zero, upward.value, given.apply("Sign").value)
    form = _next if x.dtype == FLOAT32 else _next_of_doubles
    # -0.0 comes from a product: ONNX Runtime's Where gives 0.0.
    found = form(given.apply("Abs"), upward * side) * side
    equal = b.op("Equal", [given.value, end.value])
    none = b.op("Or", [b.op("IsNaN", [given.value]), b.op("IsNaN", [end.value])])
    found = given.make("Where", equal, end.value, found.value)
    return b.cast(found.make("Where", none, given.of(np.nan), found.value).value, x.dtype)
