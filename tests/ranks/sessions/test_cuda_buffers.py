"""What of the CUDA path can be tested without a GPU: torch tensors as buffers, collectives staged through
the host."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from ranks.collectives.base import Communicator
from ranks.collectives.buffers import PLACE, HostMemory
from ranks.collectives.torch.staged import HostStaged, on_device
from ranks.collectives.torch.types import by_element
from ranks.common.tensors import ELEMENT_TYPES, element_dtype, element_number
from ranks.errors import DeviceError
from ranks.run import assembly, executor
from ranks.sessions.cuda import CudaMemory
from ranks.sessions.session import SessionConfig
from sharding.slices.mesh import Mesh
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.fake_nccl import on_threads
from tests.ranks.mesh_models import feeds_of, save_mesh
from tests.ranks.rank_models import model, node, random_models, save, value
from tests.ranks.run.test_executor import assert_close, by_value, reference, rows
from tests.ranks.run.test_mesh import close
from tests.ranks.run.test_mesh import reference as mesh_reference

torch = pytest.importorskip("torch", reason="torch is not installed")

ORT_NAMES = {number: name for name, (number, _) in ELEMENT_TYPES.items()}


class CpuTensors(CudaMemory):
    """Buffers that are torch tensors as on a GPU, but in host memory."""

    device = "cpu"
    place = bytes(PLACE)

    def __init__(self) -> None:
        self.device_id = 0
        self._torch = torch
        self._device = torch.device("cpu")
        self._types = by_element()
        self._elements = {dtype: element for element, dtype in self._types.items()}
        self._nothing = self.block(1, exchanged=False)

    def adopt(self, value: Any) -> Any:
        array = HostMemory(None).adopt(value)
        raw = torch.from_numpy(array.reshape(-1).view(np.uint8))
        return raw.view(self._types[element_number(value.data_type())]).reshape(array.shape)

    def fetch(self, buffer: Any) -> np.ndarray:
        return super().fetch(buffer).copy()  # from a GPU it is one already

    def provider_options(self) -> dict[str, str]:
        return {}

    def session_entries(self) -> dict[str, str]:
        return {}

    def orders(self, session: Any) -> bool:
        return False

    def captures(self, session: Any) -> bool:
        return False

    def settle(self) -> None:
        """Nothing is ever under way."""

    def staging(self, nbytes: int) -> np.ndarray:
        return np.empty(nbytes, np.uint8)  # pinned memory needs a device

    def active(self) -> AbstractContextManager[Any]:
        return nullcontext()


@pytest.fixture
def tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with such buffers."""

    def memory(communicator: Communicator | None, config: SessionConfig) -> CudaMemory:
        return CpuTensors()

    monkeypatch.setattr(assembly, "memory_for", memory)
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


def check_mesh(mesh: Mesh, folder: Path) -> None:
    feeds = [feeds_of(rows, seed) for seed, rows in enumerate([6, 6, 1, 6, 0, 5])]
    wanted = [mesh_reference(2, feed) for feed in feeds]
    for found, right in zip(run_all(save_mesh(mesh, folder, micro_batches=2), feeds), wanted, strict=True):
        for outputs in found:
            assert all(close(array, whole) for array, whole in zip(outputs, right, strict=True))


@pytest.mark.usefixtures("tensors")
@pytest.mark.parametrize("sizes", [{"pipeline": 2}, {"data": 2, "pipeline": 2, "tensor": 2}], ids=str)
def test_a_mesh_on_tensors(sizes: dict[str, int], tmp_path: Path) -> None:
    check_mesh(Mesh.of(**sizes), tmp_path)


