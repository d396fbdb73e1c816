"""Demands that are for other meshes, and what of a steering file fits no weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx
import pytest

from sharding.common.documents import DocumentError
from sharding.demands.annotations import annotated_mesh
from sharding.demands.options import SliceOptions
from sharding.demands.steering import _checked, _hint
from sharding.errors import ShardError, SliceError
from sharding.planning.plan import plan_model
from sharding.planning.saved_plan import save_plan
from sharding.reading.read import read_model
from sharding.slices.mesh import Mesh
from sharding.slices.placement import Split
from tests.sharding import graphs


def _staged(path: Path, devices: int, stages: Mapping[int, int]) -> Path:
    """The MLP with annotations of the stages of some nodes."""
    model = onnx.load(graphs.mlp(path, inner=48))
    model.ir_version = 11
    model.configuration.add(name="mine", num_devices=devices)
    for place, stage in stages.items():
        entry = model.graph.node[place].device_configurations.add(configuration_id="mine")
        entry.pipeline_stage = stage
    onnx.save(model, path)
    return path


def test_stages_that_do_not_divide_the_ranks(tmp_path: Path) -> None:
    path = _staged(tmp_path / "m.onnx", 3, {0: 0, 3: 1})
    with pytest.raises(SliceError, match="annotated with 2 pipeline stages, which do not divide 3 ranks"):
        annotated_mesh(read_model(path), 3)
    four = _staged(tmp_path / "four.onnx", 4, {0: 0, 3: 1})
    assert annotated_mesh(read_model(four), 4) == Mesh.of(pipeline=2, tensor=2)
    assert annotated_mesh(read_model(graphs.mlp(tmp_path / "plain.onnx")), 2) is None


def test_another_mesh_than_that_of_the_annotations(tmp_path: Path) -> None:
    path = _staged(tmp_path / "m.onnx", 4, {0: 0, 3: 1})
    for mesh in (Mesh.of(pipeline=4), Mesh.of(tensor=4)):
        with pytest.raises(SliceError, match=r"annotated with 2 pipeline stages, but the mesh .* has [14]\."):
            plan_model(path, 4, options=SliceOptions(mesh=mesh))


def test_devices_without_a_stage(tmp_path: Path) -> None:
    path = _staged(tmp_path / "m.onnx", 4, {0: 0, 3: 1})
    model = onnx.load(path)
    entry = model.graph.node[1].device_configurations.add(configuration_id="mine")
    entry.sharding_spec.add(tensor_name=model.graph.node[1].output[0], device=[0, 1])
    onnx.save(model, path)
    with pytest.raises(SliceError, match="its devices are given, but no pipeline_stage, as for other nodes"):
        plan_model(path, 4)


def test_a_plan_for_another_mesh(tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "m.onnx", inner=48)
    save_plan(plan_model(path, 2), tmp_path / "plan.json")
    options = SliceOptions(mesh=Mesh.of(tensor=4), plan=tmp_path / "plan.json")
    with pytest.raises((DocumentError, ShardError, SliceError), match="is a plan for "):
        plan_model(path, 4, options=options)


def test_names_that_are_near() -> None:
    assert _hint("layers.*.up", []) == ": the model has none"
    text = _hint("layers.*.up", ["layers.0.up", "layers.0.down", "other"])
    assert text.startswith("; the model's weights are named like 'layers.0.up'")
    assert "'a', 'b', 'c' (" in _hint("nothing at all", ["a", "b", "c", "d"])


@pytest.mark.parametrize(
    ("asked", "world", "found"),
    [
        (Split(-1), 4, Split(1)), (Split(0), 2, Split(0)), (Split(1, 3), 4, Split(1, 3)),
        (Split(0, copies=2), 4, Split(0, copies=2)), (Split(-2, copies=4), 4, Split(-2, copies=4)),
        (Split(0), 4, None), (Split(1, 2), 8, None), (Split(0, copies=3), 4, None), (Split(1), 5, None),
    ],
)  # fmt: skip
def test_parts_that_are_equal(asked: Split, world: int, found: Split | None) -> None:
    if found is not None:
        assert _checked(asked, (6, 24), world, "here") == found
        return
    with pytest.raises(DocumentError, match="the parts would not be equal"):
        _checked(asked, (6, 24), world, "here")


def test_axes_of_a_weight() -> None:
    for axis in (2, -3):
        with pytest.raises(DocumentError, match=rf"here: axis {axis} is not one of its 2 axes \[6, 24\]"):
            _checked(Split(axis), (6, 24), 2, "here")
    with pytest.raises(DocumentError, match="axis 0 of length 0 cannot be split on axis 0 over 2 ranks"):
        _checked(Split(0), (0, 24), 2, "here")
