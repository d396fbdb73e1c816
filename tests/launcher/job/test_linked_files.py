"""Models whose files are links, as the cache of a model hub keeps them (``snapshots/REV/NAME`` to
``../../blobs/SHA``): every way in takes them, and data beside neither the link nor its target are refused.

The right answer is ONNX Runtime's on a copy without links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ranks
from launcher import start
from ranks.cache.folder import fingerprint
from ranks.errors import ModelError, ShardrunError
from ranks.models import model_file
from ranks.run import executor
from sharding import plan_model, slice_model
from sharding.reading.read import read_model
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import save_mlp

DATA = Path(__file__).parents[2] / "data"
X = np.random.default_rng(5).standard_normal((3, 8), np.float32)


def _hub(folder: Path) -> Path:
    """Model and data are links into one folder of blobs."""
    blobs, snapshot = folder / "blobs", folder / "snapshots" / "main"
    blobs.mkdir()
    snapshot.mkdir(parents=True)
    model = save_mlp(blobs / "m.onnx", external=True)
    for file, blob in ((model, "1"), (Path(f"{model}.data"), "2")):
        file.rename(blobs / blob)
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob)
    return snapshot / "m.onnx"


def _hub_subfolder(folder: Path) -> Path:
    """The same, where the model lies in a folder of the snapshot."""
    found = _hub(folder)
    inner = found.parent / "onnx"
    inner.mkdir()
    for name in ("m.onnx", "m.onnx.data"):
        (inner / name).symlink_to(Path("../../..") / "blobs" / (found.parent / name).readlink().name)
    return inner / "m.onnx"


def _beside_target(folder: Path) -> Path:
    """The model alone is a link; its data lie beside the file itself."""
    (folder / "real").mkdir()
    save_mlp(folder / "real" / "m.onnx", external=True)
    (folder / "links").mkdir()
    (folder / "links" / "other.onnx").symlink_to("../real/m.onnx")
    return folder / "links" / "other.onnx"


def _chain(folder: Path) -> Path:
    """A link to a link."""
    found = _hub(folder)
    (folder / "chain").mkdir()
    (folder / "chain" / "m.onnx").symlink_to(found)
    (folder / "chain" / "m.onnx.data").symlink_to(found.with_name("m.onnx.data"))
    return folder / "chain" / "m.onnx"


LAYOUTS: dict[str, Callable[[Path], Path]] = {
    "hub": _hub, "subfolder": _hub_subfolder, "beside the target": _beside_target, "chain": _chain,
}  # fmt: skip


@pytest.fixture(params=LAYOUTS)
def linked(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    return LAYOUTS[request.param](tmp_path)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    return _hub(tmp_path)


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """ONNX Runtime's, on the model without links."""
    path = save_mlp(tmp_path_factory.mktemp("plain") / "m.onnx")
    return ort.InferenceSession(str(path)).run(None, {"x": X})[0]


def _close(got: Any, want: Any) -> None:
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_read_planned_and_sliced(linked: Path, answer: Any, tmp_path: Path) -> None:
    assert read_model(linked).weights["w0"].array().shape == (8, 64)
    assert plan_model(linked, 2).split_weights
    slice_model(linked, 2, tmp_path / "slices")
    with start(tmp_path / "slices", threads=1) as group:
        _close(group.predict({"x": X})["y"], answer)


@pytest.mark.parametrize("dims", [None, {"x": [3, 8]}])
def test_loaded_by_one_process(linked: Path, answer: Any, dims: Any) -> None:
    """With other dimensions ONNX Runtime gets the model as bytes, and a folder for its data."""
    model = executor.load(linked, dims=dims)
    _close(model.run({"x": X})[0], answer)
    assert model.stats.weight_bytes == 4 * (8 * 64 + 64 + 64 * 6)
    model.close()


