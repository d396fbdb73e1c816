"""What rules offer where a parameter says that something cannot be cut, or that it can."""

from __future__ import annotations

import numpy as np
import pytest

from sharding.rules.base import RULES, NodeView
from sharding.slices.placement import Split


def _view(op_type: str, domain: str, shapes: list[list[int] | None], **more: object) -> NodeView:
    fields: dict[str, object] = {
        "version": 18,
        "world": 2,
        "attributes": {},
        "dtypes": [None if shape is None else np.dtype(np.float32) for shape in shapes],
        "constants": [None] * len(shapes),
        "present": [shape is not None for shape in shapes],
        "output_shapes": [shapes[0]],
        **more,
    }
    return NodeView(op_type, domain, shapes=shapes, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(("axes", "cut"), [([0], True), (1, True), ([0, 1], False), ([], False)])
@pytest.mark.parametrize("op_type", ["CumSum", "CumProd"])
def test_an_axis_is_one_number(op_type: str, axes: list[int] | int, cut: bool) -> None:
    axis = np.asarray(axes, np.int64)
    options = RULES["", op_type](_view(op_type, "", [[4, 4], list(axis.shape)], constants=[None, axis]))
    assert any(isinstance(option.inputs[0], Split) for option in options) is cut


@pytest.mark.parametrize(("rows", "cut"), [(4, True), (1, False), (None, True)])
def test_positions_of_each_row_go_with_their_rows(rows: int | None, cut: bool) -> None:
    """Positions that are the same for all rows are one row, which no two ranks can part."""
    positions = None if rows is None else [rows, 1]
    cache = [4, 2, 6, 16]
    shapes = [[4, 1, 64], [4, 1, 32], [4, 1, 32], cache, cache, [4], [], [9, 8], [9, 8], positions]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    made = [[4, 1, 64], [4, 2, 7, 16], [4, 2, 7, 16]]
    view = _view("GroupQueryAttention", "com.microsoft", shapes, attributes=attributes, output_shapes=made)
    options = RULES["com.microsoft", "GroupQueryAttention"](view)
    batches = [option for option in options if option.inputs[0] == Split(0)]
    assert bool(batches) is cut
    for option in batches if rows else []:
        assert option.inputs[9] == Split(0)


@pytest.mark.parametrize(("axes", "cut"), [([0], {1}), ([0, 1], set()), ([1], {0})])
def test_a_slice_has_a_start_and_an_end_for_each_axis(axes: list[int], cut: set[int]) -> None:
    """Where it has not, nothing is known of those axes; ONNX Runtime refuses such a node when it runs."""
    numbers = [np.asarray(item, np.int64) for item in ([1], [3], axes)]
    shapes = [[4, 4], *(list(item.shape) for item in numbers)]
    options = RULES["", "Slice"](_view("Slice", "", shapes, constants=[None, *numbers]))
    found = [option.inputs[0] for option in options]
    assert {item.axis for item in found if isinstance(item, Split) and item.blocks == 1} == cut


def test_what_is_repeated_no_time_is_not_cut() -> None:
    """An axis that becomes empty; the other is cut as it would be."""
    options = RULES["", "Tile"](_view("Tile", "", [[4, 4], [2]], constants=[None, np.asarray([0, 3])]))
    found = {(option.inputs[0], option.outputs[0]) for option in options}
    assert {pair for pair in found if isinstance(pair[0], Split)} == {(Split(1), Split(1, 3))}


@pytest.mark.parametrize(
    ("shapes", "cut"), [([[4, 6], [6, 8]], True), ([None, [6, 8]], False), ([[4, 6], None], False)]
)
def test_a_product_of_unknown_factors_is_not_cut(shapes: list[list[int] | None], cut: bool) -> None:
    more: list[list[int] | None] = [[8], [8], [8]]
    view = _view(
        "DynamicQuantizeMatMul", "com.microsoft", [*shapes, *more], present=[True] * 5, output_shapes=[[4, 8]]
    )
    assert bool(RULES["com.microsoft", "DynamicQuantizeMatMul"](view)) is cut


@pytest.mark.parametrize(("width", "cut"), [(128, True), (132, False), (None, False)])
def test_packed_heads_are_equally_wide(width: int | None, cut: bool) -> None:
    """Four heads of queries, two of keys and two of values."""
    shapes: list[list[int] | None] = [[3, 1, width], None, None, None, None, [3], []]  # type: ignore[list-item]
    attributes = {"num_heads": 4, "kv_num_heads": 2}
    made = [[3, 1, 64], [3, 2, 7, 16], [3, 2, 7, 16]]
    view = _view("GroupQueryAttention", "com.microsoft", shapes, attributes=attributes, output_shapes=made)
    assert bool(RULES["com.microsoft", "GroupQueryAttention"](view)) is cut
