"""What the cache holds of every kind, and that its limit is of all of it."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest

from launcher import cli
from launcher.job import cache
from ranks.cache import locks
from ranks.cache.folder import locked
from ranks.cache.limit import bound, occupied
from ranks.cache.place import prepare
from ranks.errors import ShardrunError
from ranks.models import imported, model_file
from ranks.sessions.session import SessionConfig, create
from ranks.weights.device import on_device
from ranks.weights.device.device_model import export_device_weights
from ranks.weights.prepared.store import default_store
from tests.launcher.cli_tools import save_mlp
from tests.launcher.job.test_cache_command import fill, shown
from tests.ranks.fake_cuda import CONFIG, FakeDriver

DEVICE_KEY = "1" * 32


pytestmark = pytest.mark.usefixtures("folder")


def fill_all(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """One of each kind, in use by nobody, the first unused for longest."""
    monkeypatch.setattr(imported, "is_imported", lambda path: path.suffix == ".mindir")

    def convert(path: Path, output: Path) -> None:
        output.parent.mkdir()
        output.write_bytes(bytes(1 << 16))

    monkeypatch.setattr(imported, "_convert", convert)
    (folder / "n.mindir").write_bytes(b"x")
    root = folder / "cache"
    place, session = fill(folder)
    del session
    (key,) = [path.stem for path in (root / "weights").glob("*.json")]
    converted = imported.as_onnx(folder / "n.mindir").parent
    driver = FakeDriver()
    prepare(root, "device")
    weights = export_device_weights(folder / "m.onnx", CONFIG, root / "device" / DEVICE_KEY, driver)
    weights.close()
    locks.PINS.held.clear()
    there = {
        "device": root / "device" / DEVICE_KEY,
        "converted": converted,
        "weights": root / "weights" / f"{key}.json",
        "slices": place,
    }
    for index, path in enumerate(there.values()):
        os.utime(path, (index, index))
    return there


def test_every_kind_is_listed_and_cleared(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = fill_all(folder, monkeypatch)
    data = json.loads(shown(capsys, "list", "--json"))
    found = {item["kind"]: item["what"] for item in data["items"]}
    assert list(found) == ["slices", "converted", "hashes", "weights", "device"]
    assert found["converted"] == "n.onnx, from another format"
    assert found["device"] == f"{folder / 'm.onnx'} for a GPU"
    size = sum(path.stat().st_blocks * 512 for path in (folder / "cache").rglob("*") if path.is_file())
    assert sum(data["bytes"].values()) == size
    device = locks.pin(there["device"])
    assert device is not None
    imported.as_onnx(folder / "n.mindir")
    assert cli.main(["cache", "clear", "device", "converted"]) == 0
    said = capsys.readouterr().err
    assert f"device {DEVICE_KEY} ({folder / 'm.onnx'} for a GPU) is in use and stays" in said
    assert "(n.onnx, from another format) is in use and stays" in said
    device.close()
    locks.PINS.held.clear()
    shown(capsys, "clear")
    left = [path for path in (folder / "cache").rglob("*") if path.is_file()]
    assert all(path.parent.name == "locks" for path in left)


def test_the_limit_is_of_everything(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was unused for longest goes, whatever it is; what is in use or being made stays."""
    there = fill_all(folder, monkeypatch)
    stale = there["slices"].with_name(f"{there['slices'].name}.tmpdead")
    stale.mkdir()
    (stale / "x").write_bytes(bytes(1 << 20))
    for kind in list(there):
        total = sum(occupied(folder / "cache").values())
        assert all(path.exists() for path in there.values())
        bound(folder / "cache", total)
        assert all(path.exists() for path in there.values())
        if stale.exists():
            bound(folder / "cache", total - 1)
            assert not stale.exists() and all(path.exists() for path in there.values())
            total = sum(occupied(folder / "cache").values())
        bound(folder / "cache", total - 1)
        assert not there.pop(kind).exists()
    assert sum(occupied(folder / "cache").values()) > 0  # the hashes
    bound(folder / "cache", 0)
    assert sum(occupied(folder / "cache").values()) == 0


