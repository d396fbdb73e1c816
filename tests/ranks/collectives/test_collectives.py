"""Every backend that the machine has, 1 to 4 ranks, every operation and type, against numpy."""

from __future__ import annotations

import importlib.util
import platform
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks import collectives
from ranks.collectives import choose
from ranks.errors import CollectiveError, DeviceError
from ranks.identity.place import Identity
from tests.ranks import worlds

MIB = 1 << 20
HAS_TORCH = importlib.util.find_spec("torch") is not None
HAS_MPI = worlds.mpirun() is not None and importlib.util.find_spec("mpi4py") is not None


def need(backend: str) -> None:
    """Skips where the machine lacks a backend."""
    if backend == "gloo" and not HAS_TORCH:
        pytest.skip("torch is not installed")
    if backend == "mpi" and not HAS_MPI:
        pytest.skip("there is no mpirun or no mpi4py")


def launcher(backend: str) -> str:
    return "mpirun" if backend == "mpi" else "shell"


@pytest.mark.parametrize(
    ("backend", "size"),
    [
        *(("shm", size) for size in (1, 2, 3, 4)),
        *((backend, size) for backend in ("mpi", "gloo") for size in (2, 4)),
    ],
)
def test_suite(backend: str, size: int) -> None:
    """A world of one rank is the same whatever the backend. Three ranks of MPI and of Gloo are the part of a
    world in test_collectives_parts."""
    need(backend)
    options = {"light": backend != "shm" and size > 2, "largest": 8 * MIB}  # 2 MiB for each of four ranks
    copied = (
        backend == "gloo" or size > 2
    )  # of two ranks each starts as a user's does, but for torch's import
    world = worlds.run(backend, size, "suite", launcher=launcher(backend), copied=copied, **options)
    assert world.status in {None, 0}, str(world)
    operations = {"sum", "gather", "exchange", "spread"} | ({"pass_on"} if size > 1 else set())
    for rank, ended in enumerate(world.ranks):
        assert ended.status in {None, 0} and ended.reports.get("finished"), str(world)
        assert (ended.reports["rank"], ended.reports["size"]) == (rank, size)
        assert ended.reports["name"] == ("single" if size == 1 else backend)
        assert all(ended.reports[operation] > 20 for operation in operations), ended.reports
        if backend == "shm":
            assert not ended.reports["files"], "shared memory has a name"


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other processors use membarrier in every test")
def test_memory_barriers() -> None:
    """Processors that do not order memory by themselves get it from membarrier(2): the same suite with it."""
    world = worlds.run("shm", 3, "fenced", largest=MIB, light=True)
    for ended in world.ranks:
        assert ended.reports.get("finished") and ended.reports["barriers"] > 1000, ended.errors


@pytest.mark.parametrize(("backend", "kept"), [("shm", 7), ("gloo", 0)])
def test_sends_before_receives(backend: str, kept: int) -> None:
    need(backend)
    world = worlds.run(backend, 2, "sending_first", timeout=20)
    for rank, ended in enumerate(world.ranks):
        assert ended.reports.get("finished"), ended.errors
        assert (ended.reports["kept"], ended.reports["totals"]) == (kept, [kept * (2.0 - rank)] * 3)


@pytest.mark.parametrize("size", [2, 3])
def test_a_summed_buffer_is_not_kept(size: int) -> None:
    """What is remembered for its shape has nothing of it."""
    world = worlds.run("shm", size, "forgotten", timeout=20)
    for ended in world.ranks:
        assert ended.reports.get("finished") and ended.reports["kept"] == 0, ended.errors


def test_device_tensors() -> None:
    """The logic that NCCL and HCCL share, on CPU tensors over Gloo; NCCL itself needs a GPU for each rank."""
    need("gloo")
    world = worlds.run("auto", 2, "tensors", copied=True)
    for ended in world.ranks:
        assert ended.reports.get("finished") and ended.reports["cases"] > 20, ended.errors


