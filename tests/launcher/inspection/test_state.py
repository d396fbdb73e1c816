"""What is said of state: of a plan and of a slice folder alike, as text, as JSON and on the page."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import sharding
from launcher.errors import ConfigError
from launcher.inspection.inspection import of_plan, of_slices
from launcher.inspection.page import render
from launcher.job.slicing import slicing_of
from sharding.demands.options import SliceOptions
from sharding.graph.state_size import StateSize, joined_shape, state_size
from sharding.slices.mesh import parse_mesh
from sharding.slices.state import StatePair
from sharding.writing.write import write_slices
from tests.sharding import graphs
from tests.sharding.llama import sized


@pytest.mark.parametrize(
    ("mesh", "said"),
    [
        # Three layers, each with keys and values of two heads of 8 numbers.
        ("tensor=2", "6 pairs, 192 B per token and rank (384 B whole), split:1"),
        ("tensor=4", "6 pairs, 192 B per token and rank (384 B whole), split:1*2"),
        ("pipeline=2,tensor=2", "6 pairs, 128 B per token and rank (384 B whole), split:1"),
    ],
)
def test_a_plan_and_its_slices_say_the_same(tmp_path: Path, mesh: str, said: str) -> None:
    model = sized(kv_heads=2, cache=True, layers=3).save(tmp_path / "model.onnx")
    asked = parse_mesh(mesh)
    options = SliceOptions(mesh=asked)
    plan = sharding.plan_model(model, asked.size, options=options)
    planned = of_plan(plan, {})
    manifest = write_slices(plan, tmp_path / "slices")  # as slice_model does
    sliced = of_slices(tmp_path / "slices", manifest, {})
    assert planned.state == sliced.state and planned.state is not None
    assert sliced.to_json()["micro_batches"] == manifest.micro_batches
    assert (
        of_slices(tmp_path / "slices", replace(manifest, micro_batches=4), {}).to_json()["micro_batches"] == 4
    )
    assert planned.state.text() == said
    data = json.loads(json.dumps(planned.to_json()))["state"]
    assert data["pairs"] == 6 and data["token_bytes"] == 384 and data["fixed_bytes"] == 0
    assert said in render(planned)


def test_a_model_without_state_says_nothing(tmp_path: Path) -> None:
    planned = of_plan(sharding.plan_model(graphs.mlp(tmp_path / "mlp.onnx"), 2), {})
    assert planned.state is None and "state" not in planned.to_json() and ">state<" not in render(planned)
    assert "reason" not in planned.to_json()
    chosen = replace(planned, reason="it is the quickest")
    assert chosen.to_json()["reason"] == "it is the quickest"
    assert {key: text for key, text in chosen.to_json().items() if key != "reason"} == planned.to_json()


def test_bytes_of_caches_and_of_states() -> None:
    """Of the stage that keeps most; a state of fixed length is for one sequence."""
    grows = StatePair("a", "b", 2, "append", placement="split:1")
    fixed = StatePair("c", "d")
    kept = [
        (grows, 0, "float16", ["batch", 4, "past", 8]),
        (grows, 1, "float16", ["batch", 4, "past", 8]),
        (grows, 1, "float16", ["batch", 4, "past", 8]),
        (fixed, 0, "float32", [2, "batch", 16]),
    ]
    assert state_size(kept, 2, {"batch": 1}) == StateSize(4, 192, 64, 128, 128, ("split:1", "replicated"))
    assert state_size([], 2, {}) is None
    assert joined_shape(["b", "x", 3], [None, 4, "y"]) == ["b", 4, 3]


def test_pairs_are_given_as_flags_and_in_job_files(tmp_path: Path) -> None:
    said = slicing_of({"state": ["a=b", "c=d"]})
    assert said.options().state == {"a": "b", "c": "d"} and said.given == ["--state"]
    assert slicing_of({}).given == [] and slicing_of({}).options().state == {}
    for texts, what in (
        (["a"], "expected INPUT=OUTPUT"),
        (["a=b", "a=c"], "given twice"),
        (["=b"], "expected"),
    ):
        with pytest.raises(ConfigError, match=what):
            slicing_of({"state": texts})
