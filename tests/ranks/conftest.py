"""What several test modules of this package start from."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from ranks.api import notice

LAUNCHERS = (
    "OMPI_",
    "PMI",
    "SLURM_",
    "RANK",
    "WORLD_SIZE",
    "LOCAL_",
    "SHARDRUN_",
    "DEVICE_ID",
    "TORCHELASTIC",
)


@pytest.fixture
def single(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No launcher, and no warning given before."""
    for name in list(os.environ):
        if name.startswith(LAUNCHERS):
            monkeypatch.delenv(name)
    monkeypatch.setattr(notice, "_warned", set())
    yield