def test_by_the_api(linked: Path, answer: Any, tmp_path: Path) -> None:
    """`Model`, variable weights and shared ones."""
    model = ranks.Model()
    model.build_from_file(str(linked), ranks.ModelType.ONNX)
    _close(model.predict([X])[0].get_data_to_numpy(), answer)
    variable = ranks.Model()
    (tmp_path / "names.txt").write_text("w1\n")
    marked = {"ascend_context": {"variable_weights_file": str(tmp_path / "names.txt")}}
    variable.build_from_file(str(linked), ranks.ModelType.ONNX, config_dict=marked)
    _close(variable.predict([X])[0].get_data_to_numpy(), answer)
    with ranks.share_weights(str(linked)) as owner:
        _close(owner.predict([X])[0].get_data_to_numpy(), answer)


def test_started_on_one_rank(linked: Path, answer: Any) -> None:
    with start(linked, ranks=1, threads=1) as group:
        _close(group.predict({"x": X})["y"], answer)


@pytest.mark.parametrize("linked", ["hub", "beside the target"], indirect=True)
def test_commands(linked: Path, answer: Any, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=X)
    np.savez(tmp_path / "data.npz", x=X, label=answer)
    run = shardrun(
        "run", linked, "--ranks", 2, "--input", "x.npz", "--output", "y.npz", "--verify", cwd=tmp_path
    )
    assert run.returncode == 0, run.stderr
    _close(np.load(tmp_path / "y.npz")["y"], answer)
    inspected = shardrun("inspect", linked, cwd=tmp_path)
    assert inspected.returncode == 0
    assert "float32  [8, 64]" in inspected.stdout
    measured = shardrun("eval", linked, "--data", "data.npz", "--metric", "max_error", cwd=tmp_path)
    assert measured.returncode == 0, measured.stderr
    scripts = shardrun("scripts", linked, "--ranks", 2, "--output", "scripts", cwd=tmp_path)
    assert scripts.returncode == 0, scripts.stderr
    annotated = shardrun(
        "slice", linked, "--ranks", 2, "--plan-only", "--annotate", tmp_path / "a.onnx", cwd=tmp_path
    )
    assert annotated.returncode == 0, annotated.stderr
    _close(ort.InferenceSession(str(tmp_path / "a.onnx")).run(None, {"x": X})[0], answer)


def test_slices_that_are_links(hub: Path, answer: Any, tmp_path: Path) -> None:
    """A slice folder, and its rank models by a pattern, where every file is a link to a blob."""
    slice_model(hub, 2, tmp_path / "real")
    (tmp_path / "store").mkdir()
    (tmp_path / "linked").mkdir()
    for number, file in enumerate(sorted((tmp_path / "real").iterdir())):
        file.rename(tmp_path / "store" / f"blob{number}")
        (tmp_path / "linked" / file.name).symlink_to(f"../store/blob{number}")
    for path in (tmp_path / "linked", tmp_path / "linked" / "rank_{}.onnx"):
        with start(path, ranks=2, threads=1) as group:
            _close(group.predict({"x": X})["y"], answer)


@pytest.mark.parametrize("to", ["a folder beside", "the folder above", "a folder below another"])
def test_data_beside_neither_link_nor_target(hub: Path, to: str, tmp_path: Path) -> None:
    folders = {"a folder beside": "secret", "the folder above": ".", "a folder below another": "a/b"}
    secret = tmp_path / folders[to] / "secret.data"
    secret.parent.mkdir(parents=True, exist_ok=True)
    secret.write_bytes(bytes(1 << 16))
    data = hub.with_name("m.onnx.data")
    data.unlink()
    data.symlink_to(os.path.relpath(secret, data.parent))
    for way in (read_model, model_file.read):
        with pytest.raises(ModelError, match="a link that leads out of"):
            way(hub)
    with pytest.raises(ShardrunError, match=r"escapes|leads out"):  # ONNX Runtime's own word
        executor.load(hub)
    refused = shardrun("run", hub, "--ranks", 2, cwd=tmp_path)
    assert refused.returncode == 2
    assert "only files in the model's folder, and in" in refused.stderr


@pytest.mark.parametrize("location", ["../../blobs/2", "/etc/passwd", "../2"])
def test_a_model_that_is_a_link_names_no_other_folder(hub: Path, location: str) -> None:
    """Not even that of its target: the text of a model names files beside it only."""
    blob = hub.resolve()
    model = onnx.load(str(blob), load_external_data=False)
    for tensor in model.graph.initializer:
        tensor.external_data[0].value = location
    onnx.save(model, str(blob))
    for way in (read_model, model_file.read):
        with pytest.raises(ModelError, match="is not a path inside"):
            way(hub)


