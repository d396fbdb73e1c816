"""A server of one model of tensors and one of texts, for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import launcher
from launcher.serving.batching import Batching
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.server import Listening
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel
from tests.launcher.generation import tiny
from tests.launcher.serving.running import Running, running
from tests.sharding import graphs


def save_model(path: Path) -> Path:
    """``y = relu(x @ w)`` of rows of 8 numbers, and the texts that come in as they are."""
    weights = np.random.default_rng(0).normal(size=(8, 16)).astype(np.float32)
    text = """rows (float[n, 8] x, string[n] s) => (float[n, 16] y, string[n] t) {
        h = MatMul(x, w)
        y = Relu(h)
        t = Identity(s)
    }"""
    return graphs.save(path, text, {"w": weights}, opset=17)


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
