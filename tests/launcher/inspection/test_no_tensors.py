"""Inputs and outputs that are sequences, maps or optional values: one process gives lists and dicts, ranks
refuse them when they are built, in one sentence. The right answers are ONNX Runtime's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

import ranks
from launcher import cli, start
from ranks.errors import ModelError, ShardrunError
from sharding import plan_model, slice_model

X = np.random.default_rng(2).standard_normal((2, 64), np.float32)
FLOATS = helper.make_tensor_type_proto(TensorProto.FLOAT, ["n", 64])
SEQUENCE = helper.make_sequence_type_proto(FLOATS)
MAP = helper.make_map_type_proto(TensorProto.INT64, helper.make_tensor_type_proto(TensorProto.FLOAT, []))
PRODUCT = helper.make_node("MatMul", ["x", "w"], ["a"])
FINISH = helper.make_node("MatMul", ["c", "w"], ["y"])
TENSOR_IN = helper.make_value_info("x", FLOATS)
TENSOR_OUT = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
ML = {"domain": "ai.onnx.ml"}

CASES: dict[str, tuple[list[Any], Any, Any, Any, str]] = {
    "sequence out": (
        [PRODUCT, helper.make_node("SplitToSequence", ["a"], ["y"], axis=1)],
        TENSOR_IN, helper.make_value_info("y", SEQUENCE), X, "its output 'y' is a sequence of tensors",
    ),
    "zipmap": (
        [PRODUCT, helper.make_node("ZipMap", ["a"], ["y"], classlabels_int64s=list(range(64)), **ML)],
        TENSOR_IN, helper.make_value_info("y", helper.make_sequence_type_proto(MAP)), X,
        "its output 'y' is a sequence of maps",
    ),
    "sequence in": (
        [helper.make_node("ConcatFromSequence", ["x"], ["c"], axis=0), FINISH],
        helper.make_value_info("x", SEQUENCE), TENSOR_OUT, [X, X], "its input 'x' is a sequence of tensors",
    ),
    "optional in": (
        [helper.make_node("OptionalGetElement", ["x"], ["c"]), FINISH],
        helper.make_value_info("x", helper.make_optional_type_proto(FLOATS)), TENSOR_OUT, X,
        "its input 'x' is an optional tensor",
    ),
    "map in": (
        [helper.make_node("DictVectorizer", ["x"], ["y"], int64_vocabulary=[0, 1, 2], **ML)],
        helper.make_value_info("x", MAP), TENSOR_OUT, {0: 1.5, 2: 2.5}, "its input 'x' is a map",
    ),
}  # fmt: skip


def _save(path: Path, nodes: list[Any], given: Any, taken: Any, **more: Any) -> Path:
    weight = numpy_helper.from_array(np.random.default_rng(1).standard_normal((64, 64)).astype("f"), "w")
    graph = helper.make_graph(nodes, "g", [given], [taken], [weight], **more)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("ai.onnx.ml", 3)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), path)
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
    nodes, given, taken, value, _ = CASES[name]
    path = _save(tmp_path / "m.onnx", nodes, given, taken)
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
    nodes, given, taken, _, sentence = CASES[name]
    path = _save(tmp_path / "m.onnx", nodes, given, taken)
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
    nodes = [
        PRODUCT,
        helper.make_node("SplitToSequence", ["a"], ["s"], axis=1),
        helper.make_node("ConcatFromSequence", ["s"], ["y"], axis=1),
    ]
    declared = [helper.make_value_info("s", SEQUENCE), helper.make_value_info("unused", MAP)]
    path = _save(tmp_path / "m.onnx", nodes, TENSOR_IN, TENSOR_OUT, value_info=declared)
    want = ort.InferenceSession(str(path)).run(None, {"x": X})[0]
    with start(path, ranks=2, threads=1) as group:
        _same(group.predict({"x": X})["y"], want)