@pytest.fixture
def nccl(tensors: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks with such buffers that exchange them without the host, over a stand-in for NCCL."""
    monkeypatch.setattr(assembly, "_on_memory", lambda world, memory: on_threads(world))


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize("seed", range(4))
def test_random_graphs_over_device_collectives(seed: int, tmp_path: Path) -> None:
    models = random_models(seed, 2)
    feeds = rows(2, 4, 2, 2, 0, 4, 0, seed=seed)
    assert_close(run_all(save(models, tmp_path), feeds), reference(models, feeds))


@pytest.mark.usefixtures("nccl")
def test_a_mesh_over_device_collectives(tmp_path: Path) -> None:
    """Sends, receives and announcements; nothing is sent before its receiver can take it."""
    check_mesh(Mesh.of(data=2, pipeline=2), tmp_path)


@pytest.mark.usefixtures("nccl")
@pytest.mark.parametrize(
    "element", [3, 2, 5, 4, 6, 12, 7, 13, 10, 16, 11], ids=lambda e: str(element_dtype(e))
)
def test_values_of_every_type_cross(element: int, tmp_path: Path) -> None:
    nodes = [
        node("Cast", ["x"], ["h"], to=element),
        node("AllReduce", ["h"], ["s"]),
        node("AllGather", ["h"], ["g"], axis=1),
        node("Cast", ["s"], ["y"], to=1),
        node("Cast", ["g"], ["z"], to=1),
    ]
    paths = save([model(nodes, [value("x", ["n", 4])], ["y", "z"])] * 2, tmp_path)
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    for by_rank in run_all(paths, [{"x": x}] * 3):
        for total, gathered in by_rank:
            np.testing.assert_array_equal(total, 2 * x)
            np.testing.assert_array_equal(gathered, np.concatenate([x, x], 1))


@pytest.mark.parametrize("element", sorted(by_element()))
def test_a_tensor_gives_back_what_it_was_given(element: int) -> None:
    memory, dtype = CpuTensors(), element_dtype(element)
    for shape in ((2, 3), (0, 3), ()):
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)
        buffer = memory.allocate(shape, element)
        memory.load(buffer, array)
        found = memory.fetch(buffer)
        assert (found.shape, found.dtype, memory.dtype(buffer)) == (array.shape, array.dtype, dtype)
        np.testing.assert_array_equal(found, array)
        view = memory.view(memory.block(128, exchanged=False), shape, element)
        memory.copy(view, buffer)
        np.testing.assert_array_equal(memory.fetch(view), array)
        into = np.empty(shape, dtype)
        memory.fetch_into(into, view)
        np.testing.assert_array_equal(into, array)


@pytest.mark.parametrize("element", sorted(by_element()))
@pytest.mark.parametrize("shape", [(0,), (2, 0, 3)], ids=str)
def test_a_result_of_no_bytes_is_taken_over(element: int, shape: tuple[int, ...]) -> None:
    """It may have no address, and torch makes no tensor of that."""
    value: Any = SimpleNamespace(
        shape=lambda: list(shape), data_type=lambda: f"tensor({ORT_NAMES[element]})", data_ptr=lambda: 0
    )
    found = CudaMemory.adopt(CpuTensors(), value)
    assert (tuple(found.shape), found.dtype) == (shape, by_element()[element])


def test_every_type_of_a_fixed_size_can_lie_on_a_gpu() -> None:
    sized = {number for number, name in ELEMENT_TYPES.values() if name != "object"}
    assert set(by_element()) == sized


def test_loading_leaves_the_array_alone_and_takes_any(recwarn: pytest.WarningsRecorder) -> None:
    memory = CpuTensors()
    whole = np.arange(12, dtype=np.float32).reshape(3, 4)
    frozen = whole.copy()
    frozen.setflags(write=False)
    torch.set_warn_always(True)  # else once in a process, maybe in another test
    try:
        for array in (whole.T, frozen, whole[:, ::2]):
            buffer = memory.allocate(array.shape, 1)
            memory.load(buffer, array)
            np.testing.assert_array_equal(memory.fetch(buffer), array)
            buffer += 1
    finally:
        torch.set_warn_always(False)
    np.testing.assert_array_equal(whole, frozen)
    assert not recwarn.list


def test_types_that_torch_lacks() -> None:
    with pytest.raises(DeviceError, match="object cannot lie on a GPU"):
        CpuTensors().allocate((1,), 8)


class Counted(CpuTensors):
    """Notes the bytes of every copy between the device and the host, and what is allocated for them."""

    def __init__(self) -> None:
        super().__init__()
        self.copies: list[tuple[str, int]] = []
        self.blocks: list[int] = []

    def load(self, buffer: Any, array: np.ndarray) -> None:
        self.copies.append(("in", array.nbytes))
        super().load(buffer, array)

    def fetch(self, buffer: Any) -> np.ndarray:
        raise AssertionError("a copy into memory that is not kept")

    def fetch_into(self, array: np.ndarray, buffer: Any) -> None:
        self.copies.append(("out", array.nbytes))
        super().fetch_into(array, buffer)

    def staging(self, nbytes: int) -> np.ndarray:
        self.blocks.append(nbytes)
        return np.empty(nbytes, np.uint8)


def test_staging_copies_what_is_read_and_what_is_written() -> None:
    """Each collective, three times: what will be overwritten is not fetched, and memory is kept."""

    def work(world: FakeCommunicator) -> tuple[list[tuple[str, int]], int]:
        memory = Counted()
        staged = on_device(world, memory)
        assert isinstance(staged, HostStaged)
        rank, other = world.rank, 1 - world.rank
        for turn in range(3):
            one = torch.full((2, 8), 1.0 + rank)
            two = torch.empty((2, 16))
            memory.copies.clear()
            staged.all_reduce(one)
            assert (one == 3).all()
            one.fill_(1.0 + rank)
            staged.all_gather(one, two, 1)
            assert two[0].tolist() == [1.0] * 8 + [2.0] * 8
            exchanged = torch.empty_like(one)
            staged.all_to_all(one, exchanged)
            assert exchanged[:, 0].tolist() == [1.0, 2.0]
            staged.broadcast(one, 1)
            assert (one == 2).all()
            staged.send(one + rank, other)
            staged.recv(one, other)
            assert (one == 2 + other).all()
            if turn == 0:
                blocks = len(memory.blocks)
        assert len(memory.blocks) == blocks, "memory was allocated again"
        return list(memory.copies), sum(memory.blocks)

    small, large = 64, 128
    before = [("out", small), ("in", small), ("out", small), ("in", large), ("out", small), ("in", small)]
    for rank, (copies, kept) in enumerate(on_ranks(2, work)):
        spread = [("out", small)] if rank == 1 else [("in", small)]
        assert copies == [*before, *spread, ("out", small), ("in", small)]
        assert kept == 2 << 16


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device: tests/gpu covers it")
def test_a_torch_without_cuda() -> None:
    with pytest.raises(DeviceError, match=r"torch .* sees no CUDA device: install a CUDA build of torch"):
        CudaMemory(0)
