"""What may be wrong with what a rank is given to load: each thing is one sentence, never ONNX Runtime's
traceback."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ranks.common import heap
from ranks.errors import DeviceError, IdentityError, ModelError, ShardError, ShardrunError
from ranks.models import model_file
from ranks.run import assembly, executor, group
from ranks.run.placement import Placement
from ranks.sessions.session import SessionConfig
from sharding import slice_model
from tests.ranks import state_models
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.rank_models import joined, save
from tests.ranks.run.test_executor import assert_close, mlp, mlps, reference, rows
from tests.sharding import graphs

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slice folder for two ranks, with ``whole.onnx`` beside it."""
    folder = tmp_path_factory.mktemp("slices")
    text = "mlp (float[n, 64] x) => (float[n, 64] y) { a = MatMul(x, w1) r = Relu(a) y = MatMul(r, w2) }"
    weights = {"w1": graphs.array(64, 256), "w2": graphs.array(256, 64)}
    graphs.save(folder / "whole.onnx", text, weights)
    slice_model(folder / "whole.onnx", 2, folder / "two")
    return folder


@pytest.fixture
def two(slices: Path, tmp_path: Path) -> Path:
    """A copy of the slice folder, to damage."""
    return shutil.copytree(slices / "two", tmp_path / "two")


def load_on(size: int, path: Callable[[int], Path] | Path) -> str:
    """The error of loading on every rank of a group."""
    with pytest.raises(ShardrunError) as caught:
        on_ranks(
            size,
            lambda c: executor.load(path(c.rank) if callable(path) else path, communicator=c, threads=1),
        )
    assert type(caught.value) in {ShardError, ModelError}
    return str(caught.value)


@pytest.mark.parametrize("as_file", [False, True])
def test_a_slice_folder_runs_as_the_whole_model(slices: Path, as_file: bool) -> None:
    x = {"x": np.random.default_rng(0).standard_normal((3, 64)).astype(np.float32)}
    expected = ort.InferenceSession(slices / "whole.onnx").run(None, x)

    def work(c: FakeCommunicator) -> None:
        path = slices / "two" / (f"rank_{c.rank}.onnx" if as_file else "")
        loaded = executor.load(path, communicator=c, threads=1)
        for _ in range(3):
            assert_close(loaded.run(x), expected)
        assert loaded.stats.collectives == 1
        assert 4 * 64 * 256 <= loaded.stats.weight_bytes < 4 * 64 * 256 * 1.1

    on_ranks(2, work)


@pytest.mark.parametrize("alone", [True, False])
@pytest.mark.parametrize("form", ["state", "none"])
def test_the_heap_is_set_for_ranks_with_state_alone(
    slices: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str, alone: bool
) -> None:
    """Other ranks would hold more memory and gain nothing, and a program's own heap is its own."""
    folder = slices / "two"
    if form == "state":
        folder = tmp_path / "slices"
        state_models.buffered(tmp_path / "model.onnx")
        slice_model(tmp_path / "model.onnx", 2, folder)
    set_up: list[None] = []
    monkeypatch.setattr(heap, "join", lambda: set_up.append(None))
    options = executor.LoadOptions(alone=alone)
    on_ranks(2, lambda c: executor.load(folder, communicator=c, threads=1, options=options))
    assert bool(set_up) == (alone and form == "state")


