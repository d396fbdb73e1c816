"""`ModelParallelRunner`, its answers compared with plain ONNX Runtime."""

import copy
import gc
import os
import pickle
import sys
import threading
import warnings
import weakref
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

import ranks
import sharding
from ranks import Context, Model, ModelParallelRunner, ModelType, RunnerConfig, Tensor
from ranks.errors import ModelError, QueueFullError, ShardrunError
from ranks.lite import runner as runner_module
from ranks.lite.runner import sizes
from ranks.run.executor import RankModel
from tests.launcher.cli_tools import run
from tests.launcher.processes import wait_until
from tests.ranks import api_models
from tests.ranks.threads import SECONDS, until

pytestmark = pytest.mark.usefixtures("single")

ROOT = Path(__file__).parents[3]
FAILED = r"^ModelParallelRunner's build from file failed! Error is "


def context(workers: int = 3, threads: int = 1, **parallel: Any) -> Context:
    made = Context()
    made.cpu.thread_num = threads
    made.parallel.workers_num = workers
    for name, value in parallel.items():
        setattr(made.parallel, name, value)
    return made


def built(path: Path, given: Context | None = None) -> ModelParallelRunner:
    runner = ModelParallelRunner()
    runner.build_from_file(str(path), context() if given is None else given)
    return runner


def waiting(runner: ModelParallelRunner) -> int:
    assert runner._pool is not None
    return runner._pool.waiting


