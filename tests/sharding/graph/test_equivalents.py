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


FLOAT, UINT8, INT8, INT32 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.UINT8,
    onnx.TensorProto.INT8,
    onnx.TensorProto.INT32,
)
S, Z = (FLOAT, []), (INT8, [])
"""A scale and a zero point."""


@pytest.mark.parametrize(
    ("op", "inputs", "attributes", "wanted"),
    [
        ("FusedConv", [(FLOAT, [1, 3, 8, 8]), (FLOAT, [5, 3, 3, 3])], {}, (FLOAT, [1, 5, 6, 6])),
        (
            "QLinearConv",
            [(UINT8, [1, 8, 8, 3]), S, (UINT8, []), (INT8, [5, 3, 3, 3]), S, Z, S, Z],
            {"channels_last": 1},
            (INT8, [1, 6, 6, 5]),
        ),
        ("QGemm", [(INT8, [4, 6]), S, Z, (INT8, [6, 5]), S, Z, (INT32, [5]), S, Z], {}, (INT8, [4, 5])),
        ("QGemm", [(INT8, [4, 6]), S, Z, (INT8, [5, 6]), S, Z], {"transB": 1}, (FLOAT, [4, 5])),
        ("QLinearAdd", [(INT8, [4, 1]), S, Z, (INT8, [3]), S, Z, S, Z], {}, (INT8, [4, 3])),
        (
            "QLinearWhere",
            [(onnx.TensorProto.BOOL, [4, 1]), (INT8, [3]), S, Z, (INT8, [2, 1, 1]), S, Z, S, Z],
            {},
            (INT8, [2, 4, 3]),
        ),
        (
            "QLinearConcat",
            [S, Z, (INT8, [2, 3]), S, Z, (INT8, [2, 4]), S, Z, (INT8, [2, 5]), S, Z],
            {"axis": 1},
            (INT8, [2, 12]),
        ),
        ("QuantizeLinear", [(FLOAT, [2, 3]), S], {}, (UINT8, [2, 3])),
        ("QuantizeLinear", [(FLOAT, [2, 3]), S, Z], {}, (INT8, [2, 3])),
        ("MatMulInteger16", [(INT8, [2, 3, 4]), (INT8, [4, 5])], {}, (INT32, [2, 3, 5])),
        ("GridSample", [(FLOAT, [2, 3, 8, 8]), (FLOAT, [2, 4, 5, 2])], {}, (FLOAT, [2, 3, 4, 5])),
    ],
)
def test_types_and_shapes(
    op: str, inputs: list[tuple[int, list[int]]], attributes: dict[str, object], wanted: tuple[int, list[int]]
) -> None:
    names = [f"x{place}" for place in range(len(inputs))]
    node = onnx.helper.make_node(op, names, ["y"], domain="com.microsoft", **attributes)
    infos = [
        onnx.helper.make_tensor_value_info(name, *what) for name, what in zip(names, inputs, strict=True)
    ]
    y = onnx.helper.make_tensor_value_info("y", wanted[0], None)
    found = equivalents.infer(ir.serde.deserialize_graph(onnx.helper.make_graph([node], "g", infos, [y]))[0])
    assert found is not None
    kind = found["y"].tensor_type
    assert (kind.elem_type, [axis.dim_value for axis in kind.shape.dim]) == wanted
