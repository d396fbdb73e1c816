"""Sums whose parts ranks add up, and whether a model is one whose answers depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.graph.values import in_turn, integer_of, shape_of
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.search.steps import Step

ROUNDING_LEVEL = 4
"""The ``accuracy_level`` of MatMulNBits at which it rounds what it reads to 8 bits."""
MOST_BITS = 8
"""The most bits of a weight that MatMulNBits takes."""
_ROUNDING = frozenset({"DynamicQuantizeLinear", "DynamicQuantizeMatMul", "DynamicQuantizeLSTM"})
_FUSED = frozenset({"MatMul", "Gemm"})


def without_sums(graph: Sequence[Step]) -> None:
    """Leaves no option whose results the ranks have to add up, but for integers, whose sums are exact."""
    for step in graph:
        floats = [value.dtype is None or value.dtype.is_floating_point() for value in step.node.outputs]
        step.options[1:] = [
            option
            for option in step.options[1:]
            if not any(
                there == PARTIAL and inexact for there, inexact in zip(option.outputs, floats, strict=True)
            )
        ]


def rounds(graph: ir.Graph) -> bool:
    """Whether something in it rounds computed numbers to few bits for a product, so that a change of a last
    bit may become one of a hundredth."""
    return any(map(_rounds, in_turn(graph)))


def _rounds(node: ir.Node) -> bool:
    if node.op_type in _ROUNDING:
        return True
    if node.op_type == "QuantizeLinear":
        return bool(node.inputs) and node.inputs[0] is not None and not node.inputs[0].is_initializer()
    if node.op_type == "MatMulNBits" and node.domain == MICROSOFT:
        level = node.attributes.get("accuracy_level")
        return level is not None and not level.is_ref() and level.as_int() == ROUNDING_LEVEL
    return node.op_type == "DequantizeLinear" and _is_fused(node)


def _is_fused(node: ir.Node) -> bool:
    """Whether ONNX Runtime makes a MatMulNBits of that level of it and a product: weights of at most 8 bits
    that are the right operand as they lie, with one scale for all, for each column, or for blocks."""
    weight, scale = (*node.inputs, None, None)[:2]
    if weight is None or scale is None or not weight.is_initializer() or len(weight.shape or ()) != 2:
        return False
    if weight.dtype is None or not weight.dtype.is_integer() or weight.dtype.bitwidth > MOST_BITS:
        return False
    scales = shape_of(scale)
    axis = integer_of(node, "axis", 1)
    alike = scales is None or all(length == 1 for length in scales) or axis in {1, -1}
    return ("block_size" in node.attributes or alike) and any(
        use.idx == 1 and use.node.op_type in _FUSED and not integer_of(use.node, "transB")
        for use in node.outputs[0].uses()
    )
