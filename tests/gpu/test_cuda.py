"""Models on CUDA devices, against ONNX Runtime on the CPU."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from launcher import start
from ranks.run import executor
from ranks.run.placement import Placement
from sharding import slice_model
from sharding.slices.mesh import Mesh
from tests.gpu.assigned import RECORD, nodes_of
from tests.gpu.near import assert_near, assert_on_cuda
from tests.ranks import worlds
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.mesh_models import feeds_of, save_mesh, whole
from tests.ranks.rank_models import model, node, random_models, save, value
from tests.ranks.run.test_executor import by_value, mlps, reference, rows
from tests.sharding import graphs

ROOT = Path(__file__).resolve().parents[2]
CUDA = ("CUDAExecutionProvider",)
HEAVY = {"MatMul", "Gemm", "FusedMatMul"}
"""Operators that have no business on the CPU; those of shapes are left there by intention."""


def run_on_one_gpu(paths: Sequence[Path], feeds: Sequence[dict[str, np.ndarray]]) -> list[Any]:
    """Ranks in threads that share the first GPU; their collectives go through the host."""

    def work(communicator: FakeCommunicator) -> list[list[np.ndarray]]:
        path = paths[communicator.rank]
        loaded = executor.load(
            path, communicator=communicator, placement=Placement(CUDA), options=executor.LoadOptions(RECORD)
        )
        found = [loaded.run(feed) for feed in feeds]
        for session in filter(None, loaded._program._sessions):  # type: ignore[union-attr]
            if HEAVY & {kind for _, kind, _ in nodes_of(session)}:
                assert_on_cuda(session, *HEAVY)
        return found

    by_rank = on_ranks(len(paths), work)
    return [[outputs[index] for outputs in by_rank] for index in range(len(feeds))]


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(6))
def test_random_graphs_with_shapes_that_change_between_runs(size: int, seed: int, tmp_path: Path) -> None:
    models = random_models(seed, size)
    feeds = rows(size, 2 * size, size, size, 2 * size, 0, 2 * size, 0, size, seed=seed)
    assert_near(run_on_one_gpu(save(models, tmp_path), feeds), reference(models, feeds))


def test_shapes_that_depend_on_values(tmp_path: Path) -> None:
    models = [by_value(rank) for rank in range(2)]
    feeds = rows(6, 6, 6, 6, 2, 2, 6)
    assert_near(run_on_one_gpu(save(models, tmp_path), feeds), reference(models, feeds))


def test_shape_arithmetic_between_segments_stays_on_the_host(tmp_path: Path) -> None:
    nodes = [
        node("AllReduce", ["x"], ["a"]),
        node("Shape", ["a"], ["shape"]),
        node("Relu", ["a"], ["b"]),
        node("AllReduce", ["b"], ["c"]),
        node("Reshape", ["c", "flat"], ["d"]),
        node("Reshape", ["d", "shape"], ["y"]),
    ]
    models = [model(nodes, [value("x", ["n", 4])], ["y", "shape"], {"flat": np.array([-1], np.int64)})] * 2
    feeds = rows(2, 2, 3, 2)
    assert_near(run_on_one_gpu(save(models, tmp_path), feeds), reference(models, feeds))


@pytest.mark.parametrize("element", [onnx.TensorProto.FLOAT16, onnx.TensorProto.BFLOAT16])
def test_half_precision(element: int, tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], ["h"], to=element),
        node("AllGather", ["h"], ["g"], axis=0),
        node("Cast", ["g"], ["y"], to=onnx.TensorProto.FLOAT),
    ]
    models = [model(nodes, [value("x", ["n", 4])], ["y"])] * 2
    feeds = [{"x": np.arange(8, dtype=np.float32).reshape(2, 4)}] * 3
    for results in run_on_one_gpu(save(models, tmp_path), feeds):
        for (output,) in results:
            np.testing.assert_array_equal(output, np.concatenate([feeds[0]["x"]] * 2))


PROGRAM = """
import sys
import numpy as np
from ranks.run import executor, group
from ranks.run.placement import Placement
folder, feed, output = sys.argv[1:]
loaded = executor.load(folder, placement=Placement(("CUDAExecutionProvider",)))
x = np.load(feed)
for scale in (4, 3, 2, 1):  # what is left of a run before is not right
    (y,) = loaded.run({"x": x * np.float32(scale)})
