"""The tutorial's program: three processes that exchange ids and the handle by multiprocessing."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from tests.end_to_end.processes import run_clean

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "examples" / "shared_weights.py"


@pytest.mark.parametrize("how", ["its import changed", "as it was"])
def test_the_example(how: str, shared_model: Path, tmp_path: Path) -> None:
    command = [sys.executable, str(PROGRAM), str(shared_model)]
    if how == "as it was":
        text = PROGRAM.read_text().replace("import ranks as mslite", "import mindspore_lite as mslite")
        assert "ranks" not in text
        program = tmp_path / "program.py"
        program.write_text(text)
        command = [sys.executable, "-m", "launcher.cli", "exec", str(program), str(shared_model)]
    done = run_clean(command, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    assert done.returncode == 0, done.stderr
    session = ort.InferenceSession(str(shared_model), providers=["CPUExecutionProvider"])
    expected = session.run(None, {"x": np.ones((1, 8), np.float32)})[0].flatten()
    lines = sorted(done.stdout.splitlines())
    assert [line.split(":")[0] for line in lines] == ["client 1", "client 2", "owner"]
    for line in lines:
        found = np.array([float(word) for word in line.rsplit("[", 1)[1].rstrip("]").split()])
        assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()


def test_a_process_that_fails_ends_the_program(tmp_path: Path) -> None:
    broken = tmp_path / "model.onnx"
    broken.write_bytes(b"")
    command = [sys.executable, str(PROGRAM), str(broken)]
    done = run_clean(command, cwd=tmp_path, environment={"PYTHONPATH": str(ROOT)}, timeout=100)
    assert done.returncode != 0
    assert "is an empty file, not a model" in done.stderr
