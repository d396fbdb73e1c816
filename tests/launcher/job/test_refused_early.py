"""What a model, its data or a job cannot be is said before anything is sliced and before any rank starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ranks
from launcher import cli, start
from launcher.group.watch import Job
from launcher.job import cache
from ranks.cache.folder import fingerprint
from ranks.errors import ModelError, ShardrunError
from tests.launcher.cli_tools import save_mlp

LFS = (
    b"version https://git-lfs.github.com/spec/v1\n"
    b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 90411234\n"
)
ANNEX = b"/annex/objects/SHA256E-s90411234--4d7a214614ab2935c943f9e0.onnx\n"
EVAL = ("eval", "--data", "data.npz", "--metric", "mse")
PAGE = b"<!DOCTYPE html>\n<html><head><title>Not found</title></head></html>\n"


@pytest.fixture(autouse=True)
def nothing_is_sliced_or_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """A slicing or a rank here would be a failure."""
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("something was sliced or started")

    monkeypatch.setattr(cache, "_slice_into", fail)
    monkeypatch.setattr("sharding.slice_model", fail)
    monkeypatch.setattr("sharding.planning.plan.plan_model", fail)
    monkeypatch.setattr(Job, "__init__", fail)


@pytest.fixture
def mlp(tmp_path: Path) -> Path:
    np.savez(tmp_path / "data.npz", x=np.ones((2, 8), np.float32), label=np.zeros((2, 6), np.float32))
    return save_mlp(tmp_path / "mlp.onnx")


def said(capsys: pytest.CaptureFixture[str], *arguments: Any, code: int = 2) -> str:
    assert cli.main(list(map(str, arguments))) == code
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("run", "--ranks", 2, "--dim", "bach=4"), "dimension (it has: batch); did you mean 'batch'?"),
        (("run", "--ranks", 2, "--input", "xx=x.npy"), "no input 'xx' (it has: x); did you mean 'x'?"),
        (("run", "--ranks", 2, "--input", "x=none.npy"), "No such file"),
        (("run", "--ranks", 2, "--input", "wrong.npz"), "expected shape [batch, 8], found [2, 9]"),
        (("run", "--ranks", 2, "--input", "x=double.npy"), "expected float32, found float64"),
        (("run", "--ranks", 2, "--input", "x=short.bin"), "expected a multiple of 32 bytes"),
        (("run", "--mesh", "tensor=2", "--dim", "bach=4"), "did you mean 'batch'?"),
        (("run", "--config", "job.yaml"), "did you mean 'batch'?"),
        (("run", "--ranks", 2, "--verify", "--against", "other.onnx"), "is not the model that was sliced"),
        (("run", "--ranks", 2, "--execution-plan", "MatMull=float16"), "did you mean 'MatMul'?"),
        (("inspect", "--ranks", 2, "--dim", "bach=4"), "did you mean 'batch'?"),
        (("inspect", "--world", "2,4", "--dim", "bach=4"), "did you mean 'batch'?"),
        (("scripts", "--ranks", 2, "--output", "s", "--dim", "bach=4"), "did you mean 'batch'?"),
        ((*EVAL, "--ranks", 2, "--label", "lable"), "did you mean 'label'?"),
        ((*EVAL, "--ranks", 2, "--prediction", "yy"), "did you mean 'y'?"),
        ((*EVAL, "--ranks", 2, "--rename", "xx=x"), "did you mean 'x'?"),
        (("eval", "--ranks", 2, "--data", "nine.npz", "--metric", "mse"), "[2, 9]"),
        ((*EVAL, "--prediction", "yy"), "did you mean 'y'?"),
    ],
)  # fmt: skip
def test_jobs(
    mlp: Path, arguments: tuple[Any, ...], sentence: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.savez(tmp_path / "wrong.npz", x=np.ones((2, 9), np.float32))
    np.savez(tmp_path / "nine.npz", x=np.ones((2, 9), np.float32), label=np.ones(2))
    np.save(tmp_path / "double.npy", np.ones((2, 8)))
    (tmp_path / "short.bin").write_bytes(bytes(33))
    (tmp_path / "job.yaml").write_text("ranks: 2\ndims: {bach: 4}\n")
    other = onnx.load(mlp)
    other.graph.output[0].name = other.graph.node[-1].output[0] = "other"
    onnx.save(other, tmp_path / "other.onnx")
    command, *rest = arguments
    assert sentence in said(capsys, command, mlp, *rest)
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("known", [False, True])
def test_a_misspelled_word_costs_no_reading_of_the_weights(
    mlp: Path, known: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a large model that takes minutes. One whose hash is remembered is looked for in the cache first."""
    if known:
        fingerprint(mlp)
    read: list[Path] = []
    monkeypatch.setattr("ranks.cache.folder.sha256_of", read.append)
    said(capsys, "run", mlp, "--ranks", 2, "--dim", "bach=4")
    assert not read


