"""Group normalizations whose groups do not come out even are refused, as far as shapes are known."""

from __future__ import annotations

from pathlib import Path

import onnx_ir as ir
import pytest

from sharding.errors import ModelError
from sharding.reading.groups import check_groups


@pytest.mark.parametrize(
    ("opset", "data", "scale", "why"),
    [
        (21, ["n", 6, 5], [6], ""),
        (21, ["n", 7, 5], [7], "7 channels cannot be cut into 3 groups"),
        (21, ["n", 6, 5], [3], "its scale has the shape [3]; expected [6], one number for each channel"),
        (21, ["n", 6, 5], ["c"], ""),
        (21, ["n", 6, 5], [6, 1], "its scale has the shape"),
        (21, ["n", "c", 5], [7], ""),
        (21, ["n"], [7], ""),
        (21, None, [7], ""),
        (21, ["n", 6, 5], None, ""),
        (18, ["n", 6, 5], [3], ""),
        (18, None, [6], "its scale has the shape [6]; expected [3], one number for each group"),
    ],
)
def test_groups(opset: int, data: list[int | str] | None, scale: list[int | str] | None, why: str) -> None:
    shapes = (data, scale, None)
    values = [
        ir.Value(name=f"x{place}", shape=None if shape is None else ir.Shape(shape))
        for place, shape in enumerate(shapes)
    ]
    node = ir.Node("", "GroupNormalization", values, [ir.AttrInt64("num_groups", 3)])
    graph = ir.Graph(values, node.outputs, nodes=[node], opset_imports={"": opset})
    model = ir.Model(graph, ir_version=9)
    if not why:
        check_groups(model, Path("m.onnx"))
        return
    with pytest.raises(ModelError) as caught:
        check_groups(model, Path("m.onnx"))
    assert why in str(caught.value)