def test_slurm_with_pmix_uses_mpi(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PMIX_RANK", "0")
    assert choose(identity(2, "SLURM_PROCID and SLURM_NTASKS"), besides=["hierarchical"]) == "mpi"


def test_mpirun_alone_needs_no_mpi_on_one_host() -> None:
    need("mpi")
    world = worlds.run("auto", 2, "forked", launcher="mpirun")
    for ended in world.ranks:
        found = [ended.reports[name] for name in ("name", "sum", "children")]
        assert found == ["shm", 2.0, [7, 5]], ended.errors
    assert world.status == 0


def identity(local_size: int | None, source: str) -> Identity:
    return Identity(0, 4, 0, local_size, source=source)


@pytest.mark.parametrize(
    ("who", "device", "chosen", "flat"),
    [
        (identity(4, "RANK, WORLD_SIZE and LOCAL_RANK"), "cpu", "shm", "shm"),
        (identity(4, "OMPI_COMM_WORLD_RANK and _SIZE"), "cpu", "shm", "shm"),
        (identity(2, "OMPI_COMM_WORLD_RANK and _SIZE"), "cpu", "hierarchical", "mpi"),
        (identity(2, "PMI_RANK and PMI_SIZE"), "cpu", "hierarchical", "mpi"),
        (identity(2, "SLURM_PROCID and SLURM_NTASKS"), "cpu", "hierarchical", "gloo"),  # srun --mpi=none
        (identity(2, "RANK, WORLD_SIZE and LOCAL_RANK"), "cpu", "hierarchical", "gloo"),
        (identity(None, "RANK_ID and RANK_SIZE"), "cpu", "hierarchical", "gloo"),
        (identity(4, "RANK, WORLD_SIZE and LOCAL_RANK"), "cuda", "nccl", "nccl"),
        (identity(2, "OMPI_COMM_WORLD_RANK and _SIZE"), "cuda", "nccl", "nccl"),
        (identity(4, "rank table"), "npu", "hccl", "hccl"),
    ],
)
def test_automatic_choice(who: Identity, device: str, chosen: str, flat: str) -> None:
    assert choose(who, device) == chosen
    assert choose(who, device, besides=["hierarchical"]) == flat, "what joins hosts, or all where none share"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (
            {"name": "rdma"},
            "no collectives named 'rdma'; the names are auto, gloo, hccl, hierarchical, mpi, nccl, shm",
        ),
        ({"device": "tpu"}, "no device 'tpu'"),
        ({"name": "shm", "device": "cuda"}, "shm collectives work on buffers of device cpu"),
        ({"name": "nccl"}, "nccl collectives work on buffers of device cuda"),
    ],
)
def test_impossible_choices(options: dict[str, Any], words: str) -> None:
    with pytest.raises(CollectiveError, match=words):
        collectives.connect(identity(4, "test"), timeout=1.0, **options)


@pytest.mark.parametrize(("backend", "device"), [("nccl", "cuda"), ("hccl", "npu")])
def test_devices_that_are_not_there(backend: str, device: str) -> None:
    if not HAS_TORCH:
        pytest.skip("torch is not installed")
    import torch

    if device == "cuda" and torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    if device == "npu" and importlib.util.find_spec("torch_npu") is not None:
        pytest.skip("this machine has torch_npu")
    with pytest.raises(DeviceError, match=rf"(?i){backend}"):
        collectives.connect(identity(4, "test"), backend, timeout=1.0, device=device)


def test_mpi_without_its_launcher() -> None:
    need("mpi")
    world = worlds.run("mpi", 2, "idle", seconds=0)
    for rank, ended in enumerate(world.ranks):
        assert f"this is rank {rank} of 2 and none of OMPI_COMM_WORLD_SIZE" in ended.reports["message"], (
            ended.errors
        )


def test_mpi_of_another_launcher_is_noticed(tmp_path: Path) -> None:
    """The wrong launcher for an MPI library starts worlds of one rank, which all end well and are wrong.
    Nothing is left of them, as Open MPI would leave its segment."""
    need("mpi")
    # As under MPICH's mpiexec, with Open MPI's library.
    environ = {"PMI_RANK": "0", "PMI_SIZE": "1", "OMPI_MCA_btl_sm_backing_directory": str(tmp_path)}
    world = worlds.run("mpi", 2, "idle", seconds=0, environ=environ)
    for ended in world.ranks:
        assert ended.reports["error"] == "CollectiveError", ended.errors
        assert "made a world of 1" in ended.reports["message"]
        assert "say that 2 ranks were started" in ended.reports["message"]
    assert not list(tmp_path.iterdir())


def test_a_single_rank_has_no_peers() -> None:
    world = collectives.connect(Identity(), timeout=1.0)
    buffer = world.allocate((3,), np.dtype(np.float32))
    for call in (
        lambda: world.send(buffer, 0),
        lambda: world.recv(buffer, 1),
        lambda: world.broadcast(buffer, 1),
    ):
        with pytest.raises(CollectiveError, match="world of one rank"):
            call()
