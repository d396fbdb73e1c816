"""Types and shapes of ONNX Runtime's variants of standard operators, by inferring the standard operator.

A quantized or fused variant has the shape of its standard form and another element type. The signatures are
those of https://github.com/microsoft/onnxruntime/blob/main/docs/ContribOperators.md.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sharding.graph.values import shape_of
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx
    import onnx_ir as ir

logger = logging.getLogger(__name__)

OPSET = 17
"""The standard forms' opset: the last one before operators took types that these variants do not have."""
FLOAT, UINT8, INT32 = 1, 2, 6
"""Element types as onnx numbers them."""


@dataclass(frozen=True)
class _Form:
    op_type: str
    inputs: Sequence[int] = (0,)
    """The variant's inputs that are those of the standard form."""
    typed_by: int | None = 0
    """The input whose element type the outputs have; None: ``kind``."""
    kind: int = FLOAT
    """The element type where that input is absent too."""
    last: bool = False
    """Whether the variant has channels as its last axis, whatever its attributes say."""


_FORMS = {
    "FusedConv": _Form("Conv", (0, 1)),
    "QLinearConv": _Form("Conv", (0, 3), 7),
    "QGemm": _Form("Gemm", (0, 3), 8),
    "QLinearAdd": _Form("Add", (0, 3)),
    "QLinearMul": _Form("Mul", (0, 3)),
    "QLinearWhere": _Form("Where", (0, 1, 4), 1),
    "QLinearLeakyRelu": _Form("Identity"),
    "QLinearSigmoid": _Form("Identity"),
    "QLinearSoftmax": _Form("Identity"),
    "QLinearAveragePool": _Form("AveragePool"),
    "QLinearGlobalAveragePool": _Form("GlobalAveragePool"),
    "QLinearConcat": _Form("Concat", (), 2),
    "QuantizeLinear": _Form("Identity", (0,), 2, UINT8),
    "MatMulInteger16": _Form("MatMul", (0, 1), None, INT32),
    "DynamicQuantizeLSTM": _Form("LSTM", (0, 1, 2), None),
    "NhwcMaxPool": _Form("MaxPool", last=True),
    "GridSample": _Form("GridSample", (0, 1)),
    "Trilu": _Form("Identity"),
}
"""By operator of ONNX Runtime's domain."""


def infer(node: ir.Node) -> dict[str, onnx.TypeProto] | None:
    """The types of a node's outputs by name; None if it is not one of these operators."""
    form = _FORMS.get(node.op_type) if node.domain == MICROSOFT else None
    if form is None or any(attribute.is_ref() for attribute in node.attributes.values()):
        return None
    try:
        return _infer(node, form)
    except Exception as error:  # a node that is not what its operator demands: nothing is known of it
        logger.debug("%s: %s", node.name, error)
        return {}


def _infer(node: ir.Node, form: _Form) -> dict[str, onnx.TypeProto]:
    import onnx
    import onnx_ir as ir
    from onnx import helper

    indices = form.inputs or range(2, len(node.inputs), 3)
    last = form.last or bool(_attribute(node, "channels_last"))
    types: dict[str, onnx.TypeProto] = {}
    for position, index in enumerate(indices):
        shape = shape_of(node.inputs[index])
        if last and position == 0 and shape is not None:
            shape = (shape[0], shape[-1], *shape[1:-1])
        kind = onnx.TensorProto.BOOL if form.op_type == "Where" and position == 0 else FLOAT
        types[f"i{position}"] = helper.make_tensor_type_proto(kind, shape)
    schema = onnx.defs.get_schema(form.op_type, OPSET, "")
    names = [f"o{position}" for position in range(len(node.outputs))]
    standard = helper.make_node(form.op_type, list(types), names)
    standard.attribute.extend(
        ir.serde.serialize_attribute(item)
        for name, item in node.attributes.items()
        if name in schema.attributes
    )
    found = onnx.shape_inference.infer_node_outputs(
        schema, standard, types, {}, None, [helper.make_opsetid("", OPSET)], 10
    )
    kind = _kind(node, form)
    result = {}
    for value, name in zip(node.outputs, names, strict=True):
        if not value.name or name not in found or not found[name].HasField("tensor_type"):
            continue
        described = found[name]
        described.tensor_type.elem_type = kind
        if last and described.tensor_type.HasField("shape"):
            dims = list(described.tensor_type.shape.dim)
            del described.tensor_type.shape.dim[:]
            described.tensor_type.shape.dim.extend([dims[0], *dims[2:], dims[1]])
        result[value.name] = described
    return result


def _kind(node: ir.Node, form: _Form) -> int:
    if form.typed_by is not None and form.typed_by < len(node.inputs):
        value = node.inputs[form.typed_by]
        if value is not None and value.dtype is not None:
            return int(value.dtype)
    return form.kind


def _attribute(node: ir.Node, name: str) -> object:
    attribute = node.attributes.get(name)
    return None if attribute is None else attribute.value
