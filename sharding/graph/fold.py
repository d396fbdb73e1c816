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
_NAMES = """
Abs Add And Cast Ceil Concat ConstantOfShape Div Equal Expand Floor Gather GatherElements GatherND Greater
GreaterOrEqual Identity Less LessOrEqual Max Min Mod Mul Neg NonZero Not OneHot Or Pad Pow Range Reciprocal
ReduceMax ReduceMin ReduceProd ReduceSum Reshape ScatterElements ScatterND Shape Sign Size Slice Sqrt
Squeeze Sub Tile Transpose Trilu Unsqueeze Where Xor
"""
_FOLDED = frozenset(_NAMES.split())
"""Operators with which shapes, masks and scales are computed. For others, the reference implementation does
not always give what ONNX Runtime gives, in the last bit or even in the type."""
EXACT = 2.0**53
"""Integers below it come out of floating point unchanged."""
HALF = 1 << 31
"""Of two numbers of 64 bits ONNX Runtime's Max and Min compare lower halves, as signed numbers (1.31)."""
_CHOICES = 31
"""From more, numpy's ``choose`` does not choose in all its versions."""
ENDS = frozenset({2**31 - 1, 2**63 - 1})
"""What stands for the end of an axis, whatever its length."""
_GROWS = frozenset({"Expand", "Range", "ConstantOfShape", "Tile", "Pad", "NonZero", "OneHot"})


def evaluate(node: ir.Node, opset: int) -> ir.TensorProtocol | None:
    """The output of a node whose inputs are all small constants; None to leave it in the graph."""
    import onnx_ir as ir

    if not node.inputs or node.op_type not in _FOLDED:
        return None
    arrays: list[Array | None] = []
    for value in node.inputs:
        array = None if value is None else small_constant(value)
        if array is None and value is not None:
            return None
        arrays.append(array)
    if not is_alike(node, opset) or any(_has_graph(attribute) for attribute in node.attributes.values()):
        return None
    if not _is_exact(node, [array for array in arrays if array is not None]):
        return None
    size = _output_size(node)
    if size is None or size > SMALL_ELEMENTS:
        return None
    try:
        result = _evaluated(node, arrays, opset)
    except Exception as error:  # an operator that the evaluator lacks simply stays in the graph
        logger.debug("%s stays: %s", node.name, error)
        return None
    if result is None or _shape(node.outputs[0]) not in {None, result.shape}:
        return None
    tensor = ir.Tensor(result.copy())
    wanted = node.outputs[0].dtype
    return tensor if wanted is None or tensor.dtype == wanted else None


def is_alike(node: ir.Node, opset: int) -> bool:
    """Whether onnx's reference implementation gives what ONNX Runtime gives, as far as the node tells."""
    import onnx_ir as ir

    if node.op_type == "Softmax" and opset < 13:  # of a matrix with all axes from ``axis`` on in its rows
        axis, shape = node.attributes.get_int("axis", 1), _shape(node.inputs[0])
        return shape is not None and axis in {-1, len(shape) - 1}
    if node.op_type == "Slice":
        return _is_inside(node)
    if node.op_type == "Unsqueeze" and opset < 13:  # one axis after the other, as they are given
        axes = node.attributes.get_ints("axes", ())
        return len(axes) < 2 or list(axes) == sorted(axis for axis in axes if axis >= 0)
    if node.op_type == "GatherElements":
        shape, axis = _shape(node.inputs[0]), node.attributes.get_int("axis", 0)
        return shape is not None and -len(shape) <= axis < len(shape) and shape[axis] <= _CHOICES
    if node.op_type == "Cast":  # numbers have other texts
        return node.attributes.get_int("to", 0) != ir.DataType.STRING
    if node.op_type == "OneHot":
        return _marks_each_row(node)
    if node.op_type == "Range":  # ONNX Runtime adds up the steps
        return all(value is not None and not _is_float(value) for value in node.inputs)
    return True


def _is_inside(node: ir.Node) -> bool:
    """Whether a Slice that goes backwards begins within its axes, and ends at a number. Before them begins is
    at their first element, for ONNX, and for numpy nothing is left; so it is for ONNX Runtime where it ends
    at the greatest number."""
    if len(node.inputs) < 5 or node.inputs[4] is None:
        return True
    shape = _shape(node.inputs[0])
    given = [small_constant(item) for item in node.inputs[1:5] if item is not None]
    if shape is None or len(given) < 4 or any(item is None for item in given):
        return False
    bounds = [np.asarray(item).reshape(-1).tolist() for item in given]
    if len(set(map(len, bounds))) > 1 or any(not -len(shape) <= axis < len(shape) for axis in bounds[2]):
        return False  # no model that runs
    return all(
        step > 0 or (start >= -shape[axis] and end not in ENDS)
        for start, end, axis, step in zip(*bounds, strict=True)
    )


def _is_exact(node: ir.Node, arrays: list[Array]) -> bool:
    """Whether ONNX Runtime, which computes these operators in floating point for integers, too, gives what
    integers give; and whether it looks at all numbers, which it does not if there are NaNs."""
    if not arrays:
        return True
    first, last = arrays[0], arrays[-1]
    if node.op_type in {"ReduceMax", "ReduceMin"}:
        return first.dtype.kind != "f" or not np.isnan(first).any()
    if first.dtype.kind not in "iu" or not first.size:
        return True
    if node.op_type in {"Max", "Min"}:
        return all(array.min(initial=0) >= -HALF and array.max(initial=0) < HALF for array in arrays)
    numbers, most = np.abs(first.astype(np.float64)), 0.0
    with np.errstate(over="ignore"):
        if node.op_type == "Pow":
            if not np.all((last >= 0) & (last == np.floor(last))):
                return False
            most = numbers.max() ** float(last.max(initial=0))
        elif node.op_type == "Mod" and node.attributes.get_int("fmod", 0) != 0:
            most = max(numbers.max(), np.abs(last.astype(np.float64)).max(initial=0))
        elif node.op_type == "ReduceProd":
            most = np.maximum(numbers, 1).prod()
        elif node.op_type == "ReduceSum":
            most = numbers.sum()
    return bool(most < min(EXACT, np.iinfo(first.dtype).max))


def _marks_each_row(one_hot: ir.Node) -> bool:
    """Whether all numbers that a OneHot is given are places in its rows: of others ONNX Runtime makes rows
    without a mark."""
    numbers, depth = (None if value is None else small_constant(value) for value in one_hot.inputs[:2])
    if numbers is None or depth is None or depth.size != 1:
        return False
    if numbers.dtype.kind == "f" or depth.dtype.kind == "f":
        return False
    return bool(np.all((-depth.item() <= numbers) & (numbers < depth.item())))


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
