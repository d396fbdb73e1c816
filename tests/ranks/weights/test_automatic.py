"""When a rank keeps its weights prepared for others without being told to."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks.devices.providers import CPU, CUDA
from ranks.sessions.session import SessionConfig
from ranks.weights.prepared.store import Store
from ranks.weights.shared import automatic
from ranks.weights.shared.automatic import LEAST_BYTES
from sharding.slices.manifest import CollectiveEntry, FileEntry, Manifest, RankEntry

STORE = Store(Path("/nowhere"))


def _file(name: str, size: int = LEAST_BYTES) -> FileEntry:
    return FileEntry(name, size, "0" * 64)


def _manifest(*files: tuple[FileEntry, ...], within: str = "") -> Manifest:
    ranks = tuple(RankEntry(rank, f"{rank}.onnx", 0, held) for rank, held in enumerate(files))
    collective = CollectiveEntry("AllReduce", "y", "float32", (2,), within=within)
    return Manifest(_file("model.onnx"), len(ranks), ranks, collectives=(collective,))


ALIKE = _manifest((_file("whole.data"), _file("0.data")), (_file("whole.data"), _file("1.data")))
APART = _manifest((_file("0.data"),), (_file("1.data"),))
FEW = _manifest((_file("whole.data", LEAST_BYTES - 1),), (_file("whole.data", LEAST_BYTES - 1),))
BRANCHES = _manifest(
    (_file("0.data"), _file("0.onnx"), _file("small.data", LEAST_BYTES - 1)),
    (_file("1.data"),),
    within="an If (else)",
)


@pytest.fixture(autouse=True)
def _default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SHARDRUN_WEIGHTS", raising=False)
    monkeypatch.setattr(automatic, "_store", lambda: STORE)


@pytest.mark.parametrize(
    ("manifest", "rank", "here", "files"),
    [
        (ALIKE, 0, 2, {"whole.data"}),
        (ALIKE, 1, 2, {"whole.data"}),
        # The only one on its host has nobody to share with.
        (ALIKE, 0, 1, set()),
        (APART, 0, 2, set()),
        (FEW, 0, 2, set()),
        (None, 0, 2, set()),
        # Branches of one model share with each other, wherever other ranks are.
        (BRANCHES, 0, 1, {"0.data"}),
        (BRANCHES, 1, 2, {"1.data"}),
        (BRANCHES, None, 2, set()),
    ],
)
def test_what_is_worth_sharing(
    manifest: Manifest | None, rank: int | None, here: int, files: set[str]
) -> None:
    config = SessionConfig(rank=rank)
    found = automatic.choose(config, manifest, here)
    if files:
        assert found.store is STORE and found.shared_files == files
    else:
        assert found is config


@pytest.mark.parametrize(("asked", "shared"), [("on", True), ("off", False)])
def test_what_the_environment_says(asked: str, shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_WEIGHTS", asked)
    found = automatic.choose(SessionConfig(rank=0), APART if shared else ALIKE, 1 if shared else 2)
    assert (found.store is STORE) is shared and found.shared_files is None


@pytest.mark.parametrize("asked", ["", "on"])
def test_who_has_a_store_or_a_device_keeps_it(asked: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if asked:
        monkeypatch.setenv("SHARDRUN_WEIGHTS", asked)
    other = Store(Path("/elsewhere"))
    for config in (SessionConfig(store=other, rank=0), SessionConfig(providers=(CUDA, CPU), rank=0)):
        assert automatic.choose(config, ALIKE, 2) is config
