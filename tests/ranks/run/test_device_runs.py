"""How sessions are run where values lie on a device: what is waited for, bound again, captured and shared.

The device is a stand-in, torch tensors in host memory; what ONNX Runtime is told is noted.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from ranks.collectives.base import Communicator  # noqa: E402
from ranks.collectives.buffers import PLACE  # noqa: E402
from ranks.collectives.single import SingleCommunicator  # noqa: E402
from ranks.collectives.torch.staged import on_device  # noqa: E402
from ranks.errors import ModelError, SettingError  # noqa: E402
from ranks.run import assembly, executor, plans  # noqa: E402
from ranks.sessions import arena, cuda  # noqa: E402
from ranks.sessions.cuda import CudaMemory, graphs_wanted  # noqa: E402
from ranks.sessions.session import SessionConfig  # noqa: E402
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks  # noqa: E402
from tests.ranks.rank_models import model, node, save, value  # noqa: E402
from tests.ranks.run.test_executor import assert_close, reference, rows  # noqa: E402
from tests.ranks.sessions.test_cuda_buffers import CpuTensors  # noqa: E402

NO_WAIT, GRAPH = "disable_synchronize_execution_providers", "gpu_graph_id"
W = np.linspace(-1, 1, 16, dtype=np.float32).reshape(4, 4)


class Device(CpuTensors):
    """Sessions are in order with what follows, and can be captured where ``graphs``."""

    graphs = False
    ordered = True
    place = b"the only device!"

    def __init__(self) -> None:
        super().__init__()
        self.sharers = 0

    def orders(self, session: Any) -> bool:
        return self.ordered

    def captures(self, session: Any) -> bool:
        return self.graphs

    def shared_by(self, count: int) -> None:
        self.sharers = count


class Runs:
    """Each run of a session on the last rank: the options that it was given."""

    def __init__(self) -> None:
        self.options: list[dict[str, str]] = []
        self.released: list[int] = []
        self.memories: list[Device] = []

    def take(self) -> list[dict[str, str]]:
        taken, self.options = self.options, []
        return taken


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Runs]:
    noted, real = Runs(), ort.InferenceSession.run_with_iobinding

    def run(session: Any, binding: Any, options: Any = None) -> None:
        found = {}
        for key in (NO_WAIT, GRAPH) if options is not None else ():
            try:
                found[key] = options.get_run_config_entry(key)
            except RuntimeError:  # it has none
                continue
        noted.options.append(found)
        real(session, binding, options)

    def memory(communicator: Communicator | None, config: SessionConfig) -> Device:
        noted.memories.append(Device())
        return noted.memories[-1]

    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", run)
    monkeypatch.setattr(
        ort.InferenceSession, "release_captured_graph", lambda _, number: noted.released.append(number)
    )
    monkeypatch.setattr(assembly, "memory_for", memory)
    monkeypatch.setattr(assembly, "_on_memory", on_device)
    yield noted


def two_collectives() -> Any:
    """Three segments: before, between and after two collectives."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("AllReduce", ["a"], ["b"]),
        node("Tanh", ["b"], ["c"]),
        node("AllGather", ["c"], ["d"], axis=1),
        node("Neg", ["d"], ["y"]),
    ]
    return model(nodes, [value("x", ["n", 4])], ["y"], {"w": W})


def one_rank(models: list[Any], folder: Path, work: Callable[[Any], None]) -> None:
    """Loads a model on the only rank there is, and does ``work`` with it."""
    paths = save(models, folder)
    on_ranks(1, lambda world: work(executor.load(paths[0], communicator=world, threads=1)))


def test_a_session_is_not_waited_for_where_a_collective_follows(runs: Runs, tmp_path: Path) -> None:
    models = [two_collectives()]

    def work(loaded: Any) -> None:
        for turn, feed in enumerate(rows(3, 3, 3)):
            assert_close(loaded.run(feed), reference(models, [feed])[0][0])
            wanted = [{NO_WAIT: "1"}, {NO_WAIT: "1"}, {}] if turn else [{}, {}, {}]
            assert runs.take() == wanted, "the first run finds the shapes; the last session's values are read"

    one_rank(models, tmp_path, work)


