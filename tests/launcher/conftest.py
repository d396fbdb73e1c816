"""Slice folders and launched scripts for the launcher's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launcher import processes, slices


@pytest.fixture(scope="session")
def two_slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slice folder for two ranks."""
    return slices.make_slices(tmp_path_factory.mktemp("slices") / "two")


@pytest.fixture(params=["local", "mpirun"])
def launcher(request: pytest.FixtureRequest) -> str:
    """Each launcher in turn."""
    return str(request.param)


@pytest.fixture
def run_script(tmp_path: Path) -> processes.Runner:
    """Runs a script in a Python of its own and checks afterwards that it left nothing behind."""
    return processes.Runner(tmp_path)
