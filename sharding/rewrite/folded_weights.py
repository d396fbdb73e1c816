"""Weights that a model computes from its weights in every inference, folded into one.

Weight normalisation writes ``g * v / ||v||``, spectral normalisation ``w / (u . w v)``, an adapter that was
not merged ``w + b a``. A norm or a product needs all of a weight, so a rank that holds a part of it cannot
compute its part of the result. The result itself is a weight like any other.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.graph.fold import SMALL_ELEMENTS
from sharding.graph.values import shape_of
from sharding.rewrite.built_weights import MOVES, alone, build, chain, parameters

if TYPE_CHECKING:
    import onnx_ir as ir

MIXES = frozenset(
    {
        *("Gemm", "InstanceNormalization", "LayerNormalization", "MatMul", "ReduceL1", "ReduceL2"),
        *("ReduceMax", "ReduceMean", "ReduceMin", "ReduceSum", "ReduceSumSquare", "Softmax"),
    }
)
"""Operators of which one element of the result is made of many elements."""
EACH = frozenset(
    {
        *("Abs", "Add", "Cast", "Clip", "Div", "Exp", "Expand", "Log", "Max", "Min", "Mul", "Neg", "Pow"),
        *("Reciprocal", "Sigmoid", "Sqrt", "Sub", "Tanh"),
    }
)
"""Operators of which it is made of one element of each input."""
FOLDED = MOVES | MIXES | EACH
WORKING_BYTES = 1 << 30
"""All values on the way to a weight may take so much together, for that is held while it is computed."""


def fold_weights(model: ir.Model, path: Path) -> dict[str, tuple[str, ...]]:
    """Replaces what is computed from weights that nothing else uses, where it is no larger than these.

    Returns the names of those for each that was made.
    """
    graph = model.graph
    constant = set(graph.initializers.values())
    ends: dict[ir.Value, None] = {}
    for node in graph:
        if node.inputs and all(value is None or value in constant for value in node.inputs):
            constant.update(node.outputs)
            continue
        for value in node.inputs:
            if value in constant and value is not None and not value.is_initializer():
                ends[_before_moves(value)] = None
    made_of = {}
    for value in ends:
        order = chain(value, graph, FOLDED)
        if order and _worth_it(order) and _fits(order, value) and alone(order, value):
            made_of[value.name or ""] = build(model, value, order, path)
    return made_of


def _before_moves(value: ir.Value) -> ir.Value:
    """What is only transposed and the like stays so, for it is cut together with its use."""
    node = value.producer()
    while node is not None and node.op_type in MOVES and not node.domain:
        sources = [item for item in node.inputs if item is not None and not item.is_initializer()]
        if len(sources) != 1 or len(node.outputs) != 1:
            break
        value = sources[0]
        node = value.producer()
    return value


def _worth_it(order: list[ir.Node]) -> bool:
    """Whether elements are mixed, or several weights become one."""
    if any(node.op_type in MIXES for node in order):
        return True
    large = [value for value in parameters(order) if _size(value) > SMALL_ELEMENTS]
    return len(large) > 1 and any(node.op_type in EACH for node in order)


def _fits(order: list[ir.Node], value: ir.Value) -> bool:
    own, sources = _bytes(value), sum(map(_bytes, parameters(order)))
    made = sum(_bytes(output) for node in order for output in node.outputs)
    return own <= sources and made <= WORKING_BYTES


def _size(value: ir.Value) -> int:
    return math.prod(axis for axis in shape_of(value) or () if isinstance(axis, int))


def _bytes(value: ir.Value) -> int:
    return 0 if value.dtype is None else int(_size(value) * value.dtype.itemsize)
