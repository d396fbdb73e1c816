"""Sums whose parts ranks add up, and whether a model is one whose answers depend on it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sharding.graph.values import in_turn
from sharding.slices.domains import MICROSOFT
from sharding.slices.placement import PARTIAL

if TYPE_CHECKING:
    import onnx_ir as ir

    from sharding.search.steps import Step

ROUNDING_LEVEL = 4
"""The ``accuracy_level`` of MatMulNBits at which it rounds what it reads to 8 bits."""
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
    # ONNX Runtime makes a MatMulNBits of that level of products with weights in blocks of few bits.
    if node.op_type == "DequantizeLinear" and "block_size" in node.attributes and node.inputs:
        weight, read = node.inputs[0], node.outputs[0].uses()
        return (
            weight is not None and weight.is_initializer() and any(use.node.op_type in _FUSED for use in read)
        )
    return False
