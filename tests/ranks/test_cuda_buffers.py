"""What of the CUDA path can be tested without a GPU: torch tensors as buffers, collectives staged through
the host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks import assembly, executor
from ranks.buffers import HostMemory
from ranks.collectives.base import Communicator
from ranks.cuda import CudaMemory, _torch_types, on_device
from ranks.errors import DeviceError
from ranks.session import SessionConfig
from sharding.mesh import Mesh
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.mesh_models import feeds_of, save_mesh
from tests.ranks.rank_models import random_models, save
from tests.ranks.test_executor import assert_close, by_value, reference, rows
from tests.ranks.test_mesh import close
from tests.ranks.test_mesh import reference as mesh_reference

torch = pytest.importorskip("torch", reason="torch is not installed")


class CpuTensors(CudaMemory):
    """Buffers that are torch tensors as on a GPU, but in host memory."""

    device = "cpu"

    def __init__(self) -> None:
        self.device_id = 0
        self._torch = torch
        self._device = torch.device("cpu")
        self._types = _torch_types(torch)
        self._elements = {dtype: element for element, dtype in self._types.items()}
        self._nothing = self.block(1, exchanged=False)

    def adopt(self, value: Any) -> Any:
        return torch.from_numpy(HostMemory(None).adopt(value))

    def fetch(self, buffer: Any) -> np.ndarray:
        return super().fetch(buffer).copy()  # from a GPU it is one already

    def provider_options(self) -> dict[str, str]:
        return {}

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with such buffers."""

    def memory(communicator: Communicator | None, config: SessionConfig) -> CudaMemory:
        return CpuTensors()

    monkeypatch.setattr(assembly, "_memory", memory)
    monkeypatch.setattr(assembly, "_on_memory", on_device)


def run_all(paths: Sequence[Path], feeds: Sequence[dict[str, np.ndarray]]) -> list[Any]:
    """What each rank returns for each of the feeds."""

    def work(communicator: FakeCommunicator) -> list[list[np.ndarray]]:
        loaded = executor.load(paths[communicator.rank], communicator=communicator, threads=1)
        return [loaded.run(feed) for feed in feeds]

    by_rank = on_ranks(len(paths), work)
    return [[outputs[index] for outputs in by_rank] for index in range(len(feeds))]


@pytest.mark.usefixtures("tensors")
@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_on_tensors(size: int, seed: int, tmp_path: Path) -> None:
    models = random_models(seed, size)
    feeds = rows(size, 2 * size, size, size, 2 * size, 0, 2 * size, 0, size, seed=seed)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


@pytest.mark.usefixtures("tensors")
def test_shapes_that_depend_on_values(tmp_path: Path) -> None:
    models = [by_value(rank) for rank in range(2)]
    feeds = rows(6, 6, 6, 6, 2, 2, 6)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


@pytest.mark.usefixtures("tensors")
@pytest.mark.parametrize("sizes", [{"pipeline": 2}, {"data": 2, "pipeline": 2, "tensor": 2}], ids=str)
def test_a_mesh_on_tensors(sizes: dict[str, int], tmp_path: Path) -> None:
    mesh = Mesh.of(**sizes)
    feeds = [feeds_of(rows, seed) for seed, rows in enumerate([6, 6, 1, 6, 0, 5])]
    wanted = [mesh_reference(2, feed) for feed in feeds]
    for found, right in zip(run_all(save_mesh(mesh, tmp_path, micro_batches=2), feeds), wanted, strict=True):
        for outputs in found:
            assert all(close(array, whole) for array, whole in zip(outputs, right, strict=True))


@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16", "float8_e4m3fn", "int64", "int8", "bool"])
def test_a_tensor_gives_back_what_it_was_given(name: str) -> None:
    import ml_dtypes

    memory = CpuTensors()
    dtype = np.dtype(getattr(ml_dtypes, name, name))
    element = {
        "float32": 1,
        "float16": 10,
        "bfloat16": 16,
        "float8_e4m3fn": 17,
        "int64": 7,
        "int8": 3,
        "bool": 9,
    }[name]
    for shape in ((2, 3), (0, 3), ()):
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        buffer = memory.allocate(shape, element)
        memory.load(buffer, array)
        found = memory.fetch(buffer)
        assert (found.shape, found.dtype) == (array.shape, array.dtype)
        np.testing.assert_array_equal(found, array)
        view = memory.view(memory.block(64, exchanged=False), shape, element)
        memory.copy(view, buffer)
        np.testing.assert_array_equal(memory.fetch(view), array)


def test_types_that_torch_lacks() -> None:
    with pytest.raises(DeviceError, match="complex64 cannot lie on a GPU"):
        CpuTensors().allocate((1,), 14)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device: tests/gpu covers it")
def test_a_torch_without_cuda() -> None:
    with pytest.raises(DeviceError, match=r"torch .* sees no CUDA device: install a CUDA build of torch"):
        CudaMemory(0)
