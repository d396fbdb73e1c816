"""What ONNX's own tools are given of a model whose weights lie in other files."""

from __future__ import annotations

import onnx
from onnx import numpy_helper

from sharding.importers.opset import without_external
from sharding.onnx_files.external import put_place
from tests.sharding import graphs


def test_weights_in_files_become_inputs_once() -> None:
    """Up to IR version 3 each weight is an input already."""
    text = """g (float[n, 4] x, float[4, 4] listed) => (float[n, 4] y) {
      a = MatMul(x, listed) b = MatMul(a, alone) y = Mul(b, own) }"""
    model = graphs.model(text, {"own": graphs.array(4)})
    for name in ("listed", "alone"):
        tensor = numpy_helper.from_array(graphs.array(4, 4), name)
        tensor.ClearField("raw_data")
        put_place(tensor, "weights.data", 0, 64)
        model.graph.initializer.append(tensor)
    before = model.SerializeToString()
    found = without_external(model)
    assert [value.name for value in found.graph.input] == ["x", "listed", "alone"]
    added = found.graph.input[2].type.tensor_type
    assert added.elem_type == onnx.TensorProto.FLOAT
    assert [axis.dim_value for axis in added.shape.dim] == [4, 4]
    assert [item.name for item in found.graph.initializer] == ["own"]
    assert model.SerializeToString() == before
