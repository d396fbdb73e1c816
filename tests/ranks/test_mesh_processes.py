"""Meshes of real processes, over every backend of the host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sharding.mesh import Mesh
from tests.ranks import worlds
from tests.ranks.mesh_models import feeds_of, save_mesh
from tests.ranks.rank_models import model, node, save, value
from tests.ranks.test_collectives import launcher, need
from tests.ranks.test_mesh import close, reference

PROGRAM = Path(__file__).with_name("mesh_program.py")
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
        ("mpi", {"data": 2, "pipeline": 2}),
        ("gloo", {"data": 2, "tensor": 2}),
        ("gloo", {"pipeline": 2, "tensor": 2}),
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


@pytest.mark.parametrize("who", [0, 3])
@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_stage_killed_in_the_middle_is_learnt_by_all(backend: str, who: int, tmp_path: Path) -> None:
    need(backend)
    mesh = Mesh.of(pipeline=2, tensor=2)
    paths = save_mesh(mesh, tmp_path, micro_batches=4)
    world = run(backend, 4, "killed", paths, who=who, after=0.4)
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