def test_each_of_several_sessions_is_named_and_stops_its_threads(
    slices: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[tuple[bool, str]] = []
    create = assembly.create

    def noted(model: bytes, config: SessionConfig, what: str) -> ort.InferenceSession:
        made.append((config.many, what))
        return create(model, config, what)

    monkeypatch.setattr(assembly, "create", noted)
    on_ranks(2, lambda rank: executor.load(slices / "two", communicator=rank, threads=1))
    files = [slices / "two" / f"rank_{rank}.onnx" for rank in range(2)]
    assert sorted(made) == [(True, f"segment 0 of {file}") for file in files]


def test_a_model_may_be_without_nodes_or_outputs_but_not_without_both(tmp_path: Path) -> None:
    texts = {"outputs": "g (float[2] x) => (float[2] x) {}", "nodes": "g (float[2] x) => () { y = Neg(x) }"}
    for name, text in texts.items():
        onnx.save(onnx.helper.make_model(onnx.parser.parse_graph(text)), tmp_path / f"{name}.onnx")
        model_file.read(tmp_path / f"{name}.onnx")
    onnx.save(onnx.helper.make_model(onnx.parser.parse_graph("g (float[2] x) => () {}")), tmp_path / "m.onnx")
    with pytest.raises(ModelError, match=r"m\.onnx is not an ONNX model: it has no nodes and no outputs"):
        model_file.read(tmp_path / "m.onnx")


def test_wrong_world_size(two: Path) -> None:
    message = load_on(3, two)
    assert "world size 2" in message
    assert "world size 3" in message


def test_wrong_rank(two: Path) -> None:
    message = load_on(2, lambda rank: two / f"rank_{1 - rank}.onnx")
    assert "is the shard of rank 1, but this process is rank 0" in message


@pytest.mark.parametrize(("size", "files"), [(2, (0, 0)), (2, (1, 0)), (3, (0, 1, 1))])
def test_rank_models_say_whose_they_are(two: Path, size: int, files: tuple[int, ...]) -> None:
    """Without a manifest, or behind one that was edited, a rank model still knows its rank and world."""
    (two / "manifest.json").unlink()
    message = load_on(size, lambda rank: two / f"rank_{files[rank]}.onnx")
    assert "is the model of rank " in message
    assert f"but this process is rank {1 if files[0] == 0 and size == 2 else 0} of {size}" in message


@pytest.mark.parametrize("name", ["rank_0.onnx", "rank_0.data"])
@pytest.mark.parametrize("damage", ["flip", "truncate", "remove", "folder"])
def test_damaged_shards(two: Path, name: str, damage: str) -> None:
    path = two / name
    data = bytearray(path.read_bytes())
    path.unlink()
    if damage == "flip":
        data[len(data) // 2] ^= 4
        path.write_bytes(data)
    elif damage == "truncate":
        path.write_bytes(data[: len(data) // 2])
    elif damage == "folder":
        path.mkdir()
    message = load_on(2, two)
    assert str(path) in message
    assert {"flip": "SHA-256", "truncate": "bytes", "remove": "does not exist", "folder": "is not a file"}[
        damage
    ] in message


def test_a_damaged_manifest(two: Path) -> None:
    (two / "manifest.json").write_text("{")
    assert "manifest.json" in load_on(2, two)


def test_a_folder_without_manifest(two: Path) -> None:
    (two / "manifest.json").unlink()
    assert "manifest.json does not exist" in load_on(2, two)


def test_a_slice_folder_in_a_process_that_runs_alone(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ShardError, match="sliced for world size 2, but this job has world size 1"):
        executor.load(two)
    group.leave()
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(IdentityError):
        executor.load(two)


def test_a_rank_model_in_a_process_that_runs_alone(tmp_path: Path) -> None:
    (path,) = save([mlp(0, 1)], tmp_path)
    with pytest.raises(
        ShardError, match="has collectives, so it is one rank's part of a model, but this process"
    ):
        executor.load(path)
    group.leave()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "does not exist"),
        (b"", "is empty"),
        (b"not a model AllReduce", "is not an ONNX file, or it is truncated."),
        (b"not a model", "is not an ONNX file, or it is truncated."),
        (b"\x08\x0a", "refuses"),
    ],
)
def test_files_that_are_no_models(content: bytes | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        executor.load(path)
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_a_reader_of_text_says_is_shown(tmp_path: Path) -> None:
    (tmp_path / "m.textproto").write_text("graph { nodee { } }")
    with pytest.raises(ModelError, match=r'm\.textproto is not an ONNX file.*no field named "nodee"'):
        model_file.read(tmp_path / "m.textproto")


def test_a_pipe_is_no_model(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelError, match="is neither a file nor a folder"):
        executor.load(tmp_path / "pipe")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    (path,) = save([mlp(0, 1)], tmp_path)
    path.chmod(0)
    with pytest.raises(ModelError, match="cannot be read"):
        executor.load(path)


# External data of rank models without a manifest


def edit(path: Path, change: Callable[[onnx.TensorProto], None]) -> None:
    """Changes the first weight of a model file."""
    item = onnx.load(path, load_external_data=False)
    change(item.graph.initializer[0])
    path.write_bytes(item.SerializeToString())


def field(key: str, text: str) -> Callable[[onnx.TensorProto], None]:
    """Sets one field of a weight's external data."""

    def change(tensor: onnx.TensorProto) -> None:
        for entry in list(tensor.external_data):
            if entry.key == key:
                tensor.external_data.remove(entry)
        entry = tensor.external_data.add()
        entry.key, entry.value = key, text

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (field("location", "../secret"), "'../secret', which is not a path inside"),
        (field("location", "/etc/passwd"), "'/etc/passwd', which is not a path inside"),
        (field("location", ""), "'', which is not a path inside"),
        (field("location", "other.data"), "needs the file 'other.data': No such file or directory."),
        (field("offset", "-1"), "ends at byte"),
        (field("offset", "99999999999"), "truncated or belongs to another model"),
        (field("offset", "x"), "not a number"),
        (field("length", "7"), "takes 192 bytes, but the model says it has 7"),
        (lambda tensor: tensor.dims.append(1 << 40), "bytes, but the model says it has 192"),
    ],
)
def test_external_data_that_are_not_there(
    change: Callable[[onnx.TensorProto], None], message: str, tmp_path: Path
) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (tmp_path / "secret").write_bytes(bytes(1 << 16))
    (path,) = save([mlp(0, 1)], folder, external=True)
    edit(path, change)
    assert message in load_on(1, path)


