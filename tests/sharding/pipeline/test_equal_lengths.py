"""Which two lengths a node refuses, where both are known."""

from __future__ import annotations

from typing import TypeAlias

import onnx_ir as ir
import pytest

from sharding.pipeline.equal_lengths import Meeting, meeting_of

Shape: TypeAlias = "list[int | str] | None"


@pytest.mark.parametrize(
    ("op_type", "shapes", "met"),
    [
        ("Add", [[2, 3], [2, 4]], Meeting((3, 4), True)),
        ("Add", [[2, 3], [1, 3], [4, 1, 1]], None),
        ("Add", [[5, 2, 3], [4, 2, 3]], Meeting((5, 4), True)),
        ("Add", [[4, "n"], [3]], None),  # n may be 3
        ("Add", [[4], None], None),
        ("MatMul", [[2, 3], [4, 5]], Meeting((3, 4), False)),
        ("MatMul", [[6, 2, 3], [7, 3, 5]], Meeting((6, 7), True)),
        ("MatMul", [[6, 2, 3], [3, 2]], None),
        ("MatMul", [[3], [4, 5]], None),
        ("Concat", [[2, 3], [4, 5]], Meeting((2, 4), False)),
        ("Concat", [[2, 3], [2, 5]], None),
        ("Concat", [[2, 3], [2, 3, 1]], None),
        ("Gather", [[2, 3], [4]], None),
    ],
)
def test_the_first_two_lengths_that_do_not_go_together(
    op_type: str, shapes: list[Shape], met: Meeting | None
) -> None:
    inputs = [ir.Value(shape=None if shape is None else ir.Shape(shape)) for shape in shapes]
    assert meeting_of(ir.Node("", op_type, inputs, [ir.AttrInt64("axis", 1)])) == met


@pytest.mark.parametrize(
    ("axis", "met"), [(-1, None), (-2, Meeting((3, 5), False)), (None, Meeting((3, 5), False))]
)
def test_the_axis_of_a_concat_may_count_from_the_end(axis: int | None, met: Meeting | None) -> None:
    """Without one it is the first."""
    inputs = [ir.Value(shape=ir.Shape(shape)) for shape in ([2, 3], [2, 5])]
    given = [] if axis is None else [ir.AttrInt64("axis", axis)]
    assert meeting_of(ir.Node("", "Concat", inputs, given)) == met