@pytest.mark.parametrize(
    ("field", "value", "sentence"),
    [
        ("opset", 99, "is written with opset 99 of ai.onnx, but ONNX Runtime"),
        ("opset", 9999, "is written with opset 9999 of ai.onnx"),
        ("ir_version", 99, "has the IR version 99, but ONNX Runtime"),
        ("com.microsoft", 7, "opset 7 of com.microsoft"),
    ],
)
@pytest.mark.parametrize("command", ["run", "slice", "eval", "scripts", "start", "start one", "api"])
def test_versions_from_the_future(
    mlp: Path, field: str, value: int, sentence: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx.load(mlp)
    if field == "ir_version":
        model.ir_version = value
    elif field == "opset":
        model.opset_import[0].version = value
    else:
        model.opset_import.add(domain=field, version=value)
    onnx.save(model, mlp)
    arguments: dict[str, tuple[Any, ...]] = {
        "run": ("run", mlp, "--ranks", 2),
        "slice": ("slice", mlp, "--ranks", 2, "--output", "s"),
        "eval": ("eval", mlp, "--data", "data.npz", "--metric", "mse"),
        "scripts": ("scripts", mlp, "--ranks", 2, "--output", "s"),
    }
    if command in arguments:
        text = said(capsys, *arguments[command])
    else:
        with pytest.raises(ShardrunError) as caught:
            if command == "api":
                ranks.Model().build_from_file(str(mlp), ranks.ModelType.ONNX)
            else:
                start(mlp, ranks=1 if command == "start one" else 2)
        text = str(caught.value)
    assert sentence in text
    assert "install a newer ONNX Runtime" in text
    assert "onnxruntime::" not in text


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (LFS, "is a Git LFS pointer of 133 bytes and not the file of 90.4 MB"),
        (ANNEX, "is a git-annex pointer"),
        (PAGE, "is a web page"),
    ],
)
def test_files_that_stand_for_others(
    content: bytes, sentence: str, mlp: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("p.onnx", "p.npz", "p.npy", "p.safetensors", "p.mindir", "p.ckpt"):
        (tmp_path / name).write_bytes(content)
    for command in (
        ("run", "p.onnx", "--ranks", 2), ("slice", "p.onnx", "--ranks", 2, "--output", "s"),
        ("inspect", "p.onnx"), ("inspect", "p.mindir"), ("convert", "p.mindir", "out.onnx"),
        ("convert", mlp, "--weights", "p.safetensors", "out.onnx"),
        ("eval", mlp, "--data", "p.npz", "--metric", "mse"),
        ("convert", mlp, "--weights", "p.ckpt", "out.onnx"),
        ("run", mlp, "--ranks", 2, "--input", "p.npz"), ("run", mlp, "--ranks", 2, "--input", "x=p.npy"),
    ):  # fmt: skip
        assert sentence in said(capsys, *command), command
    for way in (lambda: start("p.onnx", ranks=1), lambda: start("p.onnx", ranks=2), _built):
        with pytest.raises(ShardrunError, match=sentence):
            way()


def _built() -> None:
    ranks.Model().build_from_file("p.onnx", ranks.ModelType.ONNX)


def test_external_data_that_stand_for_others(tmp_path: Path) -> None:
    from ranks.models import model_file
    from sharding.reading.read import read_model

    model = save_mlp(tmp_path / "e.onnx", external=True)
    (tmp_path / "e.onnx.data").write_bytes(LFS)
    for way in (read_model, model_file.read):
        with pytest.raises(ModelError, match=r"e\.onnx\.data, which is a Git LFS pointer"):
            way(model)


def test_a_model_of_a_page_of_bytes_is_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A raw input may be a page: only pointers are never what is meant."""
    from launcher.job.inputs import make_inputs
    from sharding.slices.manifest import TensorEntry

    (tmp_path / "page.bin").write_bytes(PAGE)
    arrays, _ = make_inputs([TensorEntry("x", "uint8", ("n",))], ["x=page.bin"])
    assert arrays["x"].tobytes() == PAGE


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (("rnu", "m.onnx"), "did you mean 'run'?"),
        (("run", "m.onnx", "--ranks", "2", "--verfy"), "did you mean '--verify'?"),
        (("run", "m.onnx", "--launchre=local"), "did you mean '--launcher'?"),
        (("run", "m.onnx", "--launcher", "mpirn"), "did you mean 'mpirun'?"),
        (("slice", "m.onnx", "--steering", "x"), "did you mean '--steer'?"),
        (("table", "mkae", "--local", "2"), "did you mean 'make'?"),
        (("run", "m.onnx", "--zzzzzz"), "unrecognized arguments: --zzzzzz (see"),
    ],
)
def test_misspelled_words(arguments: tuple[str, ...], hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cli.main(list(arguments))
    assert ended.value.code == 2
    assert hint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("a\rb", r"a\x0db"),
        ("a\x1b[2Jb", r"a\x1b[2Jb"),
        ("a\x07b", r"a\x07b"),
        ("a\u202eb", r"a\u202eb"),
        ("a\x9bb", r"a\x9bb"),
        ("a\u200fb", r"a\u200fb"),
        ("a\u200b\ufeffb", r"a\u200b\ufeffb"),
    ],
)
def test_names_are_fit_to_print(
    name: str, shown: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In errors of commands, of the parser and of Python, and in what is printed and logged."""
    for arguments in (("run", name), ("inspect", name)):
        assert shown in said(capsys, *arguments)
    with pytest.raises(SystemExit):
        cli.main([name])
    assert name not in capsys.readouterr().err
    with pytest.raises(ShardrunError) as caught:
        start(name, ranks=1)
    assert name not in str(caught.value)
    assert cli.main(["table", "make", "--local", "2", "--output", name]) == 0
    assert capsys.readouterr().out == f"wrote {shown}: 2 ranks on 1 host\n"
    (tmp_path / f"{name}.json").write_text("{}")
    assert cli.main(["table", "check", f"{name}.json"]) == 2
    assert name not in capsys.readouterr().err
