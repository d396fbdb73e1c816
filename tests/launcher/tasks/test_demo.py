"""`shardrun demo`: a model that needs no torch, runs in plain ONNX Runtime and is cut as an expert would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from launcher import cli, start
from launcher.tasks.demo import build
from sharding import plan_model
from tests.launcher.cli_tools import ROOT


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo, written by a process that must not import torch."""
    place = tmp_path_factory.mktemp("demo") / "new" / "demo"
    script = (
        "import sys; sys.modules['torch'] = sys.modules['transformers'] = None\n"
        f"from launcher import cli; sys.exit(cli.main(['demo', {str(place)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return place


def test_it_runs_in_plain_onnx_runtime(folder: Path) -> None:
    onnx.checker.check_model(str(folder / "model.onnx"), full_check=True)
    session = ort.InferenceSession(str(folder / "model.onnx"))
    with np.load(folder / "inputs.npz") as archive:
        feeds = dict(archive)
    found = dict(zip([item.name for item in session.get_outputs()], session.run(None, feeds), strict=True))
    assert found["token_embeddings"].shape == (2, 12, 256)
    np.testing.assert_allclose(np.linalg.norm(found["sentence_embedding"], axis=1), 1, atol=1e-5)
    # Masked tokens say nothing: the second sentence alone, without them, gives the same.
    alone = session.run(["sentence_embedding"], {name: array[1:, :8] for name, array in feeds.items()})[0]
    np.testing.assert_allclose(alone[0], found["sentence_embedding"][1], atol=1e-5)
    assert np.abs(found["sentence_embedding"][0] - found["sentence_embedding"][1]).max() > 1e-2


def test_two_ranks(folder: Path) -> None:
    plan = plan_model(folder / "model.onnx", 2)
    assert plan.collective_counts() == {"AllReduce": 8, "AllGather": 1}
    assert plan.whole == {}
    with np.load(folder / "inputs.npz") as archive:
        feeds = dict(archive)
    want = ort.InferenceSession(str(folder / "model.onnx")).run(["token_embeddings"], feeds)[0]
    with start(folder / "model.onnx", ranks=2, threads=1) as group:
        got = group.predict(feeds)["token_embeddings"]
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_it_is_the_same_everywhere() -> None:
    assert build().SerializeToString(deterministic=True) == build().SerializeToString(deterministic=True)


def test_nothing_of_the_users_is_replaced(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["demo", str(folder)]) == 0  # its own may be written again
    (tmp_path / "model.onnx").write_bytes(b"mine")
    assert cli.main(["demo", str(tmp_path)]) == 2
    assert (tmp_path / "model.onnx").read_bytes() == b"mine"
    assert not (tmp_path / "inputs.npz").exists()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "inputs.npz").write_bytes(b"mine")
    assert cli.main(["demo", str(tmp_path / "other")]) == 2
    assert list((tmp_path / "other").iterdir()) == [tmp_path / "other" / "inputs.npz"]
    (tmp_path / "file").touch()
    assert cli.main(["demo", str(tmp_path / "file" / "x")]) == 2
    assert "is a file, and no folder" in capsys.readouterr().err
