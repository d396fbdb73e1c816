"""The greatest common divisor and the least common multiple."""

from __future__ import annotations

from collections.abc import Sequence

from sharding.importers.mindir.primitives.base import Node, Value, primitive
from sharding.importers.mindir.primitives.operands import INT64, Builder
from sharding.importers.mindir.primitives.steps import repeated

_TURNS = 92
"""As many as Euclid's algorithm takes at most on numbers of 64 bits: those of two neighbouring Fibonacci
numbers."""


def _divisor(b: Builder, x: Value, y: Value) -> Value:
    """By Euclid's algorithm, in int64, of tensors of one shape."""
    zero, one = b.scalar(0, x), b.scalar(1, x)

    def step(_: Value, pair: Sequence[Value]) -> tuple[Sequence[Value], Value]:
        larger, smaller = pair
        left = b.op("Not", [b.op("Equal", [smaller, zero])])
        rest = b.op("Mod", [larger, b.op("Where", [left, smaller, one])])
        rest = b.op("Where", [left, rest, zero])
        going = b.op("ReduceMax", [b.op("Abs", [rest])], {"keepdims": 0})
        return [b.op("Where", [left, smaller, larger]), rest], b.op("Greater", [going, zero])

    return repeated(b, _TURNS, [x, y], step)[0]


def _whole(b: Builder, x: Value, y: Value) -> list[Value]:
    """The magnitudes of both in int64, in their common shape."""
    pair = [b.op("Abs", [b.cast(item, INT64)]) for item in (x, y)]
    if x.shape == y.shape and x.shape is not None and None not in x.shape:
        return pair
    zeros = b.op("Mul", [b.op("Add", pair), b.scalar(0, pair[0])])
    return [b.op("Add", [item, zeros]) for item in pair]


@primitive("Gcd")
def gcd(b: Builder, node: Node, x: Value, y: Value) -> Value:
    """The greatest number that divides both; of 0 and another, the other."""
    first, second = _whole(b, x, y)
    return b.cast(_divisor(b, first, second), b.result_type(node, x.dtype))


@primitive("Lcm")
def lcm(b: Builder, node: Node, x: Value, y: Value) -> Value:
    """The least number that both divide; of 0 and another, 0."""
    first, second = _whole(b, x, y)
    shared = b.op("Max", [_divisor(b, first, second), b.scalar(1, first)])
    return b.cast(b.op("Mul", [b.op("Div", [first, shared]), second]), b.result_type(node, x.dtype))
