"""The head of a language model: the product that makes logits of hidden states, and what follows it.

To generate, only the last position's logits are wanted, or those from some position on. So where a model
keeps state, its ranks take the first wanted position as one more, optional input, and cut the hidden states
along the positions right before the product. Left out, it is 0, and all is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.rules.base import Dim
from sharding.slices.domains import MICROSOFT
from sharding.slices.state import LOGITS_FROM

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.reading.read import Source

AXIS = 1
"""Of hidden states [batch, positions, hidden] and logits [batch, positions, words]."""
LENGTH = "logits_length"
"""The symbol of the positions of which there are logits."""
SLICE_OPSET = 10
"""The first in which Slice takes its bounds as inputs."""
_PRODUCTS: dict[tuple[str, str], tuple[int, ...]] = {
    ("", "MatMul"): (),
    ("", "MatMulInteger"): (2,),
    ("", "QLinearMatMul"): (1, 2, 6, 7),
    (MICROSOFT, "FusedMatMul"): (),
    (MICROSOFT, "MatMulNBits"): (),
    (MICROSOFT, "MatMulBnb4"): (),
    (MICROSOFT, "MatMulIntegerToFloat"): (2, 4),
}
"""Products, and their inputs that must be one number, for they might belong to positions."""
_WEIGHT = {"QLinearMatMul": 3}
"""Where the matrix of weights is not the second input."""
_UNARY = frozenset({"Identity", "Cast", "Tanh", "Neg"})
_WITH_NUMBERS = frozenset({"Clip", "DequantizeLinear", "QuantizeLinear"})
_BETWEEN = frozenset({"Add", "Sub", "Mul", "Div", "Min", "Max", "Where"})


@dataclass(frozen=True)
class Head:
    """The product, and the values that have as many positions as are wanted: its result to the logits."""

    node: ir.Node
    values: frozenset[ir.Value]

    def shape(self, value: ir.Value, axes: Sequence[Dim] | None) -> Sequence[Dim] | None:
        """A value's shape, with the positions of which there are logits."""
        if axes is None or value not in self.values:
            return axes
        return [LENGTH if number == AXIS else axis for number, axis in enumerate(axes)]


def find_head(source: Source) -> Head | None:
    """The head of a language model that keeps state; None where it is not certain."""
    graph = source.model.graph
    kept = {pair.output for pair in source.state}
    logits = [value for value in graph.outputs if "logits" in (value.name or "") and value.name not in kept]
    taken = {value.name for value in graph.inputs}
    old = source.model.opset_imports.get("", 1) < SLICE_OPSET
    if not kept or len(logits) != 1 or logits[0].uses() or old or LOGITS_FROM in taken:
        return None
    value: ir.Value | None = logits[0]
    shape = shape_of(value)
    if shape is None or len(shape) != 3 or shape[AXIS] is None or shape[AXIS] == 1:
        return None
    values: set[ir.Value] = set()
    while value is not None:
        node, shape = value.producer(), shape_of(value)
        inner = value is not logits[0]
        if node is None or shape is None or len(shape) != 3 or shape[AXIS] == 1:
            return None
        if inner and (value.is_graph_output() or len(value.uses()) != 1):
            return None
        values.add(value)
        if (node.domain, node.op_type) in _PRODUCTS:
            return Head(node, frozenset(values)) if _is_product(node) else None
        value = _before(node)
    return None


def _is_product(node: ir.Node) -> bool:
    """Whether a node multiplies hidden states with a matrix, position by position."""
    hidden = shape_of(node.inputs[0])
    weight = _WEIGHT.get(node.op_type, 1)
    matrix = shape_of(node.inputs[weight]) if weight < len(node.inputs) else None
    if hidden is None or len(hidden) != 3 or hidden[AXIS] == 1 or node.inputs[0] in node.inputs[1:]:
        return False
    if node.op_type in {
        "MatMul",
        "FusedMatMul",
        "MatMulInteger",
        "MatMulIntegerToFloat",
        "QLinearMatMul",
    } and (matrix is None or len(matrix) != 2):
        return False
    moved = ("transA", "transBatchA", "transBatchB")
    if any(name in node.attributes and node.attributes[name].value for name in moved):
        return False
    inputs = node.inputs
    numbers = _PRODUCTS[node.domain, node.op_type]
    return all(
        index >= len(inputs) or inputs[index] is None or _is_number(inputs[index]) for index in numbers
    )


def _before(node: ir.Node) -> ir.Value | None:
    """The input that a node changes element by element, the same way for all positions; None for others."""
    if node.domain or not node.inputs or node.inputs[0] is None:
        return None
    if node.op_type in _UNARY:
        return node.inputs[0]
    if node.op_type in _WITH_NUMBERS:
        others = [value for value in node.inputs[1:] if value is not None]
        return node.inputs[0] if all(map(_is_number, others)) else None
    if node.op_type not in _BETWEEN:
        return None
    axes = len(shape_of(node.outputs[0]) or ())
    for main in node.inputs:
        shape = shape_of(main)
        if main is None or main.producer() is None or shape is None or len(shape) != axes:
            continue
        if all(_is_for_all(other) for other in node.inputs if other is not main):
            return main
    return None


def before_logits(source: Source) -> dict[ir.Value, ir.Value]:
    """The values that become logits element by element, such as those before a cast, a scale or a soft cap,
    and the logits: of a model that keeps state, and is asked for few of them in a step."""
    kept = {pair.output for pair in source.state}
    found: dict[ir.Value, ir.Value] = {}
    for logits in source.model.graph.outputs if kept else ():
        if "logits" not in (logits.name or "") or logits.name in kept:
            continue
        value, node = logits, logits.producer()
        while node is not None and (before := _before(node)) is not None:
            value, node = before, before.producer()
            if node is None or value.is_graph_output() or len(value.uses()) != 1:
                break
            found[value] = logits
    return found


def _is_number(value: ir.Value | None) -> bool:
    return shape_of(value) in {(), (1,)}


def _is_for_all(value: ir.Value | None) -> bool:
    """Whether a value is the same for all positions."""
    shape = shape_of(value)
    return shape is not None and len(shape) <= 3 and (len(shape) < 2 or shape[-2] == 1)
