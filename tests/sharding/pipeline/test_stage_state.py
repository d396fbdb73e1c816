"""Which stage holds a state: that of all who read or give it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sharding.pipeline.stage_state import keepers, spans


def value(name: str) -> Any:
    return SimpleNamespace(
        name=name,
        is_graph_input=lambda: name.startswith("in"),
        is_graph_output=lambda: name.startswith("out"),
    )


def step(reads: str, gives: str) -> Any:
    inputs = [value(name) if name != "-" else None for name in reads.split()]
    return SimpleNamespace(inputs=inputs, node=SimpleNamespace(outputs=[value(one) for one in gives.split()]))


STATE = {"in.a": "out.a", "in.b": "out.b", "inner": "outer", "in.c": "out.c", "in.e": "e"}
GRAPH = [
    step("in.x -", "h0"), step("h0 in.a", "h1"), step("constant", "out.c"), step("h1 in.b", "out.b"),
    step("h1 inner in.c", "outer"), step("h1 in.e", "out.a"), step("in.e", "e"),
]  # fmt: skip


def test_from_the_first_to_the_last_who_reads_or_gives_it() -> None:
    """By their places among the main steps; what is no output of the graph gives no state."""
    main = [0, 1, 3, 4, 5, 6]
    assert spans(GRAPH, main, STATE) == {
        "in.a": (1, 4), "in.b": (2, 2), "inner": (3, 3), "in.c": (3, 3), "in.e": (4, 5),
    }  # fmt: skip
    assert spans(GRAPH, main, {}) == {}


def test_a_constant_that_is_a_next_value_is_where_the_state_is_read() -> None:
    stages = {0: 0, 1: 0, 3: 0, 4: 1, 5: 1, 6: 1}
    assert keepers(GRAPH, stages, STATE) == {2: 1}
    assert keepers(GRAPH, {**stages, 2: 0}, STATE) == {}  # a main step
    assert keepers(GRAPH, {0: 0}, STATE) == {}  # nobody reads it
