"""Evaluates nodes whose inputs are all small constants, with onnx's reference implementation."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sharding.graph.alike import Alike, alike, array_of, content

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.common.arrays import Array
    from sharding.graph.alike import Content

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
_IN_FLOAT = frozenset({"Pow", "ReduceProd"})
"""Operators that ONNX Runtime computes in floating point for integers, too."""
_EXACT = 2.0**53
_GROWS = frozenset({"Expand", "Range", "ConstantOfShape", "Tile", "Pad", "NonZero"})


def evaluate(node: ir.Node, opset: int) -> ir.TensorProtocol | None:
    """The output of a node whose inputs are all small constants; None to leave it in the graph."""
    import onnx_ir as ir

    if (
        not node.inputs
        or node.op_type not in _FOLDED
        or not is_alike(node, opset)
        or any(_has_graph(attribute) for attribute in node.attributes.values())
    ):
        return None
    arrays = [None if value is None else small_constant(value) for value in node.inputs]
    if any(value is not None and array is None for value, array in zip(node.inputs, arrays, strict=True)):
        return None
    if node.op_type in _IN_FLOAT and not _is_exact(
        node.op_type, [array for array in arrays if array is not None]
    ):
        return None
    size = _output_size(node)
    if size is None or size > SMALL_ELEMENTS:
        return None
    try:
        result = _evaluated(node, arrays, opset)
    except Exception as error:  # an operator that the evaluator lacks simply stays in the graph
        logger.debug("%s stays: %s", node.name, error)
        return None
    if result is None:
        return None
    tensor = ir.tensor(result.copy())
    wanted = node.outputs[0].dtype
    return tensor if wanted is None or tensor.dtype == wanted else None


def is_alike(node: ir.Node, opset: int) -> bool:
    """Whether onnx's reference implementation gives what ONNX Runtime gives, as far as the node tells."""
    if node.op_type == "Softmax" and opset < 13:  # of a matrix with all axes from ``axis`` on in its rows
        axis, shape = node.attributes.get_int("axis", 1), _shape(node.inputs[0])
        return shape is not None and axis in {-1, len(shape) - 1}
    if node.op_type == "Slice":
        return _starts_inside(node)
    if node.op_type == "Range":  # ONNX Runtime adds up the steps
        return all(value is not None and not _is_float(value) for value in node.inputs)
    return True


def _starts_inside(node: ir.Node) -> bool:
    """Whether a Slice that goes backwards begins within its axes: before them begins is at their first
    element, for ONNX, and for numpy nothing is left."""
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    shape = _shape(node.inputs[0])
    given = [small_constant(item) for item in node.inputs[1:5] if item is not None]
    if shape is None or len(given) < 4 or any(item is None for item in given):
        return False
    starts, _, axes, steps = (np.asarray(item).reshape(-1).tolist() for item in given)
    return all(
        step > 0 or start >= -shape[axis] for start, axis, step in zip(starts, axes, steps, strict=True)
    )


def _is_exact(op_type: str, arrays: list[Array]) -> bool:
    """Whether a power or a product of integers is small enough to come out of floating point unchanged."""
    first = arrays[0]
    if first.dtype.kind not in "iu" or not first.size:
        return True
    numbers = np.abs(first.astype(np.float64))
    with np.errstate(over="ignore"):
        if op_type == "Pow":
            most = numbers.max() ** max(float(arrays[-1].max(initial=0)), 0.0)
        else:
            most = np.maximum(numbers, 1).prod()
    return bool(most < min(_EXACT, np.iinfo(first.dtype).max))


def _shape(value: ir.Value | None) -> tuple[int, ...] | None:
    """The lengths of all axes; None where one is not known."""
    if value is None or value.shape is None:
        return None
    known = tuple(axis for axis in value.shape.dims if isinstance(axis, int))
    return known if len(known) == len(value.shape.dims) else None


def _is_float(value: ir.Value) -> bool:
    return value.dtype is None or value.dtype.is_floating_point()


def _output_size(node: ir.Node) -> int | None:
    """Elements of the output; None where unknown, for an Expand or Range may be huge."""
    shape = node.outputs[0].shape
    if shape is None or not all(isinstance(axis, int) for axis in shape.dims):
        return None if node.op_type in _GROWS else 0
    return math.prod(axis for axis in shape.dims if isinstance(axis, int))


def _evaluated(node: ir.Node, inputs: Sequence[Array | None], opset: int) -> Array | None:
    import onnx_ir as ir

    known, contents = alike(node), [None if array is None else content(array) for array in inputs]
    if known is None or any(a is not None and c is None for a, c in zip(inputs, contents, strict=True)):
        return _result(ir.serde.serialize_node(node), inputs, opset)
    return _known_result(known, tuple(contents), opset)


@lru_cache(maxsize=4096)
def _known_result(node: Alike, inputs: tuple[Content | None, ...], opset: int) -> Array | None:
    """What every node like this one gives for inputs of this content; None where that fails."""
    try:
        return _result(node.message(), [None if item is None else array_of(item) for item in inputs], opset)
    except Exception as error:  # the next one like it would fail too
        logger.debug("%s stays: %s", node.op_type, error)
        return None


def _result(node: onnx.NodeProto, inputs: Sequence[Array | None], opset: int) -> Array | None:
    """The output of one node by onnx's reference implementation; None where it is not a small array."""
    from onnx.reference import ReferenceEvaluator

    arrays = {name: array for name, array in zip(node.input, inputs, strict=True) if array is not None}
    evaluator = ReferenceEvaluator(program([node], node.output[0], arrays, opset))
    result = next(iter(evaluator.run(None, arrays)))
    if not isinstance(result, np.ndarray | np.generic):
        return None
    found = np.asarray(result)
    return found if found.size <= (SMALL_ELEMENTS if found.dtype.kind in "iub" else FLOAT_ELEMENTS) else None


def program(
    nodes: Iterable[onnx.NodeProto], output: str, inputs: Iterable[str], opset: int
) -> onnx.ModelProto:
    """A model of nothing but these nodes, which give the output."""
    from onnx import helper

    graph = helper.make_graph(
        list(nodes),
        "constants",
        [helper.make_empty_tensor_value_info(name) for name in inputs],
        [helper.make_empty_tensor_value_info(output)],
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
