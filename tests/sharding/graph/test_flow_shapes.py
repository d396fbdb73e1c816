"""Shapes of what passes the markers of opened bodies."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from sharding.graph.flow_shapes import infer
from sharding.rules.flow import FLOW


def _shape(op_type: str, *shapes: list[int | str | None], axis: int = 0) -> list[int | str | None]:
    inputs = [
        ir.Value(name=f"x{n}", shape=ir.Shape(shape), type=ir.TensorType(ir.DataType.FLOAT))
        for n, shape in enumerate(shapes)
    ]
    node = ir.Node(FLOW, op_type, inputs, [ir.AttrInt64("axis", axis)], outputs=[ir.Value(name="y")])
    axes = infer(node)["y"].tensor_type.shape.dim
    return [item.dim_param or (item.dim_value if item.HasField("dim_value") else None) for item in axes]


@pytest.mark.parametrize(
    ("then", "other", "both"),
    [
        ([2, 3], [2, 3], [2, 3]),
        ([2, 3], [2, 4], [2, None]),
        ([2, "n"], [5, "n"], [None, "n"]),
        ([2, "n"], [2, "m"], [2, None]),
    ],
)
def test_an_if_gives_what_both_branches_have(
    then: list[int | str | None], other: list[int | str | None], both: list[int | str | None]
) -> None:
    assert _shape("Leave", [], then, other) == both


@pytest.mark.parametrize(
    ("axis", "stacked", "taken"),
    [(0, [None, 2, 3], [3]), (1, [2, None, 3], [2]), (-1, [2, 3, None], [2]), (-2, [2, None, 3], [3])],
)
def test_a_scan_takes_elements_off_an_axis_and_stacks_them(
    axis: int, stacked: list[int | None], taken: list[int]
) -> None:
    assert _shape("Stack", [], [2, 3], axis=axis) == stacked
    assert _shape("Element", [2, 3], axis=axis) == taken
