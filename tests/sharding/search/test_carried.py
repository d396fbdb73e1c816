"""The ways in which what loops carry is placed alike in all turns."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import onnx_ir as ir
import pytest

from sharding.rules.flow import FLOW
from sharding.search.carried import carried_ways
from sharding.search.problem import WHOLE, Choice

ROWS, COLUMNS = 2, 3
MARKERS = [("Carry", 0), ("Carry", 1), ("Back", 0), ("Back", 1), ("Last", 0), ("Last", 1)]
"""Those of a loop that carries two values, and which of the two each is of."""
ALL = (WHOLE, ROWS, COLUMNS)


def _ways(chosen: list[int], offered: dict[int, tuple[int, ...]]) -> list[list[list[int]]]:
    """Of each way the placements that are left to each marker. ``chosen``: those that the search chose."""

    def choices(place: int) -> list[Choice]:
        return [Choice((0, p), (p,), 0, n) if _is_last(place) else Choice((p,), (p,), 0, n)
                for n, p in enumerate(offered.get(place, ALL))]  # fmt: skip

    def step(op_type: str, value: int, domain: str = FLOW) -> Any:
        attributes = {"region": ir.AttrInt64("region", 7), "index": ir.AttrInt64("index", value)}
        return SimpleNamespace(
            node=SimpleNamespace(op_type=op_type, domain=domain, attributes=attributes), options=ALL
        )

    graph = [step(*marker) for marker in MARKERS]
    for place, (found, taken) in enumerate(zip(graph, map(choices, range(len(MARKERS))), strict=True)):
        found.options = taken
        assert chosen[place] in {choice.outputs[0] for choice in taken}
    problem: Any = SimpleNamespace(choices=[found.options for found in graph])
    problem.option = lambda index, number: graph[index].options[number]
    numbers = [[c.outputs[0] for c in found.options].index(p) for found, p in zip(graph, chosen, strict=True)]
    ways = carried_ways(problem, graph, numbers)
    assert [found.options for found in graph] == problem.choices  # ways are copies
    return [[[choice.outputs[0] for choice in left] for left in way.choices] for way in ways]


def _is_last(place: int) -> bool:
    return MARKERS[place][0] == "Last"


@pytest.mark.parametrize(
    ("chosen", "offered", "pinned"),
    [
        pytest.param([ROWS, WHOLE, ROWS, WHOLE, ROWS, WHOLE], {}, [], id="alike already"),
        pytest.param(
            [WHOLE, ROWS, WHOLE, COLUMNS, WHOLE, COLUMNS], {}, [(WHOLE, ROWS), (WHOLE, COLUMNS)], id="one"
        ),
        pytest.param(
            [ROWS, WHOLE, COLUMNS, ROWS, COLUMNS, ROWS], {}, [(ROWS, WHOLE), (COLUMNS, ROWS)], id="both"
        ),
        pytest.param(
            [ROWS, ROWS, ROWS, ROWS, ROWS, WHOLE], {}, [(ROWS, ROWS), (ROWS, ROWS)], id="after the last turn"
        ),
        pytest.param(
            [ROWS, WHOLE, COLUMNS, WHOLE, COLUMNS, WHOLE],
            {4: (WHOLE, COLUMNS)},
            [(WHOLE, WHOLE), (COLUMNS, WHOLE)],
            id="what one cannot have is whole",
        ),
    ],
)
def test_each_end_of_what_differs_is_tried_for_both(
    chosen: list[int], offered: dict[int, tuple[int, ...]], pinned: list[tuple[int, int]]
) -> None:
    assert _ways(chosen, offered) == [[[way[value]] for _, value in MARKERS] for way in pinned]
