"""MindIR models as ranks load them: alone, encrypted, and with collectives of their own."""

import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from ranks import Context, Model, ModelGroup, ModelGroupFlag, ModelParallelRunner, ModelType
from ranks.errors import ModelError, ShardError, WeightsError
from ranks.models import imported
from ranks.run import executor
from sharding.importers import import_model
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

DATA = Path(__file__).parents[2] / "data" / "mindir"
KEY = b"0123456789ABCDEF"
SHARDED = [
    (case, name)
    for case in (
        "shard_mlp_allreduce",
        "shard_row_allreduce",
        "shard_col_allgather",
        "shard_reduce_scatter",  # answers of numpy: MindSpore has no kernel for CPUs
    )
    for name in ("model.mindir", "model_v1.mindir")
    if (DATA / case / "rank_0" / name).exists()
]


pytestmark = pytest.mark.usefixtures("cache")


def close(found: Any, expected: Any) -> bool:
    return float(np.abs(found - expected).max() / np.abs(expected).max()) <= 1e-5


def built(path: Path, **options: Any) -> Model:
    model = Model()
    model.build_from_file(str(path), ModelType.MINDIR, Context(), **options)
    return model


@pytest.mark.parametrize(("case", "name"), SHARDED)
def test_files_with_collectives_run_on_two_ranks(case: str, name: str) -> None:
    """Each rank has its own file, and MindSpore's two processes gave each these answers."""
    folders = [DATA / case / f"rank_{rank}" for rank in range(2)]
    archives = [np.load(folder / "io.npz") for folder in folders]

    def work(communicator: FakeCommunicator) -> list[Any]:
        archive = archives[communicator.rank]
        model = executor.load(folders[communicator.rank] / name, communicator=communicator)
        inputs = sorted(key for key in archive if key.endswith("in_0") and "full" not in key)
        return [model.run({model.inputs[0].name: archive[key]}) for key in inputs]

    for archive, results in zip(archives, on_ranks(2, work), strict=True):
        answers = sorted(key for key in archive if key.endswith("out_0") and "full" not in key)
        assert len(answers) == len(results) > 0
        for key, (found,) in zip(answers, results, strict=True):
            assert close(found, archive[key])


@pytest.mark.parametrize("op", ["max", "min", "prod"])
def test_reductions_that_are_no_sums(op: str) -> None:
    """AllReduce(x * w) + 1; the answers are those of numpy: MindSpore has no kernel for CPUs."""
    weight = np.arange(6, dtype=np.float32).reshape(2, 3) - 2.5
    given = [np.random.default_rng(rank).standard_normal((2, 3)).astype(np.float32) for rank in range(2)]

    def work(communicator: FakeCommunicator) -> Any:
        model = executor.load(DATA / "collectives" / "any_rank" / f"{op}.mindir", communicator=communicator)
        (found,) = model.run({model.inputs[0].name: given[communicator.rank]})
        return found

    reduce = {"max": np.max, "min": np.min, "prod": np.prod}[op]
    expected = reduce([x * weight for x in given], axis=0) + 1
    for found in on_ranks(2, work):
        assert found.shape == (2, 3)
        assert close(found, expected)


def test_broadcast() -> None:
    """`a, b = Broadcast(1)((x, y)); return a + 1, b`."""

    def given(rank: int) -> list[Any]:
        return [np.full((2, 3), rank + 5, np.float32), np.arange(4, dtype=np.float32) * (rank + 1)]

    def work(communicator: FakeCommunicator) -> Any:
        path = DATA / "collectives" / "any_rank" / "broadcast.mindir"
        model = executor.load(path, communicator=communicator)
        names = [spec.name for spec in model.inputs]
        return model.run(dict(zip(names, given(communicator.rank), strict=True)))

    for found, other in on_ranks(2, work):
        assert np.array_equal(found, given(1)[0] + 1)
        assert np.array_equal(other, given(1)[1])


def test_one_rank_alone_is_refused() -> None:
    with pytest.raises(ShardError, match="one rank's part of a model, but this process runs alone"):
        executor.load(DATA / "shard_row_allreduce" / "rank_0" / "model.mindir")


