"""Values pinned to a placement are brought there at once, and the result stays the same."""

from dataclasses import replace
from pathlib import Path

import pytest

import sharding
from sharding.errors import SliceError
from sharding.search.solve import solve
from sharding.slices.placement import PARTIAL, REPLICATED, Placement, Split
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep

TEXT = """g (float[2, 16] x) => (float[2, 8] y) {
  a = MatMul(x, w1)
  b = Relu(a)
  c = MatMul(b, w2)
  y = Relu(c)
}"""


@pytest.mark.parametrize(
    ("pinned", "collectives"),
    [
        ({}, ["AllReduce"]),
        ({"a": REPLICATED}, ["AllGather", "AllGather"]),
        ({"b": Split(0)}, None),
        ({"c": REPLICATED}, ["AllReduce"]),
        ({"c": Split(1)}, ["AllGather", "AllGather"]),
        ({"c": PARTIAL}, ["AllReduce"]),
        ({"y": Split(1), "x": Split(1), "w1": REPLICATED}, ["AllGather", "AllGather"]),
    ],
    ids=str,
)
def test_pinned_values(tmp_path: Path, pinned: dict[str, Placement], collectives: list[str] | None) -> None:
    path = graphs.save(tmp_path / "model.onnx", TEXT, {"w1": graphs.array(16, 32), "w2": graphs.array(32, 8)})
    plan = sharding.plan_model(path, 2)
    graph = plan.source.model.graph
    values = {value.name: value for step in plan.steps for value in step.node.outputs}
    values |= {value.name: value for value in (*graph.inputs, *graph.initializers.values())}
    choices = solve(plan.source, list(plan.steps), 2, {values[name]: where for name, where in pinned.items()})
    placed: dict[str | None, Placement] = {}
    for step, choice in zip(plan.steps, choices, strict=True):
        placed.update(zip((v.name for v in step.node.outputs), step.options[choice].outputs, strict=True))
    assert {name: placed[name] for name in pinned if name in placed} == {
        name: where for name, where in pinned.items() if name in placed
    }
    write_slices(replace(plan, choices=choices), tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, {"x": graphs.array(2, 16)})
    assert collectives is None or lockstep.collectives(tmp_path / "slices") == collectives


@pytest.mark.parametrize(
    ("name", "where", "message"),
    [
        ("a", Split(2), r"value 'a' cannot be brought to split:2: its shape \[2, 32\] does not divide so"),
        ("b", PARTIAL, r"value 'b' cannot be brought to partial: Relu 'relu' cannot make it as summands"),
        ("y", Split(1, 3), r"value 'y' cannot be brought to split:1/3"),
    ],
)
def test_placements_that_cannot_be(tmp_path: Path, name: str, where: Placement, message: str) -> None:
    path = graphs.save(tmp_path / "model.onnx", TEXT, {"w1": graphs.array(16, 32), "w2": graphs.array(32, 8)})
    plan = sharding.plan_model(path, 2)
    for step in plan.steps:
        step.node.name = step.node.op_type.lower()
    value = next(value for step in plan.steps for value in step.node.outputs if value.name == name)
    with pytest.raises(SliceError, match=message):
        solve(plan.source, list(plan.steps), 2, {value: where})
