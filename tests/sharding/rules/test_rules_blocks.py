"""Which block counts are found in a graph."""

from __future__ import annotations

from typing import Any

import numpy as np

from sharding.rules import RULES
from sharding.rules.base import Dim, NodeView
from sharding.rules.blocks import MAX_PER_LENGTH, block_counts, offered
from sharding.slices.placement import Split


def _view(op: str, shapes: list[list[Dim]], outputs: list[list[Dim]], **attributes: Any) -> NodeView:
    count = len(shapes)
    return NodeView(
        op_type=op,
        domain="",
        version=11,
        world=2,
        attributes=attributes,
        shapes=shapes,
        dtypes=[np.dtype(np.float32)] * count,
        constants=[None] * count,
        present=[True] * count,
        output_shapes=outputs,
    )


def _counts(views: list[NodeView]) -> dict[int, tuple[int, ...]]:
    return block_counts([offered(view, {}) for view in views])


def test_a_fused_weight_is_held_in_three_blocks() -> None:
    product = _view("MatMul", [["n", 64], [64, 192]], [["n", 192]])
    cut = _view("Split", [["n", 192]], [["n", 64]] * 3, axis=1)
    counts = _counts([product, cut])
    assert counts == {192: (3,)}
    options = RULES["", "MatMul"](_with(product, counts))
    assert any(option.inputs[1] == Split(1, 3) and option.outputs == (Split(1, 3),) for option in options)


def test_blocks_of_joined_pieces_are_found_through_each_other() -> None:
    """96 + 32 is three blocks and one, so 96 is held in three wherever it appears."""
    joined = _view("Concat", [["n", 96], ["n", 32]], [["n", 128]], axis=1)
    reshaped = _view("Flatten", [["n", 1, 96]], [["n", 96]], axis=1)
    assert _counts([joined, reshaped]) == {96: (3,), 128: (4,)}


def test_heads_are_no_blocks() -> None:
    """Merging 12 heads of 64 could cut every head; that many blocks are not worth an option in each node."""
    merged = _view("Flatten", [["n", 12, 64]], [["n", 768]], axis=1)
    assert _counts([merged]) == {}


def test_few_are_kept_for_one_length() -> None:
    pieces = [
        _view("Concat", [["n", 24]] * count, [["n", 24 * count]], axis=1)
        for count in (1, 2, 3, 4, 6, 8, 12, 24)
    ]
    tiles = [_view("Split", [["n", 576]], [["n", 576 // n]] * n, axis=1) for n in (2, 3, 4, 6, 8, 9, 12)]
    counts = _counts(pieces + tiles)
    assert counts[576] == (2, 3, 4, 6) and len(counts[576]) == MAX_PER_LENGTH


def test_unknown_operators_are_no_hindrance() -> None:
    assert _counts([_view("NoSuchOperator", [["n", 4]], [["n", 4]])]) == {}


def _with(view: NodeView, counts: dict[int, tuple[int, ...]]) -> NodeView:
    return NodeView(**{**view.__dict__, "block_counts": counts})
