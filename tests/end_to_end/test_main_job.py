"""The main job as a user starts it: what it prints is there, is right, and stays right the second time."""

import fcntl
import re
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from examples.minilm.text import SENTENCES, tokenize
from examples.minilm.weights import weights_folder
from tests import kept, models
from tests.end_to_end.processes import run_clean

ROOT = Path(__file__).parents[2]
TENSOR = re.compile(
    r"^tensor's name is:(\S+) data size is:(\d+) tensor elements num is:(\d+)\noutput data is: (.*)$",
    re.MULTILINE,
)
SHORT = """
import runpy
from examples.minilm import measure
measure.ROUNDS = 1
runpy.run_module("examples.minilm", run_name="__main__", alter_sys=True)
"""
"""The job, which measures less: that takes more than half of its time where nothing is exported."""


@pytest.fixture(scope="module")
def job(shared_folder: Path) -> tuple[Path, str]:
    """A cache folder of its own and the standard output of a first run, which exports and slices: one for all
    workers that get some of these tests."""
    folder = shared_folder / "main-job"
    folder.mkdir(exist_ok=True)
    cache, said = folder / "cache", folder / "said"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not said.exists():
            command = [sys.executable, "-m", "examples.minilm"]
            done = run_clean(command, cwd=ROOT, environment={"SHARDRUN_CACHE": str(cache)})
            assert done.returncode == 0, done.stderr
            assert "exporting the sentence encoder" in done.stderr
            said.write_text(done.stdout)
    return cache, said.read_text()


def test_the_export_is_what_is_kept(job: tuple[Path, str]) -> None:
    """Which the other tests have instead of it."""
    if not models.is_kept("minilm"):
        pytest.skip("the exporters here are not those of requirements.lock")
    (path,) = job[0].glob("minilm/*/minilm.onnx")
    fresh = kept.strip(path, models.given("minilm"))
    assert kept.same(kept.read(models.ARCHIVE, "minilm"), fresh), "run: python scripts/keep_graphs.py"


def test_prints_every_output_once(job: tuple[Path, str]) -> None:
    """Names, bytes, element counts and first values, from one rank only, equal to plain ONNX Runtime's."""
    feeds = tokenize(SENTENCES, weights_folder())
    session = onnxruntime.InferenceSession(str(models.get("minilm").path), providers=["CPUExecutionProvider"])
    printed = TENSOR.findall(job[1])
    assert [name for name, *_ in printed] == [output.name for output in session.get_outputs()]
    for (_, size, count, values), expected in zip(printed, session.run(None, feeds), strict=True):
        assert (int(size), int(count)) == (expected.nbytes, expected.size)
        first = np.array(values.split(), np.float32)
        assert len(first) == 50
        assert np.max(np.abs(first - expected.reshape(-1)[:50])) <= 1e-4 * np.max(np.abs(expected))


def test_prints_the_summary(job: tuple[Path, str]) -> None:
    output = job[1]
    for row in ("weights held by rank 0", "weights held by rank 1", "latency, 2 ranks x 1 thread (mpirun)"):
        assert row in output
    # Six layers, two AllReduces each; the embeddings and the pooling need a few more.
    collectives = re.search(r"collectives per inference +(\d+) ", output)
    assert collectives
    assert int(collectives[1]) >= 12
    error = re.search(r"largest relative error against ONNX Runtime +(\S+)", output)
    assert error
    assert float(error[1]) <= 1e-4
    assert "ok: 2 ranks answer as one process does. The model: /" in output.splitlines()[-1]


def test_similar_sentences_are_similar(job: tuple[Path, str]) -> None:
    """The sentences come in pairs of one meaning: each is nearest to its partner."""
    rows = re.findall(r"^ *\d +((?:-?\d\.\d\d +){6})", job[1], re.MULTILINE)
    cosines = np.array([row.split() for row in rows], np.float64)
    assert cosines.shape == (len(SENTENCES),) * 2
    np.fill_diagonal(cosines, -1)
    assert [int(row.argmax()) for row in cosines] == [1, 0, 3, 2, 5, 4]


def test_second_run_exports_and_slices_nothing(job: tuple[Path, str]) -> None:
    cache, first = job
    files = {path: path.stat().st_mtime_ns for path in cache.rglob("*.onnx")}
    assert files
    done = run_clean([sys.executable, "-c", SHORT], cwd=ROOT, environment={"SHARDRUN_CACHE": str(cache)})
    assert done.returncode == 0, done.stderr
    assert "exporting" not in done.stderr
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*.onnx")} == files
    names = [name for name, *_ in TENSOR.findall(first)]
    assert [name for name, *_ in TENSOR.findall(done.stdout)] == names


def test_unwritable_cache_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    environment = {"SHARDRUN_CACHE": str(tmp_path / "file")}
    done = run_clean([sys.executable, "-m", "examples.minilm"], cwd=ROOT, environment=environment)
    assert done.returncode == 1
    assert "set SHARDRUN_CACHE to a folder to which you and nobody else may write" in done.stderr
    assert "Traceback" not in done.stderr