@pytest.mark.parametrize("left", ["nothing", "entries"])
def test_weights_of_which_somebody_removed_a_part(
    folder: Path, monkeypatch: pytest.MonkeyPatch, left: str
) -> None:
    """All of the cache may be deleted at any time: the limit holds for the rest, and it can be cleared."""
    there = fill_all(folder, monkeypatch)
    weights = there["weights"].parent
    for name in ("blobs",) if left == "entries" else ("blobs", "locks", "work"):
        shutil.rmtree(weights / name)
    if left == "nothing":
        for path in weights.iterdir():
            path.unlink()
    bound(folder / "cache", 0)
    assert not any(path.exists() for path in there.values())
    assert cli.main(["cache", "clear"]) == 0


def test_what_is_in_use_or_being_made_stays_beyond_the_limit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = fill_all(folder, monkeypatch)
    used = locks.pin(there["device"])
    assert used is not None
    with there["converted"].with_suffix(".lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        bound(folder / "cache", 0, keep=[there["weights"].stem])
    assert [kind for kind, path in there.items() if path.exists()] == ["device", "converted", "weights"]
    used.close()
    bound(folder / "cache", 0)
    assert not any(path.exists() for path in there.values())


@pytest.mark.parametrize("added", ["slices", "converted", "weights", "device"])
def test_the_limit_holds_when_something_is_added(
    folder: Path, added: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = fill_all(folder, monkeypatch)
    # The oldest must make room for anything more; of the kind that grows, what is there stays the newest.
    os.utime(there[added], (10, 10))
    oldest = next(kind for kind in there if kind != added)
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", str(sum(occupied(folder / "cache").values()) + 8192))
    model = save_mlp(folder / "o.onnx", width=256)
    if added == "slices":
        cache.sliced(model, 2)
    elif added == "converted":
        (folder / "o.mindir").write_bytes(b"y")
        imported.as_onnx(folder / "o.mindir")
    elif added == "weights":
        create(model, SessionConfig(threads=1, store=default_store()), "o")
    else:
        monkeypatch.setattr(on_device, "driver", FakeDriver)
        root = folder / "cache"
        store = on_device.OwnedOnDevice(root / "device", root)
        store.open(model, CONFIG, "o")
    assert not there[oldest].exists() and there[added].exists()


def test_a_process_that_uses_slices_keeps_them(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The launcher, and each rank, which may outlive it."""
    place = fill(folder)[0]
    for user in ("launcher", "rank"):
        if user == "launcher":
            cache.sliced(folder / "m.onnx", 2)
        else:
            model_file.find(place).verify(0, 2)
        bound(folder / "cache", 0)
        assert cli.main(["cache", "clear", "slices"]) == 0
        assert "is in use and stays" in capsys.readouterr().err and place.is_dir()
        locks.PINS.held.clear()
    bound(folder / "cache", 0)
    assert not place.exists()
    assert cache.sliced(folder / "m.onnx", 2) == place and place.is_dir()


def test_a_limit_that_is_none_is_said_before_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "much")
    model = save_mlp(folder / "m.onnx")
    with pytest.raises(ShardrunError, match="SHARDRUN_CACHE_LIMIT must be a size"):
        cache.sliced(model, 2)
    assert not list((folder / "cache" / "slices").iterdir())


def test_a_lock_that_was_removed_is_taken_anew(folder: Path) -> None:
    """Who removes a folder removes its lock; who waited for that must not hold what nobody else sees."""
    lock = folder / "k.lock"
    seen: list[int] = []

    def wait() -> None:
        with locked(lock, 30):
            with pytest.raises(TimeoutError), locked(lock, 0):
                pass
            seen.append(1)

    with locked(lock):
        waiting = threading.Thread(target=wait)
        waiting.start()
        time.sleep(0.1)  # it has opened the lock and waits
        assert not seen
        lock.unlink()
    waiting.join(30)
    assert seen == [1]
