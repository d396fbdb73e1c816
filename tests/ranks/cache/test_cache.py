"""Folders of the cache that are made once for all who ask for them."""

from __future__ import annotations

import errno
import logging
import os
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ranks.cache import entries, locks
from ranks.cache.cache import Cache
from ranks.cache.folder import recall, remembered_hash
from ranks.cache.intact import SEAL, Files
from ranks.cache.keys import hash_of_code
from ranks.cache.limit import bound

KEY = "m-" + "0" * 24
KIND = "converted"


class Maker:
    """Makes a folder with one file, and counts how often."""

    def __init__(self, name: str = "m.onnx") -> None:
        self.name = name
        self.calls = 0

    def __call__(self, folder: Path) -> Files | None:
        self.calls += 1
        folder.mkdir()
        (folder / self.name).write_text(f"made {self.calls}")
        return None

    def fits(self, folder: Path) -> bool:
        return (folder / self.name).is_file()


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_many_who_ask_at_once_get_one(cache: Path) -> None:
    make, told = Maker(), []
    with ThreadPoolExecutor(8) as pool:
        found = [
            pool.submit(Cache(KIND, cache).get_or_make, KEY, make, before=lambda: told.append(1))
            for _ in range(16)
        ]
        places = {future.result() for future in found}
    assert places == {cache / KIND / KEY} and make.calls == len(told) == 1
    assert names(cache / KIND) == {KEY, f"{KEY}.lock"} and names(cache / KIND / KEY) == {"m.onnx", SEAL}
    assert (cache / KIND / KEY).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("harm", ["changed", "lost", "no seal", "a file in its place", "a link in its place"])
def test_what_is_damaged_is_made_again(cache: Path, harm: str, caplog: pytest.LogCaptureFixture) -> None:
    make = Maker()
    place = Cache(KIND, cache).get_or_make(KEY, make)
    if harm == "changed":
        (place / "m.onnx").write_text("other")
    elif harm == "lost":
        (place / "m.onnx").unlink()
    elif harm == "a link in its place":  # to the same bytes, as who needs room may leave it
        shutil.move(place / "m.onnx", cache / "moved.onnx")
        (place / "m.onnx").symlink_to(cache / "moved.onnx")
    elif harm == "no seal":  # as those of an earlier version
        (place / SEAL).unlink()
    else:
        shutil.rmtree(place)
        place.write_text("not ours")
    (place.parent / f"{KEY}.tmpdead").mkdir()  # left by a crash
    with caplog.at_level(logging.WARNING):
        assert Cache(KIND, cache).get_or_make(KEY, make) == place
    assert [record.getMessage() for record in caplog.records] == [f"{place} was damaged and is made again"]
    assert make.calls == 2 and (place / "m.onnx").read_text() == "made 2"
    left = names(place.parent) - {KEY, f"{KEY}.lock"}
    if harm == "a file in its place":
        (kept,) = left
        assert (place.parent / kept).read_text() == "not ours"
    else:
        assert not left


@pytest.mark.parametrize("thing", ["folder", "pipe", "link", "closed"])
def test_what_lies_in_the_place_of_a_lock(cache: Path, thing: str) -> None:
    make = Maker()
    place = Cache(KIND, cache).get_or_make(KEY, make)
    lock = place.with_name(f"{KEY}.lock")
    lock.unlink()
    if thing == "folder":
        lock.mkdir()
        (lock / "notes.txt").write_text("mine")
    elif thing == "pipe":
        os.mkfifo(lock)
    elif thing == "link":
        lock.symlink_to(cache / "nowhere" / "else")
    else:
        lock.touch(0o000)
    (place / "m.onnx").unlink()
    assert Cache(KIND, cache).get_or_make(KEY, make) == place
    assert make.calls == 2 and lock.is_file() and not lock.is_symlink()
    assert [path.read_text() for path in place.parent.glob("*/notes.txt")] == ["mine"] * (thing == "folder")