class Gate:
    """Stops each inference as it starts, until let go; counts how many are inside at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.inside = 0
        self.most = 0
        self.order: list[float] = []
        self._lock = threading.Lock()
        self._passes = threading.Semaphore(0)
        real = RankModel.run

        def stopped(model: RankModel, feeds: Mapping[str, NDArray[Any]]) -> list[Any]:
            with self._lock:
                self.inside += 1
                self.most = max(self.most, self.inside)
                self.order.append(float(feeds["x"].flat[0]))
            assert self._passes.acquire(timeout=SECONDS)
            try:
                return real(model, feeds)
            finally:
                with self._lock:
                    self.inside -= 1

        monkeypatch.setattr(RankModel, "run", stopped)

    def let(self, number: int) -> None:
        self._passes.release(number)


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Gate:
    return Gate(monkeypatch)


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (3, 1), (3, 2), (0, 0), (2, 0), (0, 2)])
def test_many_threads_get_their_own_answers(workers: int, threads: int, tmp_path: Path) -> None:
    """Different inputs and different shapes at once."""
    path = api_models.linear(tmp_path / "m.onnx")
    runner = built(path, context(workers, threads))
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])

    def client(number: int) -> None:
        random = np.random.default_rng(number)
        for _ in range(25):
            data = random.standard_normal((int(random.integers(1, 40)), 8)).astype(np.float32)
            (tensor,) = runner.get_inputs()
            tensor.set_data_from_numpy(data)
            (output,) = runner.predict([tensor])
            expected = session.run(None, {"x": data})[0]
            np.testing.assert_allclose(output.get_data_to_numpy(), expected, rtol=1e-4, atol=1e-5)

    with ThreadPoolExecutor(16) as pool:
        for done in [pool.submit(client, number) for number in range(16)]:
            done.result(SECONDS)


@pytest.mark.parametrize("threads", [1, 2])
def test_as_many_inferences_at_once_as_workers(threads: int, gate: Gate, tmp_path: Path) -> None:
    runner = built(api_models.linear(tmp_path / "m.onnx"), context(3, threads))
    with ThreadPoolExecutor(8) as pool:
        done = [pool.submit(runner.predict, [np.zeros((1, 8), np.float32)]) for _ in range(8)]
        until(lambda: gate.inside == 3 and waiting(runner) == 5)
        gate.let(8)
        for one in done:
            one.result(SECONDS)
    assert gate.most == 3


def test_first_come_first_served(gate: Gate, tmp_path: Path) -> None:
    runner = built(api_models.linear(tmp_path / "m.onnx"), context(1))
    with ThreadPoolExecutor(12) as pool:
        done = []
        for number in range(12):
            done.append(pool.submit(runner.predict, [np.full((1, 8), number, np.float32)]))
            until(lambda number=number: gate.inside == 1 and waiting(runner) == number)  # type: ignore[misc]
        gate.let(12)
        for one in done:
            one.result(SECONDS)
    assert gate.order == list(range(12))


@pytest.mark.parametrize("given", ["config_info", "config_path"])
@pytest.mark.parametrize("limit", [0, 2])
def test_a_full_queue_is_an_error(given: str, limit: int, gate: Gate, tmp_path: Path) -> None:
    setting: Any = {"parallel_runner": {"queue_limit": str(limit)}}
    if given == "config_path":
        setting = str(tmp_path / "config.ini")
        Path(setting).write_text(f"[parallel_runner]\nqueue_limit={limit}\n")
    runner = built(api_models.linear(tmp_path / "m.onnx"), context(1, **{given: setting}))
    data = np.zeros((1, 8), np.float32)
    with ThreadPoolExecutor(3) as pool:
        done = [pool.submit(runner.predict, [data]) for _ in range(1 + limit)]
        until(lambda: gate.inside == 1 and waiting(runner) == limit)
        with pytest.raises(
            QueueFullError, match=r"^predict failed! Error is all workers \(1\) are busy"
        ) as seen:
            runner.predict([data])
        assert isinstance(seen.value, RuntimeError)
        gate.let(2 + limit)
        for one in done:
            one.result(SECONDS)
    assert runner.predict([data])[0].shape == [1, 4]


@pytest.mark.parametrize("value", ["", "-1", "many", "1e3", "1000001", "٣", "9" * 5000])
def test_a_wrong_queue_limit(value: str, tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx")
    given = context(config_info={"parallel_runner": {"queue_limit": value}})
    with pytest.raises(RuntimeError, match=r"\[parallel_runner\] queue_limit must be a number") as seen:
        built(path, given)
    assert len(str(seen.value)) < 300


def test_an_error_is_its_callers_alone(tmp_path: Path) -> None:
    """Wrong inputs, and an index that ONNX Runtime finds wrong only when it runs."""
    node = helper.make_node("Gather", ["x", "x"], ["y"])
    path = api_models.save(tmp_path / "m.onnx", [node], {"x": ["n"]}, {"y": ["n"]}, element=TensorProto.INT64)
    runner = built(path, context(2))
    good, bad = np.array([2, 0, 1]), np.array([7])

    def client(number: int) -> str:
        if number % 3 == 0:
            return str(runner.predict([good])[0].get_data_to_numpy())
        try:
            runner.predict([bad if number % 3 == 1 else np.ones((1, 1), np.int64)])
        except RuntimeError as error:
            return str(error)
        return "no error"

    with ThreadPoolExecutor(9) as pool:
        found = list(pool.map(client, range(90)))
    assert set(found[0::3]) == {"[1 2 0]"}
    assert all(text.startswith("predict failed! Error is ONNX Runtime could not run") for text in found[1::3])
    assert all("Input 'x' must have 1 axes" in text for text in found[2::3])
    left = runner._pool
    assert left is not None
    until(lambda: len(left.free) == 2)  # a caller has its answer before its worker is free again


WRONG: list[Any] = [
    3,
    {},
    [],
    [1],
    ["x"],
    [None],
    [np.zeros((1, 8), np.float32)] * 2,
    [np.zeros((1, 8))],
    [np.zeros((1, 9), np.float32)],
    [np.zeros(8, np.float32)],
    [Tensor()],
    (Tensor(np.zeros((2, 3), np.float32)),),
]


@pytest.mark.parametrize("inputs", WRONG)
def test_inputs_are_checked_as_by_model(inputs: Any, tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx")
    model = Model()
    model.build_from_file(str(path), ModelType.ONNX)
    runner = built(path)
    with pytest.raises((TypeError, ValueError, RuntimeError)) as by_model:
        model.predict(inputs)
    with pytest.raises(type(by_model.value)) as by_runner:
        runner.predict(inputs)
    assert str(by_runner.value) == str(by_model.value)


def test_outputs_are_filled(tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx", batch=2)
    runner = built(path)
    assert [(one.name, one.shape) for one in runner.get_outputs()] == [("y", [2, 4])]
    data = np.random.default_rng(1).standard_normal((2, 8)).astype(np.float32)
    mine = np.zeros((2, 4), np.float32)
    (returned,) = runner.predict([data], [Tensor(mine)])
    np.testing.assert_array_equal(mine, runner.predict([data])[0].get_data_to_numpy())
    assert np.abs(mine).max() > 0
    assert returned.get_data_to_numpy() is mine
    with pytest.raises(RuntimeError, match="model output len:1 not equal output len:0"):
        runner.predict([data], [])
    with pytest.raises(RuntimeError, match=r"Output 'y' has .* shape \[2, 4\], but .* shape \[4, 2\]"):
        runner.predict([data], [Tensor(np.zeros((4, 2), np.float32))])


def test_building_again_serves_those_who_wait(gate: Gate, tmp_path: Path) -> None:
    first = api_models.linear(tmp_path / "first.onnx")
    second = api_models.add_one(tmp_path / "second.onnx", shape=(1, 8))
    runner = built(first, context(1))
    data = np.ones((1, 8), np.float32)
    with ThreadPoolExecutor(4) as pool:
        done = [pool.submit(runner.predict, [data]) for _ in range(3)]
        until(lambda: gate.inside == 1 and waiting(runner) == 2)
        runner.build_from_file(str(second), context(1))
        assert str(runner) == f"model_path: {second}."
        after = pool.submit(runner.predict, [data])
        gate.let(4)
        expected = onnxruntime.InferenceSession(str(first)).run(None, {"x": data})[0]
        for one in done:
            np.testing.assert_allclose(one.result(SECONDS)[0].get_data_to_numpy(), expected, rtol=1e-5)
        np.testing.assert_array_equal(after.result(SECONDS)[0].get_data_to_numpy(), data + 1)


def test_a_failed_build_leaves_what_was_built(tmp_path: Path) -> None:
    runner = built(api_models.add_one(tmp_path / "m.onnx"))
    (tmp_path / "bad.onnx").write_bytes(b"no model\n")
    with pytest.raises(ModelError, match=FAILED):
        runner.build_from_file(str(tmp_path / "bad.onnx"))
    data = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(runner.predict([data])[0].get_data_to_numpy(), data + 1)
    assert str(runner) == f"model_path: {tmp_path / 'm.onnx'}."


def test_closing_while_others_wait(gate: Gate, tmp_path: Path) -> None:
    runner = built(api_models.add_one(tmp_path / "m.onnx", shape=("n", 3)), context(1))
    data = np.ones((2, 3), np.float32)
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(runner.predict, [data])
        until(lambda: gate.inside == 1)
        others = [pool.submit(runner.predict, [data]) for _ in range(2)]
        until(lambda: waiting(runner) == 2)
        runner.close()
        for one in others:
            with pytest.raises(RuntimeError, match=r"^predict failed! Error is the runner was closed\.$"):
                one.result(SECONDS)
        gate.let(1)
        np.testing.assert_array_equal(first.result(SECONDS)[0].get_data_to_numpy(), data + 1)
    runner.close()
    with pytest.raises(RuntimeError, match="the model is not built"):
        runner.predict([data])
    assert runner.get_inputs() == runner.get_outputs() == []


@pytest.mark.parametrize("how", ["forgotten", "closed", "built again"])
def test_the_model_is_freed(how: str, tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx")
    runner: ModelParallelRunner | None = built(path, context(3, 2))
    assert runner is not None and runner._pool is not None
    models = [weakref.ref(worker) for worker in runner._pool.free]
    assert len({id(one()) for one in models}) == 3
    runner.predict([np.ones((1, 8), np.float32)])
    if how == "closed":
        runner.close()
    elif how == "built again":
        runner.build_from_file(str(path))
    else:
        runner = None
    gc.collect()
    # A pool that is collected is closed by another thread, which whoever collects it must not wait for.
    assert wait_until(lambda: [one() for one in models] == [None] * 3, SECONDS)


def test_one_thread_each_share_one_session(tmp_path: Path) -> None:
    runner = built(api_models.linear(tmp_path / "m.onnx"), context(5, 1))
    assert runner._pool is not None
    assert len(runner._pool.free) == 5
    assert len({id(worker) for worker in runner._pool.free}) == 1


def test_a_model_that_runs_one_at_a_time_is_loaded_for_each_worker(tmp_path: Path) -> None:
    """Arrays of bfloat16 go to ONNX Runtime by address, through buffers of the loaded model's own."""
    node = helper.make_node("Identity", ["x"], ["y"])
    path = api_models.save(tmp_path / "m.onnx", [node], {"x": [2]}, {"y": [2]}, element=TensorProto.BFLOAT16)
    runner = built(path, context(2, 1))
    assert runner._pool is not None
    assert len({id(worker) for worker in runner._pool.free}) == 2


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ((0, 0, 8), (8, 1)),
        ((0, 2, 8), (4, 2)),
        ((0, 3, 8), (2, 3)),
        ((0, 64, 8), (1, 64)),
        ((3, 0, 8), (3, 2)),
        ((16, 0, 8), (16, 1)),
        ((3, 5, 8), (3, 5)),
        ((0, 0, 4096), (1024, 1)),
        ((0, 0, 8, 2), (2, 1)),
        ((4, 0, 8, 2), (4, 1)),
    ],
)
def test_open_numbers_fill_the_cores(asked: tuple[int, ...], expected: tuple[int, int]) -> None:
    assert sizes(*asked) == expected


