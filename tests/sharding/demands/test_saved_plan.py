"""Saved plans: followed to the letter, compared line by line, and refused where they do not fit."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import sharding
from sharding.common.documents import DocumentError
from sharding.demands.options import SliceOptions
from sharding.errors import SliceError
from sharding.planning.plan import Plan, plan_model
from sharding.planning.saved_plan import read_saved_plan, save_plan
from sharding.slices.mesh import Mesh, parse_mesh
from sharding.writing.write import write_slices
from tests.sharding import graphs, lockstep
from tests.sharding.graphs import array
from tests.sharding.llama import Llama

pytestmark = pytest.mark.usefixtures("read_once")


def chosen(plan: Plan) -> list[tuple[Any, Any]]:
    """The placements of every node's inputs and outputs."""
    options = [step.options[choice] for step, choice in zip(plan.steps, plan.choices, strict=True)]
    return [(option.inputs, option.outputs) for option in options]


@pytest.mark.parametrize(
    "mesh", ["tensor=2", "tensor=4", "pipeline=2,tensor=2", "tensor=2,pipeline=2", "pipeline=3"]
)
def test_a_plan_is_followed(tmp_path: Path, mesh: str) -> None:
    llama = Llama()
    path = llama.save(tmp_path / "m.onnx")
    plan = plan_model(path, parse_mesh(mesh).size, options=SliceOptions(mesh=parse_mesh(mesh)))
    save_plan(plan, tmp_path / "plan.json")
    options = SliceOptions(plan=tmp_path / "plan.json")
    again = plan_model(path, plan.world_size, options=options)
    assert chosen(again) == chosen(plan)
    assert again.weights == plan.weights and again.collectives == plan.collectives
    assert (again.stages, again.mesh, again.micro_batches) == (plan.stages, plan.mesh, plan.micro_batches)
    write_slices(again, tmp_path / "slices")
    lockstep.assert_same(tmp_path / "slices", path, llama.feeds())
    save_plan(again, tmp_path / "again.json")
    assert (tmp_path / "again.json").read_bytes() == (tmp_path / "plan.json").read_bytes()


def test_stages_are_those_of_the_plan(tmp_path: Path) -> None:
    """Also where they were moved by hand."""
    path = graphs.mlp(tmp_path / "m.onnx")
    options = SliceOptions(mesh=Mesh.of(pipeline=2), allow_replicated=True)
    save_plan(plan_model(path, 2, options=options), tmp_path / "plan.json")
    data = json.loads((tmp_path / "plan.json").read_text())
    assert data["stages"] == {"b": 1}
    for name in ("c", "b"):
        data["stages"] = {name: 1}
        (tmp_path / "plan.json").write_text(json.dumps(data))
        plan = plan_model(path, 2, options=SliceOptions(plan=tmp_path / "plan.json", allow_replicated=True))
        save_plan(plan, tmp_path / "again.json")
        assert json.loads((tmp_path / "again.json").read_text())["stages"] == data["stages"]


def test_another_choice_is_another_line(tmp_path: Path) -> None:
    """Plans are to be compared, and may be changed by hand."""
    path = graphs.mlp(tmp_path / "m.onnx", inner=48)
    file = tmp_path / "plan.json"
    save_plan(plan_model(path, 2), file)
    text = file.read_text()
    assert '\n  "a": "MatMul(replicated, split:1) -> split:1",\n' in text
    lines = text.splitlines()
    changed = [line for line in lines if not line.startswith(('  "b"', '  "c"'))]
    changed = [
        line.replace("replicated, split:1) -> split:1", "split:1, split:0) -> partial") for line in changed
    ]
    file.write_text("\n".join(changed))
    plan = plan_model(path, 2, options=SliceOptions(plan=file))
    assert [item.op for item in plan.collectives] == ["AllReduce", "AllReduce"]
    sharding.slice_model(path, 2, tmp_path / "slices", options=SliceOptions(plan=file))
    lockstep.assert_same(tmp_path / "slices", path, {"x": array(3, 16)})


def test_another_model_is_refused(tmp_path: Path) -> None:
    first = graphs.mlp(tmp_path / "first.onnx", inner=48)
    second = graphs.mlp(tmp_path / "second.onnx", inner=64)
    plan = plan_model(first, 2)
    save_plan(plan, tmp_path / "plan.json")
    with pytest.raises(DocumentError) as caught:
        plan_model(second, 2, options=SliceOptions(plan=tmp_path / "plan.json"))
    said = str(caught.value)
    assert "'first.onnx'" in said and plan.source.hashed().sha256[:16] in said and str(second) in said
    options = SliceOptions(plan=tmp_path / "plan.json")
    for asked, ranks, message in (
        (options, 4, "is a plan for 2 ranks with the mesh .*but asked for are 4 ranks"),
        (replace(options, mesh=Mesh.of(pipeline=2)), 2, "asked for are 2 ranks with the mesh"),
        (replace(options, steering=tmp_path / "s.yaml"), 2, "leaves nothing to steer"),
    ):
        with pytest.raises(SliceError, match=message):
            plan_model(first, ranks, options=asked)