def test_truncated_external_data(tmp_path: Path) -> None:
    (path,) = save([mlp(0, 1)], tmp_path, external=True)
    data = path.with_suffix(".data")
    data.write_bytes(data.read_bytes()[:100])
    message = load_on(1, path)
    assert "of 'rank_0.data', which has 100 bytes: the file is truncated" in message


def test_external_data_by_a_link_out_of_the_folder(tmp_path: Path) -> None:
    folder = tmp_path / "inner"
    folder.mkdir()
    (path,) = save([mlp(0, 1)], folder, external=True)
    path.with_suffix(".data").rename(tmp_path / "outside")
    path.with_suffix(".data").symlink_to(tmp_path / "outside")
    assert f"a link that leads out of {folder} to {tmp_path / 'outside'}" in load_on(1, path)


def test_weights_are_found_wherever_the_process_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(mlps(2), tmp_path, external=True)
    monkeypatch.chdir(tmp_path)
    feeds = rows(2)
    expected = reference(mlps(2), feeds)[0]

    def work(c: FakeCommunicator) -> None:
        assert_close(executor.load(f"rank_{c.rank}.onnx", communicator=c).run(feeds[0]), expected[c.rank])

    on_ranks(2, work)


# Damage anywhere in a rank model without a manifest


@pytest.mark.parametrize("external", [False, True])
def test_a_rank_model_with_any_bit_flipped_or_cut_short_never_raises_anything_else(
    external: bool, tmp_path: Path
) -> None:
    """Either it still runs (a weight or a name changed), or there is one of our errors."""
    (path,) = save([mlp(0, 1)], tmp_path, external=external)
    good = path.read_bytes()
    feeds = rows(2)[0]
    choose = random.Random(0)
    refused = 0
    for trial in range(400):
        data = bytearray(good)
        if trial % 4 == 0:
            data = data[: choose.randrange(len(data))]
        else:
            for _ in range(choose.choice((1, 1, 2, 8))):
                data[choose.randrange(len(data))] ^= 1 << choose.randrange(8)
        path.write_bytes(data)
        try:
            loaded = on_ranks(1, lambda c: executor.load(path, communicator=c, threads=1))[0]
            on_ranks(1, lambda c: loaded.run(feeds))  # noqa: B023
        except ShardrunError as error:
            refused += 1
            text = str(error)
            assert text
            assert "\n" not in text.strip()
            assert "Traceback" not in text
    assert refused > 150