def test_a_folder_in_the_place_of_a_remembered_hash(cache: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("content")
    found = remembered_hash(file)
    (memo,) = (cache / "hashes").iterdir()
    memo.unlink()
    memo.mkdir()
    assert remembered_hash(file) == found
    assert memo.is_file() and recall(file, "file") == found


def test_what_is_not_ours_in_a_damaged_folder_is_kept(cache: Path) -> None:
    make = Maker()
    place = Cache(KIND, cache).get_or_make(KEY, make)
    (place / SEAL).unlink()
    (place / "notes.txt").write_text("mine")
    Cache(KIND, cache).get_or_make(KEY, make)
    assert [path.read_text() for path in place.parent.glob("*/notes.txt")] == ["mine"]
    assert not (place / "notes.txt").exists()


def test_a_whole_folder_that_does_not_fit_is_not_called_damaged(
    cache: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Maker(), Maker("n.onnx")
    Cache(KIND, cache).get_or_make(KEY, one, fits=one.fits)
    with caplog.at_level(logging.WARNING):
        place = Cache(KIND, cache).get_or_make(KEY, other, fits=other.fits)
    assert names(place) == {"n.onnx", SEAL} and not caplog.records


def test_what_fails_leaves_nothing(cache: Path) -> None:
    def fail(folder: Path) -> None:
        folder.mkdir()
        (folder / "m.onnx").touch()
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Cache(KIND, cache).get_or_make(KEY, fail)
    assert names(cache / KIND) == {f"{KEY}.lock"}


def test_another_was_faster_where_locks_do_not_work(
    cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = Maker()

    def slow(folder: Path) -> None:
        Maker()(folder)
        Cache(KIND, cache).get_or_make(KEY, first)

    monkeypatch.setattr(locks, "lock", lambda *_: False)
    with caplog.at_level(logging.WARNING):
        place = Cache(KIND, cache).get_or_make(KEY, slow)
    assert first.calls == 1 and (place / "m.onnx").is_file() and not caplog.records


@pytest.mark.parametrize("faster", [True, False])
def test_what_another_puts_in_the_place_at_the_last_moment_is_taken(
    cache: Path, monkeypatch: pytest.MonkeyPatch, faster: bool
) -> None:
    rename, other = Path.rename, Maker()

    def fails(self: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        if faster:
            Cache(KIND, cache).get_or_make(KEY, other)
        raise OSError(errno.EROFS, "read-only")

    monkeypatch.setattr(locks, "lock", lambda *_: False)
    monkeypatch.setattr(Path, "rename", fails)
    if not faster:
        with pytest.raises(OSError, match="read-only"):
            Cache(KIND, cache).get_or_make(KEY, Maker())
    else:
        assert Cache(KIND, cache).get_or_make(KEY, Maker()) == cache / KIND / KEY
    assert other.calls == int(faster) and (KEY in names(cache / KIND)) == faster


def test_what_was_got_is_held_and_what_was_made_is_bounded(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Maker()
    with locks.collected() as kept:
        place = Cache(KIND, cache).get_or_make(KEY, make)
    bound(cache, 0)
    assert place.is_dir() and [pin.is_at(place) for pin in kept] == [True]
    kept[0].close()
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "1")
    Cache(KIND, cache).get_or_make(KEY.replace("0", "1"), make)
    assert not place.exists() and len(entries.listing(cache, KIND)) == 1


def test_a_folder_outside_of_the_cache_has_no_limit_and_no_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHARDRUN_CACHE_LIMIT", "1")
    place = Cache("device", None, tmp_path / "here").get_or_make("a", Maker("graph.onnx"))
    assert place == tmp_path / "here" / "a" and names(place.parent) == {"a", "a.lock"}


def test_the_hash_of_code_tells_versions_apart(tmp_path: Path) -> None:
    def made(name: str, file: str, text: str, when: int) -> Path:
        path = tmp_path / name / file
        path.parent.mkdir(parents=True)
        path.write_text(text)
        os.utime(path, (when, when))
        return tmp_path / name

    first = hash_of_code(made("a", "b/c.py", "pass", 7), {})
    assert first == hash_of_code(made("same", "b/c.py", "exec", 7), {})
    (made("not code", "b/c.py", "pass", 7) / "d.txt").write_text("no code")
    assert first == hash_of_code(tmp_path / "not code", {})
    others = [
        hash_of_code(made("name", "b/d.py", "pass", 7), {}),
        hash_of_code(made("size", "b/c.py", "pass #", 7), {}),
        hash_of_code(made("time", "b/c.py", "pass", 8), {}),
        hash_of_code(tmp_path / "a", {"x": "json:loads"}),
        hash_of_code(tmp_path / "a", {"y": "json:loads"}),
        hash_of_code(tmp_path / "a", {"x": "ast:parse"}),
    ]
    assert len({first, *others}) == 7