GOOD: dict[str, Any] = {
    "format": "shardrun-plan",
    "version": 1,
    "source": {"file": "m.onnx", "sha256": "0" * 64},
    "ranks": 2,
    "mesh": {"data": 1, "pipeline": 1, "tensor": 2},
    "micro_batches": 1,
    "stages": {},
    "nodes": {"a": "MatMul(replicated, split:1) -> split:1"},
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "other"}, "$.format: expected 'shardrun-plan'"),
        ({"version": 2}, "$.version: expected 1, found 2"),
        ({"version": True}, "$.version: expected 1, found true"),
        ({"more": 1}, "$: expected the keys format, version"),
        ({"source": []}, "$.source: expected the model's file and sha256"),
        ({"source": {"file": "m", "sha256": "0" * 63}}, "$.source.sha256: expected 64 hexadecimal digits"),
        ({"mesh": {"tensor": 2}}, "$.mesh: expected the sizes of data, pipeline, tensor"),
        ({"mesh": {"data": 1, "pipeline": True, "tensor": 2}}, "$.mesh: expected the sizes"),
        ({"ranks": 3}, "$.ranks: expected the product of the mesh's sizes"),
        ({"ranks": "2"}, "$.ranks: expected the product"),
        ({"micro_batches": 0}, "$.micro_batches: expected a whole number"),
        ({"lengths": {"batch": 0}}, "$.lengths: expected a mapping of open lengths to whole numbers"),
        ({"lengths": [1]}, "$.lengths: expected a mapping"),
        ({"lengths": {"time": 3}}, "no input has an open length 'time'"),
        ({"stages": {"a": 1}}, "$.stages.a: expected a stage below 1"),
        ({"stages": {"z": 0}}, "m.onnx has no node that makes \"z\""),
        ({"nodes": []}, "$.nodes: expected a mapping"),
        ({"nodes": {"a": 1}}, "$.nodes.a: expected OPERATOR(PLACEMENT, ...) -> PLACEMENT"),
        ({"nodes": {"a": "MatMul"}}, "$.nodes.a: expected OPERATOR"),
        ({"nodes": {"z": "MatMul(replicated) -> replicated"}}, "has no node that makes \"z\""),
        ({"nodes": {"a": "Add(replicated, split:1) -> split:1"}}, "the plan has another operator there"),
        ({"nodes": {"a": "MatMul(replicated) -> split:1"}}, "expected placements of 2 inputs and 1 outputs"),
        ({"nodes": {"a": "MatMul(replicated, split:1) -> split:1, split:1"}}, "of 2 inputs and 1 outputs"),
        ({"nodes": {"a": "MatMul(here, there) -> split:1"}}, "expected placements such as split:1"),
        ({"nodes": {"a": "MatMul(split:1, split:1) -> split:1"}}, "cannot take 'x' split on axis 1 and 'w1'"),
        ({"nodes": {"a": "MatMul(replicated, split:7) -> split:1"}}, "cannot take 'w1' split on axis 7"),
        ({"nodes": {"c": "Relu(split:1) -> split:9"}}, "cannot be brought to split:9"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = graphs.mlp(tmp_path / "m.onnx", inner=48)
    digest = plan_model(path, 2).source.hashed().sha256
    data = {**GOOD, "source": {"file": "m.onnx", "sha256": digest}, **change}
    (tmp_path / "plan.json").write_text(json.dumps(data))
    with pytest.raises(SliceError) as caught:
        plan_model(path, 2, options=SliceOptions(plan=tmp_path / "plan.json"))
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_where_it_cannot_be_written(tmp_path: Path) -> None:
    plan = plan_model(graphs.mlp(tmp_path / "m.onnx"), 2)
    before = sorted(tmp_path.iterdir())
    for path in (tmp_path / "no" / "plan.json", tmp_path):
        with pytest.raises(DocumentError, match="the plan cannot be written"):
            save_plan(plan, path)
    assert sorted(tmp_path.iterdir()) == before


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
CHOICE = st.builds(
    lambda op, inputs, outputs: f"{op}({', '.join(inputs)}) -> {', '.join(outputs)}",
    st.sampled_from(["MatMul", "Add", "Relu"]),
    st.lists(st.sampled_from(["replicated", "split:0", "split:1", "partial", "split:1/2", "x"]), max_size=3),
    st.lists(st.sampled_from(["replicated", "split:0", "split:1", "partial"]), max_size=2),
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(data=st.data())
def test_any_file_is_followed_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    folder = tmp_path_factory.getbasetemp() / "any"
    path = folder / "m.onnx"
    if not path.exists():
        folder.mkdir()
        graphs.mlp(path, inner=48)
        (folder / "good.json").write_text("")
        save_plan(plan_model(path, 2), folder / "good.json")
    good = json.loads((folder / "good.json").read_text())
    for key in data.draw(st.lists(st.sampled_from(sorted(good)), max_size=2)):
        good[key] = data.draw(JSON)
    if isinstance(good["nodes"], dict):
        names = st.sampled_from(["a", "b", "c", "d", "y"])
        good["nodes"] |= data.draw(st.dictionaries(names, CHOICE, max_size=2))
    text = json.dumps(good).encode()
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text)))]
    file = folder / "plan.json"
    file.write_bytes(text)
    try:
        plan_model(path, 2, options=SliceOptions(plan=file, allow_replicated=True))
    except SliceError as error:
        assert "\n" not in str(error)
        return
    options = SliceOptions(plan=file, allow_replicated=True)
    sharding.slice_model(path, 2, folder / "slices", options=options)
    lockstep.assert_same(folder / "slices", path, {"x": array(2, 16)})


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "plan.json").open("wb") as file:
        file.truncate(1 << 30)
    with pytest.raises(DocumentError, match="has at most"):
        read_saved_plan(tmp_path / "plan.json")