# Devices


@pytest.mark.parametrize(
    ("provider", "title"),
    [
        ("CUDAExecutionProvider", "CUDA"),
        ("TensorrtExecutionProvider", "TensorRT"),
        ("CANNExecutionProvider", "CANN"),
    ],
)
def test_a_provider_that_this_machine_lacks_is_an_error_and_no_silent_fallback(
    provider: str, title: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if Path("/dev/nvidiactl").exists() or Path("/dev/davinci_manager").exists():
        pytest.skip("this machine has an accelerator: tests/gpu covers it")
    (path,) = save([joined([mlp(0, 1)])], tmp_path)
    with pytest.raises(DeviceError) as caught:
        executor.load(path, placement=Placement((provider,)))
    assert title in str(caught.value)
    assert "install" in str(caught.value)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_provider(tmp_path: Path) -> None:
    (path,) = save([joined([mlp(0, 1)])], tmp_path)
    with pytest.raises(DeviceError, match="NoSuchProvider is not in this build of ONNX Runtime"):
        executor.load(path, placement=Placement(("NoSuchProvider",)))


def test_nothing_is_logged_and_torch_is_not_imported(tmp_path: Path) -> None:
    """A rank's start imports only what it needs; run in a process of its own, for this one has imported
    all."""
    save([mlp(0, 1)], tmp_path, external=True)
    code = """
import sys
from pathlib import Path
import numpy as np
from ranks.run import executor
from ranks.collectives.single import SingleCommunicator
for path in sys.argv[1:]:
    loaded = executor.load(path, communicator=SingleCommunicator(10))
    for n in (1, 1, 2):
        loaded.run({"x": np.ones((n, 4), np.float32)})
heavy = {"torch", "onnx", "onnx_ir", "mpi4py", "pydantic", "rich", "psutil", "email"} & set(sys.modules)
assert not heavy, heavy
"""
    result = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "rank_0.onnx"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_a_plain_model_is_loaded_without_onnx(tmp_path: Path) -> None:
    plain = joined([mlp(0, 1)])
    del plain.opset_import[1:]
    (path,) = save([plain], tmp_path)
    code = (
        "import sys; from ranks.run import executor; executor.load(sys.argv[1]); "
        "assert 'onnx' not in sys.modules"
    )
    result = subprocess.run(
        [sys.executable, "-c", code, path], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_an_input_that_says_no_shape_may_have_any(tmp_path: Path) -> None:
    """A session gives it none, as it does one number."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Neg", ["x"], ["y"]), onnx.helper.make_node("Neg", ["one"], ["z"])],
        "any",
        [
            onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, None),
            onnx.helper.make_tensor_value_info("one", onnx.TensorProto.FLOAT, []),
        ],
        [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, None) for name in "yz"],
    )
    path = tmp_path / "any.onnx"
    onnx.save(
        onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=9), path
    )
    model = executor.load(path, threads=1)
    assert [(spec.name, spec.open_rank) for spec in model.inputs] == [("x", True), ("one", False)]
    for shape in ((), (2,), (2, 3)):
        x = np.ones(shape, np.float32)
        assert np.array_equal(model.run({"x": x, "one": np.ones((), np.float32)})[0], -x)
    model.close()
