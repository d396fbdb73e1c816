"""Evaluates nodes whose inputs are all small constants, with onnx's reference implementation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.common.arrays import Array

logger = logging.getLogger(__name__)

SMALL_ELEMENTS = 1024
"""Constants up to this many elements are folded and shown to rules: shapes, axes, pads, split sizes."""
FLOAT_ELEMENTS = 8
"""Of floating point only scales and the like are folded: a second copy of a weight would be held twice."""
_FOLDED = frozenset(
    {
        *(
            "Abs",
            "Add",
            "And",
            "Cast",
            "Ceil",
            "Concat",
            "ConstantOfShape",
            "Div",
            "Equal",
            "Expand",
            "Floor",
        ),
        *("Gather", "GatherElements", "GatherND", "Greater", "GreaterOrEqual", "Identity", "Less"),
        *("LessOrEqual", "Max", "Min", "Mod", "Mul", "Neg", "NonZero", "Not", "Or", "Pad", "Pow", "Range"),
        *("Reciprocal", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceSum", "Reshape", "ScatterElements"),
        *("ScatterND", "Shape", "Sign", "Size", "Slice", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose"),
        *("Trilu", "Unsqueeze", "Where", "Xor"),
    }
)
"""Operators with which shapes, masks and scales are computed. For others, the reference implementation does
not always give what ONNX Runtime gives, in the last bit or even in the type."""
_GROWS = frozenset({"Expand", "Range", "ConstantOfShape", "Tile", "Pad", "NonZero"})


def evaluate(node: ir.Node, opset: int) -> ir.TensorProtocol | None:
    """The output of a node whose inputs are all small constants; None to leave it in the graph."""
    import onnx_ir as ir

    if (
        not node.inputs
        or node.op_type not in _FOLDED
        or any(_has_graph(attribute) for attribute in node.attributes.values())
    ):
        return None
    arrays: dict[str, object] = {}
    for value in node.inputs:
        if value is None:
            continue
        array = small_constant(value)
        if array is None:
            return None
        arrays[value.name or ""] = array
    size = _output_size(node)
    if size is None or size > SMALL_ELEMENTS:
        return None
    try:
        result = _run(node, arrays, opset)
    except Exception as error:  # an operator that the evaluator lacks simply stays in the graph
        logger.debug("%s stays: %s", node.name, error)
        return None
    if not isinstance(result, np.ndarray | np.generic) or np.size(result) > SMALL_ELEMENTS:
        return None
    if np.asarray(result).dtype.kind not in "iub" and np.size(result) > FLOAT_ELEMENTS:
        return None
    tensor = ir.tensor(np.asarray(result))
    wanted = node.outputs[0].dtype
    return tensor if wanted is None or tensor.dtype == wanted else None


def _output_size(node: ir.Node) -> int | None:
    """Elements of the output; None where unknown, for an Expand or Range may be huge."""
    shape = node.outputs[0].shape
    if shape is None or not all(isinstance(axis, int) for axis in shape.dims):
        return None if node.op_type in _GROWS else 0
    return math.prod(axis for axis in shape.dims if isinstance(axis, int))


def _run(node: ir.Node, arrays: dict[str, object], opset: int) -> object:
    """Evaluates one node with onnx's reference implementation."""
    from onnx.reference import ReferenceEvaluator

    evaluator = ReferenceEvaluator(program([node], node.outputs[0], arrays, opset))
    return next(iter(evaluator.run(None, arrays)))


def program(nodes: Iterable[ir.Node], value: ir.Value, inputs: Iterable[str], opset: int) -> onnx.ModelProto:
    """A model of nothing but these nodes, which give the value."""
    import onnx_ir as ir
    from onnx import helper

    graph = helper.make_graph(
        [ir.serde.serialize_node(node) for node in nodes],
        "constants",
        [helper.make_empty_tensor_value_info(name) for name in inputs],
        [helper.make_empty_tensor_value_info(value.name or "")],
    )
    model: onnx.ModelProto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    return model


def small_constant(value: ir.Value) -> Array | None:
    """The value of a small in-memory initializer; None for anything else."""
    import onnx_ir as ir

    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or not value.is_initializer():
        return None
    return tensor.numpy() if tensor.size <= SMALL_ELEMENTS else None


def _has_graph(attribute: ir.Attr) -> bool:
    import onnx_ir as ir

    return attribute.is_ref() or attribute.type in {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}
