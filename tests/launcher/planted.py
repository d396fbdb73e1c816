"""Ranks that do something of their own in each run of a model: what a test plants in them."""

from __future__ import annotations

from pathlib import Path

import pytest

_HOOK = """\
import os, sys, threading, time

LOCK = threading.Lock()
LOCK.acquire()

def waits_for_a_lock():
    LOCK.acquire()

def sleeps_on_and_on():
    while True:
        time.sleep(60)

def computes():
    end = time.time() + 3.0
    while time.time() < end:
        pass

def answers(original, *given):
    name = os.path.join({folder!r}, "rank_" + os.environ.get("RANK", os.environ.get("PMIX_RANK", "")))
    if not os.path.exists(name):
        return original(*given)
    with open(name) as file:
        asked = file.read()
    if asked == "fails later":
        original(*given)
        raise ValueError("it broke afterwards")
    globals()[asked]()
    return original(*given)

def plant():
    while not hasattr(sys.modules.get("ranks.run.rank_model"), "RankModel"):
        time.sleep(0.01)
    model = sys.modules["ranks.run.rank_model"].RankModel
    original = model.run
    model.run = lambda *given: answers(original, *given)

threading.Thread(target=plant, daemon=True).start()
"""


class Planted:
    """What the ranks are to do from now on."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def tell(self, rank: int, what: str) -> None:
        """A function of the hook above, or "fails later"."""
        place = self._folder / f"rank_{rank}"
        place.with_suffix(".new").write_text(what)
        place.with_suffix(".new").rename(place)


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Planted:
    """For all ranks that the test starts."""
    folder = tmp_path / "planted"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(_HOOK.format(folder=str(folder)))
    monkeypatch.setenv("PYTHONPATH", str(folder), prepend=":")
    return Planted(folder)
