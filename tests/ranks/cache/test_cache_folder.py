"""What the cache remembers of files, its locks and its seals: each is good for just what it was made for."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from launcher.job import cache
from ranks.cache import entries, intact, locks
from ranks.cache import folder as cache_folder
from ranks.cache.folder import hashes_folder, locked, recall, remember, remembered_hash, write_whole
from ranks.common.waiting import HeldError
from sharding.demands.options import SliceOptions
from sharding.slices.manifest import FILE_NAME


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "file"
    path.write_bytes(b"content")
    return path


def test_what_is_remembered_of_a_path_is_of_one_kind(file: Path) -> None:
    """The hash of a model and that of its file's bytes are two things."""
    remember(file, "model", [file.name], "of the model")
    assert recall(file, "file") is None
    remember(file, "file", [file.name], "of the file")
    assert (recall(file, "model"), recall(file, "file")) == ("of the model", "of the file")
    file.write_bytes(b"another")
    assert recall(file, "model") is recall(file, "file") is None


def test_a_file_that_changes_while_it_is_read_is_not_remembered(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(path: Path) -> str:
        path.write_bytes(b"other bytes")
        return "of neither"

    monkeypatch.setattr(cache_folder, "sha256_of", change)
    remembered_hash(file)
    assert recall(file, "file") is None


@pytest.mark.parametrize("mask", [0o000, 0o377])
def test_what_is_remembered_is_for_this_user_alone(file: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        remember(file, "file", [file.name], "hash")
        write_whole(file, b"shared", 0o644)
    finally:
        os.umask(before)
    (memo,) = hashes_folder().iterdir()
    assert stat.S_IMODE(memo.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.stat().st_mode) == 0o644 and file.read_bytes() == b"shared"


def test_a_lock_that_was_removed_by_its_holder_is_not_the_lock(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waited for it holds a file that nobody else will find; it must take the one that is there."""
    path, lock, removed = file.with_name("key.lock"), locks.lock, []

    def remove_once(descriptor: int, how: int, at: Path, seconds: float | None = None) -> bool:
        taken = lock(descriptor, how, at, seconds)
        if not removed:
            removed.append(path.unlink())
        return taken

    monkeypatch.setattr(locks, "lock", remove_once)
    with locked(path, 1):
        assert removed and path.exists()
        with pytest.raises(HeldError), locked(path, 0):
            pass
    with locked(path, 0):
        pass


def test_a_seal_that_names_nothing_is_none(file: Path) -> None:
    folder = file.parent / "folder"
    folder.mkdir()
    (folder / intact.SEAL).write_text("{}")
    assert not intact.is_sealed(folder)
    (folder / "a").write_bytes(b"a")
    intact.seal(folder)
    assert intact.is_sealed(folder)


def test_slices_of_another_slicer_are_made_again(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = cache._key(file, 2, SliceOptions())
    assert cache._key(file, 2, SliceOptions()) == key
    monkeypatch.setattr(cache, "_slicer", lambda: "another version")
    assert cache._key(file, 2, SliceOptions()) != key


def test_what_a_process_has_mapped_is_not_removed(file: Path) -> None:
    """Of programs that hold no locks this alone tells."""
    place = file.parent / "cache" / "slices" / f"m-2-{'0' * 24}"
    place.mkdir(parents=True)
    (place / FILE_NAME).touch()
    found = entries.Folder("slices", place, 0, 0.0)
    assert not entries.remove(found, [str(place / "rank_0.data")]) and place.is_dir()
    assert entries.remove(found, [f"{place}-more/rank_0.data"]) and not place.exists()


def test_new_slices_are_held_as_those_that_were_there(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def make(place: Path, *_: object) -> None:
        place.mkdir()

    monkeypatch.setattr(cache, "_slice_into", make)
    with locks.collected() as kept:
        place = cache.sliced(file, 2)
    assert [pin.is_at(place) for pin in kept] == [True]
    found = entries.Folder("slices", place, 0, 0.0)
    assert not entries.remove(found)
    kept[0].close()
    assert entries.remove(found)
