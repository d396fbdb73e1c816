"""One small model folder, and one group of two ranks of it, for the tests of this room."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import load_language_model
from launcher.generation.model import LanguageModel
from tests.launcher.generation import tiny


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model folder; nobody changes it."""
    return tiny.save_folder(tmp_path_factory.mktemp("language") / "model")


@pytest.fixture(scope="session")
def plain(folder: Path) -> tiny.Plain:
    """The model in plain ONNX Runtime."""
    return tiny.Plain(folder / "model.onnx")


@pytest.fixture(scope="module")
def model(folder: Path) -> Iterator[LanguageModel]:
    """The model on two ranks."""
    with load_language_model(folder, ranks=2, launcher="local", threads=1) as model:
        yield model