np.save(output, y)
print(*(communicator.name for _, _, communicator in group.GROUPS.joined.values()))
group.leave()
"""


@pytest.mark.parametrize("collectives", ["nccl", "shm"])
def test_two_processes(collectives: str, tmp_path: Path) -> None:
    import torch

    if collectives == "nccl" and torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a CUDA device per rank, and this machine has one")
    text = "mlp (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w1) r = Relu(a) y = MatMul(r, w2) }"
    weights = {"w1": graphs.array(64, 256), "w2": graphs.array(256, 64)}
    graphs.save(tmp_path / "whole.onnx", text, weights)
    slice_model(tmp_path / "whole.onnx", 2, tmp_path / "two")
    x = graphs.array(5, 64)
    np.save(tmp_path / "x.npy", x)
    base = {**os.environ, "SHARDRUN_JOB": secrets.token_hex(16), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    base |= {"SHARDRUN_TIMEOUT": "120", "SHARDRUN_COLLECTIVES": "" if collectives == "nccl" else collectives}
    arguments = [sys.executable, "-c", PROGRAM, str(tmp_path / "two"), str(tmp_path / "x.npy")]
    processes = [
        subprocess.Popen(
            [*arguments, str(tmp_path / f"y{rank}.npy")],
            cwd=ROOT,
            env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process, (output, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors
        assert output.split()[-1] == collectives
    expected = ort.InferenceSession(tmp_path / "whole.onnx", providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    for rank in range(2):
        assert_near([np.load(tmp_path / f"y{rank}.npy")], expected)


def test_a_group_on_gpus(tmp_path: Path) -> None:
    """`start(..., target="gpu")`, a rank on each of at most two devices, against plain ONNX Runtime."""
    import torch

    text = "g (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w1) y = MatMul(a, w2) }"
    weights = {"w1": graphs.array(64, 256), "w2": graphs.array(256, 64)}
    path = graphs.save(tmp_path / "whole.onnx", text, weights)
    x = graphs.array(5, 64)
    expected = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})
    ranks = min(torch.cuda.device_count(), 2)
    environment = {"SHARDRUN_CACHE": str(tmp_path / "cache")}
    with start(path, ranks=ranks, target="gpu", environment=environment) as group:
        if ranks > 1:
            assert group.stats[0].backend == "nccl"
        for _ in range(3):
            assert_near([group.predict({"x": x})["y"]], expected)


@pytest.mark.parametrize("sizes", [{"pipeline": 2}, {"data": 2, "pipeline": 2, "tensor": 2}], ids=str)
def test_a_mesh_on_one_gpu(sizes: dict[str, int], tmp_path: Path) -> None:
    """Stages, data rows and micro-batches; shapes that are announced cross as device buffers."""
    mesh = Mesh.of(**sizes)
    feeds = [feeds_of(count, seed) for seed, count in enumerate([6, 6, 1, 6, 0, 5])]
    found = run_on_one_gpu(save_mesh(mesh, tmp_path, micro_batches=2), feeds)
    session = ort.InferenceSession(whole(2).SerializeToString(), providers=["CPUExecutionProvider"])
    for by_rank, feed in zip(found, feeds, strict=True):
        for outputs in by_rank:
            assert_near(outputs, session.run(None, feed))


def test_a_mesh_over_nccl(tmp_path: Path) -> None:
    """A rank on each device; groups of their own along the mesh's axes."""
    import torch

    count = 4 if torch.cuda.device_count() >= 4 else 2
    if torch.cuda.device_count() < 2:
        pytest.skip("NCCL needs a CUDA device per rank, and this machine has one")
    mesh = Mesh.of(pipeline=2, tensor=count // 2)
    paths, batches = save_mesh(mesh, tmp_path, micro_batches=2), [6, 6, 1, 5]
    program = Path(worlds.__file__).with_name("mesh_program.py")
    world = worlds.run(
        "auto",
        count,
        "computed",
        program=program,
        paths=[str(path) for path in paths],
        batches=batches,
        device="cuda",
    )
    session = ort.InferenceSession(whole(2).SerializeToString(), providers=["CPUExecutionProvider"])
    for ended in world.ranks:
        assert ended.status == 0 and ended.reports["backend"] == "nccl", ended.errors
        for seed, (rows_, results) in enumerate(zip(batches, ended.reports["results"], strict=True)):
            for array, right in zip(results, session.run(None, feeds_of(rows_, seed)), strict=True):
                assert_near(np.array(array, np.float32).reshape(right.shape), right)


def test_all_memory_is_given_back(tmp_path: Path) -> None:
    import torch

    models = mlps(1)
    (path,) = save(models, tmp_path)

    def work(communicator: FakeCommunicator) -> None:
        before = torch.cuda.memory_allocated()
        loaded = executor.load(path, communicator=communicator, placement=Placement(CUDA))
        for feed in rows(1000, 1000, 2000, 2000):
            loaded.run(feed)
        assert torch.cuda.memory_allocated() > before
        loaded.close()
        del loaded
        assert torch.cuda.memory_allocated() == before

    on_ranks(1, work)