def test_too_many_workers(tmp_path: Path) -> None:
    with pytest.raises(ShardrunError, match=FAILED + "workers_num must be at most 1024, but is 2147483647"):
        built(api_models.linear(tmp_path / "m.onnx"), context(2**31 - 1))


def test_models_of_groups_are_refused(tmp_path: Path) -> None:
    part, _ = api_models.linear_ranks(tmp_path / "hand")
    big = api_models.linear(tmp_path / "big.onnx", width=512)
    sharding.slice_model(big, 2, tmp_path / "slices")
    for path in (part, tmp_path / "slices", *sorted((tmp_path / "slices").glob("*.onnx"))):
        with pytest.raises(RuntimeError, match=FAILED + ".* is made for a group of ranks"):
            built(path)


def test_patterns_of_rank_models_are_refused(tmp_path: Path) -> None:
    api_models.linear_ranks(tmp_path)
    with pytest.raises(RuntimeError, match=r"is made for a group of ranks, .* use Model for it"):
        ModelParallelRunner().build_from_file(str(tmp_path / "part_{}.onnx"))
    with pytest.raises(RuntimeError, match=r"build from file failed! Error is .*none_"):
        ModelParallelRunner().build_from_file(str(tmp_path / "none_{}.onnx"))


def test_variable_weights_have_no_effect(tmp_path: Path) -> None:
    context = Context()
    context.parallel.config_info = {"cpu_context": {"variable_weights_list": "w1"}}
    runner = ModelParallelRunner()
    with pytest.warns(UserWarning, match="variable_weights_list .* have no effect in a ModelParallelRunner"):
        runner.build_from_file(str(api_models.linear(tmp_path / "m.onnx")), context)
    assert runner.predict([np.zeros((2, 8), np.float32)])[0].shape == [2, 4]
    assert runner._model._built is not None and not runner._model._built.model.variable_names


