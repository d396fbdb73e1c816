"""Nodes that draw random numbers without a seed: the first rank draws for all, or ranks would not agree.

Its numbers reach the other ranks as a sum, to which those add zeros. A node with a seed draws the same on
every rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sharding.errors import SliceError
from sharding.graph.values import shape_of, subgraphs
from sharding.rules.base import Emitter, Option, Value, Values
from sharding.rules.common import summable
from sharding.slices.placement import PARTIAL, REPLICATED

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.common.arrays import Array

    Functions = Mapping[ir.OperatorIdentifier, ir.Function]

_GENERATORS = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
_TRAINING = 2
"""The input of Dropout that says whether it drops anything."""


def draws(node: ir.Node, functions: Functions) -> bool:
    """Whether a node, or one in its bodies or its function, draws random numbers without a seed."""
    waiting: list[ir.Node] = [node]
    seen: set[ir.OperatorIdentifier] = set()
    while waiting:
        current = waiting.pop()
        if _draws_itself(current):
            return True
        for graph in subgraphs(current):
            waiting.extend(graph)
        name = current.op_identifier()
        if name in functions and name not in seen:
            seen.add(name)
            waiting.extend(functions[name])
    return False


def _draws_itself(node: ir.Node) -> bool:
    seed = node.attributes.get("seed")
    if node.domain or (seed is not None and not seed.is_ref()):
        return False
    if node.op_type == "Dropout":
        training = node.inputs[_TRAINING] if len(node.inputs) > _TRAINING else None
        if training is None:
            return False
        return training.const_value is None or bool(training.const_value.numpy().any())
    return node.op_type in _GENERATORS


def drawn_once(node: ir.Node, inputs: Sequence[ir.Value | None], path: object, *, can_write: bool) -> Option:
    """The option of such a node. Raises `SliceError` where its outputs are not numbers that can be summed, or
    where its opset lacks the operators for it (not ``can_write``)."""
    for value in node.outputs:
        known = value.dtype is not None and value.dtype.name != "STRING" and shape_of(value) is not None
        if value.name and not (
            can_write and known and summable(value.dtype.numpy() if value.dtype else None)
        ):
            raise SliceError(
                f"{path}: {node.op_type} {node.name!r} draws random numbers without a seed, so every rank "
                f"would compute another {value.name!r}: give its attribute seed a value."
            )
    zeros = [None if value.dtype is None else np.zeros(1, value.dtype.numpy()) for value in node.outputs]
    return Option(
        (REPLICATED,) * len(inputs),
        (PARTIAL,) * len(node.outputs),
        partial(_on_first_rank, zeros),
        divides_work=False,
    )


def _on_first_rank(zeros: Sequence[Array | None], e: Emitter, values: Values) -> list[Value]:
    drawn = e.copy(values)
    if e.rank == 0:
        return drawn
    return [
        value if zero is None else e.op("ConstantOfShape", e.op("Shape", [value]), value=zero)[0]
        for value, zero in zip(drawn, zeros, strict=True)
    ]
