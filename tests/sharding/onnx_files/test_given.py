"""A model that is given, and no file: the file that it is written to, and how that goes."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

from sharding.onnx_files.given import GivenModel
from tests.sharding import graphs


@pytest.mark.parametrize("kind", ["bytes", "proto", "ir"])
def test_the_file_is_there_until_it_is_closed(kind: str, tmp_path: Path) -> None:
    path = graphs.mlp(tmp_path / "model.onnx")
    reader = {"bytes": Path.read_bytes, "proto": onnx.load, "ir": ir.load}[kind]
    given = GivenModel(reader(path))
    with given as file:
        assert [node.op_type for node in onnx.load(file).graph.node] == [
            node.op_type for node in onnx.load(path).graph.node
        ]
    assert not file.exists() and not file.parent.exists()
    given.close()


@pytest.mark.parametrize("model", [None, 3, object(), ["a list"]])
def test_what_is_no_model_is_refused(model: object) -> None:
    with pytest.raises(TypeError, match="but got"):
        GivenModel(model)