@pytest.mark.parametrize("kind", [Model, ModelParallelRunner, ranks.SharedModel])
@pytest.mark.parametrize("how", [pickle.dumps, copy.deepcopy])
def test_what_is_no_argument_for_another_process(kind: Any, how: Any, tmp_path: Path) -> None:
    path = str(api_models.linear(tmp_path / "m.onnx", width=2048))
    made = ranks.share_weights(path) if kind is ranks.SharedModel else kind()
    if kind is not ranks.SharedModel:
        made.build_from_file(path, *([ModelType.ONNX] if kind is Model else []))
    with pytest.raises(TypeError, match=f"a {kind.__name__} cannot be pickled.* share its weights"):
        how(made)
    zeros = np.zeros((2, 8), np.float32)
    assert copy.copy(made).predict([zeros])[0].shape == [2, 4]


def test_the_format_is_found_by_content(tmp_path: Path) -> None:
    path = api_models.add_one(tmp_path / "model.ms")  # an ONNX file whatever it is called
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runner = built(path)
    assert runner.predict(runner.get_inputs())[0].get_data_to_numpy().tolist() == [[1.0] * 3] * 2
    for content in (b"", b"no model\n", b"\x08"):
        (tmp_path / "bad").write_bytes(content)
        with pytest.raises(ModelError, match=FAILED) as seen:
            built(tmp_path / "bad")
        assert isinstance(seen.value, RuntimeError)
        assert "\n" not in str(seen.value)


def test_device_ids_on_the_cpu_change_nothing(tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "m.onnx")
    with pytest.warns(UserWarning, match=r"device_ids \[0, 1\] have no effect on the CPU"):
        runner = built(path, context(device_ids=[0, 1]))
    assert runner._pool is not None
    assert len({id(worker) for worker in runner._pool.free}) == 1
    assert runner.predict([np.ones((1, 8), np.float32)])[0].shape == [1, 4]


