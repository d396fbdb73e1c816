"""What operators do with lengths and row numbers of a batch: the whole's 6 rows are two parts of 3."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from sharding.pipeline.rows import ROW_RULES, Length, Relation, RowIndices, RowNumber, Rows
from sharding.rules.base import NodeView
from sharding.slices.placement import REPLICATED, Split

ROWS, WAYS = 3, 2
BATCH = Length(np.asarray(6), np.asarray(3))
ONE = Length(np.asarray(1), np.asarray(2))
"""1 in the whole's run only."""


def _related(
    op_type: str,
    inputs: list[Relation],
    whole: list[int],
    part: list[int],
    shapes: list[Any] | None = None,
    constants: list[Any] | None = None,
    **attributes: int,
) -> Relation | None:
    shapes = shapes or [[]] * len(inputs)
    arrays = [None if item is None else np.asarray(item) for item in constants or [None] * len(inputs)]
    view = NodeView(
        op_type, "", 18, 1, attributes, shapes, [None] * len(inputs), arrays, [True] * len(inputs), [whole]
    )
    return ROW_RULES[op_type](Rows(view, inputs, whole, part, WAYS, ROWS))


@pytest.mark.parametrize(
    ("inputs", "constants", "numbers"),
    [
        ([REPLICATED, BATCH, REPLICATED], [0, None, 1], True),
        ([REPLICATED, BATCH, REPLICATED], [1, None, 1], False),
        ([REPLICATED, BATCH, REPLICATED], [0, None, 2], False),
        ([REPLICATED, BATCH, REPLICATED], [None, None, 1], False),
        ([REPLICATED, BATCH, REPLICATED], [0, None, None], False),
        ([REPLICATED, BATCH, ONE], [0, None, 1], False),
        ([Length(np.asarray(0), np.asarray(1)), BATCH, REPLICATED], [0, None, 1], False),
        ([REPLICATED, Length(np.asarray(12), np.asarray(6)), REPLICATED], [0, None, 1], False),
        ([REPLICATED, REPLICATED, REPLICATED], [0, 6, 1], False),
    ],
)
def test_a_range_counts_rows_from_0_by_1(inputs: list[Relation], constants: list[Any], numbers: bool) -> None:
    assert _related("Range", inputs, [6], [3], constants=constants) == (RowNumber(0) if numbers else None)


@pytest.mark.parametrize(
    ("data", "shape", "whole", "part", "target", "found"),
    [
        (REPLICATED, [1, 4], [6, 4], [3, 4], None, Split(0)),
        (REPLICATED, [4], [6, 4], [3, 4], None, Split(0)),
        (REPLICATED, [6, 4], [6, 4], [3, 4], None, None),
        (Split(0), [6, 4], [6, 4], [3, 4], [1, 4], Split(0)),
        (Split(0), [6, 1], [6, 4], [3, 4], [4], Split(0)),
        (Split(0), [6, 4], [6, 4], [3, 4], [6, 1], Split(0)),
        (Split(0), [6, 4], [6, 4], [3, 4], [5, 4], None),
        (Split(0), [6, 4], [6, 4], [3, 4], None, None),
        (Split(1), [6, 4], [6, 4], [3, 4], [1, 4], None),
        (RowNumber(0, 5), [6, 1], [2, 6, 4], [2, 3, 4], None, RowNumber(1, 5)),
        (RowNumber(1, 5), [6, 1], [2, 6, 4], [2, 3, 4], None, None),
        (RowNumber(0), [6, 1], [6, 4], [6, 4], None, None),
        (BATCH, [], [6, 4], [3, 4], None, None),
    ],
)
def test_what_is_expanded(
    data: Relation, shape: list[int], whole: list[int], part: list[int], target: Any, found: Relation | None
) -> None:
    inputs = [data, REPLICATED]
    assert _related("Expand", inputs, whole, part, [shape, [2]], [None, target]) == found


@pytest.mark.parametrize(
    ("start", "end", "step", "found"),
    [
        (0, Length(np.asarray([6]), np.asarray([3])), 1, REPLICATED),  # both beyond the axis of 2
        (0, Length(np.asarray([2]), np.asarray([1])), 1, None),
        (Length(np.asarray([6]), np.asarray([3])), 9, 1, REPLICATED),
        (Length(np.asarray([-1]), np.asarray([-2])), 9, 2, None),
        (1, Length(np.asarray([6]), np.asarray([3])), -1, REPLICATED),  # nothing, in both runs
    ],
)
def test_bounds_of_a_batch_are_cut_to_another_axis(start: Any, end: Any, step: int, found: Any) -> None:
    given = [start, end, [1], [step]]
    inputs = [REPLICATED, *(item if isinstance(item, Length) else REPLICATED for item in given)]
    constants = [None, *(None if isinstance(item, Length) else np.atleast_1d(item) for item in given)]
    assert _related("Slice", inputs, [3, 2], [3, 2], [[3, 2], [1], [1], [1], [1]], constants) == found
    assert _related("Slice", [Split(0), *inputs[1:]], [3, 2], [3, 2], [[3, 2]], constants) is None