def test_communication_is_not_what_this_rank_computed(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective is the first that waits for the device; that wait is not counted as its own."""
    monkeypatch.setattr(Device, "settle", lambda self: time.sleep(0.2), raising=False)

    def work(loaded: Any) -> None:
        for feed in rows(3, 3):
            loaded.run(feed)
        program = loaded._program
        before, waited = program.communication_seconds, program._exchanges.computing_seconds
        loaded.run(rows(3)[0])
        waited = program._exchanges.computing_seconds - waited
        assert waited >= 0.4 and 0 < program.communication_seconds - before < waited

    one_rank([two_collectives()], tmp_path, work)


def test_what_cannot_be_in_order_is_waited_for(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "ordered", False)

    def work(loaded: Any) -> None:
        for feed in rows(3, 3):
            loaded.run(feed)
        assert runs.take() == [{}] * 6

    one_rank([two_collectives()], tmp_path, work)


def test_a_collective_of_nothing_waits_for_nothing(runs: Runs, tmp_path: Path) -> None:
    """It returns at once: the next session would be bound while this one still computes."""

    def work(loaded: Any) -> None:
        for feed in rows(0, 0):
            loaded.run(feed)
        assert runs.take() == [{}] * 6

    one_rank([two_collectives()], tmp_path, work)


def test_a_group_of_one_waits_for_nothing(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(assembly, "_on_memory", lambda world, memory: SingleCommunicator())
    models = [two_collectives()]

    def work(loaded: Any) -> None:
        for feed in rows(3, 3):
            assert_close(loaded.run(feed), reference(models, [feed])[0][0])
        assert runs.take() == [{}] * 6

    one_rank(models, tmp_path, work)


def with_a_shape() -> Any:
    """The first session gives a value on the host, too; ``k`` is an input that stays there."""
    nodes = [
        node("MatMul", ["x", "w"], ["a"]),
        node("Shape", ["a"], ["s"]),
        node("AllReduce", ["a"], ["b"]),
        node("Gather", ["b", "k"], ["c"], axis=0),
        node("AllReduce", ["c"], ["d"]),
        node("Reshape", ["d", "s"], ["y"]),
    ]
    return model(nodes, [value("x", ["n", 4]), value("k", ["n"], 7)], ["y"], {"w": W})


def test_a_session_is_waited_for_where_a_value_is_read_on_the_host(runs: Runs, tmp_path: Path) -> None:
    models = [with_a_shape()]

    def work(loaded: Any) -> None:
        for turn, feed in enumerate(rows(3, 3, 3)):
            feed["k"] = np.roll(np.arange(3), turn)
            assert_close(loaded.run(feed), reference(models, [feed])[0][0])
        assert runs.take()[3:] == [{}, {NO_WAIT: "1"}, {}] * 2

    one_rank(models, tmp_path, work)


def test_values_on_the_host_are_bound_anew_in_each_run(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime copies a value on the host to the device when it is bound, not when a session runs."""
    models, real, copies = [with_a_shape()], ort.IOBinding.bind_input, []

    def bind(
        binding: Any, name: str, device: str, number: int, element: int, shape: Any, address: int
    ) -> None:
        if element == 7:
            copies.append(np.array((ctypes.c_int64 * shape[0]).from_address(address)))
            address = copies[-1].ctypes.data
        real(binding, name, device, number, element, shape, address)

    monkeypatch.setattr(ort.IOBinding, "bind_input", bind)

    def work(loaded: Any) -> None:
        for turn, feed in enumerate(rows(3, 3, 3, 3)):
            feed["k"] = np.roll(np.arange(3), turn)
            assert_close(loaded.run(feed), reference(models, [feed])[0][0])

    one_rank(models, tmp_path, work)
    assert copies


def test_graphs_are_captured_for_fixed_buffers_and_released_with_them(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "graphs", True)
    monkeypatch.setattr(plans, "MAX_PLANS", 1)
    models = [two_collectives()]

    def work(loaded: Any) -> None:
        numbers = []
        for count in (3, 3, 3, 2, 2, 3):
            (feed,) = rows(count)
            assert_close(loaded.run(feed), reference(models, [feed])[0][0])
            taken = [options[GRAPH] for options in runs.take()]
            assert len(set(taken)) == 1
            numbers.append(taken[0])
        assert numbers == ["-1", "1", "1", "-1", "2", "3"]
        assert runs.released == [1] * 3 + [2] * 3, "three sessions, each time that a plan ends"

    one_rank(models, tmp_path, work)


def test_what_is_captured_need_not_be_waited_for_either(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "graphs", True)

    def work(loaded: Any) -> None:
        for feed in rows(3, 3):
            loaded.run(feed)
        wanted = [{GRAPH: "1", NO_WAIT: "1"}, {GRAPH: "1", NO_WAIT: "1"}, {GRAPH: "1"}]
        assert runs.take()[3:] == wanted

    one_rank([two_collectives()], tmp_path, work)


def test_plans_that_end_give_their_graphs_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """The longest unused first, where there are many; all where all end. Other sessions have none."""
    released: list[tuple[str, int]] = []

    def made(name: str) -> Any:
        return SimpleNamespace(release_captured_graph=lambda number: released.append((name, number)))

    class Session(SimpleNamespace):
        __hash__ = object.__hash__

    sessions = [Session(name=name, **vars(made(name))) for name in ("captured", "other")]
    memory: Any = SimpleNamespace(orders=lambda one: False, captures=lambda one: one.name == "captured")
    monkeypatch.setattr(plans, "MAX_PLANS", 2)
    kept = plans.Plans([None, *sessions], memory)
    first, second, third = (((size, 4),) for size in (1, 2, 3))
    assert [kept.new(key, {}).number for key in (first, second)] == [1, 2]
    assert kept.get(first) is not None
    assert kept.new(third, {}).number == 3
    assert released == [("captured", 2)] and list(kept) == [first, third]
    kept.clear()
    assert sorted(released) == [("captured", 1), ("captured", 2), ("captured", 3)] and not len(kept)


@pytest.mark.parametrize(
    ("told", "captured"),
    [
        ({"CUDAExecutionProvider": {"enable_cuda_graph": "1"}}, True),
        ({"CUDAExecutionProvider": {"enable_cuda_graph": "0"}}, False),
        ({"CUDAExecutionProvider": {}}, False),
        ({"CPUExecutionProvider": {}}, False),
    ],
)
def test_a_session_is_captured_where_it_says_so(
    told: dict[str, Any], captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not where it was asked to be: ONNX Runtime may have refused, and it was made without."""
    session: Any = SimpleNamespace(get_provider_options=lambda: told)
    assert device_memory(monkeypatch, graphs="1").captures(session) is captured


@pytest.mark.parametrize(("told", "setting", "graphs"), [("1", "", True), ("0", "1", True), ("0", "", False)])
def test_who_asks_for_graphs_gets_them(
    told: str, setting: str, graphs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_CUDA_GRAPHS", setting)
    monkeypatch.setattr(cuda, "CudaMemory", lambda number, *, graphs: (number, graphs))
    options = ({"device_id": "3", "enable_cuda_graph": told}, {})
    config = SessionConfig(
        providers=("CUDAExecutionProvider", "CPUExecutionProvider"), provider_options=options, device_id=3
    )
    found: Any = assembly.memory_for(None, config)
    assert found == (3, graphs)


def test_what_fails_to_be_captured_is_said_with_the_way_out(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("Error in execution: cuda_graph.cc:63 CUDAGraph::CaptureEnd: graph_ is NULL")

    def work(loaded: Any) -> None:
        loaded.run(rows(3)[0])
        monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", fail)
        with pytest.raises(ModelError, match=r"is NULL; without SHARDRUN_CUDA_GRAPHS=1 .* captured\.$"):
            loaded.run(rows(3)[0])

    one_rank([two_collectives()], tmp_path, work)


def test_no_more_graphs_than_can_be_kept(runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The provider frees none before its session ends."""
    monkeypatch.setattr(Device, "graphs", True)
    monkeypatch.setattr(plans, "MAX_GRAPHS", 1)

    def work(loaded: Any) -> None:
        for count in (2, 2, 3, 3):
            loaded.run(rows(count)[0])
        assert [options[GRAPH] for options in runs.take()] == [*["-1"] * 3, *["1"] * 3, *["-1"] * 6]

    one_rank([two_collectives()], tmp_path, work)


def test_no_graph_where_a_buffer_does_not_stay(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Values on the host, which are copied to another place each time."""
    monkeypatch.setattr(Device, "graphs", True)

    def work(loaded: Any) -> None:
        for feed in rows(3, 3):
            loaded.run({**feed, "k": np.arange(3)})
        assert [options[GRAPH] for options in runs.take()] == ["-1"] * 6

    one_rank([with_a_shape()], tmp_path, work)


def test_no_graph_where_weights_are_replaced(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Device, "graphs", True)
    paths = save([two_collectives()], tmp_path)

    def work(world: FakeCommunicator) -> None:
        loaded = executor.load(paths[0], communicator=world, threads=1, variable_weights=["w"])
        loaded.run(rows(3)[0])
        runs.take()
        loaded.run(rows(3)[0])
        assert [options[GRAPH] for options in runs.take()] == ["-1", "1", "1"]

    on_ranks(1, work)


@pytest.mark.parametrize(("devices", "sharers"), [([7, 7, 7], [3, 3, 3]), ([7, 8, 7], [2, 1, 2])])
def test_each_rank_learns_how_many_share_its_device(
    devices: list[int], sharers: list[int], runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: dict[int, Device] = {}

    def memory(world: FakeCommunicator, config: SessionConfig) -> Device:
        made[world.rank] = Device()
        made[world.rank].place = bytes([devices[world.rank]]) * PLACE
        return made[world.rank]

    monkeypatch.setattr(assembly, "memory_for", memory)
    models = [two_collectives() for _ in range(3)]
    for rank, item in enumerate(models):
        item.graph.initializer[0].raw_data = (W + rank).tobytes()  # equal ones would be warned of
    paths = save(models, tmp_path)

    def work(world: FakeCommunicator) -> None:
        executor.load(paths[world.rank], communicator=world, threads=1)

    on_ranks(3, work)
    assert [made[rank].sharers for rank in range(3)] == sharers


class Torch:
    """What `CudaMemory` asks torch of a device with 1000 bytes."""

    def __init__(self) -> None:
        found = SimpleNamespace(total_memory=1000, uuid="GPU-1")
        self.cuda = SimpleNamespace(get_device_properties=lambda device: found)


def device_memory(monkeypatch: pytest.MonkeyPatch, sharers: int = 1, graphs: str = "") -> CudaMemory:
    """A memory as on a GPU, of which only the settings are asked for."""
    memory = CudaMemory.__new__(CudaMemory)
    memory.device_id, memory.stream = 1, SimpleNamespace(cuda_stream=77)
    memory._torch, memory._device = Torch(), "cuda:1"
    memory._graphs = graphs_wanted((), {"SHARDRUN_CUDA_GRAPHS": graphs})
    memory.shared_by(sharers)
    return memory


PLAIN = {
    "device_id": "1",
    "user_compute_stream": "77",
    "do_copy_in_default_stream": "1",
    "arena_extend_strategy": "kSameAsRequested",
}


@pytest.mark.parametrize(
    ("sharers", "graphs", "more"),
    [(1, "", {}), (3, "0", {"gpu_mem_limit": "333"}), (1, "1", {"enable_cuda_graph": "1"})],
)
def test_what_cudas_provider_is_told(
    sharers: int, graphs: str, more: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_memory(monkeypatch, sharers, graphs).provider_options() == {**PLAIN, **more}


def test_a_device_is_told_from_others_by_its_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its number says nothing: each rank may see another GPU as number 0."""
    places = []
    for uuid in ("GPU-1", "GPU-1", "GPU-2"):
        memory = device_memory(monkeypatch)
        memory._torch.cuda.get_device_properties = lambda device, uuid=uuid: SimpleNamespace(uuid=uuid)
        places.append(memory.place)
    assert places[0] == places[1] != places[2]
    assert all(len(place) == PLACE and any(place) for place in places)


def test_a_memorys_stream_is_waited_for_and_made_torchs_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    memory, said = device_memory(monkeypatch), []
    memory.stream = SimpleNamespace(cuda_stream=77, synchronize=lambda: said.append("waited"))
    memory._torch.cuda.stream = lambda stream: said.append(stream) or nullcontext()
    memory.settle()
    with memory.active():
        pass
    assert said == ["waited", memory.stream]


def test_all_that_a_run_does_is_done_on_the_memorys_stream(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's current one in it: what it copies, and NCCL, which follows it."""
    within, outside = [], []

    @contextmanager
    def active(self: Device) -> Iterator[None]:
        within.append(self)
        yield
        within.pop()

    def noted(name: str) -> None:
        real = getattr(CpuTensors, name)

        def call(*given: Any, **more: Any) -> Any:
            outside.extend([] if within else [name])
            return real(*given, **more)

        monkeypatch.setattr(Device, name, call, raising=False)

    monkeypatch.setattr(Device, "active", active, raising=False)

    def work(loaded: Any) -> None:
        for name in ("load", "fetch", "fetch_into", "allocate", "copy"):
            noted(name)
        for feed in rows(3, 3, 3):
            loaded.run(feed)

    one_rank([two_collectives()], tmp_path, work)
    assert not outside and len(runs.take()) == 9


def test_all_models_of_a_process_compute_on_one_stream_of_torchs_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not on its default one, CUDA's null stream, which ONNX Runtime takes for none; one for each device."""
    made: list[str] = []

    class Stream:
        def __init__(self, device: str) -> None:
            made.append(device)

    fake = SimpleNamespace(
        cuda=SimpleNamespace(Stream=Stream), device=lambda kind, number: f"{kind}:{number}"
    )
    monkeypatch.setattr(cuda.torch_import, "load", lambda: fake)
    cuda._stream.cache_clear()
    try:
        first, again, other = (cuda._stream(number) for number in (0, 0, 1))
    finally:
        cuda._stream.cache_clear()
    assert isinstance(first, Stream) and first is again is not other
    assert made == ["cuda:0", "cuda:1"]


@pytest.mark.parametrize("text", ["yes", "2", "true"])
def test_a_wrong_setting_of_graphs(text: str) -> None:
    with pytest.raises(SettingError, match=f"SHARDRUN_CUDA_GRAPHS must be 1, 0 or not set, but is '{text}'"):
        graphs_wanted((), {"SHARDRUN_CUDA_GRAPHS": text})


@pytest.mark.parametrize(("told", "wanted"), [("1", True), ("True", True), ("0", False), (None, False)])
def test_the_providers_own_option_counts_too(told: str | None, wanted: bool) -> None:
    options = {} if told is None else {"enable_cuda_graph": told}
    assert graphs_wanted(({"device_id": "0"}, options), {}) is wanted


@pytest.mark.parametrize(
    ("told", "ordered"),
    [
        ({"CUDAExecutionProvider": "77"}, True),
        ({"CUDAExecutionProvider": "0"}, False),
        ({"TensorrtExecutionProvider": "0", "CUDAExecutionProvider": "77"}, False),
        ({"TensorrtExecutionProvider": "77", "CUDAExecutionProvider": "77"}, True),
        ({}, False),
    ],
)
def test_order_is_what_the_session_says_of_its_stream(
    told: dict[str, str], ordered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not what it was asked to do: a provider may not know the option."""
    options = {name: {"user_compute_stream": stream} for name, stream in told.items()}
    session = SimpleNamespace(
        get_providers=lambda: [*told, "CPUExecutionProvider"],
        get_provider_options=lambda: {**options, "CPUExecutionProvider": {}},
    )
    assert device_memory(monkeypatch).orders(session) is ordered


@pytest.mark.parametrize("pins", [True, False])
def test_staging_is_pinned_where_memory_can_be(pins: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def empty(size: int, *, dtype: Any, pin_memory: bool = False) -> Any:
        asked.append(pin_memory)
        if not pins:
            raise RuntimeError("CUDA error: out of memory")
        return torch.empty(size, dtype=dtype)

    memory = device_memory(monkeypatch)
    memory._torch = SimpleNamespace(empty=empty, uint8=torch.uint8)
    block = memory.staging(64)
    assert asked == [True]
    assert (block.dtype, block.shape, block.flags.writeable) == (np.uint8, (64,), True)


def test_sessions_share_one_arena_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[Any, ...]] = []

    def register(provider: str, info: Any, options: Any, settings: Any) -> None:
        made.append((provider, info.name, info.device_id, dict(options)))
        if info.device_id == 5:
            raise RuntimeError("no such device")

    settings: list[dict[str, int]] = []
    real = ort.OrtArenaCfg
    monkeypatch.setattr(ort, "OrtArenaCfg", lambda given: settings.append(dict(given)) or real(given))
    monkeypatch.setattr(ort, "create_and_register_allocator_v2", register)
    monkeypatch.setattr(arena.ARENAS, "_on_cuda", {})
    first, second = device_memory(monkeypatch, 2), device_memory(monkeypatch)
    shared = {"session.use_env_allocators": "1", "session.use_device_allocator_for_initializers": "1"}
    assert first.session_entries() == second.session_entries() == shared
    assert made == [("CUDAExecutionProvider", "Cuda", 1, {"device_id": "1"})]
    assert settings == [{"max_mem": 500, "arena_extend_strategy": 1}]  # kSameAsRequested
    assert arena.on_cuda(5) == arena.on_cuda(5) == {} and len(made) == 2
    assert device_memory(monkeypatch, graphs="1").session_entries() == {}


def test_what_cannot_be_captured_runs_without(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[tuple[Mapping[str, str], ...]] = []

    def create(source: bytes, config: SessionConfig, what: str) -> str:
        tried.append((config.memory_options, *config.provider_options))
        if any("enable_cuda_graph" in options for options in tried[-1]):
            raise ModelError(f"ONNX Runtime refuses {what}: This session cannot use the {reason}.")
        return "session"

    monkeypatch.setattr(assembly, "create", create)
    told = {"device_id": "0", "enable_cuda_graph": "1"}
    config = SessionConfig(memory_options=told, provider_options=(told, {}))
    reason = "graph capture feature as requested by the user"
    assert assembly._session(b"", config, "m.onnx") == "session"
    assert tried == [(told, told, {}), ({"device_id": "0"}, {"device_id": "0"}, {})]
    reason = "operator Foo"
    with pytest.raises(ModelError, match="operator Foo"):
        assembly._session(b"", config, "m.onnx")
