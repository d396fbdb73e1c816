"""Networks that MindSpore exports now: the converted models give the answers that it gives."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sharding.importers.test_mindir_cases import check_examples

PYTHON = os.environ.get("SHARDRUN_MINDSPORE_PYTHON") or (
    sys.executable if importlib.util.find_spec("mindspore") else None
)
"""A Python that has mindspore."""


@pytest.mark.skipif(
    PYTHON is None,
    reason="mindspore is not installed; SHARDRUN_MINDSPORE_PYTHON may name a Python that has it",
)
@pytest.mark.timeout(300)
def test_new_exports(tmp_path: Path) -> None:
    assert PYTHON is not None
    program = Path(__file__).with_name("mindir_nets.py")
    done = subprocess.run(
        [PYTHON, program, tmp_path / "nets"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = sorted((tmp_path / "nets").glob("*/model.mindir"))
    assert len(found) == 5
    for path in found:
        check_examples(path, path.parent)
