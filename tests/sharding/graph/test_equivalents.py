"""Shapes of ONNX Runtime's variants of standard operators, before anything runs them."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from sharding.graph import equivalents


@pytest.mark.parametrize(
    ("op", "shape", "attributes", "wanted"),
    [
        ("QLinearAveragePool", [2, 3, 8, 6], {"kernel_shape": [2, 3]}, [2, 3, 7, 4]),
        ("QLinearAveragePool", [2, 8, 6, 3], {"kernel_shape": [2, 3], "channels_last": 1}, [2, 7, 4, 3]),
        ("QLinearGlobalAveragePool", [2, 3, 8, 6], {}, [2, 3, 1, 1]),
        ("QLinearGlobalAveragePool", [2, 8, 6, 3], {"channels_last": 1}, [2, 1, 1, 3]),
        ("NhwcMaxPool", [2, 8, 6, 3], {"kernel_shape": [2, 3]}, [2, 7, 4, 3]),
    ],
)
def test_channels_may_be_the_last_axis(
    op: str, shape: list[int], attributes: dict[str, object], wanted: list[int]
) -> None:
    node = onnx.helper.make_node(op, ["x"], ["y"], domain="com.microsoft", **attributes)
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.UINT8, shape)
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.UINT8, None)
    graph = ir.serde.deserialize_graph(onnx.helper.make_graph([node], "g", [x], [y]))
    found = equivalents.infer(graph[0])
    assert found is not None
    kind = found["y"].tensor_type
    assert [axis.dim_value for axis in kind.shape.dim] == wanted and kind.elem_type == onnx.TensorProto.UINT8
