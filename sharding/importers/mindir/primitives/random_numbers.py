"""Random numbers. What a run draws is not what MindSpore draws; how it is distributed is."""

from __future__ import annotations

import numpy as np

from sharding.importers.mindir.primitives.base import Node, Operand, RefusedError, Value, primitive, table
from sharding.importers.mindir.primitives.operands import FLOAT32, INT64, Builder


def _seed(node: Node) -> float | None:
    """The seed that a file gives; None draws anew in every session."""
    found = [node.attributes.get(name) for name in ("seed", "seed2")]
    numbers = [float(item) for item in found if isinstance(item, int) and item > 0]
    return numbers[0] if numbers else None


@table({"StandardNormal": "RandomNormalLike", "UniformReal": "RandomUniformLike"})
def drawn(kind: str, b: Builder, node: Node, shape: Operand) -> Value:
    """Of the normal distribution about 0 with the deviation 1, or from 0 up to before 1."""
    return b.op(kind, [b.filled(shape, 0, FLOAT32)], {"dtype": 1, "seed": _seed(node)})


@primitive("UniformInt")
def uniform_integers(b: Builder, node: Node, shape: Operand, least: Operand, end: Operand) -> Value:
    """Integers from one up to before another."""
    low, high = b.single(least, FLOAT32), b.single(end, FLOAT32)
    width = b.op("Sub", [high, low])
    whole = b.op("Floor", [b.op("Mul", [drawn("RandomUniformLike", b, node, shape), width])])
    # A product may be rounded up to the width.
    return b.cast(
        b.op("Add", [b.op("Min", [whole, b.op("Sub", [width, b.const(np.float32(1))])]), low]), INT64
    )


@primitive("Bernoulli")
def bernoulli(b: Builder, node: Node, x: Value, chance: Operand = 0.5, *rest: Operand) -> Value:
    """1 with a chance, else 0, in the shape of another tensor."""
    found = drawn("RandomUniformLike", b, node, b.shape_of(x))
    hit = b.op("Less", [found, b.cast(b.value(chance), FLOAT32)])
    return b.cast(hit, b.result_type(node, x.dtype))


@primitive("Multinomial")
def multinomial(b: Builder, node: Node, x: Value, count: Operand) -> Value:
    """Places along the last axis, drawn by their shares, each again and again."""
    if x.rank not in {1, 2}:
        raise RefusedError("it needs an operand with one or two axes")
    shares = b.floating(x)
    rows = b.unsqueeze(shares, [0]) if x.rank == 1 else shares
    found = b.op("Multinomial", [b.op("Log", [rows])], {
        "sample_size": b.integer(count, "the number of samples"), "dtype": 7, "seed": _seed(node),
    })  # fmt: skip
    return b.squeeze(found, [0]) if x.rank == 1 else found
