"""Which steps use which weights, by way of what is computed from weights alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sharding.search.problem import Choice, Value
from sharding.search.reuse import Reuse


def _problem(**more: Any) -> Any:
    """x is 0; the weights 1 and 2 count, 3 does not. Step 0 and 1 turn 1 twice (values 4 and 5); steps 2 and
    3 use that, 3 with 2 besides; step 4 uses 1 itself, and step 5 only 3."""
    weight, made = Value(1, weight=True, counted=True, constant=True), Value(1, constant=True)
    plain = Value(1)
    values = [plain, weight, weight, Value(1, weight=True, constant=True), made, made, *[plain] * 4]
    inputs = [(1,), (4, None), (0, 5), (6, 5, 2), (7, 1), (8, 3)]
    outputs = [(4,), (5,), (6,), (7,), (8,), (9,)]
    found = {"values": values, "inputs": inputs, "outputs": outputs, "weight_outputs": [], **more}
    choice = Choice((), (), 0, 0)
    return SimpleNamespace(choices=[[choice]] * len(inputs), **found)


def test_a_use_has_all_steps_that_lead_to_it() -> None:
    reuse = Reuse(_problem())
    assert reuse.counts == {1: 3}
    assert [(use.step, use.cone, use.roots) for use in reuse.uses] == [
        (2, (0, 1), frozenset({1})),
        (3, (0, 1), frozenset({1, 2})),
        (4, (), frozenset({1})),
    ]


def test_each_use_apart_has_a_weight_and_its_steps_of_its_own() -> None:
    problem, steps = Reuse(_problem()).apart()
    assert steps == [0, 1, 2, 0, 1, 3, 4, 5]
    assert problem.inputs == [
        (10,), (11, None), (0, 12), (13,), (14, None), (6, 15, 2), (7, 16), (8, 3)
    ]  # fmt: skip
    assert problem.outputs == [(11,), (12,), (6,), (14,), (15,), (7,), (8,), (9,)]
    uses = [index for index, value in enumerate(problem.values) if value.last_use >= 0]
    assert [problem.values[index].last_use for index in uses] == [2, 5, 7, 5, 6, 7, 0, 1, 2, 3, 4, 5, 6]
    assert uses == [0, 2, 3, 6, 7, 8, 10, 11, 12, 13, 14, 15, 16]


def test_what_is_an_output_of_the_model_is_not_taken_apart() -> None:
    assert Reuse(_problem(weight_outputs=[1])).counts == {}
    problem = _problem()
    problem.values[5] = Value(1, constant=True, output=0)
    assert Reuse(problem).counts == {}