@pytest.mark.parametrize("name", ["mlp/model.mindir", "mlp/model_v1.mindir", "mlp_split/model_graph.mindir"])
def test_models_of_both_versions(name: str) -> None:
    archive = np.load(DATA / "mlp" / "io.npz")
    model = built(DATA / name)
    (tensor,) = model.get_inputs()
    assert (tensor.name, tensor.shape) == ("x", [4, 20])
    tensor.set_data_from_numpy(archive["in_0"])
    assert close(model.predict([tensor])[0].get_data_to_numpy(), archive["out_0"])


@pytest.mark.parametrize(("name", "mode"), [("gcm", "AES-GCM"), ("cbc", "AES-CBC")])
def test_encrypted_models(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, name: str, mode: str
) -> None:
    pytest.importorskip(
        "cryptography", reason="cryptography is not installed: encrypted files cannot be read"
    )
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    path = DATA / "mlp_encrypted" / f"model_aes_{name}.mindir"
    model = built(path, dec_key=KEY, dec_mode=mode)
    archive = np.load(DATA / "mlp" / "io.npz")
    assert close(model.predict([archive["in_0"]])[0].get_data_to_numpy(), archive["out_0"])
    model.resize(model.get_inputs(), [[7, 20]])
    assert model.predict([np.zeros((7, 20), np.float32)])[0].shape == [7, 5]
    with pytest.raises(RuntimeError, match="the key is wrong"):
        built(path, dec_key=b"x" * 16, dec_mode=mode)
    with pytest.raises(RuntimeError, match=rf"is encrypted \({mode}\): give its key"):
        built(path)
    with pytest.raises(RuntimeError, match="expected 16, 24, 32"):
        built(path, dec_key=b"short", dec_mode=mode)
    # Nothing that was decrypted is left.
    assert not list(tmp_path.glob("shardrun-*"))
    assert not list(cache.rglob("*.onnx"))


ENCRYPTED = DATA / "mlp_encrypted" / "model_aes_gcm.mindir"


