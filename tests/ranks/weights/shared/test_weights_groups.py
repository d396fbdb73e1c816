"""Two groups of ranks over one copy of each shard, and what is refused between ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from sharding import slice_model
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import save_mlp
from tests.ranks.weights.test_store import ROOT

RANK = """
import os, sys
import numpy as np
import ranks
from pathlib import Path

role, path, name = sys.argv[1:]
name = name.format(os.environ["RANK"])
x = np.linspace(-1, 1, 4 * 8, dtype=np.float32).reshape(4, 8)
try:
    if role == "share":
        model = ranks.share_weights(path, name=name, family=int(os.environ["FAMILY"]))
    else:
        model = ranks.attach(name, path, timeout=20)
except RuntimeError as error:
    print("refused", type(error).__mro__[1].__name__, error, flush=True)
    sys.exit(3)
found = model.predict([x])[0].get_data_to_numpy()
np.save(os.environ["RESULT"], found)
mapped = {line.split()[4] + line.split()[3] for line in open("/proc/self/maps") if "/blobs/" in line}
print("ready", *sorted(mapped), flush=True)
sys.stdin.read()
model.predict([x])
"""


class Groups:
    """Groups of two ranks each, all of them this process's children."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.all: list[subprocess.Popen[str]] = []

    def start(self, job: str, path: Path, plan: dict[int, tuple[str, str]]) -> list[subprocess.Popen[str]]:
        started = []
        for rank, (role, name) in plan.items():
            environ = {
                **os.environ,
                "PYTHONPATH": str(ROOT),
                "SHARDRUN_CACHE": str(self.folder / "cache"),
                "SHARDRUN_TIMEOUT": "20",
                "SHARDRUN_JOB": f"{self.folder.name}-{os.getpid()}-{job}",
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "LOCAL_RANK": str(rank),
                "FAMILY": str(os.getpid()),
                "RESULT": str(self.folder / f"{job}-{rank}.npy"),
            }
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", RANK, role, str(path), name],
                    env=environ, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                )
            )  # fmt: skip
        self.all += started
        return started

    def result(self, job: str, rank: int) -> np.ndarray[Any, Any]:
        return np.asarray(np.load(self.folder / f"{job}-{rank}.npy"))


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    made = Groups(tmp_path)
    yield made
    for process in made.all:
        process.kill()
        process.wait(30)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            pipe.close()


def said(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


@pytest.mark.parametrize("axis", ["tensor", "data"])
def test_each_rank_attaches_to_the_same_rank_of_another_group(
    groups: Groups, tmp_path: Path, axis: str
) -> None:
    model = save_mlp(tmp_path / "m.onnx", width=512)
    slice_model(model, 2, tmp_path / "slices", options=SliceOptions(mesh=Mesh.of(**{axis: 2})))
    x = np.linspace(-1, 1, 4 * 8, dtype=np.float32).reshape(4, 8)
    (expected,) = ort.InferenceSession(str(model), providers=["CPUExecutionProvider"]).run(None, {"x": x})
    both = dict.fromkeys(range(2), ("share", f"{tmp_path} {{}}"))
    owners = groups.start("first", tmp_path / "slices", both)
    guests = groups.start("second", tmp_path / "slices", {rank: ("attach", both[rank][1]) for rank in both})
    files = [said(process).split() for process in (*owners, *guests)]
    assert all(found[0] == "ready" and len(found) > 1 for found in files), files
    assert files[0] == files[2] and files[1] == files[3]  # the same files, and so the same memory
    for job in ("first", "second"):
        for rank in both:
            found = groups.result(job, rank)
            assert np.abs(found - expected).max() <= 1e-4 * np.abs(expected).max()
    for process in owners:  # the end of its owners is no matter to the second group
        process.kill()
        process.wait(30)
    for process in guests:
        assert process.stdin is not None
        process.stdin.close()  # they predict once more, together
    assert [process.wait(30) for process in guests] == [0, 0]


def test_another_ranks_shard_is_refused(groups: Groups, tmp_path: Path) -> None:
    slice_model(save_mlp(tmp_path / "m.onnx", width=512), 2, tmp_path / "slices")
    owners = groups.start("first", tmp_path / "slices", {r: ("share", f"{tmp_path} {r}") for r in range(2)})
    for process in owners:
        assert said(process).startswith("ready")
    guests = groups.start(
        "second", tmp_path / "slices", {r: ("attach", f"{tmp_path} {1 - r}") for r in range(2)}
    )
    for rank, process in enumerate(guests):
        text = said(process)
        assert f"is rank {1 - rank} of 2, but this process is rank {rank} of 2: give each rank" in text, text
        process.communicate(timeout=30)
        assert process.returncode == 3


def test_an_owner_of_the_own_group_is_refused_at_once(groups: Groups, tmp_path: Path) -> None:
    """It could not build before this rank does."""
    slice_model(save_mlp(tmp_path / "m.onnx", width=512), 2, tmp_path / "slices")
    plan = {0: ("share", f"{tmp_path} 0"), 1: ("attach", f"{tmp_path} 0")}
    owner, guest = groups.start("only", tmp_path / "slices", plan)
    began = time.monotonic()
    text = said(guest)
    assert "is rank 0 of the group of 2 that this process is rank 1 of" in text, text
    assert time.monotonic() - began < 19, "not before the time-out"
    guest.communicate(timeout=30)
    owner.kill()


def test_a_whole_model_is_shared_within_a_group(groups: Groups, tmp_path: Path) -> None:
    """Ranks run it each by itself."""
    model = save_mlp(tmp_path / "m.onnx", width=512)
    plan = {0: ("share", f"{tmp_path} 0"), 1: ("attach", f"{tmp_path} 0")}
    files = [said(process) for process in groups.start("only", model, plan)]
    assert files[0].startswith("ready") and files[0] == files[1], files
