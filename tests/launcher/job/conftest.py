"""A cache folder of the test's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ranks.cache import locks


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The test's folder, in which the cache folder lies, with its usual limit. What this process holds of it
    is let go of at the end."""
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("SHARDRUN_CACHE_LIMIT", raising=False)
    yield tmp_path
    locks.PINS.held.clear()