def test_workers_take_turns_on_devices() -> None:
    given = context()
    given.gpu.device_id = 7
    assert [one.gpu.device_id for one in runner_module._per_device(given, [])] == [7]
    assert [one.gpu.device_id for one in runner_module._per_device(given, [2, 0, 2])] == [2, 0]
    assert [one.ascend.device_id for one in runner_module._per_device(given, [2, 0])] == [2, 0]
    assert given.gpu.device_id == 7

    class Loads:
        """A recipe whose models threads may run at once, or not."""

        def __init__(self, concurrent: bool) -> None:
            self.model = type("Model", (), {"concurrent": concurrent})

        def load(self) -> Any:
            return self.model()

    for concurrent, shared, different in ((True, True, 2), (False, True, 5), (True, False, 5)):
        recipes: Any = [Loads(concurrent), Loads(concurrent)]
        workers = runner_module._load(recipes, 5, shared=shared)
        assert [type(worker) for worker in workers] == [recipes[index % 2].model for index in range(5)]
        assert len({id(worker) for worker in workers}) == different


@pytest.mark.parametrize("key", ["shareable_weight_pid_list", "shareable_weight_mem_handle"])
def test_weights_are_not_shared_by_handle(key: str, tmp_path: Path) -> None:
    given = context(config_info={"cpu_context": {key: "12"}})
    with pytest.raises(RuntimeError, match=FAILED + ".* does not share weights with other processes"):
        built(api_models.linear(tmp_path / "m.onnx"), given)


MEMORY = """
import sys, threading
from pathlib import Path
import numpy as np
import ranks

context = ranks.Context()
context.cpu.thread_num = int(sys.argv[2])
context.parallel.workers_num = int(sys.argv[3])
runner = ranks.ModelParallelRunner()
runner.build_from_file(sys.argv[1], context)
client = lambda: [runner.predict([np.ones((1, 8), np.float32)]) for _ in range(4)]
clients = [threading.Thread(target=client) for _ in range(16)]
for thread in clients:
    thread.start()
for thread in clients:
    thread.join()
lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
print(next(line.split()[1] for line in lines if line.startswith("Pss:")))
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells what a process shares")
@pytest.mark.parametrize("threads", [1, 2])
def test_workers_have_one_copy_of_the_weights(threads: int, tmp_path: Path) -> None:
    """Eight workers may take more than one, but not half of the weights more, which are of 32 MB."""
    width = 2048
    random = np.random.default_rng(0)
    weights = {
        "w0": random.standard_normal((8, width), np.float32),
        "w1": random.standard_normal((width, width), np.float32),
        "w2": random.standard_normal((width, width), np.float32),
    }
    nodes = [
        helper.make_node("MatMul", ["x", "w0"], ["a"]),
        helper.make_node("MatMul", ["a", "w1"], ["b"]),
        helper.make_node("MatMul", ["b", "w2"], ["y"]),
    ]
    path = api_models.save(tmp_path / "m.onnx", nodes, {"x": ["n", 8]}, {"y": ["n", width]}, weights)
    found = []
    for workers in (1, 8):
        done = run([sys.executable, "-c", MEMORY, str(path), str(threads), str(workers)], tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(int(done.stdout) << 10)
    assert found[1] - found[0] < 16 << 20, found


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="Linux tells what a process holds")
def test_workers_take_buffers_only_as_many_as_processors(tmp_path: Path) -> None:
    """On one processor eight workers may take more than one, but not half of what seven have in buffers."""
    nodes = [
        helper.make_node("Expand", ["x", "shape"], ["wide"]),
        helper.make_node("Softmax", ["wide"], ["soft"], axis=1),
        helper.make_node("ReduceMax", ["soft"], ["y"], axes=[0], keepdims=1),
    ]
    weights = {"shape": np.array([1 << 18, 8])}
    path = api_models.save(tmp_path / "m.onnx", nodes, {"x": [1, 8]}, {"y": [1, 8]}, weights)
    one = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n"
    found = []
    for workers in (1, 8):
        done = run([sys.executable, "-c", one + MEMORY, str(path), "1", str(workers)], tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        found.append(int(done.stdout) << 10)
    assert found[1] - found[0] < 28 << 20, found  # 8 MB each


def test_the_generation_before(tmp_path: Path) -> None:
    path = api_models.add_one(tmp_path / "m.onnx")
    given = Context()
    given.cpu.thread_num = 1
    with pytest.warns(DeprecationWarning, match=r"RunnerConfig is deprecated, use context\.parallel instead"):
        config = RunnerConfig(given, 4, {"parallel_runner": {"queue_limit": "7"}}, "")
    assert str(config) == (
        "workers num: 4,\nconfig info: parallel_runner: queue_limit 7,\n"
        "context: thread num: 1, bind mode: 0,\nconfig path: ."
    )
    runner = ModelParallelRunner()
    with pytest.warns(DeprecationWarning, match=r"init\(\) is deprecated, use build_from_file\(\) instead"):
        runner.init(str(path), config)
    assert runner._pool is not None
    assert (runner._pool.size, runner._pool.queue_limit) == (4, 7)
    outputs = runner.get_outputs()
    runner.predict([np.ones((2, 3), np.float32)], outputs)
    assert isinstance(outputs[0], Tensor)
    np.testing.assert_array_equal(outputs[0].get_data_to_numpy(), np.full((2, 3), 2))
    with pytest.warns(DeprecationWarning), pytest.raises(RuntimeError, match="init failed, model_path does"):
        runner.init("/no/such/file", config)
    with (
        pytest.warns(DeprecationWarning),
        pytest.raises(TypeError, match="runner_config must be RunnerConfig"),
    ):
        runner.init(str(path), given)  # type: ignore[arg-type]
    for arguments, kind in (((3,), TypeError), ((None, "4"), TypeError), ((None, -1), ValueError)):
        with pytest.warns(DeprecationWarning), pytest.raises(kind):
            RunnerConfig(*arguments)  # type: ignore[arg-type]


def test_names_of_the_package() -> None:
    assert {"ModelParallelRunner", "RunnerConfig"} <= set(dir(ranks))


@pytest.mark.parametrize("how", ["its import changed", "as it was"])
def test_the_example(how: str, tmp_path: Path) -> None:
    """Five clients with two tasks each: with its import changed, and under `shardrun exec` as it was."""
    model = api_models.linear(tmp_path / "m.onnx")
    program = ROOT / "examples" / "parallel_runner.py"
    command = [sys.executable, str(program), str(model)]
    if how == "as it was":
        text = program.read_text().replace("import ranks as mslite", "import mindspore_lite as mslite")
        assert "ranks" not in text
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, "-m", "launcher.cli", "exec", str(program), str(model)]
    done = run(command, tmp_path)
    assert done.returncode == 0, done.stderr
    session = onnxruntime.InferenceSession(str(model))
    lines = sorted(line.rsplit("] ", 1)[0] for line in done.stdout.splitlines())
    expected = []
    for client in range(5):
        values = session.run(None, {"x": np.full((1, 8), client, np.float32)})[0].flatten()
        expected += [f"client {client} task {task}: y [1, 4] {values}"[:-1] for task in (1, 2)]
    assert lines == expected


TUTORIAL = """
import threading
import numpy as np
import ranks as mslite

