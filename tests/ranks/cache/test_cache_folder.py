"""What the cache remembers of files, its locks and its seals: each is good for just what it was made for."""

from __future__ import annotations

import itertools
import json
import os
import stat
import time
from pathlib import Path

import onnx
import pytest

import ranks
from launcher.job import cache
from ranks.cache import entries, intact, locks, weight_entry
from ranks.cache import folder as cache_folder
from ranks.cache.folder import (
    fingerprint,
    hashes_folder,
    locked,
    recall,
    remember,
    remembered_hash,
    size_of_files,
    write_whole,
)
from ranks.cache.place import prepare
from ranks.cache.weight_entry import Blob, Entry
from ranks.common.waiting import HeldError
from ranks.errors import ModelError, WeightsError
from sharding.demands.options import SliceOptions
from sharding.onnx_files.external import put_place
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


def test_a_change_that_keeps_size_and_time_is_seen(file: Path) -> None:
    """As of a copy that takes the time of what it is a copy of."""
    remember(file, "file", [file.name], "hash")
    status = file.stat()
    time.sleep(0.02)  # the kernel's clock of files goes in steps
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert recall(file, "file") is None


@pytest.mark.parametrize("harm", ["hash", "size"])
def test_a_damaged_note_is_not_believed(file: Path, harm: str) -> None:
    remember(file, "file", [file.name], "a0")
    (memo,) = hashes_folder().iterdir()
    noted = json.loads(memo.read_bytes())
    memo.write_text(json.dumps(noted))
    assert recall(file, "file") == "a0"
    if harm == "hash":
        noted["sha256"] = "a1"
    else:  # and a file that has it
        file.write_bytes(b"longer content")
        noted["files"][0][1] = cache_folder._stamp(file)
    memo.write_text(json.dumps(noted))
    assert recall(file, "file") is None


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


