"""What several test modules of this package start from."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks.common import notice
from ranks.common.settings import VARIABLES
from ranks.common.sources import alone
from tests.ranks import api_models
from tests.ranks.weights_worker import Workers


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher, and no warning given before."""
    kept = alone(os.environ)
    for name in list(os.environ):
        if name not in kept or name in {variable.name for variable in VARIABLES}:
            monkeypatch.delenv(name)
    monkeypatch.setattr(notice.NOTICES, "_given", set())
    yield


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder, which is the test's own."""
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def _fork_server() -> Iterator[None]:
    yield
    Workers.stop_server()


@pytest.fixture
def workers(_fork_server: None) -> Iterator[Workers]:
    """Starts processes that share weights, and ends them."""
    made = Workers()
    yield made
    made.end()


@pytest.fixture(scope="session")
def shared_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with weights large enough to be shared."""
    return api_models.linear(tmp_path_factory.mktemp("shared") / "model.onnx", width=2048)