def parallel_runner_predict(parallel_runner, parallel_id):
    for task_index in range(2):
        inputs = parallel_runner.get_inputs()
        in_data = np.fromfile("input.bin", dtype=np.float32)
        inputs[0].set_data_from_numpy(in_data)
        outputs = parallel_runner.predict(inputs)
        for output in outputs:
            name, size, count = output.name.rstrip(), output.data_size, output.element_num
            data = output.get_data_to_numpy().flatten()
            print(f"{parallel_id} {task_index} {name} {size} {count} {data[:5].tolist()}\\n", end="")

context = mslite.Context()
context.target = ["cpu"]
context.cpu.enable_fp16 = False
context.cpu.thread_num = 1
context.cpu.inter_op_parallel_num = 1
context.parallel.workers_num = 3
model_parallel_runner = mslite.ModelParallelRunner()
model_parallel_runner.build_from_file(model_path="model.onnx", context=context)
threads = [
    threading.Thread(target=parallel_runner_predict, args=(model_parallel_runner, index))
    for index in range(5)
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def test_every_call_of_the_tutorial(tmp_path: Path) -> None:
    """The inputs flat from a file, the options it sets, the attributes it reads."""
    path = api_models.linear(tmp_path / "model.onnx", batch=2)
    data = np.random.default_rng(3).standard_normal((2, 8)).astype(np.float32)
    data.tofile(tmp_path / "input.bin")
    (tmp_path / "program.py").write_text(TUTORIAL)
    done = run([sys.executable, "program.py"], tmp_path)
    assert done.returncode == 0, done.stderr
    first = onnxruntime.InferenceSession(str(path)).run(None, {"x": data})[0].flatten()[:5]
    lines = sorted(done.stdout.splitlines())
    assert [line.split(" [")[0] for line in lines] == [
        f"{client} {task} y 32 8" for client in range(5) for task in range(2)
    ]
    for line in lines:
        found = [float(value) for value in line.split("[")[1].rstrip("]").split(",")]
        np.testing.assert_allclose(found, first, rtol=1e-4, atol=1e-5)