@pytest.mark.parametrize("again", [False, True])
def test_a_folder_that_is_removed_while_it_is_taken_is_not_there(
    file: Path, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Who holds what has no name any more, or another's, holds nothing that others would leave alone."""
    folder, lock = file.with_name("kept"), locks.lock
    folder.mkdir()

    def replaced(descriptor: int, how: int, at: Path, seconds: float | None = None) -> bool:
        at.rename(at.with_name("gone"))
        if again:
            at.mkdir()
        return lock(descriptor, how, at, seconds)

    monkeypatch.setattr(locks, "lock", replaced)
    assert locks.pin(folder) is None


def test_what_is_kept_for_others_is_kept_for_an_hour_at_most(file: Path) -> None:
    """A time of years to come is one that a wrong clock gave: to use the folder sets it right."""
    folder = file.with_name("kept")
    folder.mkdir()
    locks.expect(folder, 1e9)
    for seconds, expected in ((0.0, True), (1e8, False)):
        then = folder.stat().st_mtime + seconds
        os.utime(folder, (then, then))
        held = locks.pin(folder)
        assert held is not None
        held.close()
        assert (folder.stat().st_mtime == then) is expected


def test_what_is_kept_for_others_was_used_now(file: Path) -> None:
    """No list of the cache says that something will have been used tomorrow."""
    root = file.with_name("cache")
    made = prepare(root, "slices") / f"m-2-{'0' * 24}"
    made.mkdir()
    locks.expect(made, 1000)
    (found,) = entries.listing(root, "slices")
    assert found.path == made and found.used <= time.time()
    assert not entries.remove(found) and made.is_dir()
    os.utime(made)
    assert entries.remove(found) and not made.exists()


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


def _external(folder: Path, offset: int, rows: int, size: int) -> Path:
    """A model whose weight lies in so long a file, mostly a hole."""
    node = onnx.helper.make_node("MatMul", ["x", "w"], ["y"])
    x, y = (onnx.helper.make_tensor_value_info(name, 1, ["n", 16]) for name in "xy")
    weight = onnx.TensorProto(name="w", data_type=1, dims=[rows, 16])
    put_place(weight, "w.data", offset, rows * 64)
    path = folder / "model.onnx"
    graph = onnx.helper.make_graph([node], "g", [x], [y], [weight])
    opset = onnx.helper.make_opsetid("", 20)
    onnx.save(onnx.helper.make_model(graph, ir_version=10, opset_imports=[opset]), path)
    with (folder / "w.data").open("wb") as data:
        data.truncate(size)
    return path


@pytest.mark.timeout(60)
def test_of_external_data_only_what_a_model_uses_counts(file: Path) -> None:
    """The file is a terabyte long, of which the model has a kilobyte."""
    size = 1 << 40
    path = _external(file.parent, size - 4096, 16, size)
    found = [fingerprint(path)]
    assert size_of_files(path) < 4096
    for offset in (0, size - 5000, size - 4096, size - 4096 + 1023, size - 3072):
        with (file.parent / "w.data").open("r+b") as data:
            data.seek(offset)
            data.write(b"x")
        found.append(fingerprint(path))
    same = [before == after for before, after in itertools.pairwise(found)]
    assert same == [True, True, False, False, True]


@pytest.mark.parametrize(
    ("name", "size", "taken"),
    [("ab" * 32, 1, True), ("../ab", 1, False), ("AB" * 32, 1, False), ("ab", -1, False)],
)
def test_an_entry_names_weights_of_the_store_only(file: Path, name: str, size: int, taken: bool) -> None:
    key, folder = "0" * 32, file.parent
    weight_entry.write(folder, Entry(key, "m", blobs=(Blob(name, size),)), folder)
    assert (weight_entry.read_from(folder / f"{key}.json") is not None) is taken


def test_what_a_file_lacks_takes_no_room(file: Path) -> None:
    """A weight may be said to be longer than its file: its reader says so, not that a disk is too small."""
    path = _external(file.parent, 96, 1 << 30, 100)
    assert size_of_files(path) == path.stat().st_size + 4


@pytest.mark.timeout(60)
def test_weights_that_no_cache_holds_are_not_read(file: Path) -> None:
    rows = 1 << 34
    path = _external(file.parent, 0, rows, rows * 64)
    with pytest.raises(
        WeightsError, match=rf"they have {rows * 64 + path.stat().st_size} bytes, and the cache may take"
    ):
        ranks.share_weights(str(path))


@pytest.mark.timeout(60)
@pytest.mark.parametrize("tail", [b"", b"\xa2\x06\x80\x80\x80\x80\x80\x20"], ids=["zeros", "a field"])
def test_what_no_reader_takes_is_not_hashed(file: Path, tail: bytes) -> None:
    path = _external(file.parent, 0, 16, 4096)
    with path.open("ab") as model:
        model.write(tail)
        model.truncate(model.tell() + (1 << 40))
    for use in (fingerprint, lambda path: ranks.share_weights(str(path))):
        with pytest.raises(ModelError, match="is not an ONNX file, or it is truncated"):
            use(path)


@pytest.mark.parametrize(
    "told",
    [
        {"offset": "0", "length": "0"},  # which ONNX Runtime takes as not said
        {"offset": "", "length": ""},
        {"offset": "0", "length": "64", "prepacked_0": "4096;64;x"},
    ],
    ids=["length 0", "empty", "packed"],
)
def test_all_of_a_file_counts_where_it_is_not_said_what_is_used(file: Path, told: dict[str, str]) -> None:
    path = _external(file.parent, 0, 16, 8192)
    model = onnx.load(path, load_external_data=False)
    (weight,) = model.graph.initializer
    del weight.external_data[:]
    for key, value in {"location": "w.data", **told}.items():
        weight.external_data.add(key=key, value=value)
    path.write_bytes(model.SerializeToString())
    before = fingerprint(path)
    with (file.parent / "w.data").open("r+b") as data:
        data.seek(4100)
        data.write(b"x")
    assert fingerprint(path) != before


@pytest.mark.parametrize("offset", [1 << 63, 10**30])
def test_places_that_no_file_has_are_refused(file: Path, offset: int) -> None:
    path = _external(file.parent, offset, 16, 8192)
    assert size_of_files(path) < 4096 and fingerprint(path)
    with pytest.raises(RuntimeError, match=r"model\.onnx"):
        ranks.share_weights(str(path))


def test_a_model_that_is_replaced_while_it_is_read_is_not_remembered(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was used of the weights of the one before says nothing of those of the next."""
    path = _external(file.parent, 0, 16, 8192)
    read = cache_folder._external_files

    def replaced(model: Path) -> object:
        found = read(model)
        _external(file.parent, 4096, 16, 8192)
        os.utime(path, (1, 1))
        return found

    monkeypatch.setattr(cache_folder, "_external_files", replaced)
    fingerprint(path)
    assert recall(path, "model") is None


@pytest.mark.parametrize("error", [RecursionError("nested"), ModelError("damaged")])
def test_a_model_that_cannot_be_read_has_its_own_bytes(
    file: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(path: Path) -> None:
        raise error

    monkeypatch.setattr(cache_folder, "_external_files", fails)
    assert cache_folder.size_of_files(file) == file.stat().st_size
    assert cache_folder.size_of_files(file.with_name("nowhere")) == 0