def test_the_cache_sees_other_data(linked: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that change, and a link that leads to others: the hash is another one."""
    before = fingerprint(linked)
    assert fingerprint(linked) == before
    file = next(path for path in (linked.with_name("m.onnx.data"), linked.resolve().with_name("m.onnx.data"))
                if path.exists())  # fmt: skip
    real = file.resolve()
    other = real.with_name("other")
    other.write_bytes(bytes(real.stat().st_size))
    real.unlink()
    real.symlink_to(other)
    after = fingerprint(linked)
    assert after != before
    assert fingerprint(linked) == after


def test_a_missing_blob_is_named(hub: Path) -> None:
    hub.with_name("m.onnx.data").resolve().unlink()
    with pytest.raises(ModelError, match=r"m\.onnx\.data.*cannot be read|needs the file"):
        read_model(hub)


def test_converted_with_other_weights(linked: Path, tmp_path: Path) -> None:
    """The links are read, never written to; what is written holds no link."""
    import safetensors.numpy

    other = {"w0": np.full((8, 64), 0.5, np.float32)}
    safetensors.numpy.save_file(other, tmp_path / "blob")
    (linked.parent / "tuned.safetensors").symlink_to(os.path.relpath(tmp_path / "blob", linked.parent))
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    done = shardrun(
        "convert", "--weights", linked.parent / "tuned.safetensors", "--allow-missing", linked, "out.onnx",
        cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert all(path.read_bytes() == content for path, content in before.items())
    plain = onnx.load(save_mlp(tmp_path / "plain.onnx"))
    plain.graph.initializer[0].CopyFrom(onnx.numpy_helper.from_array(other["w0"], "w0"))
    wanted = ort.InferenceSession(plain.SerializeToString()).run(None, {"x": X})[0]
    _close(ort.InferenceSession(str(tmp_path / "out.onnx")).run(None, {"x": X})[0], wanted)
    assert not any(path.is_symlink() for path in tmp_path.glob("out.onnx*"))


def test_a_network_of_mindspore_kept_by_links(tmp_path: Path) -> None:
    """Graph and data of a split MindIR file as links into blobs; data elsewhere stay refused."""
    source = DATA / "mindir" / "mlp_split"
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "main"
    blobs.mkdir()
    (snapshot / "model_variables").mkdir(parents=True)
    for name in ("model_graph.mindir", "model_variables/data_0"):
        blob = blobs / name.replace("/", "-")
        blob.write_bytes((source / name).read_bytes())
        (snapshot / name).symlink_to(os.path.relpath(blob, (snapshot / name).parent))
    model = snapshot / "model_graph.mindir"
    done = shardrun("convert", model, "out.onnx", "--verify", source / "io.npz", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    outside = tmp_path / "outside"
    outside.mkdir()
    (blobs / "model_variables-data_0").rename(outside / "data")
    (snapshot / "model_variables" / "data_0").unlink()
    (snapshot / "model_variables" / "data_0").symlink_to(outside / "data")
    for target in ("out.onnx", "new.onnx"):
        refused = shardrun("convert", model, target, cwd=tmp_path)
        assert refused.returncode == 2
        assert "a link that leads out of" in refused.stderr and refused.stderr.count("\n") == 1
    assert not (tmp_path / "new.onnx").exists()


def test_data_that_lead_out_of_both_folders_are_not_converted(hub: Path, tmp_path: Path) -> None:
    import safetensors.numpy

    safetensors.numpy.save_file({"w0": np.zeros((8, 64), np.float32)}, tmp_path / "w.safetensors")
    (tmp_path / "outside").mkdir()
    data = hub.with_name("m.onnx.data")
    data.resolve().rename(tmp_path / "outside" / "data")
    data.unlink()
    data.symlink_to(tmp_path / "outside" / "data")
    done = shardrun(
        "convert", "--weights", tmp_path / "w.safetensors", "--allow-missing", hub, "out.onnx", cwd=tmp_path
    )
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "m.onnx.data" in done.stderr
    assert not list(tmp_path.glob("out.onnx*"))
