"""Another opset for a model that is ONNX already, by ONNX's own converter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sharding.common.text import one_line
from sharding.errors import ModelError

if TYPE_CHECKING:
    import onnx


def opset_of(model: onnx.ModelProto) -> int:
    """The version of ONNX's own operators; 0 where none is stated."""
    return max((item.version for item in model.opset_import if item.domain in {"", "ai.onnx"}), default=0)


def convert_opset(model: onnx.ModelProto, opset: int, what: str) -> onnx.ModelProto:
    """The model with operators of this version; weights that are only declared stay so.

    Raises `ModelError` where ONNX's converter has no way there.
    """
    import onnx
    from onnx import version_converter

    if opset_of(model) == opset:
        return model
    outside = [item for item in model.graph.initializer if item.data_location == item.EXTERNAL]
    held = [onnx.TensorProto.FromString(item.SerializeToString()) for item in outside]
    try:
        found: onnx.ModelProto = version_converter.convert_version(without_external(model), opset)
    except Exception as error:  # what its C++ code raises has no common base
        raise ModelError(
            f"{what} cannot be converted from opset {opset_of(model)} to {opset}: "
            f"{one_line(str(error))[:300]}."
        ) from None
    names = {item.name for item in held}
    inputs = [value for value in found.graph.input if value.name not in names]
    del found.graph.input[:]
    found.graph.input.extend(inputs)
    found.graph.initializer.extend(held)
    del found.metadata_props[:]
    found.metadata_props.extend(model.metadata_props)
    return found


def without_external(model: onnx.ModelProto) -> onnx.ModelProto:
    """A copy whose external weights are inputs: ONNX's tools would look for their files."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outside = [item for item in copy.graph.initializer if item.data_location == item.EXTERNAL]
    listed = {value.name for value in copy.graph.input}
    for item in outside:
        if item.name not in listed:
            copy.graph.input.append(
                onnx.helper.make_tensor_value_info(item.name, item.data_type, list(item.dims))
            )
        copy.graph.initializer.remove(item)
    return copy
