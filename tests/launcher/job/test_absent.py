"""Models, weights and data that are not there, or that are another runtime's: every way to name them."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from launcher import start
from launcher.cli import main
from ranks import ModelGroup, ModelType
from ranks.errors import ShardrunError
from tests.launcher.cli_tools import save_mlp

COMMANDS = [
    "run {} --ranks 2",
    "slice {} --ranks 2 --output out",
    "inspect {} --ranks 2",
    "convert {} out.onnx",
    "eval {} --data data.npz --metric mse --ranks 2",
]
OTHERS = [
    "run {}",
    "scripts {} --ranks 2 --output scripts",
    "convert mlp0.onnx out.onnx --weights {}",
    "convert --network a:b --weights {} out.onnx",
    "run mlp0.onnx --ranks 2 --verify --against {}",
]
CALLS: dict[str, Callable[[str], Any]] = {
    "Model": lambda path: ranks.Model().build_from_file(path, ModelType.MINDIR),
    "ModelParallelRunner": lambda path: ranks.ModelParallelRunner().build_from_file(path),
    "share_weights": ranks.share_weights,
    "start": lambda path: start(path, ranks=2),
    "ModelGroup": lambda path: ModelGroup().add_model([path]),
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save_mlp(tmp_path / "mlp0.onnx")
    np.savez("data.npz", x=np.ones((2, 8), np.float32), y=np.ones((2, 6), np.float32))
    (tmp_path / "mlp0.ckpt").touch()
    return tmp_path


def said(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What a command that fails prints: one line, and nothing is left behind."""
    before = sorted(Path().iterdir())
    assert main(command.split()) in {1, 2}
    printed = capsys.readouterr()
    assert printed.err.startswith("shardrun: error: ") and printed.err.count("\n") == 1, printed.err
    assert sorted(Path().iterdir()) == before
    return printed.err


@pytest.mark.parametrize("command", [*COMMANDS, *OTHERS])
def test_a_name_that_is_nearly_right(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name, right = ("mlp.ckpt", "mlp0.ckpt") if "--weights" in command else ("mlp.onnx", "mlp0.onnx")
    text = said(command.format(name), capsys)
    assert f"(did you mean {right}?)" in text and name in text


@pytest.mark.parametrize(
    "command",
    [
        *COMMANDS,
        *OTHERS,
        "convert --network {} out.onnx",
        "convert mlp0.onnx out.onnx --opset 21 --verify {}",
        "eval mlp0.onnx --data {} --metric mse --ranks 2",
        "run mlp0.onnx --ranks 2 --input {}",
        "run mlp0.onnx --ranks 2 --input {}.npy",
        "run mlp0.onnx --ranks 2 --input x={}.npy",
        "run mlp0.onnx --ranks 2 --input {}.npz",
        "run mlp0.onnx --ranks 2 --dec-key-file {}",
        "run mlp0.onnx --config {}.yaml",
        "run mlp0.onnx --ranks 2 --steer {}.yaml",
        "run mlp0.onnx --ranks 2 --plan {}.json",
        "exec {}",
    ],
)
def test_an_address(command: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = said(command.format("https://host.example/models/a.onnx"), capsys)
    assert "https://host.example/models/a.onnx" in text
    assert "nothing is downloaded here" in text


@pytest.mark.parametrize("call", CALLS)
def test_calls(call: str, here: Path) -> None:
    with pytest.raises(ShardrunError, match=r"\(did you mean mlp0.onnx\?\)"):
        CALLS[call]("mlp.onnx")
    with pytest.raises(ShardrunError, match=r"https://host/a.onnx.*nothing is downloaded here"):
        CALLS[call]("https://host/a.onnx")


# What each kind's first bytes are (those of .air are a protobuf message of GE's), and what is said.
FOREIGN = {
    "a.om": (b"IMOD\0\0\0\1" + bytes(40), "is an Ascend offline model (.om)"),
    "renamed.bin": (b"IMOD\0\0\0\1" + bytes(40), "is an Ascend offline model (.om)"),
    "b.om": (b"something else", "is an Ascend offline model (.om)"),
    "a.air": (b"\n\5model\x10\1\x1a\3abc", "is a graph of Ascend's GE (.air, .geir)"),
    "A.GEIR": (b"\x10\1\x1a\3abc", "is a graph of Ascend's GE (.air, .geir)"),
    "a.ms": (b"\x18\0\0\0MSL2" + bytes(40), "is a MindSpore Lite file (.ms)"),
    "a.tflite": (b"\x1c\0\0\0TFL3" + bytes(40), "is a TensorFlow Lite model (.tflite)"),
    "a.ort": (b"\x1c\0\0\0ORTM" + bytes(40), "is a model in ONNX Runtime's own format (.ort)"),
    "a.engine": (b"ftrt" + bytes(40), "is a TensorRT engine"),
    "a.h5": (b"\x89HDF\r\n\x1a\n" + bytes(40), "is an HDF5 file"),
    "a.pb": (b"\x22\3\x08\xd1\x0c", "is a TensorFlow graph (.pb)"),
    "a.gguf": (b"GGUF\3\0\0\0" + bytes(40), "is a model of llama.cpp (.gguf)"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_models_of_other_runtimes(name: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    content, words = FOREIGN[name]
    (here / name).write_bytes(content)
    for command in COMMANDS:
        text = said(command.format(name), capsys)
        assert words in text and name in text, (command, text)
        assert re.search("instead|with tf2onnx|that it was made of|as ONNX|convert the", text)
    for call in ("Model", "ModelParallelRunner", "share_weights", "start"):
        with pytest.raises(ShardrunError) as caught:
            CALLS[call](name)
        assert words in str(caught.value)


@pytest.mark.parametrize("name", ["model.om", "model.air", "model.pb"])
def test_the_content_decides(name: str, here: Path) -> None:
    (here / name).write_bytes((here / "mlp0.onnx").read_bytes())
    assert main(["inspect", name, "--ranks", "2"]) == 0
    model = ranks.Model()
    model.build_from_file(name, ModelType.MINDIR)
    assert model.predict(np.ones((1, 8), np.float32))[0].shape == [1, 6]
