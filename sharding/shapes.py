"""Shapes of all values, and the small constants behind them: inference and folding in turns."""

from __future__ import annotations

import logging
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from sharding.read import replace_by_constant

if TYPE_CHECKING:
    import onnx_ir as ir

logger = logging.getLogger(__name__)

SMALL_ELEMENTS = 1024
"""Constants up to this many elements are folded and shown to rules: shapes, axes, pads, split sizes."""
_ROUNDS = 4
_RANDOM = {
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Multinomial",
    "Bernoulli",
}


def infer(model: ir.Model, path: Path) -> None:
    """Infers shapes, folds constant shape arithmetic, and repeats while that finds more."""
    for _ in range(_ROUNDS):
        _infer_shapes(model, path)
        if not _fold(model):
            break


def _infer_shapes(model: ir.Model, path: Path) -> None:
    import onnx
    import onnx_ir as ir

    # Large weights are references by now, so the message is small whatever the model's size.
    try:
        proto = ir.serde.serialize_model(model)
        inferred = onnx.shape_inference.infer_shapes(
            proto, check_type=False, strict_mode=False, data_prop=True
        )
        found = {info.name: info for info in [*inferred.graph.value_info, *inferred.graph.output]}
    except Exception as error:  # inference is a help: without it fewer operators can be split
        logger.warning("%s: shapes could not be inferred (%s); fewer operators will be split.", path, error)
        return
    for node in model.graph:
        for value in node.outputs:
            info = found.get(value.name)
            if info is None or not info.type.HasField("tensor_type"):
                continue
            tensor_type = info.type.tensor_type
            if value.type is None and tensor_type.elem_type:
                value.type = ir.TensorType(ir.DataType(tensor_type.elem_type))
            if tensor_type.HasField("shape"):
                value.shape = _merge(value.shape, ir.serde.deserialize_type_proto_for_shape(info.type))


def _merge(old: ir.Shape | None, new: ir.Shape | None) -> ir.Shape | None:
    """The more exact of each axis: a length before a symbol before nothing."""
    import onnx_ir as ir

    if old is None or new is None or len(old) != len(new):
        return old if new is None else new
    axes = []
    for before, after in zip(old.dims, new.dims, strict=True):
        known = [axis for axis in (before, after) if isinstance(axis, int)]
        named = [axis for axis in (before, after) if not isinstance(axis, int) and axis.value is not None]
        axes.append((known or named or [None])[0])
    return ir.Shape(axes)


def _fold(model: ir.Model) -> bool:
    """Replaces nodes whose small inputs are all constants by their value; whether there was one."""
    outputs, folded = set(model.graph.outputs), False
    for node in list(model.graph):
        if len(node.outputs) != 1 or node.outputs[0] in outputs or node.domain not in {"", "ai.onnx"}:
            continue
        tensor = _shape_value(node) if node.op_type == "Shape" else _evaluate(model, node)
        if tensor is not None:
            replace_by_constant(model, node.outputs[0], tensor)
            folded = True
    return folded


def _shape_value(node: ir.Node) -> ir.TensorProtocol | None:
    import onnx_ir as ir

    source = node.inputs[0]
    if source is None or source.shape is None:
        return None
    start = node.attributes["start"].as_int() if "start" in node.attributes else 0
    end = node.attributes["end"].as_int() if "end" in node.attributes else None
    dims = list(source.shape.dims)[start:end]
    if not all(isinstance(axis, int) for axis in dims):
        return None
    return ir.tensor(np.asarray(dims, np.int64))


def _evaluate(model: ir.Model, node: ir.Node) -> ir.TensorProtocol | None:
    import onnx_ir as ir

    if (
        not node.inputs
        or node.op_type in _RANDOM
        or any(_has_graph(attribute) for attribute in node.attributes.values())
    ):
        return None
    arrays: dict[str, Any] = {}
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
        result = _run(node, arrays, model)
    except Exception as error:  # an operator that the evaluator lacks simply stays in the graph
        logger.debug("%s stays: %s", node.name, error)
        return None
    if not isinstance(result, np.ndarray | np.generic) or np.size(result) > SMALL_ELEMENTS:
        return None
    return ir.tensor(np.asarray(result))


def _output_size(node: ir.Node) -> int | None:
    """Elements of the output; None where unknown, for an Expand or Range may be huge."""
    shape = node.outputs[0].shape
    if shape is None or not all(isinstance(axis, int) for axis in shape.dims):
        grows = node.op_type in {
            "Expand",
            "Range",
            "ConstantOfShape",
            "Tile",
            "Pad",
            "OneHot",
            "Resize",
            "NonZero",
        }
        return None if grows else 0
    return math.prod(axis for axis in shape.dims if isinstance(axis, int))


def _run(node: ir.Node, arrays: dict[str, Any], model: ir.Model) -> Any:
    """Evaluates one node with onnx's reference implementation."""
    import onnx
    import onnx_ir as ir
    from onnx.reference import ReferenceEvaluator

    proto = ir.serde.serialize_node(node)
    inputs = [onnx.helper.make_empty_tensor_value_info(name) for name in arrays]
    output = onnx.helper.make_empty_tensor_value_info(proto.output[0])
    graph = onnx.helper.make_graph([proto], "constant", inputs, [output])
    opsets = [onnx.helper.make_opsetid("", model.opset_imports.get("", 1))]
    evaluator = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=opsets))
    return next(iter(evaluator.run(None, arrays)))


def small_constant(value: ir.Value) -> np.ndarray[Any, Any] | None:
    """The value of a small in-memory initializer; None for anything else."""
    import onnx_ir as ir

    tensor = value.const_value
    if tensor is None or isinstance(tensor, ir.ExternalTensor) or not value.is_initializer():
        return None
    return tensor.numpy() if tensor.size <= SMALL_ELEMENTS else None


def _has_graph(attribute: ir.Attr) -> bool:
    import onnx_ir as ir

    return attribute.is_ref() or attribute.type in {ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS}
