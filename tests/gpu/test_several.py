"""Ranks in processes of their own on one GPU or several: which GPU each takes, NCCL between them, deaths."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from sharding import slice_model
from tests.gpu.near import assert_near
from tests.gpu.several_program import SCALES
from tests.ranks import worlds
from tests.ranks.rank_models import model, node, value

ROOT = Path(__file__).resolve().parents[2]
LEAVING = 5.0
"""Seconds in which a group is left whose peer is gone."""
RANDOM = np.random.default_rng(1)
WEIGHTS = {"w1": RANDOM.standard_normal((64, 256)), "w2": RANDOM.standard_normal((256, 64))}


def several(count: int = 2) -> int:
    """How many ranks a test has, at most ``count``; skips it where there is no GPU for a second."""
    import torch

    found = torch.cuda.device_count()
    if found < 2:
        pytest.skip(f"NCCL needs a GPU for each rank, and {found} is here")
    return min(found, count)


def save_model(path: Path, weights: dict[str, Any]) -> None:
    nodes = [node("MatMul", ["x", "w1"], ["a"]), node("MatMul", ["a", "w2"], ["y"])]
    held = {name: array.astype(np.float32) for name, array in weights.items()}
    onnx.save(model(nodes, [value("x", ["n", 64])], [value("y", ["n", 64])], held), path)


def make(folder: Path) -> Path:
    """A model on two ranks, a feed, and another first weight."""
    save_model(folder / "whole.onnx", WEIGHTS)
    new = RANDOM.standard_normal((64, 256)).astype(np.float32)
    np.save(folder / "new.npy", new)
    save_model(folder / "updated.onnx", {**WEIGHTS, "w1": new})
    slice_model(folder / "whole.onnx", 2, folder / "two")
    np.save(folder / "x.npy", RANDOM.standard_normal((5, 64)).astype(np.float32))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make(tmp_path_factory.mktemp("several"))


def right(folder: Path, name: str = "whole") -> Any:
    session = ort.InferenceSession(folder / f"{name}.onnx", providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.load(folder / "x.npy")})[0]


@dataclass
class Ended:
    """How a rank ended, and what it said."""

    status: int
    told: Any
    errors: str


def started(command: list[str], environ: dict[str, str]) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(
        [sys.executable, *command], cwd=ROOT, env=environ, stdout=pipe, stderr=pipe, text=True
    )


def job(
    folder: Path,
    scenario: str,
    visible: Sequence[str] | None = None,
    collectives: str = "",
    program: Sequence[str] = ("-m", "tests.gpu.several_program"),
    start: Callable[[list[str], dict[str, str]], Any] = started,
    settings: Mapping[str, str] | None = None,
) -> list[Ended]:
    """Two ranks of several_program.py, each with its own CUDA_VISIBLE_DEVICES where those are given.

    ``start``: takes what follows `python`, and the environment; ``settings``: more of that.
    """
    base = {**os.environ, "SHARDRUN_JOB": secrets.token_hex(16), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    base |= {"SHARDRUN_TIMEOUT": "30", "SHARDRUN_COLLECTIVES": collectives, **(settings or {})}
    ranks = []
    for rank in range(2):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank)}
        if visible is not None:
            own["CUDA_VISIBLE_DEVICES"] = visible[rank]
        ranks.append(start([*program, scenario, str(folder)], {**base, **own}))
    ended = []
    try:
        for process in ranks:
            output, errors = process.communicate(timeout=80)
            told = json.loads(output.splitlines()[-1]) if process.returncode == 0 else None
            ended.append(Ended(process.returncode, told, errors))
    finally:
        for process in ranks:
            process.kill()
            process.wait()
    return ended


def visible_gpus(count: int) -> list[str]:
    """What makes each of ``count`` ranks see one GPU alone."""
    given = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return given[:count] if given else [str(index) for index in range(count)]


def assert_right(ended: list[Ended], folder: Path, collectives: dict[str, str], devices: list[str]) -> None:
    for one, device in zip(ended, devices, strict=True):
        assert one.status == 0 and "error" not in one.told, one.told or one.errors
        assert_near(np.array(one.told["y"], np.float32), right(folder))
        assert one.told["collectives"] == collectives
        assert set(one.told["devices"]) == {device}


def test_ranks_that_share_a_gpu(folder: Path) -> None:
    ended = job(folder, "sliced", visible_gpus(1) * 2, "shm")
    assert_right(ended, folder, {"cpu": "shm"}, ["0", "0"])
    assert "ranks 0 and 1 share the GPU GPU-" in ended[1].errors


def test_one_gpu_for_two(folder: Path) -> None:
    for one in job(folder, "sliced", visible_gpus(1) * 2):
        assert one.status == 0, one.errors
        assert one.told["error"].startswith("Ranks 0 and 1 both use the GPU GPU-")


def assert_captured(ended: list[Ended], folder: Path) -> None:
    for one in ended:
        assert one.status == 0, one.errors
        assert set(one.told["captured"]) == {"1"}, "ONNX Runtime captures nothing"
        for scale, found in zip(SCALES, one.told["found"], strict=True):
            assert_near(np.array(found, np.float32), scale * right(folder))


def test_graphs(folder: Path) -> None:
    """What is replayed reads the values of its own run."""
    settings = {"SHARDRUN_CUDA_GRAPHS": "1"}
    assert_captured(job(folder, "graphs", visible_gpus(1) * 2, "shm", settings=settings), folder)


def test_nccl() -> None:
    """Every operation of the NCCL backend on tensors of several types and sizes, a rank on each device."""
    world = worlds.run("auto", several(4), "tensors", over="nccl")
    for ended in world.ranks:
        assert ended.status == 0 and ended.reports.get("finished"), ended.errors


def test_a_killed_rank(folder: Path) -> None:
    several()
    left, dead = job(folder, "killed")
    assert dead.status == -signal.SIGKILL
    assert left.status == 0, left.errors
    assert left.told["caught"].startswith("Rank 1 ended"), left.told
    assert left.told["left"] < LEAVING, left.told


def test_variable_weights(folder: Path) -> None:
    several()
    for rank, one in enumerate(job(folder, "variable")):
        assert one.status == 0, one.errors
        assert one.told["places"] and all(place == [2, rank] for place in one.told["places"]), one.told[
            "places"
        ]
        assert_near(np.array(one.told["before"], np.float32), right(folder))
        assert_near(np.array(one.told["after"], np.float32), right(folder, "updated"))


def test_one_visible_gpu_each(folder: Path) -> None:
    several()
    ended = job(folder, "sliced", visible_gpus(2))
    assert_right(ended, folder, {"cpu": "shm", "cuda": "nccl"}, ["0", "0"])
