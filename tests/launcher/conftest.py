"""Slice folders and launched scripts for the launcher's tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.launcher import cli_tools, processes, slices


@pytest.fixture(scope="session")
def two_slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A slice folder for two ranks."""
    return slices.make_slices(tmp_path_factory.mktemp("slices") / "two")


@pytest.fixture(params=["local", "mpirun"])
def launcher(request: pytest.FixtureRequest) -> str:
    """Each launcher in turn."""
    return str(request.param)


@pytest.fixture
def run_script(tmp_path: Path) -> Iterator[processes.Runner]:
    """Runs a script in a Python of its own and checks afterwards that it left nothing behind."""
    runner = processes.Runner(tmp_path)
    yield runner
    runner.close()


@pytest.fixture
def run_copied(tmp_path: Path) -> Iterator[processes.Runner]:
    """The same in a copy of a process that has imported the launcher, with local ranks that are copies too,
    but in tests whose ranks are new processes."""
    runner = processes.Runner(tmp_path, cli_tools.copies)
    yield runner
    runner.close()
