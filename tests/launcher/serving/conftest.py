"""A server of one model of tensors and one of texts, for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import launcher
from launcher.serving.batching import Batching
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.server import Listening
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from tests.launcher.generation import tiny
from tests.launcher.serving.running import Running, running


def save_model(path: Path) -> Path:
    """``y = relu(x @ w)`` of rows of 8 numbers, and the texts that come in as they are."""
    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32), "w")
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["y"]),
        helper.make_node("Identity", ["s"], ["t"]),
    ]
    ends = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 8]),
        helper.make_tensor_value_info("s", TensorProto.STRING, ["n"]),
        helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 16]),
        helper.make_tensor_value_info("t", TensorProto.STRING, ["n"]),
    ]
    graph = helper.make_graph(nodes, "rows", ends[:2], ends[2:], [weights])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path


@pytest.fixture(scope="session")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of tensors and texts."""
    return save_model(tmp_path_factory.mktemp("rows") / "rows.onnx")


@pytest.fixture(scope="session")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a language model with tokenizer and chat template."""
    return tiny.save_folder(tmp_path_factory.mktemp("texts") / "tiny")


@pytest.fixture(scope="module")
def server(rows: Path, texts: Path) -> Iterator[Running]:
    """Both on two ranks."""
    limits, metrics = ServeLimits(body=1 << 20, samples=4, tokens=64), Metrics()
    how = {"limits": limits, "metrics": metrics}
    start = {"ranks": 2, "launcher": "local", "threads": 1}
    tensors = TensorModel(
        "rows",
        **how,
        open_group=lambda: launcher.start(rows, **start),
        batching=Batching(rows=8, seconds=0.05),
    )
    texts_ = TextModel("tiny", **how, open_model=lambda: launcher.load_language_model(texts, **start))
    listening = Listening(port=0, grpc_port=0)
    with running(tensors, texts_, limits=limits, metrics=metrics, listening=listening) as found:
        yield found
