"""Archives of inputs and outputs that are right: what is refused before it is read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from launcher.errors import ConfigError
from launcher.tasks.expectations import _named, computed_types, read_arrays
from ranks.evaluation import compressed


def test_arrays_of_an_archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they fill the memory that is free, just about, they are read."""
    np.savez(tmp_path / "a.npz", x=np.arange(6), y=np.float32([[1]]))
    found = read_arrays("--eval-inputs", tmp_path / "a.npz")
    assert list(found) == ["x", "y"] and found["x"].tolist() == list(range(6))
    monkeypatch.setattr(compressed, "LARGE", 1)
    size = sum(array.nbytes + 128 for array in found.values())  # each with its head
    monkeypatch.setattr(compressed, "free_memory", lambda: size)
    read_arrays("--eval-inputs", tmp_path / "a.npz")
    monkeypatch.setattr(compressed, "free_memory", lambda: size - 1)
    with pytest.raises(ConfigError, match=rf"^--eval-inputs .*a\.npz: {size} B are to be read into memory"):
        read_arrays("--eval-inputs", tmp_path / "a.npz")


def test_what_is_no_archive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "text").write_text("a")
    np.savez(tmp_path / "object.npz", x=np.array([{}], object))
    np.savez(tmp_path / "cut.npz", x=np.arange(999))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "cut.npz").read_bytes()[:500])
    for name, message in {
        "pipe": "expected a NumPy archive (.npz), found a folder, device or pipe",
        ".": "expected a NumPy archive (.npz), found a folder, device or pipe",
        "text": "it is no NumPy archive (.npz)",
        "cut.npz": "it is no NumPy archive (.npz)",
        "absent.npz": "No such file or directory",
        "object.npz": "holds Python objects, which are never unpickled: save numbers or text",
    }.items():
        path = tmp_path / name
        with pytest.raises(ConfigError) as caught:
            read_arrays("--eval-inputs", path)
        assert str(caught.value).startswith(f"--eval-inputs {path}") and message in str(caught.value)


def test_short_types_are_seen_within_functions_too(tmp_path: Path) -> None:
    text = """<ir_version: 9, opset_import: ["" : 18, "own" : 1]>
    g (float[2] x) => (float[2] y) { y = own.rounded(x) }
    <domain: "own", opset_import: ["" : 18]>
    rounded (a) => (c) { b = Cast<to = KIND>(a) c = Cast<to = 1>(b) }"""
    for kind, found in ((10, {"float16"}), (16, {"bfloat16"}), (1, set())):
        onnx.save(onnx.parser.parse_model(text.replace("KIND", str(kind))), tmp_path / "model.onnx")
        assert computed_types(tmp_path / "model.onnx") == found


def test_arrays_are_found_by_name_and_else_by_number() -> None:
    arrays = {name: np.array(number) for number, name in enumerate(["b", "in_0", "in_1", "out_0"])}
    found = dict(_named(arrays, ["a", "b"], "in", "--verify x"))
    assert {name: int(array) for name, array in found.items()} == {"a": 1, "b": 0}
    with pytest.raises(ConfigError, match=r"^--verify x: there is neither 'd' nor 'out_1' in the file$"):
        list(_named(arrays, ["c", "d"], "out", "--verify x"))
