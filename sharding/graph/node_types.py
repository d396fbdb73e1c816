"""Types of what a node of ONNX's own operators gives, by onnx's inference for a single node."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from sharding.graph.alike import Alike, alike, array_of, content
from sharding.graph.fold import small_constant
from sharding.graph.values import shape_of

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

    from sharding.common.arrays import Array
    from sharding.graph.alike import Content
    from sharding.rules.base import Dim

    Shape: TypeAlias = tuple[Dim, ...] | None
    Input: TypeAlias = tuple[int, Shape, Array | None]
    """Element type, shape, and what it is if it is a small constant."""
    Found: TypeAlias = list[onnx.TypeProto | None]

logger = logging.getLogger(__name__)


def infer(node: ir.Node, opset: int, ir_version: int) -> dict[str, onnx.TypeProto]:
    """The types of a node's outputs by name, from what is known of its inputs; what cannot be found is left
    out. ``opset`` is the version of the default opset."""
    inputs: list[Input | None] = []
    for value in node.inputs:
        if value is None or not value.name:
            inputs.append(None)
        elif value.dtype is None:
            return {}
        else:
            constant = small_constant(value)
            array = None if constant is None else np.asarray(constant)
            inputs.append((int(value.dtype), shape_of(value), array))
    try:
        found = _found(node, inputs, opset, ir_version)
    except Exception as error:  # an operator that onnx does not know, or cannot infer, keeps what is known
        logger.debug("%s: %s", node.name, error)
        return {}
    named = zip(node.outputs, found, strict=True)
    return {value.name: kind for value, kind in named if value.name and kind is not None}


def _found(node: ir.Node, inputs: Sequence[Input | None], opset: int, ir_version: int) -> Found:
    import onnx_ir as ir

    known = alike(node)
    same: list[tuple[int, Shape, Content | None] | None] = []
    for item in inputs:
        array = None if item is None else item[2]
        held = None if array is None else content(array)
        known = known if array is None or held is not None else None
        same.append(None if item is None else (item[0], item[1], held))
    if known is None:
        return _asked(ir.serde.serialize_node(node), inputs, opset, ir_version)
    return _asked_alike(known, tuple(same), opset, ir_version)


@lru_cache(maxsize=4096)
def _asked_alike(
    node: Alike, inputs: tuple[tuple[int, Shape, Content | None] | None, ...], opset: int, ir_version: int
) -> Found:
    """The types of the outputs of every node like this one; none where they cannot be inferred."""
    given = [
        None if item is None else (item[0], item[1], None if item[2] is None else array_of(item[2]))
        for item in inputs
    ]
    try:
        return _asked(node.message(), given, opset, ir_version)
    except Exception as error:  # the next one like it would fail too
        logger.debug("%s: %s", node.op_type, error)
        return [None for _ in node.outputs]


def _asked(node: onnx.NodeProto, inputs: Sequence[Input | None], opset: int, ir_version: int) -> Found:
    import onnx

    types, data = {}, {}
    for name, item in zip(node.input, inputs, strict=True):
        if item is not None:
            types[name] = onnx.helper.make_tensor_type_proto(item[0], item[1])
            if item[2] is not None:
                data[name] = onnx.numpy_helper.from_array(item[2], name)
    schema = onnx.defs.get_schema(node.op_type, opset, "")
    function = schema.has_function  # type: ignore[attr-defined]  # onnx's stub lacks it
    if function and not schema.has_type_and_shape_inference_function:
        schema = onnx.defs.get_schema(node.op_type)  # GreaterOrEqual of opset 12 is inferred from 16 on
    imports = [onnx.helper.make_opsetid("", opset)]
    found = onnx.shape_inference.infer_node_outputs(schema, node, types, data, None, imports, ir_version)
    return [found.get(name) for name in node.output]
