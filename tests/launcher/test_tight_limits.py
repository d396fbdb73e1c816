"""Commands under limits of the shell: what is enough works, and what is not is named."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.launcher import cli_tools


def limited(kilobytes: int) -> tuple[str, ...]:
    """Words before a command, which run it with so many addresses (``ulimit -v``)."""
    return ("sh", "-c", f'ulimit -v {kilobytes}; exec "$@"', "sh")


@pytest.mark.parametrize("kilobytes", [1_000_000, 500_000])
def test_less_addresses_than_shared_memory_takes_without_a_limit(
    two_slices: Path, tmp_path: Path, kilobytes: int
) -> None:
    done = cli_tools.shardrun("run", two_slices, "--dim", "batch=3", cwd=tmp_path, before=limited(kilobytes))
    assert done.returncode == 0, done.stderr
    assert re.search(r"collectives by +shm", done.stdout)


def test_the_limit_is_named(two_slices: Path, tmp_path: Path) -> None:
    """Too little for Python's threads or for ONNX Runtime, whichever fails first."""
    done = cli_tools.shardrun("run", two_slices, "--dim", "batch=3", cwd=tmp_path, before=limited(150_000))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("shardrun: error: ")
    assert "memory is short" in last
