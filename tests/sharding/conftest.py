"""What several test modules of this package start from."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warnings of models that give many of them."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture
def read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that one test plans several times is read once, which takes longer than to plan: a plan leaves
    what was read as it was (`search/test_plans.py` tests it)."""
    from sharding.planning import plan
    from sharding.reading.read import read_model
    from tests.sharding import graphs

    @functools.cache
    def found(path: Path, digest: str, key: Any) -> Any:
        return read_model(path, key)

    def read(path: str | Path, key: Any = None) -> Any:
        digest = graphs.digest(Path(path).parent) if Path(path).is_file() else None
        return read_model(path, key) if digest is None else found(Path(path), digest, key)

    monkeypatch.setattr(plan, "read_model", read)
