"""Meshes of real processes, over every backend of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.group.group import start
from launcher.group.requests import PredictError
from sharding.slices.mesh import Mesh
from tests.ranks import worlds
from tests.ranks.collectives.test_collectives import launcher, need
from tests.ranks.mesh_models import feeds_of, save_mesh
from tests.ranks.rank_models import model, node, save, value
from tests.ranks.run.test_mesh import _gathering, close, reference

PROGRAM = Path(__file__).parents[1] / "mesh_program.py"
BACKENDS = ["shm", "mpi", "gloo"]


def run(backend: str, size: int, scenario: str, paths: list[Path], **options: Any) -> worlds.World:
    return worlds.run(
        backend,
        size,
        scenario,
        launcher=launcher(backend),
        program=PROGRAM,
        paths=[str(path) for path in paths],
        **options,
    )


@pytest.mark.parametrize(
    ("backend", "sizes"),
    [
        ("shm", {"pipeline": 2}),
        ("shm", {"data": 2, "pipeline": 2}),
        ("shm", {"pipeline": 2, "tensor": 2}),
        ("mpi", {"pipeline": 2, "tensor": 2}),
        ("gloo", {"data": 2, "tensor": 2}),
        ("gloo", {"data": 2, "pipeline": 2}),
    ],
    ids=str,
)
def test_equals_the_whole_model(backend: str, sizes: dict[str, int], tmp_path: Path) -> None:
    need(backend)
    mesh, batches = Mesh.of(**sizes), [6, 6, 1, 5, 0, 6]
    paths = save_mesh(mesh, tmp_path, micro_batches=3)
    world = run(backend, mesh.size, "computed", paths, batches=batches)
    wanted = [reference(mesh.length("pipeline"), feeds_of(rows, seed)) for seed, rows in enumerate(batches)]
    for ended in world.ranks:
        assert ended.reports.get("finished") and ended.reports["backend"] == backend, ended.errors
        assert ended.reports["results"] == world.ranks[0].reports["results"], "not the same on every rank"
        assert ended.reports["collectives"] == 1 + (mesh.length("pipeline") > 1)
        for results, right in zip(ended.reports["results"], wanted, strict=True):
            for found, array in zip(results, right, strict=True):
                assert close(np.array(found, np.float32).reshape(array.shape), array)


@pytest.mark.parametrize("backend", BACKENDS)
def test_stages_work_at_the_same_time(backend: str, tmp_path: Path) -> None:
    """Two stages that sleep, four micro-batches: 5 of 8 units of time."""
    need(backend)
    mesh, folders = Mesh.of(pipeline=2), {}
    for micro_batches in (1, 4):
        (tmp_path / str(micro_batches)).mkdir()
        files = save_mesh(mesh, tmp_path / str(micro_batches), micro_batches=micro_batches)
        folders[str(micro_batches)] = [str(file) for file in files]
    world = worlds.run(
        backend, 2, "overlapped", launcher=launcher(backend), program=PROGRAM, folders=folders, rows=4
    )
    for ended in world.ranks:
        assert ended.reports.get("finished"), ended.errors
    seconds = world.ranks[0].reports["seconds"]
    assert seconds["4"] < 0.8 * seconds["1"], seconds


@pytest.mark.timeout(180)
def test_a_serving_group_outlives_an_input_that_one_stage_cannot_compute(tmp_path: Path) -> None:
    for rank, path in enumerate(_gathering(Mesh.of(pipeline=2), tmp_path)):
        path.rename(tmp_path / f"rank_{rank}_lookup.onnx")
    with start(str(tmp_path / "rank_{}_lookup.onnx"), ranks=2) as serving:
        assert serving.inputs[0].shape == ("batch",)
        before = serving.predict({"i": np.array([4, 1, 3])})["y"]
        assert np.array_equal(before, -np.arange(20, dtype=np.float32).reshape(5, 4)[[4, 1, 3]])
        for _ in range(2):
            with pytest.raises(PredictError, match="idx=99 must be within"):
                serving.predict({"i": np.array([4, 99, 3])})
            assert np.array_equal(serving.predict({"i": np.array([4, 1, 3])})["y"], before)


@pytest.mark.parametrize("who", [0, 3])
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_stage_killed_in_the_middle_is_learnt_by_all(backend: str, who: int, tmp_path: Path) -> None:
    need(backend)
    mesh = Mesh.of(pipeline=2, tensor=2)
    paths = save_mesh(mesh, tmp_path, micro_batches=4)
    world = run(backend, 4, "killed", paths, who=who, after=0.15)
    assert world.ranks[who].status == -9
    for rank, ended in enumerate(world.ranks):
        if rank != who:
            assert ended.reports["error"] == "PeerLostError", ended.errors
            assert ended.reports["peer"] == who, ended.reports["message"]
            assert ended.reports["seconds"] < 20, "learnt by time-out"


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_announced_shape_that_is_not_the_planned_one(backend: str, tmp_path: Path) -> None:
    need(backend)
    x = value("x", ["n"])
    send = node("Send", ["f"], [], peer=1, announce=1)
    receive = node("Recv", [], ["f"], peer=0, dtype=1, announce=1, shape=[1, -1])
    first = [node("NonZero", ["x"], ["z"]), node("Cast", ["z"], ["f"], to=1), send]
    models = [model(first, [x], []), model([receive, node("Neg", ["f"], ["y"])], [x], ["y"])]
    world = run(backend, 2, "reshaped", save(models, tmp_path))
    assert world.ranks[1].reports.get("finished"), world.ranks[1].errors
    assert [row[0][0] for row in world.ranks[1].reports["results"]] == [
        [0, -1],
        [-1, -2],
        [0, -1, -2],
        [],
        [0, -2],
    ]