@pytest.fixture
def nothing_plain(tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the environment asks to keep, nothing that was decrypted is left anywhere."""
    pytest.importorskip(
        "cryptography", reason="cryptography is not installed: encrypted files cannot be read"
    )
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "on")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    yield
    assert not list(tmp_path.glob("shardrun-*"))
    assert [file for file in cache.rglob("*") if file.is_file()] == []


@pytest.mark.parametrize(("workers", "threads"), [(1, 1), (3, 1), (2, 2)])
@pytest.mark.usefixtures("nothing_plain", "single")
def test_a_runner_of_an_encrypted_model(workers: int, threads: int) -> None:
    context = Context()
    context.cpu.thread_num, context.parallel.workers_num = threads, workers
    runner = ModelParallelRunner()
    with pytest.raises(RuntimeError, match=r"is encrypted \(AES-GCM\): give its key .* of build_from_file"):
        runner.build_from_file(str(ENCRYPTED), context)
    with pytest.raises(RuntimeError, match=r"Runner.*failed! Error is .*the key is wrong"):
        runner.build_from_file(str(ENCRYPTED), context, dec_key=b"x" * 16)
    with pytest.raises(TypeError, match="dec_key must be bytes, but got <class 'str'>"):
        runner.build_from_file(str(ENCRYPTED), context, dec_key="x" * 16)  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="is no encrypted MindIR file, but dec_key was given"):
        runner.build_from_file(str(DATA / "mlp" / "model.mindir"), context, dec_key=KEY)
    runner.build_from_file(str(ENCRYPTED), context, dec_key=KEY)
    archive = np.load(DATA / "mlp" / "io.npz")
    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(lambda _: runner.predict([archive["in_0"]])[0], range(6)))
    assert all(close(one.get_data_to_numpy(), archive["out_0"]) for one in found)
    runner.close()


@pytest.mark.usefixtures("nothing_plain", "single")
def test_an_encrypted_model_keeps_its_weights_nowhere() -> None:
    """Neither prepared, as `SHARDRUN_WEIGHTS` asks, nor for other processes or the models of a group."""
    archive = np.load(DATA / "mlp" / "io.npz")
    model = built(ENCRYPTED, dec_key=KEY)
    assert close(model.predict([archive["in_0"]])[0].get_data_to_numpy(), archive["out_0"])
    with pytest.raises(
        WeightsError,
        match=r"is encrypted, so its weights are not shared .*`shardrun convert --dec-key-file FILE`",
    ):
        built(ENCRYPTED, dec_key=KEY, config_dict={"pids": [1]})
    group = ModelGroup(ModelGroupFlag.SHARE_WEIGHT_WORKSPACE)
    group.add_model([str(ENCRYPTED)])
    group.cal_max_size_of_workspace(ModelType.MINDIR, Context())
    assert list(group.workspaces.values()) == [None]
    with pytest.warns(
        UserWarning, match="model_aes_gcm.mindir is encrypted, so it shares no weights with its"
    ):
        model = built(ENCRYPTED, dec_key=KEY)
    assert close(model.predict([archive["in_0"]])[0].get_data_to_numpy(), archive["out_0"])


@pytest.mark.usefixtures("nothing_plain", "single")
def test_an_encrypted_model_is_loaded_again_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "net.mindir").write_bytes(ENCRYPTED.read_bytes())
    monkeypatch.chdir(tmp_path)
    model = built(Path("net.mindir"), dec_key=KEY)
    monkeypatch.chdir("/")
    model.resize(model.get_inputs(), [[7, 20]])
    assert model.predict([np.zeros((7, 20), np.float32)])[0].shape == [7, 5]
    with pytest.raises(RuntimeError, match=r"Error is net.mindir cannot be decrypted: the key is wrong"):
        monkeypatch.chdir(tmp_path)
        built(Path("net.mindir"), dec_key=b"x" * 16)


def test_a_model_is_converted_once(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.mindir"
    path.write_bytes((DATA / "mlp" / "model.mindir").read_bytes())
    first = imported.as_onnx(path)
    stamp = first.stat().st_mtime_ns
    assert first.name == "net.onnx" and first.is_relative_to(cache)
    assert imported.as_onnx(path) == first and first.stat().st_mtime_ns == stamp
    first.write_bytes(b"damaged")
    assert imported.as_onnx(path) == first and first.stat().st_size > 1000
    path.write_bytes((DATA / "mlp" / "model_v1.mindir").read_bytes())
    assert imported.as_onnx(path) != first
    assert imported.as_onnx(first) == first  # ONNX is what it is


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "file"))
    with pytest.raises(
        ModelError, match=r"is converted to ONNX first, but .* cannot be used: Not a directory"
    ):
        imported.as_onnx(DATA / "mlp" / "model.mindir")


def open_rank(folder: Path) -> Path:
    """A network of a layer normalization whose input may have any number of axes."""
    with zipfile.ZipFile(DATA / "open_v3.zip") as archive:
        return Path(archive.extract("cell_LN.r.mindir", folder))


def normal(x: np.ndarray[Any, Any], file: Path) -> np.ndarray[Any, Any]:
    """What MindSpore's layer computes, by the weights in the file."""
    held = {item.name: onnx.numpy_helper.to_array(item) for item in import_model(file).graph.initializer}
    (gamma,) = (array for name, array in held.items() if name.endswith("gamma"))
    (beta,) = (array for name, array in held.items() if name.endswith("beta"))
    distance = x - x.mean(-1, keepdims=True)
    return distance / np.sqrt((distance**2).mean(-1, keepdims=True) + 1e-7) * gamma + beta


def test_inputs_of_any_number_of_axes_are_predicted_and_resized(tmp_path: Path) -> None:
    file = open_rank(tmp_path)
    model = built(file)
    inputs = model.get_inputs()
    assert inputs[0].shape == [-2]
    assert model.get_model_info("input_shape") == "x0:-2"
    for shape in ((3, 4), (4,), (2, 1, 3, 4)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        inputs[0].set_data_from_numpy(x)
        assert close(model.predict(inputs)[0].get_data_to_numpy(), normal(x, file))
        assert close(model.predict([x])[0].get_data_to_numpy(), normal(x, file))
        model.resize(inputs, [list(shape)])
        assert inputs[0].shape == model.get_inputs()[0].shape == list(shape)
        assert close(model.predict([x])[0].get_data_to_numpy(), normal(x, file))
    with pytest.raises(RuntimeError):  # the weights have 4 elements
        model.predict([np.ones((2, 3), np.float32)])
