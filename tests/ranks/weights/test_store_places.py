"""Prepared weights where something else lies in a file's place: a pipe, a device, a folder and others."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest

from launcher.job import cache_contents
from ranks.cache import durable, weight_entries
from ranks.cache.folder import fingerprint, hashes_folder
from ranks.sessions.session import create
from ranks.weights.prepared.store import Store
from tests.ranks.weights.test_store import CONFIG, X, first_blob, made, mlp, replace, same, save, store

__all__ = ["store"]
KINDS = ["pipe", "device", "folder", "socket", "link to nowhere"]
SAME = [
    "link to the file",
    pytest.param(
        "another user's",
        marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may give a file to another user"),
    ),
]
"""The bytes are there, but not as ours."""


@pytest.fixture(autouse=True)
def _no_waiting() -> Iterator[None]:
    """Whoever waits for a pipe fails, also where the error that ends the waiting is caught."""
    waited = []

    def fail(number: int, frame: FrameType | None) -> None:
        waited.append(number)
        raise AssertionError("something waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)
    assert not waited, "something waited, and was woken by the alarm"


def put(kind: str, path: Path) -> None:
    """Puts something else in a file's place."""
    if kind in {"another user's", "link to the file"} and not path.exists():
        path.write_text("")
    if kind == "another user's":
        os.chown(path, 12345, 12345)
        return
    if kind == "link to the file":
        moved = path.rename(path.parents[2] / f"moved {path.name}")
        path.symlink_to(moved)
        return
    if path.exists():
        path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "link to nowhere":
        path.symlink_to("nowhere")
    elif kind == "folder":
        (path / "inner").mkdir(parents=True)
        (path / "inner" / "file").write_text("")
    else:
        folder = os.open(path.parent, os.O_PATH)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"/proc/self/fd/{folder}/{path.name}")  # a socket's path must be short
        os.close(folder)


def place_of(what: str, store: Store) -> Path:
    (key,) = made(store)
    return first_blob(store) if what == "blob" else store.folder / f"{key}.{what}"


@pytest.mark.parametrize("kind", [*KINDS, *SAME])
@pytest.mark.parametrize("what", ["blob", "json", "onnx", "boot"])
def test_it_is_made_again(store: Store, tmp_path: Path, what: str, kind: str) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    same(store, model, X)
    (key,) = made(store)
    place = place_of(what, store)
    put(kind, place)
    again = Store(store.folder)
    same(again, model, X)
    assert again.opened == (key,) and made(store) == [key]
    assert place.is_file() or what == "boot"
    assert what == "boot" or (not place.is_symlink() and place.stat().st_uid == os.geteuid())
    with Store(store.folder, read_only=True).pin([key]):
        pass


@pytest.mark.parametrize("kind", [*KINDS, *SAME])
def test_a_marker_after_a_crash(
    store: Store, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    same(store, model, X)
    marker = place_of("boot", store)
    put(kind, marker)
    monkeypatch.setattr(durable, "boot_id", lambda: "another start")
    again = Store(store.folder)
    same(again, model, X)
    assert len(again.opened) == 1 and marker.is_file()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("what", ["blob", "json", "onnx", "boot"])
def test_it_is_cleared(store: Store, tmp_path: Path, what: str, kind: str) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    create(model, replace(CONFIG, store=store), "it")
    put(kind, place_of(what, store))
    put(kind, store.folder / "blobs" / ("0" * 64))
    listed = weight_entries.listing(store.folder)
    assert len(listed) == 1 and (listed[0].what == "damaged") == (what == "json")
    removed, busy = cache_contents.clear()
    assert "weights" in [item.kind for item in removed] and not busy
    left = [path for path in store.folder.iterdir() if path.name not in {"blobs", "locks", "work"}]
    left += (store.folder / "blobs").iterdir()
    assert all(
        kind == "folder" and ".kept" in path.name and (path / "inner" / "file").is_file() for path in left
    )
    assert len(left) == (kind == "folder") * 2


@pytest.mark.parametrize("kind", [*KINDS, *SAME])
def test_another_model_with_that_weight(store: Store, tmp_path: Path, kind: str) -> None:
    """It would link what it made to the place."""
    same(store, save(mlp(), tmp_path / "m.onnx"), X)
    blob = first_blob(store)
    put(kind, blob)
    same(store, save(mlp((2, 1, 3)), tmp_path / "other.onnx"), X)
    assert len(store.opened) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_locks_and_work(store: Store, tmp_path: Path, kind: str) -> None:
    """What lies in a lock's place is moved aside, and kept where it is not ours. A folder that was left to
    work in goes."""
    model = save(mlp(), tmp_path / "m.onnx")
    put(kind, store.folder / "work" / "tmp_left_89")
    if kind in {"pipe", "folder", "socket"}:
        put(kind, store.folder / "locks" / store.key(model, CONFIG)[:2])
    same(store, model, X)
    assert len(store.opened) == 1
    assert len(list((store.folder / "work").iterdir())) == (kind != "folder")  # we make only folders there
    assert len(list((store.folder / "locks").rglob("inner/file"))) == (kind == "folder")


@pytest.mark.parametrize("kind", KINDS)
def test_a_remembered_hash(store: Store, tmp_path: Path, kind: str) -> None:
    model = save(mlp(), tmp_path / "m.onnx")
    found = fingerprint(model)
    (memo,) = hashes_folder().iterdir()
    put(kind, memo)
    assert fingerprint(model) == found
