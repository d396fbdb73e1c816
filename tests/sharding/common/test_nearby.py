"""What is said of a path that is not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sharding.common.nearby import hint, shown, similar

THERE = (
    *("Matmul0.mindir", "Matmul1.mindir", "big_graph.mindir", "Encoder.onnx", "encoder.data", "table.json"),
    *("slices/manifest.json", "other/manifest.json", ".hidden.onnx", "best.ckpt", "notes.txt"),
)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in THERE:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("path", "found"),
    [
        ("Matmul.mindir", ["Matmul0.mindir", "Matmul1.mindir"]),
        ("matmul2.mindir", ["Matmul0.mindir", "Matmul1.mindir"]),
        ("big.mindir", ["big_graph.mindir"]),
        ("encoder.onnx", ["Encoder.onnx"]),
        ("encoder.mindir", ["Encoder.onnx"]),
        ("encoder.onx", ["Encoder.onnx"]),
        ("enc0der.onnx", ["Encoder.onnx"]),
        ("encoder", ["Encoder.onnx"]),
        ("slice", ["slices"]),
        ("slcies", ["slices"]),
        ("slice/manifest.json", ["slices/manifest.json"]),
        ("slices/manifests.json", ["slices/manifest.json"]),
        ("tables.json", ["table.json"]),
        ("bets.ckpt", ["best.ckpt"]),
        ("slices/nothing/manifest.json", []),
        ("hidden.onnx", []),
        ("encoder.ckpt", []),
        ("llama.onnx", []),
        ("Encoder.onnx", []),
        ("Encoder.onnx/x", []),
        ("a\0b", []),
        ("x" * 5000, []),
        ("../" * 50 + "nothing-there", []),
    ],
)
def test_names_that_are_near(path: str, found: list[str], folder: Path) -> None:
    assert similar(path) == found
    assert similar(folder / path) == [str(folder / name) for name in found]
    text = f" (did you mean {' or '.join(found)}?)" if found else ""
    assert hint(path) == text


@pytest.mark.parametrize("path", ["", ".", "/"])
def test_folders_that_are_there(path: str, folder: Path) -> None:
    assert similar(path) == []


@pytest.mark.parametrize("address", ["https://host/a/b.onnx", "http://h/x.mindir", "hf://org/m", "s3://b/x"])
def test_addresses(address: str) -> None:
    for given in (address, Path(address)):
        assert "nothing is downloaded here" in hint(given)
        assert shown(given) == address
    assert shown("a/b.onnx") == "a/b.onnx"
    assert "downloaded" not in hint("C:/model.onnx")


def test_a_folder_that_cannot_be_listed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("os.scandir", refuse)
    assert similar("Matmul.mindir") == []
