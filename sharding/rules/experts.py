"""Mixtures of experts: each rank holds its part of the inner axis of every expert, and all of the router.

Whichever experts a token is sent to, every rank then has the same share of its work, and what the ranks
compute sums to the output. (Whole experts on different ranks cannot be had from these operators: each
chooses among the experts that it is given.)
"""

from __future__ import annotations

from functools import partial
from typing import Any

from sharding.placement import PARTIAL, Placement, Split
from sharding.rules.base import Emitter, NodeView, Option, rule
from sharding.rules.common import Values, absent, dim, option, shape_of, summable

MICROSOFT = "com.microsoft"
INTERLEAVED, ONE_AFTER_THE_OTHER = 1, 2
"""Values of ``swiglu_fusion``: how gate and value lie in the rows of the first weight."""


@rule("MoE", domain=MICROSOFT)
def mixture(node: NodeView) -> list[Option]:
    """Weights [experts, inner, hidden] twice (fc1, fc3) and [experts, hidden, inner] (fc2)."""
    return _inner(node, first=(2, 3, 6, 7), second=(4,), bias=5) + _tokens(node)


@rule("QMoE", domain=MICROSOFT)
def quantized_mixture(node: NodeView) -> list[Option]:
    """The same with weights of few bits packed along their last axis, and scales by row or by block of it."""
    second = [5]
    for index in (6, 12):
        shape = shape_of(node, index)
        if shape is not None and len(shape) == 3:
            second.append(index)
    return _inner(node, first=(2, 3, 4, 8, 9, 10, 11, 13), second=tuple(second), bias=7) + _tokens(node)


def _inner(node: NodeView, *, first: tuple[int, ...], second: tuple[int, ...], bias: int) -> list[Option]:
    if not summable(node.dtypes[0]):
        return []
    fusion = int(node.attributes.get("swiglu_fusion", 0))
    pairs = fusion in (INTERLEAVED, ONE_AFTER_THE_OTHER)
    inner = dim(node.shapes[first[0]], 1)
    if not isinstance(inner, int) or not node.divisible(inner, 2 if pairs else 1):
        return []
    parts: dict[int, Placement] = {}
    for index in first:
        if not absent(node, index):
            if dim(shape_of(node, index), 1) != inner:
                return []
            parts[index] = Split(1, 2 if fusion == ONE_AFTER_THE_OTHER else 1)
    for index in second:
        if not absent(node, index):
            if not node.divisible(dim(shape_of(node, index), 2)):
                return []
            parts[index] = Split(2)
    emit = None if absent(node, bias) else partial(_bias_once, bias)
    return [option(node, parts, PARTIAL, emit)]


def _bias_once(index: int, e: Emitter, values: Values) -> list[Any]:
    if e.rank == 0:
        return e.copy(values)
    return e.copy([None if i == index else value for i, value in enumerate(values)])


def _tokens(node: NodeView) -> list[Option]:
    """Tokens are independent; the router's scores are [tokens, experts]."""
    shape, scores = node.shapes[0], node.shapes[1]
    if shape is None or scores is None or not node.divisible(shape[0]):
        return []
    return [option(node, {0: Split(0), 1: Split(0)}, Split(0))]
