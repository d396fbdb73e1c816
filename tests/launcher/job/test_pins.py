"""A program that lives long holds of the cache what its groups of ranks run, and no more."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

import launcher
from launcher.errors import RankFailedError
from ranks.cache import entries
from tests.launcher.job.test_cache import save_mlp
from tests.launcher.processes import wait_until
from tests.ranks.cache.test_pins import is_held


@pytest.mark.timeout(120)
def test_slices_are_held_by_the_group_that_runs_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    model = save_mlp(tmp_path / "m.onnx")
    with launcher.start(model, ranks=2, launcher="local", threads=1) as group:
        (folder,) = entries.listing(tmp_path / "cache", "slices")
        assert is_held(folder.path) and not entries.remove(folder)
    assert group.kept == () and not is_held(folder.path)
    group = launcher.start(model, ranks=2, launcher="local", threads=1)
    assert is_held(folder.path)
    del group  # closed by a thread that the collector tells
    gc.collect()
    assert wait_until(lambda: not is_held(folder.path), 30)
    with pytest.raises(RankFailedError, match="'ascend' cannot be served here"):
        launcher.start(model, ranks=2, launcher="local", target="ascend")
    gc.collect()
    assert entries.remove(folder) and not folder.path.exists()
