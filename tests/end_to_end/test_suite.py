"""The suite itself, as somebody runs it without run.sh."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_it_leaves_no_temporary_file(tmp_path: Path) -> None:
    """ONNX Runtime keeps an id for its reports (.ses) unless it is told not to before it is imported."""
    variables = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-p",
            "no:cacheprovider",
            "tests/ranks/sessions/test_cut.py",
            "-k",
            "order",
        ],
        cwd=ROOT,
        env={**variables, "TMPDIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert [path for path in tmp_path.iterdir() if not path.name.startswith("pytest-of-")] == []
