"""Inputs and outputs that are sequences, maps or optional values: one process gives lists and dicts, ranks
refuse them when they are built, in one sentence. The right answers are ONNX Runtime's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ranks
from launcher import cli, start
from ranks.errors import ModelError, ShardrunError
from sharding import plan_model, slice_model
from tests.sharding import graphs

X = np.random.default_rng(2).standard_normal((2, 64), np.float32)
HEAD = '<ir_version: 9, opset_import: ["" : 18, "ai.onnx.ml" : 3]> g '
CASES: dict[str, tuple[str, Any, str]] = {
    "sequence out": (
        "(float[n, 64] x) => (seq(float[n, 64]) y) { a = MatMul(x, w) y = SplitToSequence<axis = 1>(a) }",
        X, "its output 'y' is a sequence of tensors",
    ),
    "zipmap": (
        f"""(float[n, 64] x) => (seq(map(int64, float)) y) {{
          a = MatMul(x, w)
          y = ai.onnx.ml.ZipMap<classlabels_int64s = {list(range(64))}>(a)
        }}""",
        X, "its output 'y' is a sequence of maps",
    ),
    "sequence in": (
        "(seq(float[n, 64]) x) => (float[] y) { c = ConcatFromSequence<axis = 0>(x) y = MatMul(c, w) }",
        [X, X], "its input 'x' is a sequence of tensors",
    ),
    "optional in": (
        "(optional(float[n, 64]) x) => (float[] y) { c = OptionalGetElement(x) y = MatMul(c, w) }",
        X, "its input 'x' is an optional tensor",
    ),
    "map in": (
        """(map(int64, float) x) => (float[] y) {
          y = ai.onnx.ml.DictVectorizer<int64_vocabulary = [0, 1, 2]>(x)
        }""",
        {0: 1.5, 2: 2.5}, "its input 'x' is a map",
    ),
}  # fmt: skip


def _save(path: Path, text: str) -> Path:
    weight = np.random.default_rng(1).standard_normal((64, 64)).astype(np.float32)
    onnx.save(graphs.model(HEAD + text, {"w": weight}), path)
    return path


def _same(got: Any, want: Any) -> None:
    assert type(got) is type(want)
    if isinstance(want, list):
        assert len(got) == len(want)
        for one, other in zip(got, want, strict=True):
            _same(one, other)
    elif isinstance(want, dict):
        assert got == want
    else:
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CASES)
def test_in_one_process(name: str, tmp_path: Path) -> None:
    text, value, _ = CASES[name]
    path = _save(tmp_path / "m.onnx", text)
    want = ort.InferenceSession(str(path)).run(None, {"x": value})[0]
    model = ranks.Model()
    model.build_from_file(str(path), ranks.ModelType.ONNX)
    (got,) = model.predict([value])
    _same(got.get_data_to_numpy() if isinstance(got, ranks.Tensor) else got, want)
    if name in {"sequence out", "zipmap"}:
        with pytest.raises(ShardrunError, match="is a sequence or a map, which no tensor can hold"):
            model.predict([value], model.get_outputs())


@pytest.mark.parametrize("name", CASES)
def test_on_ranks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    text, _, sentence = CASES[name]
    path = _save(tmp_path / "m.onnx", text)
    for way in (
        lambda: start(path, ranks=1), lambda: start(path, ranks=2), lambda: plan_model(path, 2),
        lambda: slice_model(path, 2, tmp_path / "s"),
    ):  # fmt: skip
        with pytest.raises(ModelError, match=sentence) as caught:
            way()
        assert "\n" not in str(caught.value)
    for command in (
        ("run", "--ranks", "2"),
        ("inspect", "--ranks", "2"),
        ("slice", "--ranks", "2", "--plan-only"),
    ):
        assert cli.main([command[0], str(path), *command[1:]]) == 2
        assert sentence in capsys.readouterr().err
    assert cli.main(["inspect", str(path)]) == 0
    assert not (tmp_path / "s").exists()


def test_a_map_inside_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What only passes through is computed as it is, declared or not."""
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    text = """(float[n, 64] x) => (float[] y) <seq(float[n, 64]) s, map(int64, float) unused> {
      a = MatMul(x, w)
      s = SplitToSequence<axis = 1>(a)
      y = ConcatFromSequence<axis = 1>(s)
    }"""
    path = _save(tmp_path / "m.onnx", text)
    want = ort.InferenceSession(str(path)).run(None, {"x": X})[0]
    with start(path, ranks=2, threads=1) as group:
        _same(group.predict({"x": X})["y"], want)