@pytest.mark.parametrize(
    ("op_type", "inputs", "shapes", "found"),
    [
        ("Add", [RowNumber(0, 4), REPLICATED], [[6, 1], [7]], RowNumber(0, 4)),
        ("Add", [REPLICATED, RowNumber(0, 4)], [[7], [6, 1]], RowNumber(0, 4)),
        ("Sub", [RowNumber(0), Split(0)], [[6, 1], [6, 7]], RowNumber(0)),
        ("Sub", [REPLICATED, RowNumber(0)], [[7], [6, 1]], None),
        ("Add", [RowNumber(0), Split(1)], [[6, 1], [1, 6]], None),
        ("Add", [RowNumber(0), BATCH], [[6, 1], []], None),
        ("Add", [RowNumber(1), REPLICATED], [[6, 1], [7]], None),
        ("Add", [RowNumber(0), Split(0)], [[6, 1], None], None),
    ],
)
def test_what_is_added_to_row_numbers(
    op_type: str, inputs: list[Relation], shapes: list[Any], found: Relation | None
) -> None:
    assert _related(op_type, inputs, [6, 7], [3, 7], shapes) == found


@pytest.mark.parametrize(
    ("inputs", "factor", "found"),
    [
        ([RowNumber(0, 2), REPLICATED], 5, RowNumber(0, 10)),
        ([REPLICATED, RowNumber(0)], [5], RowNumber(0, 5)),
        ([RowNumber(0), REPLICATED], 0, None),
        ([RowNumber(0), REPLICATED], -5, None),
        ([RowNumber(0), REPLICATED], 5.0, None),
        ([RowNumber(0), REPLICATED], [5, 5], None),
        ([RowNumber(0), REPLICATED], None, None),
        ([RowNumber(0), Length(np.asarray(5), np.asarray(4))], 5, None),
    ],
)
def test_row_numbers_times_a_number(inputs: list[Relation], factor: Any, found: Relation | None) -> None:
    place = 1 if isinstance(inputs[0], RowNumber) else 0
    constants = [factor if at == place else None for at in range(2)]
    assert _related("Mul", inputs, [6], [3], [[6], [6]], constants) == found


@pytest.mark.parametrize(
    ("inputs", "shape", "axis", "found"),
    [
        ([RowNumber(0), Split(0)], [6, 1], -1, RowIndices(0)),
        ([RowNumber(0), Split(0), Split(0)], [6, 1], 1, RowIndices(0)),
        ([RowNumber(0), REPLICATED], [6, 1], 1, None),
        ([RowNumber(0, 2), Split(0)], [6, 1], 1, None),
        ([RowNumber(0), Split(0)], [6, 2], 1, None),
        ([RowNumber(0), Split(0)], [6, 1], 0, None),
        ([Split(0), RowNumber(0)], [6, 1], 1, None),
    ],
)
def test_indices_begin_with_the_number_of_their_row(
    inputs: list[Relation], shape: list[int], axis: int, found: Relation | None
) -> None:
    shapes = [shape] + [[6, 1]] * (len(inputs) - 1)
    assert _related("Concat", inputs, [6, 2], [3, 2], shapes, axis=axis) == found


@pytest.mark.parametrize(
    ("op_type", "inputs", "more", "found"),
    [
        ("GatherND", [Split(0), RowIndices(0)], {}, Split(0)),
        ("GatherND", [Split(0), RowIndices(1)], {}, None),
        ("GatherND", [Split(1), RowIndices(0)], {}, None),
        ("GatherND", [Split(0), RowIndices(0)], {"batch_dims": 1}, None),
        ("GatherND", [Split(0), RowNumber(0)], {}, None),
        ("Gather", [Split(0), RowNumber(0, 4)], {}, Split(0)),
        ("Gather", [Split(0), RowNumber(0, 2)], {}, None),
        ("Gather", [Split(0), RowNumber(1, 4)], {}, None),
        ("Gather", [Split(0), RowNumber(0, 4)], {"axis": 1}, None),
        ("Gather", [REPLICATED, RowNumber(0, 4)], {}, None),
    ],
)
def test_what_is_gathered(
    op_type: str, inputs: list[Relation], more: dict[str, int], found: Relation | None
) -> None:
    shapes = [[24, 5] if op_type == "Gather" else [6, 5], [6, 1]]
    assert _related(op_type, inputs, [6, 5], [3, 5], shapes, **more) == found


@pytest.mark.parametrize(
    ("op_type", "data", "shape", "whole", "part", "found"),
    [
        ("Cast", RowNumber(0, 2), [6], [6], [3], RowNumber(0, 2)),
        ("Cast", BATCH, [], [], [], None),
        ("Unsqueeze", RowNumber(0, 2), [6], [1, 6], [1, 3], RowNumber(1, 2)),
        ("Squeeze", Split(0), [6, 1], [6], [3], None),
        ("Reshape", RowNumber(1, 2), [1, 6], [6, 1, 1], [3, 1, 1], RowNumber(0, 2)),
        ("Reshape", RowNumber(0), [6, 2], [6, 2], [3, 2], None),
        ("Reshape", RowNumber(0), [6, 2], [12], [6], None),
        ("ConstantOfShape", BATCH, [2], [6, 4], [3, 4], Split(0)),
        ("ConstantOfShape", REPLICATED, [2], [6, 4], [3, 4], None),
        ("ConstantOfShape", BATCH, [2], [6, 4], [6, 4], None),
        ("ConstantOfShape", BATCH, [2], [6, 6], [3, 3], None),
        ("ConstantOfShape", BATCH, [2], [7, 4], [3, 4], None),
    ],
)
def test_what_only_moves_or_fills(
    op_type: str, data: Relation, shape: list[int], whole: list[int], part: list[int], found: Relation | None
) -> None:
    assert _related(op_type, [data, REPLICATED], whole, part, [shape, [1]]) == found
